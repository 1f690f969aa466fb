"""Google Speech Commands, versions 1 and 2, and any folder of word folders.

WORD/SPEAKER_nohash_N.wav   validation_list.txt   testing_list.txt   _background_noise_/*.wav
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from centaurus.audio import AudioError
from centaurus.data.corpus import Clip
from centaurus.data.layouts.folders import sound_files_in

COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
_OTHERS = ("bed", "bird", "cat", "dog", "eight", "five", "four", "happy", "house", "marvin", "nine", "one")
_MORE = ("seven", "sheila", "six", "three", "tree", "two", "wow", "zero")
WORDS_30 = tuple(sorted(COMMANDS + _OTHERS + _MORE))
WORDS_35 = tuple(sorted((*WORDS_30, "backward", "follow", "forward", "learn", "visual")))
SUBSETS: dict[int, tuple[str, ...]] = {10: COMMANDS, 30: WORDS_30, 35: WORDS_35}
NOISE_FOLDER = "_background_noise_"
LISTS = {"validation_list.txt": "val", "testing_list.txt": "test"}


def subset(words: int | Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """The words of the 35-, 30- or 10-word task, or those given; all must be among the words found."""
    if isinstance(words, int):
        if words not in SUBSETS:
            raise ValueError(f"there are tasks of {', '.join(map(str, sorted(SUBSETS)))} words, none of {words}")
        chosen = SUBSETS[words]
    else:
        chosen = tuple(words)
    if missing := sorted(set(chosen) - set(found)):
        hint = "; version 1 of the corpus has 30 words" if words == 35 else ""
        raise ValueError(f"no clips of {', '.join(missing)} among the {len(found)} words found{hint}")
    return chosen


def clips(root: Path) -> Iterator[Clip]:
    """Every word, with the official split, and the background noise."""
    splits = official_splits(root)
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if folder.name == NOISE_FOLDER:
            for path in sound_files_in(folder):
                yield Clip(path, f"{NOISE_FOLDER}/{path.name}", labels={"kind": "noise", "category": path.stem})
        elif not folder.name.startswith(("_", ".")):
            for path in sound_files_in(folder):
                name = f"{folder.name}/{path.name}"
                speaker = path.name.partition("_nohash_")[0].partition(".")[0]
                split = splits.get(name, "train") if splits else hashed_split(speaker)
                labels = {"kind": "word", "word": folder.name, "speaker": speaker, "split": split}
                yield Clip(path, name, labels=labels)


def official_splits(root: Path) -> dict[str, str]:
    """Which clips the lists beside the words put into validation and testing; empty without lists."""
    splits: dict[str, str] = {}
    for name, split in LISTS.items():
        path = root / name
        if path.exists():
            try:
                lines = path.read_text(encoding="utf-8").split()
            except UnicodeDecodeError as error:
                raise AudioError(f"is not a list of clips: {error}", path) from error
            splits |= dict.fromkeys(lines, split)
    return splits


def hashed_split(speaker: str, val: float = 10, test: float = 10) -> str:
    """A split in percent that depends on the speaker alone: the rule by which the official lists were made."""
    most = 2**27 - 1
    percent = int(hashlib.sha1(speaker.encode()).hexdigest(), 16) % (most + 1) * (100 / most)
    return "val" if percent < val else "test" if percent < val + test else "train"
