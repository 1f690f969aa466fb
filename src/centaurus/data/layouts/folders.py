"""Shared by the readers of folders: finding audio files, and holding out speakers for validation."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from centaurus.data.corpus import Clip

SOUNDS = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".w64", ".caf")
# DNS: book_00000_chp_0009_reader_06709_0_seg_1; VCTK and VoiceBank: p226_001.
_SPEAKER = re.compile(r"reader_(\d+)|(?:^|_)([ps]\d{1,4})(?=_|$)")


def sound_files(folder: Path) -> Iterator[Path]:
    """Every sound file below a folder, no pipe or device, in an order that does not depend on the disk."""
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        found = (Path(place, name) for name in sorted(names) if _is_sound(name))
        yield from (path for path in found if path.is_file())


def sound_files_in(folder: Path) -> Iterator[Path]:
    """The sound files of a folder itself, sorted."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if _is_sound(entry.name) and entry.is_file())
    yield from (folder / name for name in names)


def speaker_of(path: Path) -> str:
    """Who speaks, from the name of the file; otherwise the folder stands for the speaker."""
    found = _SPEAKER.search(path.stem)
    return (found[1] or found[2]) if found else path.parent.name


def hold_out(clips: Iterable[Clip], group: Callable[[Clip], str], share: float = 0.02) -> list[Clip]:
    """Put a share of the groups, at least one, into ``val`` and the rest into ``train``, by a hash of their names."""
    clips = list(clips)
    names = sorted({group(clip) for clip in clips}, key=lambda name: hashlib.blake2b(name.encode()).digest())
    if len(names) < 2:
        group = _id
        names = sorted({clip.id for clip in clips}, key=lambda name: hashlib.blake2b(name.encode()).digest())
    held = set(names[: max(1, round(share * len(names)))]) if len(names) > 1 else set()
    return [replace(clip, labels={**clip.labels, "split": "val" if group(clip) in held else "train"}) for clip in clips]


def _is_sound(name: str) -> bool:
    return name.lower().endswith(SOUNDS) and not name.startswith(".")


def _id(clip: Clip) -> str:
    return clip.id
