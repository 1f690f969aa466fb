"""Audio in and out: files, pipes and microphones as blocks of (channels, n) float32."""

from __future__ import annotations

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
from centaurus.system import AnyPath, OutputError, install_command

Block = NDArray[np.float32]
READ = 1 << 16  # bytes of one read, at most
UNKNOWN = 0xFFFFFFFF  # the size of a WAV stream whose length is not known, as ffmpeg writes it
PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # format tags of WAV
CHANNELS = 64  # at most
MICROPHONE_BLOCK = 0.02  # seconds
LARGE = 3_900_000_000  # bytes of samples, a little below the 4 GiB of a plain WAV file


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
            raise AudioError(f"the sample rate should be between 1 kHz and 1 MHz, got {self.rate} Hz")
        if not 1 <= self.channels <= CHANNELS:
            raise AudioError(f"there should be 1 to {CHANNELS} channels, got {self.channels}")

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.encoding.bytes * self.channels


def decode(data: bytes, layout: Layout) -> NDArray[np.float32]:
    """Return whole frames of interleaved bytes as (channels, n), between −1 and 1."""
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
    """Return (channels, n) as interleaved bytes; integers are rounded, and clipped at full scale."""
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
    """Iterates over the blocks (channels, n) of a byte stream as they arrive: WAV, or raw samples of a given layout."""

    def __init__(self, stream: BinaryIO, raw: Layout | None = None, name: str = "standard input") -> None:
        self.name, self.wav = name, raw is None
        self._stream = stream
        self._left: int | None = None  # bytes of samples left by the header; None: until the end
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
            raise AudioError(f"ended {self._left:,} bytes before the length in its WAV header", self.name)
        while self.wav and _read_available(self._stream, READ):
            pass  # chunks after the samples: the writer should not see a broken pipe

    def _read(self) -> bytes:
        if self._left is None:
            return _read_available(self._stream, READ)
        data = _read_available(self._stream, min(READ, self._left)) if self._left else b""
        self._left -= len(data)
        return data

    def _header(self) -> Layout:
        head = self._read_exactly(12)
        if head[:4] not in (b"RIFF", b"RF64") or head[8:] != b"WAVE":
            raise AudioError(
                "is not a WAV stream; for raw samples give their format, such as --raw s16le --rate 16000", self.name
            )
        layout, long = None, None
        while True:
            name, size = struct.unpack("<4sI", self._read_exactly(8))
            if name == b"data":
                break
            if name == b"fmt " and 16 <= size <= 1024:
                layout = self._format(self._read_exactly(size + size % 2))
            elif name == b"ds64" and 16 <= size <= 1024:
                long = struct.unpack("<Q", self._read_exactly(size + size % 2)[8:16])[0]
            else:
                left = size + size % 2
                while left:
                    left -= len(self._read_exactly(min(left, READ)))
        if layout is None:
            raise AudioError("its WAV header has the samples before their format", self.name)
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
            raise AudioError(f"WAV format {tag} with {bits} bits is not supported: only PCM and float", self.name)
        layout = Layout(rate, channels, known[name])
        if align != layout.frame:
            raise AudioError(f"its WAV header says {align} bytes per frame, expected {layout.frame}", self.name)
        return layout

    def _read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = _read_available(self._stream, count - len(data))
            if not more:
                what = "is empty" if not data else "ends within its WAV header"
                raise AudioError(what, self.name)
            data += more
        return data


def _read_available(stream: BinaryIO, count: int) -> bytes:
    """Read what has arrived: at least a byte, unless the stream has ended.

    From the unbuffered stream: a buffered one cannot tell the end of a non-blocking stream from "nothing yet".
    """
    raw = getattr(stream, "raw", stream)
    while (data := raw.read(count)) is None:
        select.select([raw], [], [])
    return bytes(data)


def _write_all(stream: BinaryIO, data: bytes) -> None:
    """Write all of ``data``, waiting while a non-blocking stream is full."""
    raw, rest = getattr(stream, "raw", stream), memoryview(data)
    while rest:
        count = raw.write(rest)
        if count is None:
            select.select([], [raw], [])
        rest = rest[count or 0 :]


def wav_header(layout: Layout) -> bytes:
    """Return a WAV header for a stream of unknown length: both sizes are the largest, as in ffmpeg."""
    tag, bits = FLOAT if layout.encoding.real else PCM, 8 * layout.encoding.bytes
    rate, frame = layout.rate, layout.frame
    form = struct.pack("<IHHIIHH", 16, tag, layout.channels, rate, rate * frame, frame, bits)
    size = struct.pack("<I", UNKNOWN)
    return b"RIFF" + size + b"WAVE" + b"fmt " + form + b"data" + size


class Pipe:
    """Writes samples to a byte stream without buffering: WAV, or raw samples."""

    def __init__(self, stream: BinaryIO, layout: Layout, wav: bool = True) -> None:
        self._stream, self.layout = stream, layout
        if wav:
            _write_all(stream, wav_header(layout))

    def write(self, x: NDArray[np.float32]) -> None:
        """Append (channels, n)."""
        _write_all(self._stream, encode(x, self.layout.encoding))


class DeviceError(OSError):
    """A microphone that cannot be opened; the message says what to install or to choose."""


def sounddevice() -> Any:
    """Import ``sounddevice``, or raise a ``DeviceError`` that says what to install."""
    try:
        import sounddevice as module
    except ModuleNotFoundError as error:
        raise DeviceError(f"a microphone needs sounddevice: {install_command('mic')}") from error
    except OSError as error:
        raise DeviceError(
            "a microphone needs the PortAudio library, which is not installed: apt install libportaudio2, "
            "dnf install portaudio or brew install portaudio. Or pipe into the command: arecord -f S16_LE -r 16000 | …"
        ) from error
    return module


class Microphone:
    """Iterates over blocks (1, n) as they are recorded. ``device`` is a number or part of a name."""

    def __init__(self, rate: int, device: str | None = None) -> None:
        self.rate = rate
        self._recorded: SimpleQueue[NDArray[np.float32]] = SimpleQueue()
        module = sounddevice()
        chosen = int(device) if device is not None and device.isdecimal() else device
        try:
            self._stream = module.InputStream(
                samplerate=rate,
                device=chosen,
                channels=1,
                dtype="float32",
                blocksize=round(rate * MICROPHONE_BLOCK),
                callback=self._on_block,
            )
        except (module.PortAudioError, ValueError) as error:
            name = "" if device is None else f" {device!r}"
            raise DeviceError(f"no microphone{name} can be opened at {rate} Hz: {error}") from error

    def _on_block(self, block: NDArray[np.float32], frames: int, time: Any, status: Any) -> None:
        self._recorded.put(block.T.copy())

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        with self._stream:
            while True:
                yield self._recorded.get()


SUBTYPES = dict(zip(Encoding, ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"), strict=True))
"""The encodings by libsndfile's names."""


@dataclass(frozen=True)
class Source:
    """Blocks (channels, n). ``frames`` is the length if it is known; ``live`` is for pipes and microphones."""

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


def from_file(path: AnyPath, seconds: float = 1.0) -> Source:
    """Open an audio file in blocks of about ``seconds`` seconds. A truncated one is an error, at once or at its end."""
    about = info(path)
    if about.truncated:
        raise AudioError(f"is truncated: {about.truncated}", path)
    pieces = _complete(path, max(1, round(about.rate * seconds)), about.frames)
    encoding = next((known for known, name in SUBTYPES.items() if name == about.subtype), Encoding.S16)
    layout = Layout(about.rate, about.channels, encoding)
    return Source(str(path), layout, pieces, about.frames)


def _complete(path: AnyPath, frames: int, expected: int) -> Iterator[Block]:
    count = 0
    for block in blocks(path, frames):
        count += block.shape[-1]
        yield block
    if count < expected:
        raise AudioError(f"is truncated: {count} of {expected} frames could be decoded", path)


def from_pipe(stream: BinaryIO, raw: Layout | None = None) -> Source:
    """Open standard input or another byte stream: WAV, or raw samples in a given layout."""
    reader = Reader(stream, raw)
    return Source(reader.name, reader.layout, reader, live=True)


def from_microphone(rate: int, device: str | None = None) -> Source:
    """Open a microphone as a source of blocks, until the iteration ends."""
    return Source("microphone", Layout(rate, 1), Microphone(rate, device), live=True)


def as_rows(samples: ArrayLike) -> NDArray[np.float32]:
    """Return samples (t,) or (channels, t) as float32 (channels, t); integers are scaled to ±1."""
    x: NDArray[Any] = np.asarray(samples)
    if x.ndim not in (1, 2):
        raise ValueError(f"samples should be (t,) or (channels, t), got shape {x.shape}")
    if x.ndim == 2 and x.shape[0] > max(x.shape[1], 32):
        raise ValueError(f"samples should be (channels, t), got shape {x.shape}: transpose them")
    if x.dtype.kind == "i":
        x = x / -float(np.iinfo(x.dtype).min)
    elif x.dtype.kind != "f":
        raise ValueError(f"samples should be floats or signed integers, got {x.dtype}")
    with np.errstate(over="ignore"):  # beyond float32 is infinity, which ``Intake`` replaces
        return np.atleast_2d(x.astype(np.float32))


class Intake:
    """Resample blocks to the network's rate. NaN and infinity become zeros, other samples are clipped to ±``peak``.

    Both are counted in ``repaired``. A live stream cannot be refused halfway, and NaN would stay in the network's
    state.
    """

    def __init__(self, rate: int, channels: int, network_rate: int, mono: bool = False, peak: float = PEAK) -> None:
        self.channels, self.mono, self.peak, self.repaired = channels, mono, peak, 0
        self._resampler = Resampler(rate, network_rate, 1 if mono else channels)

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


def subtype_in(suffix: str, encoding: Encoding) -> str | None:
    """Return the subtype of a format for samples: as they are, else 24 bits if they have more than 16, else None."""
    kind = {".aif": "AIFF"}.get(suffix, suffix[1:].upper())
    preferred = SUBTYPES[encoding], "PCM_24" if encoding.bytes > 2 else ""
    known = soundfile.available_subtypes(kind) if kind in soundfile.available_formats() else {}
    return next((subtype for subtype in preferred if subtype in known), None)


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be created as a folder: {error.strerror}", path) from error


def open_writer(
    path: AnyPath, layout: Layout, frames: int | None = None, overwrite: bool = False, like: AnyPath | None = None
) -> Writer:
    """Open an audio file to write blocks of a layout, atomically. ``frames`` is its length."""
    suffix = Path(path).suffix.lower()
    large = frames is None or frames * layout.frame > LARGE
    subtype = subtype_in(suffix, layout.encoding)
    return Writer(path, layout.rate, layout.channels, None, subtype, overwrite, large, like)
