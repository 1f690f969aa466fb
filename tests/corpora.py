"""Small synthetic corpora for tests, in the layouts of the public ones. The same arguments write the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centaurus import audio
from centaurus.audio.augment import coloured, combine, hum
from centaurus.data.corpus import COLUMNS, INDEX, Corpus
from centaurus.data.synthetic import (
    PHONES,
    RATE,
    Phone,
    Speaker,
    people,
    speak,
    speech_commands,
    write_clip,
)

__all__ = ["ambience", "dns", "librispeech", "mls", "sentence", "speech_commands", "spell", "voicebank", "write_pack"]

Samples = NDArray[np.float32]
LETTERS = "abcdefghijklmnopqrstu"  # of the toy alphabet, one phone each


def voicebank(
    folder: str | os.PathLike[str],
    train: int = 24,
    test: int = 8,
    seconds: float = 3.0,
    rate: int = RATE,
    seed: int = 0,
) -> Path:
    """Pairs of clean and noisy sentences with their texts: VoiceBank+DEMAND."""
    root = Path(folder)
    voices = people(seed, 8)
    for split, count, snrs in (("trainset_28spk", train, (0, 5, 10, 15)), ("testset", test, (2.5, 7.5, 12.5, 17.5))):
        folders = [root / f"{kind}_{split}_wav" for kind in ("clean", "noisy")]
        for place in folders:
            place.mkdir(parents=True, exist_ok=True)
        log = []
        for k in range(count):
            rng = np.random.default_rng([seed, 3, split == "testset", k])
            who = 6 + k % 2 if split == "testset" else k % 6
            name, snr = f"p{226 + who}_{k + 1:03d}", snrs[k % len(snrs)]
            clean = _babbling(voices[who], seconds, rng)
            noisy, clean = audio.mix(clean, ambience(rng, len(clean)), snr, -24)
            for place, x in zip(folders, (clean, noisy), strict=True):
                write_clip(place / f"{name}.wav", x, None, rate)
            log.append(f"{name} synthetic {snr:g}\n")
        (root / f"log_{split}.txt").write_text("".join(log))
    return root


def dns(
    folder: str | os.PathLike[str],
    clean: int = 24,
    noise: int = 12,
    seconds: float = 4.0,
    rate: int = RATE,
    seed: int = 0,
) -> Path:
    """Clean speech (VCTK and readings) and noise in folders of their own, to be mixed: the DNS challenge."""
    root = Path(folder) / "datasets_fullband"
    voices = people(seed, 8)
    sets = {"vctk_wav48_silence_trimmed": clean - clean // 2, "read_speech": clean // 2}
    for s, (name, count) in enumerate(sets.items()):
        for k in range(count):
            rng = np.random.default_rng([seed, 4, s, k])
            who = k % 6
            place = root / "clean_fullband" / name / f"p{226 + who}"
            place.mkdir(parents=True, exist_ok=True)
            write_clip(place / f"p{226 + who}_{k:03d}.wav", _babbling(voices[who], seconds, rng), -25, rate)
    place = root / "noise_fullband"
    place.mkdir(parents=True, exist_ok=True)
    for k in range(noise):
        rng = np.random.default_rng([seed, 5, k])
        write_clip(place / f"noise_{k:03d}.wav", ambience(rng, int(seconds * RATE)), -25, rate)
    return Path(folder)


def librispeech(
    folder: str | os.PathLike[str],
    train: int = 60,
    dev: int = 12,
    test: int = 12,
    words: int = 3,
    letters: str = LETTERS[:8],
    seconds: float = 0.24,
    seed: int = 0,
) -> Path:
    """Words of a toy alphabet, spoken letter by letter, with their texts: LibriSpeech."""
    root = Path(folder) / "LibriSpeech"
    voices = people(seed, 12)
    for _, subset, count, group in _sets(train, dev, test):
        texts: dict[Path, list[str]] = {}
        for k in range(count):
            rng = np.random.default_rng([seed, 6, group, k])
            who = _member(group, k)
            name = f"{100 + who}-{1000 + who}-{k:04d}"
            place = root / subset / str(100 + who) / str(1000 + who)
            place.mkdir(parents=True, exist_ok=True)
            text = sentence(rng, words, letters)
            write_clip(place / f"{name}.flac", spell(text, voices[who], rng, seconds))
            texts.setdefault(place / f"{100 + who}-{1000 + who}.trans.txt", []).append(f"{name} {text.upper()}\n")
        for path, lines in texts.items():
            path.write_text("".join(lines))
    return Path(folder)


def mls(
    folder: str | os.PathLike[str],
    train: int = 60,
    dev: int = 12,
    test: int = 12,
    words: int = 3,
    letters: str = LETTERS[:8],
    seconds: float = 0.24,
    suffix: str = ".flac",
    seed: int = 0,
) -> Path:
    """The same in the layout of Multilingual LibriSpeech: ``transcripts.txt`` and audio/speaker/book."""
    root = Path(folder)
    voices = people(seed, 12)
    for split, _, count, group in _sets(train, dev, test):
        lines = []
        for k in range(count):
            rng = np.random.default_rng([seed, 7, group, k])
            who = _member(group, k)
            name = f"{100 + who}_{1000 + who}_{k:06d}"
            place = root / split / "audio" / str(100 + who) / str(1000 + who)
            place.mkdir(parents=True, exist_ok=True)
            text = sentence(rng, words, letters)
            write_clip(place / f"{name}{suffix}", spell(text, voices[who], rng, seconds))
            lines.append(f"{name}\t{text}\n")
        (root / split).mkdir(parents=True, exist_ok=True)
        (root / split / "transcripts.txt").write_text("".join(lines))
    return root


def ambience(rng: np.random.Generator, frames: int) -> Samples:
    """A random mixture of coloured noise, hum and clatter at 0 dBFS."""
    clatter = np.zeros(frames, np.float32)
    for start in rng.integers(0, max(1, frames - 800), max(1, frames // 4000)):
        length = min(800, frames - int(start))
        decay = np.exp(-np.arange(length, dtype=np.float32) / 150)
        clatter[start : start + length] += rng.standard_normal(length, dtype=np.float32) * decay
    slow = 1 + 0.5 * np.sin(2 * np.pi * rng.uniform(0.2, 2) * np.arange(frames) / RATE + rng.uniform(0, 6))
    steady = coloured(rng, frames) * slow.astype(np.float32)
    return combine(steady, (hum(rng, frames), rng.uniform(-25, -8)), (clatter, rng.uniform(-15, 0)))


def sentence(rng: np.random.Generator, words: int, letters: str = LETTERS) -> str:
    """Random words of two to four letters; no letter follows itself."""
    chosen = []
    for _ in range(words):
        word = ""
        for _ in range(int(rng.integers(2, 5))):
            word += str(rng.choice([letter for letter in letters if letter != word[-1:]]))
        chosen.append(word)
    return " ".join(chosen)


def letter_phone(letter: str) -> Phone | None:
    """The phone of a letter of the toy alphabet, or None for a pause."""
    place = LETTERS.find(letter)
    if len(letter) != 1 or (place < 0 and letter != " "):
        raise ValueError(f"the toy alphabet is {LETTERS!r} and the space, not {letter!r}")
    return PHONES[place] if place >= 0 else None


def spell(text: str, speaker: Speaker, rng: np.random.Generator, seconds: float = 0.24) -> Samples:
    """A text of the toy alphabet, letter by letter, with a little silence before and after."""
    return speak([None, *map(letter_phone, text), None], speaker, rng, seconds)


def _babbling(speaker: Speaker, seconds: float, rng: np.random.Generator) -> Samples:
    """Random phones in groups with pauses between them."""
    phones: list[Phone | None] = []
    while len(phones) * 0.14 < 1.6 * seconds:
        group = rng.integers(0, len(PHONES), int(rng.integers(3, 9)))
        phones += [*(PHONES[i] for i in group), *[None] * int(rng.integers(1, 3))]
    return speak(phones, speaker, rng)[: int(seconds * RATE)]


def _sets(train: int, dev: int, test: int) -> Iterator[tuple[str, str, int, int]]:
    yield from (("train", "train-clean-100", train, 0), ("dev", "dev-clean", dev, 1), ("test", "test-clean", test, 2))


def _member(group: int, k: int) -> int:
    """Eight speakers to train, two to develop, two to test."""
    return k % 8 if group == 0 else 6 + 2 * group + k % 2


def write_pack(corpus: Corpus, folder: Path, by: str = "split", suffix: str = ".flac") -> None:
    """Write a corpus as a pack: one file for each value of the label ``by``, and the index."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = sorted({name for clip in corpus for name in clip.labels if name not in (*COLUMNS, "split")})
    lines = ["\t".join([*COLUMNS, *labels, "split"])]
    for value in corpus.values(by):
        name = f"{value}{suffix}"
        start = 0
        with audio.Writer(folder / name, corpus.rate, subtype="OPUS" if suffix == ".ogg" else None) as file:
            for clip in corpus.where(**{by: value}):
                samples = corpus.load(clip)
                file.write(samples)
                words = [" ".join(clip.labels.get(key, "").split()) for key in (*labels, "split")]
                lines.append("\t".join([name, str(start), str(len(samples)), clip.id, *words]))
                start += len(samples)
    (folder / INDEX).write_text("\n".join(lines) + "\n", encoding="utf-8")
