"""Recognise the layout of a folder by its contents, and open its clips."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from centaurus.data.cache import INDEX, open_pack
from centaurus.data.corpus import Corpus, Faults, OnFault
from centaurus.data.layouts import denoising, librispeech, speech_commands
from centaurus.data.layouts.folders import sound_files_in

LAYOUTS = {
    "pack": f"{INDEX} (a pack), or folders that have one",
    "librispeech": "train-*, dev-* or test-* with SPEAKER/CHAPTER/*.trans.txt (LibriSpeech)",
    "mls": "train, dev or test with transcripts.txt (Multilingual LibriSpeech)",
    "voicebank": "clean_*/ and noisy_*/ (VoiceBank+DEMAND pairs)",
    "dns": "clean/ and noise/, or datasets_fullband/ with clean_fullband/ and noise_fullband/ (DNS challenge)",
    "speech-commands": "folders of words with sound files (Speech Commands)",
}


def recognise(folder: str | os.PathLike[str]) -> str:
    """Return the name of the folder's layout, one of ``LAYOUTS``; the error lists them."""
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder")
    if packs(root):
        return "pack"
    if librispeech.subsets(root):
        return "librispeech"
    if librispeech.mls_folders(root):
        return "mls"
    if denoising.paired_folders(root):
        return "voicebank"
    if denoising.mixing_root(root):
        return "dns"
    words = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))]
    if any(next(sound_files_in(path), None) for path in words):
        return "speech-commands"
    looked = "".join(f"\n  {name}: {what}" for name, what in LAYOUTS.items())
    raise ValueError(f"{root}: the layout is not known; these are{looked}")


def packs(root: Path) -> list[Path]:
    """Return the folder if it is a pack, else its subfolders that are."""
    if (root / INDEX).is_file():
        return [root]
    return [path.parent for path in sorted(root.glob(f"*/{INDEX}"))]


def open_corpus(
    folder: str | os.PathLike[str],
    splits: Iterable[str] | None = None,
    kinds: Iterable[str] | None = None,
    rate: int = 16_000,
    cache: str | os.PathLike[str] | None = None,
    on_fault: OnFault = "skip",
) -> Corpus:
    """Return the clips of a folder in any known layout, of some splits and kinds or all, loaded at ``rate``.

    Labels are the same for every layout: ``kind`` (word, speech, noise, clean, noisy), ``split`` (train, val, test),
    ``speaker``, ``word``, ``transcript``.
    """
    layout, root, faults = recognise(folder), Path(folder), Faults(on_fault)
    if layout == "pack":
        found = [open_pack(path, cache, splits, kinds, on_fault) for path in packs(root)]
        for corpus in found:
            faults.found |= corpus.faults.found
        clips = [clip for corpus in found for clip in corpus]
    elif layout == "librispeech":
        clips = list(librispeech.librispeech_clips(root, faults))
    elif layout == "mls":
        clips = list(librispeech.mls_clips(root))
    elif layout == "voicebank":
        clips = list(denoising.paired_clips(root, faults))
    elif layout == "dns":
        where = denoising.mixing_root(root)
        clips = list(denoising.mixing_clips(*where)) if where else []
    else:
        clips = list(speech_commands.clips(root))
    corpus = Corpus(layout, tuple(clips), rate, faults)
    if splits is not None:
        # Background noise belongs to every split.
        wanted = {*splits}
        corpus = corpus.of(clip for clip in corpus if clip.labels.get("split", next(iter(wanted), "")) in wanted)
    if kinds is not None:
        corpus = corpus.where(kind=tuple(kinds))
    return replace(corpus, faults=faults)
