"""Audio in and out: files, pipes and microphones as blocks of (channels, n) float32."""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import numpy as np
import soundfile
from numpy.typing import ArrayLike, NDArray

from centaurus.audio import AudioError, Resampler, Writer, blocks, info
from centaurus.audio.containers import ARECORD, is_streamed
from centaurus.runtime.modelfile import PEAK
from centaurus.system import OutputError, install_command

Block = NDArray[np.float32]
READ = 1 << 16  # bytes at once, at most; what has arrived is taken as it is
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

    def __init__(self, name: str) -> None:
        self.bytes = int(name.strip("usfle")) // 8
        self.real = name.startswith("f")


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
            raise AudioError(f"ended {self._left:,} bytes before the length its WAV header promised", self.name)
        while self.wav and _some(self._stream, READ):
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
            raise AudioError(
                "is not a WAV stream; for raw samples give their format, such as --raw s16le --rate 16000", self.name
            )
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
            raise AudioError("its WAV header has samples before their format", self.name)
        length = long if size == UNKNOWN and long else size
        known = length < 1 << 62 and not (length == size and (is_streamed(size) or size == ARECORD))
        self._left = length // layout.frame * layout.frame if known else None
        return layout

    def _format(self, chunk: bytes) -> Layout:
        tag, channels, rate, _, align, bits = struct.unpack("<HHIIHH", chunk[:16])
        if tag == EXTENSIBLE and len(chunk) >= 26:
            tag = struct.unpack("<H", chunk[24:26])[0]
        name = {PCM: "u8" if bits == 8 else f"s{bits}le", FLOAT: f"f{bits}le"}.get(tag)
        known = {encoding.value: encoding for encoding in Encoding}
        if name not in known:
            raise AudioError(f"WAV of kind {tag} with {bits} bits is not known: only PCM and float", self.name)
        layout = Layout(rate, channels, known[name])
        if align != layout.frame:
            raise AudioError(f"its WAV header says {align} bytes a frame, which should be {layout.frame}", self.name)
        return layout

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = _some(self._stream, count - len(data))
            if not more:
                what = "is empty" if not data else "ends within its WAV header"
                raise AudioError(what, self.name)
            data += more
        return data

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self._exactly(min(count, READ)))


def _some(stream: BinaryIO, count: int) -> bytes:
    """What has arrived, at least a byte unless the stream has ended.

    The unbuffered stream is asked: a buffered one cannot tell the end of a non-blocking stream from "nothing yet".
    """
    raw = getattr(stream, "raw", stream)
    while (data := raw.read(count)) is None:
        select.select([raw], [], [])
    return bytes(data)


def _all(stream: BinaryIO, data: bytes) -> None:
    """Write everything at once, waiting where a non-blocking stream takes no more."""
    raw, rest = getattr(stream, "raw", stream), memoryview(data)
    while rest:
        count = raw.write(rest)
        if count is None:
            select.select([], [raw], [])
        rest = rest[count or 0 :]


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
            _all(stream, wav_header(layout))

    def write(self, x: NDArray[np.float32]) -> None:
        """Append (channels, n)."""
        _all(self._stream, encode(x, self.layout.encoding))


MICROPHONE_BLOCK = 0.02  # seconds


class DeviceError(OSError):
    """There is no microphone to listen to; the message says what to install or to choose."""


def sounddevice() -> Any:
    """The module, or a message that says what is missing."""
    try:
        import sounddevice as found
    except ModuleNotFoundError as error:
        raise DeviceError(f"a microphone needs sounddevice: {install_command('mic')}") from error
    except OSError as error:
        raise DeviceError(
            "a microphone needs the PortAudio library, which is not installed: apt install libportaudio2, "
            "dnf install portaudio or brew install portaudio. Or pipe into the command: arecord -f S16_LE -r 16000 | …"
        ) from error
    return found


class Microphone:
    """Blocks (1, n) as they are heard, until the stream is closed. ``device`` is a number or part of a name."""

    def __init__(self, rate: int, device: str | None = None) -> None:
        self.rate = rate
        self._heard: SimpleQueue[NDArray[np.float32]] = SimpleQueue()
        module = sounddevice()
        chosen = int(device) if device is not None and device.isdecimal() else device
        try:
            self._stream = module.InputStream(
                samplerate=rate,
                device=chosen,
                channels=1,
                dtype="float32",
                blocksize=round(rate * MICROPHONE_BLOCK),
                callback=self._hear,
            )
        except (module.PortAudioError, ValueError) as error:
            raise DeviceError(f"no microphone{_named(device)} can be opened at {rate} Hz: {error}") from error

    def _hear(self, block: NDArray[np.float32], frames: int, time: Any, status: Any) -> None:
        self._heard.put(block.T.copy())

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        with self._stream:
            while True:
                yield self._heard.get()


def _named(device: str | None) -> str:
    return "" if device is None else f" {device!r}"


ENCODINGS = {
    "PCM_U8": Encoding.U8,
    "PCM_24": Encoding.S24,
    "PCM_32": Encoding.S32,
    "FLOAT": Encoding.F32,
    "DOUBLE": Encoding.F64,
}


@dataclass(frozen=True)
class Source:
    """Blocks (channels, n). ``frames`` is the length where it is known; ``live`` if the sound is still being made."""

    name: str
    layout: Layout
    blocks: Iterable[Block]
    frames: int | None = None
    live: bool = False

    @property
    def rate(self) -> int:
        return self.layout.rate

    @property
    def channels(self) -> int:
        return self.layout.channels


def from_file(path: str | os.PathLike[str], seconds: float = 1.0) -> Source:
    """A sound file in blocks of about so many seconds. One that is cut short is an error, at once or at its end."""
    about = info(path)
    if about.truncated:
        raise AudioError(f"is cut short: {about.truncated}", path)
    pieces = _complete(path, max(1, round(about.rate * seconds)), about.frames)
    layout = Layout(about.rate, about.channels, ENCODINGS.get(about.subtype, Encoding.S16))
    return Source(str(path), layout, pieces, about.frames)


def _complete(path: str | os.PathLike[str], frames: int, expected: int) -> Iterator[Block]:
    count = 0
    for block in blocks(path, frames):
        count += block.shape[-1]
        yield block
    if count < expected:
        raise AudioError(f"is cut short: {count} of {expected} frames could be decoded", path)


def from_pipe(stream: BinaryIO, raw: Layout | None = None) -> Source:
    """Standard input or another byte stream: WAV, or raw samples in a given layout."""
    reader = Reader(stream, raw)
    return Source(reader.name, reader.layout, reader, live=True)


def from_microphone(rate: int, device: str | None = None) -> Source:
    """Open a microphone as a source of blocks, until the iteration ends."""
    return Source("microphone", Layout(rate, 1), Microphone(rate, device), live=True)


def as_rows(samples: ArrayLike) -> NDArray[np.float32]:
    """(t,) or (channels, t) as float32 (channels, t); integers are scaled to ±1."""
    x: NDArray[Any] = np.asarray(samples)
    if x.ndim not in (1, 2):
        raise ValueError(f"samples should be (t,) or (channels, t), got shape {x.shape}")
    if x.ndim == 2 and x.shape[0] > max(x.shape[1], 32):
        raise ValueError(f"samples should be (channels, t), got shape {x.shape}: transpose them")
    if x.dtype.kind == "i":
        x = x / -float(np.iinfo(x.dtype).min)
    elif x.dtype.kind != "f":
        raise ValueError(f"samples should be floats or signed integers, got {x.dtype}")
    with np.errstate(over="ignore"):  # beyond float32 is infinity, which ``Intake`` takes out
        return np.atleast_2d(x.astype(np.float32))


class Intake:
    """Resample blocks to the network's rate. NaN and infinity become zeros, other samples are clipped to ±``peak``.

    Both are counted in ``repaired``. A live stream cannot be refused halfway, and NaN would never leave the network's
    state.
    """

    def __init__(self, rate: int, channels: int, wanted: int, mono: bool = False, peak: float = PEAK) -> None:
        self.channels, self.mono, self.peak, self.repaired = channels, mono, peak, 0
        self._resampler = Resampler(rate, wanted, 1 if mono else channels)

    def finite(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the samples with NaN and infinity replaced and the rest clipped: the one check of a block."""
        if x.ndim != 2 or x.shape[0] != self.channels:
            raise ValueError(f"blocks should be ({self.channels}, n), got shape {x.shape}")
        fine = np.abs(x) <= self.peak  # false for NaN
        if fine.all():
            return x
        self.repaired += int(fine.size - fine.sum())
        return np.clip(np.where(np.isfinite(x), x, np.float32(0)), -self.peak, self.peak)

    def process(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Check a block (channels, n) and return what is ready at the network's rate, (1, m) or (channels, m)."""
        return self.resample(self.finite(x))

    def resample(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return what is ready at the network's rate of a block that ``finite`` has checked."""
        return self._resampler.process(x.mean(axis=0, keepdims=True, dtype=np.float32) if self.mono else x)

    def flush(self) -> NDArray[np.float32]:
        """Return the rest and reset the resampler."""
        return self._resampler.flush()


SUBTYPES = {
    Encoding.U8: "PCM_U8",
    Encoding.S16: "PCM_16",
    Encoding.S24: "PCM_24",
    Encoding.S32: "PCM_32",
    Encoding.F32: "FLOAT",
    Encoding.F64: "DOUBLE",
}
LARGE = 3_900_000_000  # bytes: a plain WAV file can hold a little more


def subtype_in(suffix: str, encoding: Encoding) -> str | None:
    """How a format stores such samples: as they are, else with 24 bits if they had more than 16, else its own way."""
    kind = {".aif": "AIFF"}.get(suffix, suffix[1:].upper())
    wanted = SUBTYPES[encoding], "PCM_24" if encoding.bytes > 2 else ""
    known = soundfile.available_subtypes(kind) if kind in soundfile.available_formats() else {}
    return next((subtype for subtype in wanted if subtype in known), None)


def make_folder(path: Path) -> None:
    """Make a folder, with those above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made a folder: {error.strerror}", path) from error


def open_writer(
    path: str | os.PathLike[str],
    layout: Layout,
    frames: int | None = None,
    overwrite: bool = False,
    like: str | os.PathLike[str] | None = None,
) -> Writer:
    """A sound file for blocks of a layout: there whole in the end, or not at all. ``frames`` is the length if known."""
    suffix = Path(path).suffix.lower()
    large = frames is None or frames * layout.frame > LARGE
    subtype = subtype_in(suffix, layout.encoding)
    return Writer(path, layout.rate, layout.channels, None, subtype, overwrite, large, like)
