"""LibriSpeech and Multilingual LibriSpeech: readings with their texts.

LibriSpeech/SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER-N.flac  …/SPEAKER-CHAPTER.trans.txt
{train,dev,test}/transcripts.txt  {train,dev,test}/audio/SPEAKER/BOOK/SPEAKER_BOOK_N.{flac,opus}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from centaurus.audio import AudioError
from centaurus.data.corpus import Clip, Faults

SPLITS = {"train": "train", "dev": "val", "val": "val", "valid": "val", "test": "test"}
TRANSCRIPTS = "transcripts.txt"


def subsets(root: Path) -> list[Path]:
    """The subset folders (train-clean-100, dev-other …) here or in ``LibriSpeech``, or this folder if it is one."""
    for place in (root, root / "LibriSpeech"):
        if place.is_dir():
            found = [path for path in sorted(place.iterdir()) if path.is_dir() and _split(path) and _texts(path)]
            if found:
                return found
    return [root] if _split(root) and _texts(root) else []


def librispeech_clips(root: Path, faults: Faults) -> Iterator[Clip]:
    """Every utterance. One whose sound file is absent is a fault."""
    for folder in subsets(root):
        for texts in sorted(folder.glob("*/*/*.trans.txt")):
            speaker, chapter = texts.parent.parent.name, texts.parent.name
            here = {path.name for path in texts.parent.iterdir()}
            for name, text in _lines(texts, " "):
                path = texts.parent / f"{name}.flac"
                if path.name not in here:
                    faults.add(AudioError(f"no such file, though {texts.name} has its text", path))
                    continue
                labels = {"kind": "speech", "speaker": speaker, "chapter": chapter, "transcript": text}
                labels |= {"subset": folder.name, "split": SPLITS[_split(folder)]}
                yield Clip(path, name, labels=labels)


def mls_folders(root: Path) -> list[Path]:
    """The split folders that have a transcripts.txt."""
    return [path.parent for path in sorted(root.glob(f"*/{TRANSCRIPTS}")) if path.parent.name in SPLITS]


def mls_clips(root: Path) -> Iterator[Clip]:
    """Every utterance of the texts. Ten million files are not looked for one by one: loading tells."""
    for folder in mls_folders(root):
        suffix = sound_suffix(folder / "audio")
        for name, text in _lines(folder / TRANSCRIPTS, "\t"):
            speaker, _, rest = name.partition("_")
            path = folder / "audio" / speaker / rest.partition("_")[0] / f"{name}{suffix}"
            labels = {"kind": "speech", "speaker": speaker, "transcript": text}
            labels |= {"subset": folder.name, "split": SPLITS[folder.name]}
            yield Clip(path, name, labels=labels)


def _split(folder: Path) -> str:
    name = folder.name.partition("-")[0]
    return name if name in SPLITS else ""


def _texts(folder: Path) -> bool:
    return next(folder.glob("*/*/*.trans.txt"), None) is not None


def sound_suffix(folder: Path) -> str:
    """The suffix of the sound files below a folder, by the first that is found."""
    for suffix in (".flac", ".opus", ".ogg", ".wav"):
        if next(folder.glob(f"*/*/*{suffix}"), None) is not None:
            return suffix
    raise AudioError("has no SPEAKER/BOOK/*.flac or *.opus", folder)


def _lines(path: Path, separator: str) -> Iterator[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                name, found, text = line.rstrip("\n").partition(separator)
                if not found or not name or "/" in name:
                    raise AudioError(f"line {number} is not a name and a text", path)
                yield name, text.strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AudioError(f"cannot be read: {error}", path) from error
