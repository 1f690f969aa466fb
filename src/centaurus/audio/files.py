"""Sound files in and out: any format and rate that libsndfile knows, whole or in blocks of constant memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import soundfile
from numpy.typing import ArrayLike, NDArray

from centaurus import system
from centaurus.audio.resample import resample

Samples = NDArray[np.float32]

# What libsndfile notes about a WAV file that is shorter than its header says; a streamed header gives the largest size.
_CUT = re.compile(r"^\s*data\s*:\s*(\d+) \(should be (\d+)\)", re.MULTILINE)
_STREAMED = 0x7FFF0000


class AudioError(ValueError):
    """An audio file that cannot be used: ``reason`` says why, ``path`` is the file; the message has both."""

    def __init__(self, reason: str, path: str | os.PathLike[str] | None = None) -> None:
        self.reason, self.path = reason, None if path is None else Path(path)
        super().__init__(reason if path is None else f"{os.fspath(path)}: {reason}")


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
    """What a file's header says. ``truncated``: the header promises more than the file holds."""

    path: Path
    rate: int
    channels: int
    frames: int
    format: str
    subtype: str
    truncated: bool = False

    @property
    def seconds(self) -> float:
        return self.frames / self.rate


def info(path: str | os.PathLike[str]) -> Info:
    """Rate, channels, length and format of a file, from its header."""
    with opened(path) as file:
        cut = _CUT.search(file.extra_info)
        truncated = cut is not None and int(cut[2]) < int(cut[1]) < _STREAMED
        return Info(
            Path(path), file.samplerate, file.channels, file.frames, file.format, file.subtype, truncated=truncated
        )


def read(path: str | os.PathLike[str], rate: int | None = None) -> Audio:
    """A whole file as float32, resampled to ``rate`` if one is given. A file cut short is an error."""
    with opened(path) as file:
        wanted, own = file.frames, file.samplerate
        samples = decoded(file, path, -1)
    if samples.shape[-1] < wanted:
        raise AudioError(f"cut short: {samples.shape[-1]} of {wanted} frames could be decoded", path)
    if rate is not None and rate != own:
        return Audio(resample(samples, own, rate), rate)
    return Audio(samples, own)


def blocks(path: str | os.PathLike[str], frames: int) -> Iterator[Samples]:
    """A file in pieces of (channels, frames), the last one shorter; memory does not grow with the file."""
    if frames < 1:
        raise ValueError(f"a block needs at least one frame, not {frames}")
    with opened(path) as file:
        while (piece := decoded(file, path, frames)).shape[-1]:
            yield piece


class Writer:
    """A sound file written in pieces: under a temporary name, renamed when all went well, removed when not."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        rate: int,
        channels: int = 1,
        format: str | None = None,
        subtype: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self.channels = channels
        self.frames = 0
        self._replacing = replacing(self.path, overwrite)
        kind = format or _format(self.path)
        if subtype and not soundfile.check_format(kind, subtype):
            known = ", ".join(soundfile.available_subtypes(kind))
            raise AudioError(f"{kind} files hold no {subtype} samples, but {known}", path)
        temporary = self._replacing.__enter__()
        try:
            self._file: Any = soundfile.SoundFile(
                temporary, "w", samplerate=rate, channels=channels, format=kind, subtype=subtype
            )
        except (soundfile.SoundFileError, ValueError, TypeError) as error:
            self._leave(error)
            what = f"{kind} {subtype or ''}".strip()
            raise AudioError(f"cannot be written as {what}, {rate} Hz, {channels} channels: {error}", path) from error

    def write(self, samples: ArrayLike) -> None:
        """Append (channels, n) or, for one channel, (n,); values beyond ±1 are clipped by the format."""
        x = np.asarray(samples, dtype=np.float32)
        if x.ndim == 1:
            x = x[None]
        if x.ndim != 2 or len(x) != self.channels:
            raise AudioError(f"{self.channels} channels were announced, samples have shape {x.shape}", self.path)
        try:
            self._file.write(np.ascontiguousarray(x.T))
        except (soundfile.SoundFileError, OSError, AssertionError) as error:
            # A short write (a full disk) is an assertion in soundfile.
            raise AudioError(f"could not be written: {str(error) or 'is the disk full?'}", self.path) from error
        self.frames += x.shape[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._file.close()
        except soundfile.SoundFileError as failure:
            self._leave(failure)
            raise AudioError(f"could not be written: {failure}", self.path) from (error or failure)
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        self._replacing.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def write(
    path: str | os.PathLike[str],
    samples: ArrayLike,
    rate: int,
    format: str | None = None,
    subtype: str | None = None,
    overwrite: bool = False,
) -> None:
    """A whole signal, (t,) or (channels, t), to a file."""
    x = np.atleast_2d(np.asarray(samples, dtype=np.float32))
    with Writer(path, rate, len(x), format=format, subtype=subtype, overwrite=overwrite) as file:
        file.write(x)


@contextmanager
def replacing(path: str | os.PathLike[str], overwrite: bool = True) -> Iterator[Path]:
    """A temporary name beside ``path``, renamed to it if the block succeeds and removed if it raises."""
    target = Path(path)
    if not target.parent.is_dir():
        raise AudioError(f"there is no folder {target.parent}", target)
    if target.is_dir():
        raise AudioError("is a folder", target)
    _refuse(target, overwrite)
    with system.replacing(target) as temporary:
        yield temporary
        _refuse(target, overwrite)


def _refuse(target: Path, overwrite: bool) -> None:
    if target.exists() and not overwrite:
        raise AudioError("exists already; overwriting was not asked for", target)


def opened(path: str | os.PathLike[str]) -> Any:
    """The file as a ``soundfile.SoundFile``; what stands in the way is an error that names it."""
    found = Path(path)
    if found.is_dir():
        raise AudioError("is a folder, not a sound file", path)
    if not found.exists():
        raise AudioError("no such file", path)
    if not os.access(found, os.R_OK):
        raise AudioError("may not be read", path)
    if found.is_file() and found.stat().st_size == 0:
        raise AudioError("is empty (0 bytes)", path)
    try:
        return soundfile.SoundFile(os.fspath(path))
    except soundfile.SoundFileError as error:
        raise AudioError(f"is no sound file that can be read: {_reason(error)}", path) from error
    except TypeError as error:
        raise AudioError("samples without a header cannot be read", path) from error


def decoded(file: Any, path: str | os.PathLike[str], frames: int) -> Samples:
    """The next frames of an open file, (channels, up to ``frames``); −1: all that follow."""
    try:
        x: Samples = file.read(frames, dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise AudioError(f"is damaged: {_reason(error)}", path) from error
    if not np.isfinite(x).all():
        raise AudioError("holds samples that are not finite numbers", path)
    return np.ascontiguousarray(x.T)


def _reason(error: Exception) -> str:
    """libsndfile's words without the file name, which stands in front already."""
    return str(error).rpartition("': ")[2].removeprefix("Error : ").rstrip(".")


def _format(path: Path) -> str:
    kind = {"oga": "OGG", "opus": "OGG", "aif": "AIFF", "aifc": "AIFF"}.get(path.suffix[1:].lower())
    kind = kind or path.suffix[1:].upper()
    if kind not in soundfile.available_formats() or kind == "RAW":
        raise AudioError(f"unknown kind of sound file {path.suffix!r}; .wav, .flac, .ogg and .mp3 are known", path)
    return kind
