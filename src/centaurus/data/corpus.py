"""Clips (a place in a file, with labels), corpora (clips loaded at one rate) and their fingerprints."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from centaurus import audio
from centaurus.audio import AudioError, files

Samples = NDArray[np.float32]
OnFault = Literal["skip", "fail"]
SPOTS = 3  # places of a clip that a fingerprint covers: its beginning, middle and end
SPOT = 2048  # bytes of each
NAMED = 3  # clips that a message names


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames ``start … start + frames`` of a sound file or of an int16 ``.npy`` file; −1 frames: to its end."""

    path: Path
    id: str
    start: int = 0
    frames: int = -1
    rate: int = 16_000
    labels: dict[str, str] = field(default_factory=dict, hash=False)


class Faults:
    """Files that could not be used, with the reasons. With ``on_fault="fail"`` the first fault is raised."""

    def __init__(self, on_fault: OnFault = "skip") -> None:
        if on_fault not in ("skip", "fail"):
            raise ValueError(f"on_fault is 'skip' or 'fail', not {on_fault!r}")
        self.on_fault = on_fault
        self.found: dict[str, str] = {}

    def add(self, error: AudioError) -> None:
        """Note a fault, once per file."""
        if self.on_fault == "fail":
            raise error
        self.found.setdefault(str(error.path), error.reason)

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.found.items())

    def __str__(self) -> str:
        lines = [f"{name}: {why}" for name, why in self]
        return "\n".join([f"{len(self)} files skipped" if len(self) else "no file skipped", *lines])


@dataclass(frozen=True)
class Corpus:
    """Clips with the rate they are loaded at. ``name`` is the layout they were found in."""

    name: str
    clips: tuple[Clip, ...]
    rate: int = 16_000
    faults: Faults = field(default_factory=Faults, compare=False)

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> Clip:
        return self.clips[index]

    def __iter__(self) -> Iterator[Clip]:
        return iter(self.clips)

    @property
    def seconds(self) -> float:
        """Length of all clips whose length is known."""
        return sum(clip.frames / clip.rate for clip in self.clips if clip.frames > 0)

    def of(self, clips: Iterable[Clip]) -> Corpus:
        """Return the same corpus with other clips."""
        return replace(self, clips=tuple(clips))

    def where(self, **labels: str | tuple[str, ...]) -> Corpus:
        """Return the clips with these labels; several values of a label as a tuple."""
        allowed = {key: (value,) if isinstance(value, str) else value for key, value in labels.items()}
        return self.of(
            clip for clip in self.clips if all(clip.labels.get(key) in values for key, values in allowed.items())
        )

    def split(self, *names: str) -> Corpus:
        """Return the clips of some splits: ``train``, ``val``, ``test``. A split without clips is an error."""
        chosen = self.where(split=names)
        if not chosen.clips:
            known = ", ".join(self.values("split")) or "none"
            raise ValueError(f"the {self.name} corpus has no clips in {' and '.join(names)}; splits: {known}")
        return chosen

    def values(self, label: str) -> tuple[str, ...]:
        """Return the values of a label, sorted."""
        return tuple(sorted({clip.labels[label] for clip in self.clips if label in clip.labels}))

    def load(self, clip: Clip | int, start: int = 0, frames: int = -1) -> Samples:
        """Return a clip, or ``frames`` of it from ``start`` on, at the corpus's rate."""
        return load(self.clips[clip] if isinstance(clip, int) else clip, self.rate, start, frames)

    def take(self, index: int, start: int = 0, frames: int = -1) -> tuple[Clip, Samples]:
        """Return a clip and its samples; in place of one that cannot be read, the next one that can."""
        for step in range(len(self.clips)):
            clip = self.clips[(index + step) % len(self.clips)]
            try:
                return clip, self.load(clip, start, frames)
            except AudioError as error:
                self.faults.add(error)
        raise ValueError(f"no clip of the {self.name} corpus can be read\n{self.faults}")


def load(clip: Clip, rate: int | None = None, start: int = 0, frames: int = -1) -> Samples:
    """Return a clip as one channel (t,), or ``frames`` of it from ``start`` on, counted at ``rate``.

    Only the frames that are needed are decoded and resampled. One below ``rate`` is an error: it lacks the upper band.
    """
    rate = rate or clip.rate
    if clip.path.suffix == ".npy":
        x = _cut(mapped(os.fspath(clip.path)), clip, rate, start, frames)
    else:
        x = _decoded(clip, rate, start, frames)
    if not x.size and frames:
        raise AudioError(f"clip {clip.id} is empty", clip.path)
    return x


def checked(clip: Clip, rate: int | None = None) -> Samples:
    """Return a whole clip, which must be neither empty, nor silent, nor shorter than its file's header says."""
    if clip.path.suffix != ".npy" and audio.info(clip.path).truncated:
        raise AudioError("is shorter than its header says", clip.path)
    x = load(clip, rate)
    if np.abs(x).max() < 2**-16:  # nothing is left of it in 16 bits
        raise AudioError(f"clip {clip.id} is silent", clip.path)
    return x


@lru_cache(maxsize=4096)
def mapped(path: str) -> NDArray[np.int16]:
    """Return the samples of a ``.npy`` file, read from the disk as they are needed."""
    try:
        samples: NDArray[np.int16] = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise AudioError(f"is not a cache of samples: {error}", path) from error
    return samples


def _cut(samples: NDArray[np.int16], clip: Clip, rate: int, start: int, frames: int) -> Samples:
    end = len(samples) if clip.frames < 0 else clip.start + clip.frames
    if end > len(samples):
        raise AudioError(f"clip {clip.id} ends at {end}, the file at {len(samples)}", clip.path)

    def source(first: int, count: int) -> Samples:
        last = end if count < 0 else min(end, clip.start + first + count)
        return samples[clip.start + first : last].astype(np.float32) * np.float32(1 / 32768)

    return _window(source, clip, clip.rate, rate, start, frames)


def _decoded(clip: Clip, rate: int, start: int, frames: int) -> Samples:
    with files.opened(clip.path) as file:

        def source(first: int, count: int) -> Samples:
            room = (file.frames if clip.frames < 0 else clip.start + clip.frames) - clip.start - first
            count = max(0, room if count < 0 else min(count, room))
            file.seek(min(clip.start + first, file.frames))
            x = file.read(count)
            if x.shape[-1] < count:
                raise AudioError(f"cut short: {x.shape[-1]} of {count} frames could be decoded", clip.path)
            return audio.Audio(x, file.samplerate).mono

        return _window(source, clip, file.samplerate, rate, start, frames)


def _window(source: Any, clip: Clip, own: int, rate: int, start: int, frames: int) -> Samples:
    """Return frames at ``rate`` of a source at its own rate: a crop with a margin, resampled, and trimmed."""
    if own < rate:
        raise AudioError(f"has {own} Hz, too low for {rate} Hz", clip.path)
    if own == rate:
        return source(start, frames)
    common = math.gcd(own, rate)
    up, down = rate // common, own // common
    # Both ends fall on whole frames of both rates, so that a crop equals the crop of the whole.
    margin = -(-512 // up)
    first = max(0, start // up - margin)
    count = -1 if frames < 0 else (-(-(start + frames) // up) + margin - first) * down
    x = audio.resample(source(first * down, count), own, rate)
    skip = start - first * up
    return x[skip:] if frames < 0 else x[skip : skip + frames]


def fingerprints(corpora: Iterable[Corpus]) -> dict[str, str]:
    """Return a fingerprint of every clip by its id: its labels, its length, and samples from three places of it.

    Not from all of it: a large corpus would be read once more at every start. Files may move to another folder.
    """
    digests: dict[str, set[str]] = {}
    for corpus in corpora:
        for clip in corpus:
            digests.setdefault(clip.id, set()).add(_fingerprint(clip))
    return {name: digests.pop() if len(digests) == 1 else _hash(*sorted(digests)) for name, digests in digests.items()}


def _fingerprint(clip: Clip) -> str:
    try:
        content = _samples(clip) if clip.path.suffix == ".npy" else _bytes(clip.path)
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror}", clip.path) from error
    return _hash(json.dumps(clip.labels, sort_keys=True), str(clip.frames), content)


def _samples(clip: Clip) -> bytes:
    """Return the bytes of a few places of a clip within a file of decoded samples, 16 bits each."""
    samples = mapped(os.fspath(clip.path))
    end = len(samples) if clip.frames < 0 else clip.start + clip.frames
    own = samples[clip.start : end]
    return b"".join(own[at : at + SPOT // 2].tobytes() for at in _places(len(own), SPOT // 2))


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        spots = [str(size).encode()]
        for at in _places(size, SPOT):
            file.seek(at)
            spots.append(file.read(SPOT))
    return b"".join(spots)


def _places(length: int, spot: int) -> list[int]:
    last = max(0, length - spot)
    return [last * k // (SPOTS - 1) for k in range(SPOTS)]


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Changes:
    """Clips that were added, removed and changed between two sets of fingerprints, by their ids."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @classmethod
    def between(cls, old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
        """Compare the fingerprints of an earlier start with those of now."""
        both = old.keys() & new.keys()
        return cls(
            tuple(sorted(new.keys() - old.keys())),
            tuple(sorted(old.keys() - new.keys())),
            tuple(sorted(name for name in both if old[name] != new[name])),
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        kinds = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return "; ".join(f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
