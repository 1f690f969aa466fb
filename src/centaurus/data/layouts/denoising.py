"""Folders for denoising: pairs (VoiceBank+DEMAND), or separate clean speech and noise (the DNS challenge).

clean_trainset_28spk_wav/*.wav  noisy_trainset_28spk_wav/*.wav  clean_testset_wav/*.wav  noisy_testset_wav/*.wav
datasets_fullband/clean_fullband/{vctk_wav48_silence_trimmed,read_speech,…}/**.wav  datasets_fullband/noise_fullband/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from centaurus.audio import AudioError
from centaurus.data.corpus import Clip, Faults
from centaurus.data.layouts.folders import hold_out, sound_files, speaker_of

_PAIRED = re.compile(r"(clean|noisy)(?:_(\w+?))?(?:_wav)?(?:_\d+k)?$")
_SPEECH = re.compile(r"(clean|speech)(_fullband|_wideband)?$")
_NOISE = re.compile(r"noises?(_fullband|_wideband)?$")
VALIDATION_SPEAKERS = ("p286", "p287")


def paired_folders(root: Path) -> dict[str, dict[str, Path]]:
    """Folders of pairs by set: ``{"testset": {"clean": …, "noisy": …}}``; those without a partner are left out."""
    sets: dict[str, dict[str, Path]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if match := _PAIRED.match(folder.name):
            sets.setdefault(match[2] or "", {})[match[1]] = folder
    return {name: found for name, found in sets.items() if len(found) == 2}


def paired_clips(root: Path, faults: Faults) -> Iterator[Clip]:
    """Both halves of every pair. A file without its partner is a fault."""
    for name, folders in paired_folders(root).items():
        files = {kind: {path.stem: path for path in sound_files(folder)} for kind, folder in folders.items()}
        for kind, other in (("clean", "noisy"), ("noisy", "clean")):
            for stem in sorted(files[kind].keys() - files[other].keys()):
                faults.add(AudioError(f"has no partner in {folders[other]}", files[kind][stem]))
        stems = sorted(files["clean"].keys() & files["noisy"].keys())
        training = "test" not in name
        speakers = {speaker_of(files["clean"][stem]) for stem in stems}
        held = set(VALIDATION_SPEAKERS) if speakers - set(VALIDATION_SPEAKERS) else set()
        pairs = []
        for stem in stems:
            for kind in ("clean", "noisy"):
                path = files[kind][stem]
                labels = {"kind": kind, "speaker": speaker_of(path), "set": name}
                labels["split"] = ("val" if labels["speaker"] in held else "train") if training else "test"
                pairs.append(Clip(path, stem, labels=labels))
        if training and not any(clip.labels["split"] == "val" for clip in pairs):
            pairs = hold_out(pairs, _speaker, 0.05)
        yield from pairs


def pairs(corpus: Iterable[Clip]) -> list[tuple[Clip, Clip]]:
    """(noisy, clean) of the same name in the same set; clips without a partner are left out."""
    sides: dict[str, dict[tuple[str, str], Clip]] = {"clean": {}, "noisy": {}}
    for clip in corpus:
        kind = clip.labels.get("kind", "")
        if kind in sides:
            sides[kind][clip.labels.get("set", ""), clip.id] = clip
    return [(noisy, sides["clean"][key]) for key, noisy in sides["noisy"].items() if key in sides["clean"]]


def mixing_root(root: Path) -> tuple[Path, Path] | None:
    """The folders of clean speech and of noise, here or below ``datasets`` or ``datasets_fullband``."""
    for place in (root, root / "datasets_fullband", root / "datasets"):
        if place.is_dir():
            names = sorted(path for path in place.iterdir() if path.is_dir())
            speech = [path for path in names if _SPEECH.match(path.name)]
            noise = [path for path in names if _NOISE.match(path.name)]
            if speech and noise:
                return speech[0], noise[0]
    return None


def mixing_clips(speech: Path, noise: Path) -> Iterator[Clip]:
    """Speech with the set it comes from (``vctk``, ``librivox`` or the name of its folder), and noise."""
    voices = []
    for path in sound_files(speech):
        inner = path.relative_to(speech)
        labels = {"kind": "speech", "speaker": speaker_of(path), "set": _set(inner)}
        voices.append(Clip(path, inner.with_suffix("").as_posix(), labels=labels))
    yield from hold_out(voices, _speaker)
    noises = []
    for path in sound_files(noise):
        inner = path.relative_to(noise)
        noises.append(Clip(path, inner.with_suffix("").as_posix(), labels={"kind": "noise", "set": "noise"}))
    yield from hold_out(noises, _name)


def _set(path: Path) -> str:
    words = path.as_posix().lower()
    if "vctk" in words:
        return "vctk"
    if "read_speech" in words or "librivox" in words or "book_" in words:
        return "librivox"
    return path.parts[0] if len(path.parts) > 1 else "speech"


def _speaker(clip: Clip) -> str:
    return clip.labels["speaker"]


def _name(clip: Clip) -> str:
    return clip.id
