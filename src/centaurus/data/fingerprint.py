"""Fingerprints of clips, so that a run that goes on can tell whether its data are the ones it started with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from centaurus.audio import AudioError
from centaurus.data.corpus import Clip, Corpus, mapped

SPOTS = 3  # places of a clip that are compared: its beginning, middle and end
SPOT = 2048  # bytes of each
NAMED = 3  # clips that a message names


def fingerprints(corpora: Iterable[Corpus]) -> dict[str, str]:
    """Return a fingerprint of every clip by its id: its labels, its length, and samples from three places of it.

    Not from all of it: a large corpus would be read once more at every start. Files may move to another folder.
    """
    found: dict[str, set[str]] = {}
    for corpus in corpora:
        for clip in corpus:
            found.setdefault(clip.id, set()).add(_fingerprint(clip))
    return {name: digests.pop() if len(digests) == 1 else _hash(*sorted(digests)) for name, digests in found.items()}


def _fingerprint(clip: Clip) -> str:
    try:
        content = _samples(clip) if clip.path.suffix == ".npy" else _bytes(clip.path)
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror}", clip.path) from error
    return _hash(json.dumps(clip.labels, sort_keys=True), str(clip.frames), content)


def _samples(clip: Clip) -> bytes:
    """Spots of a clip within a file of decoded samples, 16 bits each."""
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
