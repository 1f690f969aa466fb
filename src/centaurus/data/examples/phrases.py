"""Examples for connected words: phrases composed of clips of single words, with the place of each word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from centaurus.audio.augment import add_noise, change_speed
from centaurus.audio.level import to_level
from centaurus.data.corpus import Corpus
from centaurus.data.examples.keywords import some_noise, without_words

Samples = NDArray[np.float32]
Item = dict[str, NDArray[np.generic]]
Encode = Callable[[str], Mapping[str, NDArray[np.generic]]]

FRAME = 160  # of the envelope: 10 ms at 16 kHz
QUIET_DB, MARGIN = 30.0, 4  # a word ends this far below its loudest frame, and extends this many frames beyond
FLOOR, ABOVE_DB, SURE_DB = 0.15, 8.0, 12.0  # or this far above this quantile, but at most this far below the loudest
PAUSE = 16  # frames: sounds further apart than this are separate
FADE = 160  # samples over which a word comes in and goes out


class Spoken(NamedTuple):
    """A word and its samples [start, end) in a phrase."""

    word: str
    start: int
    end: int


@dataclass(frozen=True)
class Phrasing:
    """Settings of phrases. Ranges are sampled uniformly; times are in seconds."""

    words: tuple[int, int] = (1, 7)
    gap: tuple[float, float] = (-0.03, 0.5)
    """Between the end of a word and the start of the next; below zero they overlap."""
    edge: tuple[float, float] = (0.1, 0.6)
    """Before the first word; after the last there is at least as much."""
    speed: float = 0.1
    level: tuple[float, float] = (-35.0, -15.0)
    noisy: float = 0.7
    snr: tuple[float, float] = (5.0, 30.0)
    one_speaker: float = 0.7
    """The share of phrases by one speaker, of those with at least four words."""
    whole: float = 0.2
    """The share of words that keep the silence before and after them in their clips."""
    wordless: float = 0.0
    """The share of examples without any word: noise, or other speech."""


class Phrases:
    """``count`` phrases an epoch; with ``fixed``, a seed, the same ones in every epoch."""

    def __init__(
        self,
        words: Corpus,
        noise: Corpus | None = None,
        how: Phrasing = Phrasing(),  # noqa: B008, it is frozen
        count: int = 1000,
        encode: Encode | None = None,
        length: int | None = None,
        fixed: int | None = None,
        speech: Corpus | None = None,
    ) -> None:
        if not len(words) or not words.values("word"):
            raise ValueError(f"the {words.name} corpus has no clips with a word")
        self.words, self.noise, self.how, self.count, self.encode = words, noise, how, count, encode
        self.length, self.fixed = length, fixed
        self.speech = None if speech is None else without_words(speech, words.values("word"))
        by_speaker: dict[str, list[int]] = defaultdict(list)
        for index, clip in enumerate(words):
            by_speaker[clip.labels.get("speaker", "")].append(index)
        self._speakers = [members for members in by_speaker.values() if len(members) >= 4]

    def size(self) -> int:
        """Phrases in an epoch."""
        return self.count

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices in order; the generator makes another phrase of each in every epoch."""
        return np.arange(self.count)

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` (1, t), the ``samples`` before padding, ``starts`` and ``ends`` of words, and their text."""
        x, said = self.phrase(index, rng)
        audio = x if self.length is None else np.pad(x, (0, self.length - len(x)))
        text = self.encode(" ".join(spoken.word for spoken in said)) if self.encode else {}
        starts, ends = np.array([(spoken.start, spoken.end) for spoken in said], np.int64).reshape(-1, 2).T
        return {"audio": audio[None], "samples": np.array(len(x)), "starts": starts, "ends": ends, **text}

    def phrase(self, index: int, rng: np.random.Generator) -> tuple[Samples, list[Spoken]]:
        """Return a phrase and the places of its words, as many as fit in ``length``."""
        if self.fixed is not None:
            rng = np.random.default_rng([self.fixed, index])
        y, said = self._wordless(rng) if rng.random() < self.how.wordless else self._said(rng)
        y = to_level(y, rng.uniform(*self.how.level))[: self.length]
        return y / np.float32(max(1.0, np.abs(y).max(initial=0))), said

    def _wordless(self, rng: np.random.Generator) -> tuple[Samples, list[Spoken]]:
        """Return other speech, or noise."""
        frames = round(rng.uniform(1, 4) * self.words.rate)
        if not self.speech or rng.random() < 0.5:
            return some_noise(self.noise, frames, self.words.rate, rng), []
        x = self.speech.take(int(rng.integers(len(self.speech))))[1]
        start = int(rng.integers(0, max(0, len(x) - frames) + 1))
        return x[start : start + frames], []

    def _said(self, rng: np.random.Generator) -> tuple[Samples, list[Spoken]]:
        """Return a sequence of words, with or without noise."""
        how, rate = self.how, self.words.rate
        speed = float(rng.uniform(1 - how.speed, 1 + how.speed)) if how.speed else 1.0
        at = first = round(rng.uniform(*how.edge) * rate)
        placed: list[tuple[int, Samples]] = []
        said: list[Spoken] = []
        for clip_index in self._choice(rng):
            clip, x = self.words.take(clip_index)
            x = change_speed(x, speed)
            begin, end = bounds(x)
            if rng.random() >= how.whole:
                x, begin, end = x[begin:end], 0, end - begin
            if said and self.length is not None and at + len(x) + first > self.length:
                break
            placed.append((at, to_level(faded(x), -20 + rng.uniform(-3, 3))))
            said.append(Spoken(clip.labels["word"], at + begin, at + end))
            at += len(x) + round(rng.uniform(*how.gap) * rate)
        total = placed[-1][0] + len(placed[-1][1]) + first
        y = np.zeros(total, np.float32)
        for start, x in placed:
            y[start : start + len(x)] += x
        if rng.random() < how.noisy:
            y = add_noise(y, some_noise(self.noise, total, rate, rng), rng.uniform(*how.snr))
        return y, said

    def _choice(self, rng: np.random.Generator) -> list[int]:
        low, high = self.how.words
        count = int(rng.integers(low, high + 1))
        if self._speakers and rng.random() < self.how.one_speaker:
            members = self._speakers[int(rng.integers(len(self._speakers)))]
            return [members[int(k)] for k in rng.integers(0, len(members), count)]
        return [int(k) for k in rng.integers(0, len(self.words), count)]


def bounds(x: Samples) -> tuple[int, int]:
    """Return where a word begins and ends in its clip, without the silence around it."""
    frames = len(x) // FRAME
    if not frames:
        return 0, len(x)
    power = np.square(x[: frames * FRAME]).reshape(frames, FRAME).mean(axis=1)
    peak, floor = power.max(), np.quantile(power, FLOOR)
    limit = max(peak * 10 ** (-QUIET_DB / 10), min(floor * 10 ** (ABOVE_DB / 10), peak * 10 ** (-SURE_DB / 10)))
    loud = np.flatnonzero(power > limit)
    if not len(loud):
        return 0, len(x)
    pieces = np.split(loud, np.flatnonzero(np.diff(loud) > PAUSE) + 1)
    loud = max(pieces, key=lambda piece: float(power[piece].sum()))
    return max(0, int(loud[0]) - MARGIN) * FRAME, min(len(x), (int(loud[-1]) + 1 + MARGIN) * FRAME)


def faded(x: Samples) -> Samples:
    """Return a word with a fade at both ends."""
    edge = min(FADE, len(x) // 2)
    ramp = np.linspace(0, 1, edge, dtype=np.float32)
    y = x.copy()
    y[:edge] *= ramp
    y[len(y) - edge :] *= ramp[::-1]
    return y
