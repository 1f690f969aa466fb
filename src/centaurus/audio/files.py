"""Read and write audio files: any format and rate that libsndfile knows, whole or in blocks of constant memory."""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import soundfile
from numpy.typing import ArrayLike, NDArray

from centaurus.audio.containers import Spliced, survey
from centaurus.audio.signal import resample
from centaurus.system import AnyPath, FileError, OutputError, replacing

Samples = NDArray[np.float32]

MOST_SAMPLES = 1 << 34  # of one array: a header with more is wrong, or the file should be read in blocks
WRITE_BLOCK = 1 << 16  # frames in one call of libsndfile: its Ogg encoder overflows the stack with millions
PLAIN_WAV_BYTES = 0xFFFFFFFF - (1 << 16)  # samples and headers of a RIFF file; beyond it sizes need 64 bits (RF64)
MOST_VORBIS_RATE = 192_000  # libvorbis crashes above 200 kHz
OPUS_RATES = (8000, 12_000, 16_000, 24_000, 48_000)
EXTENSIONS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64")
FORMATS = {"oga": "OGG", "opus": "OGG", "aif": "AIFF", "aifc": "AIFF"}  # where a suffix is not the format's name


class AudioError(FileError, ValueError):
    """An audio file, or a folder of them, that cannot be used."""


@dataclass(frozen=True)
class Audio:
    """Samples between −1 and 1 as (channels, time), and their rate in Hz."""

    samples: Samples
    rate: int

    @property
    def mono(self) -> Samples:
        """The mean over the channels, (time,)."""
        return self.samples[0] if len(self.samples) == 1 else self.samples.mean(axis=0, dtype=np.float32)

    @property
    def seconds(self) -> float:
        return self.samples.shape[-1] / self.rate


@dataclass(frozen=True)
class Info:
    """Rate, channels, length and format of a file. ``truncated`` says what is missing of it, "" if nothing is."""

    path: Path
    rate: int
    channels: int
    frames: int
    format: str
    subtype: str
    truncated: str = ""

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def info(path: AnyPath) -> Info:
    """Return rate, channels, length and format of a file, without decoding it."""
    with opened(path) as file:
        return Info(Path(path), file.samplerate, file.channels, file.frames, file.format, file.subtype, file.truncated)


def read(path: AnyPath, rate: int | None = None) -> Audio:
    """Return a whole file as float32, resampled to ``rate`` if one is given. A truncated file is an error."""
    with opened(path) as file:
        if file.truncated:
            raise AudioError(f"is truncated: {file.truncated}", path)
        expected, own = file.frames, file.samplerate
        samples = file.read(-1)
    if samples.shape[-1] < expected:
        raise AudioError(f"is truncated: {samples.shape[-1]} of {expected} frames could be decoded", path)
    if rate is not None and rate != own:
        return Audio(resample(samples, own, rate), rate)
    return Audio(samples, own)


def blocks(path: AnyPath, frames: int) -> Iterator[Samples]:
    """Yield a file in pieces of (channels, frames), the last one shorter; memory does not grow with the file."""
    if frames < 1:
        raise ValueError(f"a block needs at least one frame, not {frames}")
    with opened(path) as file:
        while (piece := file.read(frames)).shape[-1]:
            yield piece


class _Forward(soundfile.SoundFile):
    """A file that is only read forward: after every read SoundFile seeks to the position it already has.

    libsndfile's MP3 decoder restarts at a seek, without the bits that earlier frames hold for the next one: blocks
    would differ from the whole file.
    """

    def seekable(self) -> bool:
        return False


class Decoder:
    """An audio file open for reading, with all its parts (``containers``) concatenated."""

    def __init__(self, path: AnyPath, raw: BinaryIO) -> None:
        self.path = Path(path)
        layout = survey(raw, os.fstat(raw.fileno()).st_size)
        self.truncated = layout.cut
        self._raw = raw
        if layout.parts:
            self._parts = [self._open(Spliced(raw, part)) for part in layout.parts]
        else:
            raw.close()
            self._parts = [self._open(_native(path))]
        first = self._parts[0]
        self.samplerate, self.channels = first.samplerate, first.channels
        self.format, self.subtype = first.format, first.subtype
        if any((x.samplerate, x.channels) != (self.samplerate, self.channels) for x in self._parts):
            raise AudioError("its parts differ in rate or channels: split it first", path)
        self.frames: int = sum(x.frames for x in self._parts)
        self._part = 0
        self._at = 0  # frames of this part that have been read

    def _open(self, source: Any) -> Any:
        try:
            return _Forward(source)
        except soundfile.SoundFileError as error:
            raise AudioError(f"is not a readable audio file: {_reason(error)}", self.path) from error
        except TypeError as error:
            raise AudioError("is headerless (raw) audio, which cannot be read from a file", self.path) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self._parts:
            part.close()
        self._raw.close()

    def seek(self, frame: int) -> None:
        """Continue reading at a frame of the whole."""
        for number, part in enumerate(self._parts):
            self._part = number
            if frame <= part.frames or number == len(self._parts) - 1:
                break
            frame -= part.frames
        self._at = min(frame, self._parts[self._part].frames)
        try:
            self._parts[self._part].seek(self._at)
            for part in self._parts[self._part + 1 :]:
                part.seek(0)
        except soundfile.SoundFileError as error:
            raise AudioError(f"is damaged: {_reason(error)}", self.path) from error

    def read(self, frames: int) -> Samples:
        """Return the next frames, (channels, up to ``frames``); −1 for all that follow."""
        pieces, left = [], frames
        while True:
            pieces.append(self._decode(left))
            left -= pieces[-1].shape[-1] if frames >= 0 else 0
            if left == 0 or self._part == len(self._parts) - 1:
                break
            self._part, self._at = self._part + 1, 0
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)

    def _decode(self, frames: int) -> Samples:
        part = self._parts[self._part]
        left = part.frames - self._at
        count = left if frames < 0 else min(frames, left)
        if part.channels * count > MOST_SAMPLES:
            raise AudioError(f"has {part.frames:,} frames of {part.channels} channels: read it in blocks", self.path)
        try:
            x: Samples = part.read(count, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            raise AudioError(f"is damaged: {_reason(error)}", self.path) from error
        if not np.isfinite(x).all():
            raise AudioError("contains NaN or infinite samples", self.path)
        self._at += len(x)
        return np.ascontiguousarray(x.T)


class Writer:
    """An audio file written in pieces: under a temporary name, checked and renamed at the end, removed on an error.

    ``format`` and ``subtype`` are libsndfile's names; by default the suffix decides. ``large`` is for WAV whose length
    is not known: it may grow beyond 4 GiB (as RF64), and is a plain WAV file if it does not. The file's mode is that of
    ``like`` within the umask.
    """

    def __init__(
        self,
        path: AnyPath,
        rate: int,
        channels: int = 1,
        format: str | None = None,
        subtype: str | None = None,
        overwrite: bool = False,
        large: bool = False,
        like: AnyPath | None = None,
    ) -> None:
        self.path = Path(path)
        self.channels = channels
        self.frames = 0
        self.format = format or _format(self.path)
        if subtype is None and self.path.suffix.lower() == ".opus":
            subtype = "OPUS"
        self._check(rate, subtype)
        self._large = large and self.format == "WAV"
        self._replacing = replacing(self.path, overwrite, like)
        self._temporary = self._replacing.__enter__()
        kind = "RF64" if self._large else self.format
        try:
            self._file: Any = soundfile.SoundFile(
                _native(self._temporary), "w", samplerate=rate, channels=channels, format=kind, subtype=subtype
            )
        except (soundfile.SoundFileError, ValueError, TypeError) as error:
            failure = OutputError(
                f"cannot be written as {kind} {subtype or ''}, {rate} Hz, {channels} channels: {_reason(error)}",
                self.path,
            )
            self._leave(failure)
            raise failure from error

    def _check(self, rate: int, subtype: str | None) -> None:
        if subtype and not soundfile.check_format(self.format, subtype):
            known = ", ".join(soundfile.available_subtypes(self.format))
            raise OutputError(f"{self.format} files cannot have {subtype} samples, only {known}", self.path)
        if self.format == "OGG" and subtype == "OPUS" and rate not in OPUS_RATES:
            known = ", ".join(f"{n:,}" for n in OPUS_RATES)
            raise OutputError(f"Opus supports sample rates of {known} Hz, got {rate:,} Hz", self.path)
        if self.format == "OGG" and subtype != "OPUS" and rate > MOST_VORBIS_RATE:
            raise OutputError(
                f"Ogg Vorbis supports sample rates up to {MOST_VORBIS_RATE:,} Hz, got {rate:,} Hz", self.path
            )

    def write(self, samples: ArrayLike) -> None:
        """Append (channels, n) or, for one channel, (n,); values beyond ±1 are clipped by the format."""
        x = np.asarray(samples, dtype=np.float32)
        if x.ndim == 1:
            x = x[None]
        if x.ndim != 2 or len(x) != self.channels:
            raise AudioError(f"expected {self.channels} channels, got samples of shape {x.shape}", self.path)
        try:
            for at in range(0, x.shape[1], WRITE_BLOCK):
                self._file.write(np.ascontiguousarray(x[:, at : at + WRITE_BLOCK].T))
        except (soundfile.SoundFileError, OSError, AssertionError) as error:
            # A short write (a full disk) is an assertion in soundfile.
            raise OutputError(f"could not be written: {str(error) or 'is the disk full?'}", self.path) from error
        self.frames += x.shape[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        failure = error
        try:
            self._file.close()
            if error is None:
                self._finish()
        except (soundfile.SoundFileError, OSError, AudioError) as reason:
            failure = OutputError(f"could not be written: {_reason(reason)}; is the disk full?", self.path)
            failure.__cause__ = reason
        self._leave(failure)
        if failure is not None and failure is not error:
            raise failure

    def _finish(self) -> None:
        """Check that the end is on the disk and decodes: libsndfile does not report a write that fails on closing."""
        if self._large:
            _downgrade(self._temporary)
        with self._temporary.open("rb+") as file:
            os.fsync(file.fileno())
        with opened(self._temporary) as file:
            if file.truncated:
                raise AudioError(file.truncated)
            padded = self.format == "MP3"  # at its end; and see _Forward
            there = 0 if padded else max(0, self.frames - file.samplerate)
            if there:
                file.seek(there)
            while read := file.read(file.samplerate).shape[-1]:
                there += read
            if there < self.frames or (file.frames != self.frames and not padded):
                raise AudioError(f"only {there} of {self.frames} frames can be read back")

    def _leave(self, error: BaseException | None) -> None:
        if error is None:
            self._replacing.__exit__(None, None, None)
            return
        with suppress(type(error)):
            self._replacing.__exit__(type(error), error, error.__traceback__)


def _downgrade(path: Path) -> None:
    """Make a RF64 file (EBU Tech 3306) that a plain WAV header can describe a plain WAV file, in place."""
    size = path.stat().st_size
    if size > PLAIN_WAV_BYTES:
        return
    with path.open("rb+") as file:
        head = file.read(20)
        if head[:4] != b"RF64" or head[12:16] != b"ds64":
            raise AudioError("the RF64 header is not as expected")
        at, length = 12, int.from_bytes(head[16:20], "little")
        samples = int.from_bytes(file.read(16)[8:], "little")
        while True:
            at += 8 + length
            file.seek(at)
            name, length = struct.unpack("<4sI", file.read(8))
            if name == b"data":
                break
        for place, data in (
            (0, b"RIFF" + struct.pack("<I", size - 8)),
            (12, b"JUNK"),
            (at + 4, struct.pack("<I", samples)),
        ):
            file.seek(place)
            file.write(data)


def write(
    path: AnyPath,
    samples: ArrayLike,
    rate: int,
    format: str | None = None,
    subtype: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a whole signal, (t,) or (channels, t), to a file."""
    x = np.atleast_2d(np.asarray(samples, dtype=np.float32))
    with Writer(path, rate, len(x), format=format, subtype=subtype, overwrite=overwrite) as file:
        file.write(x)


def opened(path: AnyPath) -> Decoder:
    """Open a regular file for reading; ``AudioError`` says why it cannot be. Devices and pipes are refused."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise AudioError("is a folder, not an audio file", path)
        if not stat.S_ISREG(mode):
            raise AudioError("is not a regular file; a pipe can be read from standard input, as -", path)
        raw = open(path, "rb")  # noqa: SIM115 - the decoder closes it
    except FileNotFoundError as error:
        raise AudioError("no such file", path) from error
    except PermissionError as error:
        raise AudioError("cannot be read: permission denied", path) from error
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror}", path) from error
    try:
        if os.fstat(raw.fileno()).st_size == 0:
            raise AudioError("is empty (0 bytes)", path)
        return Decoder(path, raw)
    except AudioError:
        raw.close()
        raise


def _native(path: AnyPath) -> str | bytes:
    """Return a path as soundfile takes it: bytes where names need not be text."""
    return os.fspath(path) if os.name == "nt" else os.fsencode(path)


def _reason(error: Exception) -> str:
    """Return libsndfile's message without the file name, which the error has already."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return re.split(r"['>]: ", str(error))[-1].removeprefix("Error : ").rstrip(".")


def _format(path: Path) -> str:
    kind = FORMATS.get(path.suffix[1:].lower()) or path.suffix[1:].upper()
    if kind not in soundfile.available_formats() or kind == "RAW":
        raise OutputError(f"unknown audio format {path.suffix!r}: use .wav, .flac, .ogg or .mp3", path)
    return kind
