"""Phrases that sound like a wake phrase, spoken by espeak-ng where it is installed.

A model that has only heard the phrase and unrelated speech reports much of what lies between them: parts of the phrase,
its words in another order, and other words of the same rhythm.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import cycle, zip_longest
from pathlib import Path

from centaurus.audio import AudioError
from centaurus.decode import normalise
from centaurus.system import cache_folder, replacing

PROGRAM = "espeak-ng"
VOICES = tuple(
    f"{accent}+{variant}"
    for variant in ("m1", "f1", "m3", "f2", "m7", "f4")
    for accent in ("en-us", "en-gb", "en-gb-scotland", "en-029")
)
SPEEDS = (130, 150, 175, 200)  # words a minute
PITCHES = (35, 50, 65)  # of 99
SECONDS = 60.0  # until espeak-ng is given up on
SPOKEN = "espeak-ng"  # the folder of the recordings in the user's cache folder
DIFFERENT = 2  # phonemes by which a near phrase differs at least, or one consonant: voices differ in single vowels
STARTS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "w", "ch", "st")
VOWELS = ("a", "e", "i", "o", "u", "ay", "ee", "oh", "ow")
VOWEL = re.compile("[aeiouy]+")
VOWEL_SOUND = re.compile("[@aeiou0-9V]", re.IGNORECASE)  # phonemes as espeak-ng writes them
STRESS = re.compile("[',%=|]")


def near_phrases(phrase: str) -> list[str]:
    """Return texts similar to a phrase: its parts, other orders, and words with other sounds; kinds alternate."""
    words = normalise(phrase).split()
    kinds = [
        _parts(words),
        _swapped(words),
        _changed(words, _restarted),
        _changed(words, _renamed),
        _changed(words, _halves),
    ]
    mixed = [text for group in zip_longest(*kinds) for text in group if text]
    return [text for text in dict.fromkeys(mixed) if text.split() != words]


def _parts(words: Sequence[str]) -> Iterator[str]:
    for size in range(len(words) - 1, 0, -1):
        for first in range(len(words) - size + 1):
            yield " ".join(words[first : first + size])


def _swapped(words: Sequence[str]) -> Iterator[str]:
    for k in range(len(words) - 1):
        yield " ".join([*words[:k], words[k + 1], words[k], *words[k + 2 :]])


def _changed(words: Sequence[str], change: Callable[[str], Iterator[str]]) -> Iterator[str]:
    """Yield the phrase with one of its words changed, the words in turn."""
    for group in zip_longest(*(change(word) for word in words)):
        for k, other in enumerate(group):
            if other:
                yield " ".join([*words[:k], other, *words[k + 1 :]])


def _restarted(word: str) -> Iterator[str]:
    """Yield a word with another beginning."""
    vowel = VOWEL.search(word)
    if vowel:
        yield from (start + word[vowel.start() :] for start in STARTS)


def _renamed(word: str) -> Iterator[str]:
    """Yield a word with another beginning and one of its vowels changed."""
    vowels = list(VOWEL.finditer(word))
    for k, start in enumerate(STARTS * len(vowels)):
        vowel = vowels[k // len(STARTS)]
        rest = word[vowels[0].start() : vowel.start()] + VOWELS[k % len(VOWELS)] + word[vowel.end() :]
        yield start + rest


def _halves(word: str) -> Iterator[str]:
    """Yield what comes before and after each vowel, with that vowel."""
    for vowel in VOWEL.finditer(word):
        yield from (part for part in (word[: vowel.end()], word[vowel.start() :]) if len(part) > 1)


def spoken_near(phrase: str, count: int) -> list[Path]:
    """Return recordings of ``count`` phrases by espeak-ng that sound similar to this one, but can be told from it.

    There are none if espeak-ng is not installed, or if it does not speak the phrase. The recordings stay in the user's
    cache folder.
    """
    if shutil.which(PROGRAM) is None:
        return []
    own = _phonemes(normalise(phrase))
    return spoken([text for text in near_phrases(phrase) if own and _differ(own, _phonemes(text))], count)


def _differ(a: Sequence[str], b: Sequence[str]) -> bool:
    """Return whether two phrases of phonemes can be told apart."""
    x, y = ([sound for sound in sounds if not VOWEL_SOUND.match(sound)] for sounds in (a, b))
    return _distance(a, b) >= DIFFERENT or x != y


def spoken(texts: Sequence[str], count: int) -> list[Path]:
    """Return ``count`` recordings of texts by espeak-ng in different voices; none if it is not installed."""
    if not texts or shutil.which(PROGRAM) is None:
        return []
    ways = zip(cycle(texts), cycle(VOICES), cycle(SPEEDS), cycle(PITCHES), strict=False)
    return [_recorded(*way) for way, _ in zip(ways, range(count), strict=False)]


def _recorded(text: str, voice: str, speed: int, pitch: int) -> Path:
    """Return the recording of a text, which is spoken if it is not in the cache."""
    name = sha256(f"{text} {speed} {pitch}".encode()).hexdigest()[:16]
    path = cache_folder(SPOKEN) / f"{voice.replace('+', '-')}_nohash_{name}.wav"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            _run(text, "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", str(temporary))
    return path


def _phonemes(text: str) -> list[str]:
    """Return the phonemes of a text without their stress."""
    sounds = re.split(r"[_\s]+", _run(text, "-q", "-x", "--sep=_", "-v", "en-us"))
    return [sound for sound in (STRESS.sub("", sound) for sound in sounds) if sound]


def _run(text: str, *arguments: str) -> str:
    command = [PROGRAM, *arguments, "--stdin"]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise AudioError(f"did not finish within {SECONDS:g} seconds", PROGRAM) from None
    if done.returncode:
        raise AudioError(
            f"failed to speak {text[:40]!r} (near=0 trains without it): {done.stderr.strip()[:200]}", PROGRAM
        )
    return done.stdout


def _distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the fewest insertions, deletions and replacements between two sequences."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]
