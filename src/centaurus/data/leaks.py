"""Training texts that resemble held-out ones: an exact measure, and a filter that finds candidates among millions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from centaurus.data.corpus import Clip, Corpus

WORDS_IN_A_ROW = 4
_WORD = re.compile(r"[\w']+")
Run = tuple[str, ...]


@dataclass(frozen=True)
class Leak:
    """A training clip, the held-out clip it resembles, and the share of the shorter text that both have."""

    clip: Clip
    held_out: Clip
    similarity: float


def without_leaks(train: Corpus, held_out: Iterable[Clip], limit: float = 0.5) -> tuple[Corpus, list[Leak]]:
    """Split training clips into those that resemble no held-out text, and leaks.

    Similarity is the share of runs of four words, of the text that has fewer, that both texts have; texts of fewer
    than four words resemble each other only if they are the same. One pass over the training texts, whatever the
    number of held-out ones.
    """
    held = list(held_out)
    texts = HeldOut([clip.labels.get("transcript", "") for clip in held], limit)
    kept, leaks = [], []
    for clip in train:
        number, similarity = texts.closest(clip.labels.get("transcript", ""))
        if similarity >= limit:
            leaks.append(Leak(clip, held[number], similarity))
        else:
            kept.append(clip)
    return train.of(kept), leaks


class HeldOut:
    """Held-out texts, to be compared with."""

    def __init__(self, texts: Sequence[str], limit: float = 0.5) -> None:
        if not 0 < limit <= 1:
            raise ValueError(f"a similarity should be between 0 and 1, got {limit}")
        self.limit = limit
        runs = [_runs(text) for text in texts]
        self._sizes = [len(own) for own in runs]
        self._where: dict[Run, list[int]] = {}
        for number, own in enumerate(runs):
            for run in own:
                self._where.setdefault(run, []).append(number)
        long = [run for run in self._where if len(run) == WORDS_IN_A_ROW and all(word.isascii() for word in run)]
        self._hashes = np.unique(np.array([_run_hash(run) for run in long], np.uint64))

    def closest(self, text: str) -> tuple[int, float]:
        """Return the held-out text that shares most with a text, and the share; (-1, 0) if none shares anything."""
        own = _runs(text)
        shared = Counter(number for run in own for number in self._where.get(run, ()))
        alike = {number: count / min(len(own), self._sizes[number]) for number, count in shared.items()}
        worst = max(alike, key=alike.__getitem__, default=-1)
        return worst, alike.get(worst, 0.0)

    def leaks(self, letters: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[int]:
        """Return the numbers of the texts ``letters[starts[k] : ends[k]]`` (UTF-8) that resemble a held-out one."""
        return [
            number
            for number in self.candidates(letters, starts, ends).tolist()
            if self.closest(bytes(letters[starts[number] : ends[number]]).decode("utf-8", "replace"))[1] >= self.limit
        ]

    def candidates(
        self, letters: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return texts that may resemble a held-out one: every one that does, and few others.

        A run of four words is compared by its hash. Texts with other than ASCII letters, and those of fewer than four
        words, are all candidates.
        """
        if not len(starts):
            return np.zeros(0, np.int64)
        inside = np.zeros(len(letters) + 1, np.int8)
        inside[starts] += 1
        np.add.at(inside, ends, -1)
        inside = np.cumsum(inside[:-1], dtype=np.int8)
        foreign = np.searchsorted(starts, np.flatnonzero((letters > 127) & (inside > 0)), "right") - 1
        folded = np.where(inside > 0, _FOLDED[letters], 0)
        words, first = _word_hashes(folded)
        owner = np.searchsorted(starts, first, "right") - 1
        counts = np.bincount(owner, minlength=len(starts))
        runs = np.zeros(max(0, len(words) - WORDS_IN_A_ROW + 1), np.uint64)
        for place in range(WORDS_IN_A_ROW):
            runs += words[place : place + len(runs)] * _PLACES[place]
        whole = owner[: len(runs)] == owner[WORDS_IN_A_ROW - 1 :][: len(runs)]
        position = np.searchsorted(self._hashes, runs)
        same = np.zeros(len(runs), bool)
        known = position < len(self._hashes)
        same[known] = self._hashes[position[known]] == runs[known]
        short = np.flatnonzero(counts < WORDS_IN_A_ROW)
        return np.unique(np.concatenate([owner[: len(runs)][whole & same], short, foreign]))


def _runs(text: str) -> set[Run]:
    """Return every run of four words of a text, without case and punctuation; a shorter text is one run."""
    words = _WORD.findall(text.casefold())
    if not words:
        return set()
    last = max(1, len(words) - WORDS_IN_A_ROW + 1)
    return {tuple(words[i : i + WORDS_IN_A_ROW]) for i in range(last)}


# Hashes: a sum over the letters of a word of (number of the letter) · (power of the place), modulo 2^64.
_random = np.random.default_rng(0)
_LONGEST = 64  # letters further on count as if they stood at this place
_NUMBERS = _random.integers(1, 2**63, 256, np.uint64) | np.uint64(1)
_POWERS = _random.integers(1, 2**63, _LONGEST, np.uint64) | np.uint64(1)
_PLACES = _random.integers(1, 2**63, WORDS_IN_A_ROW, np.uint64) | np.uint64(1)
_FOLDED = np.array([ord(chr(k).lower()) if k < 128 and _WORD.match(chr(k)) else 0 for k in range(256)], np.uint8)


def _word_hashes(folded: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash of every word, and where it begins; ``folded`` is zero between words."""
    inside = folded != 0
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    first = np.flatnonzero(begins)
    if not len(first):
        return np.zeros(0, np.uint64), first
    letters = np.flatnonzero(inside)
    word = np.cumsum(begins[letters]) - 1
    place = np.minimum(letters - first[word], _LONGEST - 1)
    values = _NUMBERS[folded[letters]] * _POWERS[place]
    return np.add.reduceat(values, np.searchsorted(letters, first)), first


@cache
def _word_hash(word: str) -> int:
    values = (int(_NUMBERS[ord(c)]) * int(_POWERS[min(k, _LONGEST - 1)]) for k, c in enumerate(word))
    return sum(values) % 2**64


def _run_hash(run: Run) -> int:
    return sum(_word_hash(word) * int(place) for word, place in zip(run, _PLACES, strict=True)) % 2**64
