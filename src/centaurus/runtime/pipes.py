"""Sound through pipes: raw samples or WAV whose length is not known yet, as arecord, sox and ffmpeg write it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError

READ = 1 << 16  # bytes at once, at most; what has arrived is taken as it is
STREAMED = 0x7FFF0000  # WAV sizes from here on, and zero, mean that the writer did not know the length
UNKNOWN = 0xFFFFFFFF
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
CHANNELS = 64


class Encoding(Enum):
    """How a sample is stored: named as ffmpeg names raw formats."""

    U8 = "u8"
    S16 = "s16le"
    S24 = "s24le"
    S32 = "s32le"
    F32 = "f32le"
    F64 = "f64le"

    @property
    def bytes(self) -> int:
        return int(self.value.strip("usfle")) // 8

    @property
    def real(self) -> bool:
        return self.value.startswith("f")


@dataclass(frozen=True)
class Layout:
    """Rate, channels and encoding of a stream."""

    rate: int
    channels: int
    encoding: Encoding = Encoding.S16

    def __post_init__(self) -> None:
        if not 1000 <= self.rate <= 1_000_000:
            raise AudioError(f"a sample rate between 1 kHz and 1 MHz is needed, got {self.rate} Hz")
        if not 1 <= self.channels <= CHANNELS:
            raise AudioError(f"between 1 and {CHANNELS} channels are possible, got {self.channels}")

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.encoding.bytes * self.channels


def decode(data: bytes, layout: Layout) -> NDArray[np.float32]:
    """Whole frames of interleaved bytes as (channels, n) between −1 and 1."""
    kind = layout.encoding
    x: NDArray[Any]
    if kind.real:
        x = np.frombuffer(data, f"<f{kind.bytes}").astype(np.float32)
    elif kind is Encoding.U8:
        x = (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    else:
        x = _integers(data, kind) / np.float32(2.0 ** (8 * kind.bytes - 1))
    return np.ascontiguousarray(x.astype(np.float32, copy=False).reshape(-1, layout.channels).T)


def _integers(data: bytes, kind: Encoding) -> NDArray[np.float32]:
    if kind is not Encoding.S24:
        return np.frombuffer(data, f"<i{kind.bytes}").astype(np.float32)
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return (wide.view("<i4")[:, 0] >> 8).astype(np.float32)


def encode(x: NDArray[np.float32], encoding: Encoding) -> bytes:
    """(channels, n) as interleaved bytes; integers are rounded, and clipped at full scale."""
    flat = np.ascontiguousarray(x.T).reshape(-1)
    if encoding.real:
        return flat.astype(f"<f{encoding.bytes}").tobytes()
    scale = 2.0 ** (8 * encoding.bytes - 1)
    whole = np.clip(np.rint(flat.astype(np.float64) * scale), -scale, scale - 1)
    if encoding is Encoding.U8:
        return (whole + 128).astype(np.uint8).tobytes()
    if encoding is Encoding.S24:
        return whole.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return whole.astype(f"<i{encoding.bytes}").tobytes()


class Reader:
    """Blocks (channels, n) out of a byte stream, as soon as they arrive. WAV unless a raw layout is given."""

    def __init__(self, stream: BinaryIO, raw: Layout | None = None, name: str = "standard input") -> None:
        self.name, self.wav = name, raw is None
        self._stream = stream
        self._left: int | None = None  # bytes of samples still promised; None: until the end
        self.layout = raw or self._header()

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        frame, rest = self.layout.frame, b""
        while data := self._read():
            data = rest + data
            whole = len(data) // frame * frame
            rest = data[whole:]
            if whole:
                yield decode(data[:whole], self.layout)
        if self._left:
            raise AudioError(f"{self.name}: ended {self._left:,} bytes before the length its WAV header promised")
        while self.wav and self._stream.read(READ):
            pass  # chunks after the samples: the writer should not see a broken pipe

    def _read(self) -> bytes:
        if self._left is None:
            return _some(self._stream, READ)
        data = _some(self._stream, min(READ, self._left)) if self._left else b""
        self._left -= len(data)
        return data

    def _header(self) -> Layout:
        head = self._exactly(12)
        if head[:4] not in (b"RIFF", b"RF64") or head[8:] != b"WAVE":
            raise AudioError(f"{self.name}: is no WAV stream; for raw samples say which, as --raw s16le --rate 16000")
        layout, long = None, None
        while True:
            name, size = struct.unpack("<4sI", self._exactly(8))
            if name == b"data":
                break
            if name == b"fmt " and 16 <= size <= 1024:
                layout = self._format(self._exactly(size + size % 2))
            elif name == b"ds64" and 16 <= size <= 1024:
                long = struct.unpack("<Q", self._exactly(size + size % 2)[8:16])[0]
            else:
                self._skip(size + size % 2)
        if layout is None:
            raise AudioError(f"{self.name}: its WAV header has samples before their format")
        length = long if size == UNKNOWN and long else size
        known = 0 < length < STREAMED or (length == long and length < 1 << 62)
        self._left = length // layout.frame * layout.frame if known else None
        return layout

    def _format(self, chunk: bytes) -> Layout:
        tag, channels, rate, _, align, bits = struct.unpack("<HHIIHH", chunk[:16])
        if tag == EXTENSIBLE and len(chunk) >= 26:
            tag = struct.unpack("<H", chunk[24:26])[0]
        name = {PCM: "u8" if bits == 8 else f"s{bits}le", FLOAT: f"f{bits}le"}.get(tag)
        known = {encoding.value: encoding for encoding in Encoding}
        if name not in known:
            raise AudioError(f"{self.name}: WAV of kind {tag} with {bits} bits is not known: only PCM and float")
        layout = Layout(rate, channels, known[name])
        if align != layout.frame:
            raise AudioError(f"{self.name}: its WAV header says {align} bytes a frame, which should be {layout.frame}")
        return layout

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = _some(self._stream, count - len(data))
            if not more:
                what = "is empty" if not data else "ends within its WAV header"
                raise AudioError(f"{self.name}: {what}")
            data += more
        return data

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self._exactly(min(count, READ)))


def _some(stream: BinaryIO, count: int) -> bytes:
    """What has arrived, at least a byte unless the stream has ended."""
    read = getattr(stream, "read1", stream.read)
    return bytes(read(count))


def wav_header(layout: Layout) -> bytes:
    """A WAV header for a stream whose length is not known: both sizes are the largest there are, as in ffmpeg."""
    tag, bits = FLOAT if layout.encoding.real else PCM, 8 * layout.encoding.bytes
    rate, frame = layout.rate, layout.frame
    form = struct.pack("<IHHIIHH", 16, tag, layout.channels, rate, rate * frame, frame, bits)
    size = struct.pack("<I", UNKNOWN)
    return b"RIFF" + size + b"WAVE" + b"fmt " + form + b"data" + size


class Pipe:
    """Samples to a byte stream, written through at once. WAV, or raw samples."""

    def __init__(self, stream: BinaryIO, layout: Layout, wav: bool = True) -> None:
        self._stream, self.layout = stream, layout
        if wav:
            stream.write(wav_header(layout))
            stream.flush()

    def write(self, x: NDArray[np.float32]) -> None:
        """Append (channels, n)."""
        self._stream.write(encode(x, self.layout.encoding))
        self._stream.flush()
