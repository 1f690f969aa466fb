"""Examples for keyword spotting: a word or background, augmented, with other audio before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centaurus.audio.augment import add_noise, change_speed, coloured, equalised, fit, looped, preceded, shift
from centaurus.audio.level import gain
from centaurus.data.corpus import Corpus
from centaurus.data.layouts import subset
from centaurus.decode.keywords import BACKGROUND

Samples = NDArray[np.float32]
Item = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Variation:
    """The augmentation of a word. ``NONE`` turns all of it off."""

    speed: float = 0.1
    """The largest relative change of speed, in either direction."""
    gain_db: float = 10.0
    shift: float = 0.1
    """The largest shift in seconds, in either direction."""
    tone_db: float = 0.0
    """The largest gain or loss of a random equaliser, as by another microphone."""
    noisy: float = 0.7
    """The share of words with noise."""
    snr: tuple[float, float] = (0.0, 30.0)
    mixed: float = 0.0
    """The share of words mixed with another word, at 0 to 20 dB."""
    before: float = 1.0
    """Seconds of other audio before the word, so that training covers the history of a stream."""


NONE = Variation(speed=0, gain_db=0, shift=0, noisy=0, before=0)


class Keywords:
    """Clips of words with their classes; with ``background`` one more class of noise, near-silence and other speech.

    The class of background is the last one. Words outside the classes are used as background too, and so is
    ``speech`` where its transcript has none of the classes.
    """

    def __init__(
        self,
        words: Corpus,
        classes: int | Sequence[str] | None = None,
        noise: Corpus | None = None,
        background: float = 0.0,
        variation: Variation = Variation(),  # noqa: B008, it is frozen
        seconds: float = 1.0,
        speech: Corpus | None = None,
    ) -> None:
        available = words.values("word")
        if not available:
            raise ValueError(f"the {words.name} corpus has no clips with a word")
        names = available if classes is None else subset(classes, available)
        self.classes = (*names, BACKGROUND) if background else names
        self.words = words.where(word=names)
        self.others = words.of(clip for clip in words if clip.labels.get("word", names[0]) not in names)
        self.speech = None if speech is None else without_words(speech, names)
        self.noise, self.variation = noise, variation
        self.frames = round(seconds * words.rate)
        self.history = round(variation.before * words.rate)
        self.backgrounds = round(background * len(self.words))
        self._class = {name: number for number, name in enumerate(self.classes)}

    def size(self) -> int:
        """Words and backgrounds in an epoch."""
        return len(self.words) + self.backgrounds

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return all of them in random order."""
        return rng.permutation(self.size())

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` (1, history + clip), its ``label``, and where the clip ``start``s after the history."""
        if index < len(self.words):
            clip, x = self.words.take(index)
            label = self._class[clip.labels["word"]]
            x = self._varied(self._mixed(x, rng), rng)
        else:
            label, x = len(self.classes) - 1, self._background(rng)
        if self.history:
            x = preceded(x, self._before(rng))
        return {"audio": x[None], "label": np.array(label), "start": np.array(self.history)}

    def _mixed(self, x: Samples, rng: np.random.Generator) -> Samples:
        if not self.variation.mixed or rng.random() >= self.variation.mixed:
            return x
        other = self.words.take(int(rng.integers(len(self.words))))[1]
        return add_noise(x, fit(other, len(x)), rng.uniform(0, 20))

    def _varied(self, x: Samples, rng: np.random.Generator) -> Samples:
        how, rate = self.variation, self.words.rate
        if how.speed:
            x = change_speed(x, float(rng.uniform(1 - how.speed, 1 + how.speed)))
        x = fit(x, self.frames, at=(self.frames - len(x)) // 2 if how.speed else 0)
        if how.shift:
            x = shift(x, int(rng.integers(-round(how.shift * rate), round(how.shift * rate) + 1)))
        if how.tone_db:
            x = equalised(rng, x, how.tone_db, rate=rate)
        if rng.random() < how.noisy:
            x = add_noise(x, self._noise(rng, self.frames), rng.uniform(*how.snr))
        return x * gain(rng.uniform(-how.gain_db, how.gain_db)) if how.gain_db else x

    def _noise(self, rng: np.random.Generator, frames: int) -> Samples:
        return some_noise(self.noise, frames, self.words.rate, rng)

    def _background(self, rng: np.random.Generator) -> Samples:
        kind = rng.random()
        if kind < 0.4 and (self.speech or len(self.others)):
            return self._varied(self._other_speech(rng), rng)
        level = rng.uniform(-50, 0) if kind < 0.6 else rng.uniform(-12, 6)
        return self._noise(rng, self.frames) * gain(level)

    def _other_speech(self, rng: np.random.Generator) -> Samples:
        """Return a second of speech, or a word that is not a class."""
        if not self.speech or (len(self.others) and rng.random() < 0.5):
            return self.others.take(int(rng.integers(len(self.others))))[1]
        x = self.speech.take(int(rng.integers(len(self.speech))))[1]
        start = int(rng.integers(0, max(0, len(x) - self.frames) + 1))
        return x[start : start + self.frames]

    def _before(self, rng: np.random.Generator) -> Samples:
        """Return silence, noise, or the ends of other words, as long as the history."""
        kind = rng.random()
        if kind < 0.2:
            return np.zeros(self.history, np.float32)
        if kind < 0.6:
            return fit(self._noise(rng, self.history) * gain(rng.uniform(-30, 0)), self.history)
        y, last = np.zeros(self.history, np.float32), self.history
        while last > 0:
            x = self.words.take(int(rng.integers(len(self.words))))[1][-last:]
            y[last - len(x) : last] = x * gain(rng.uniform(-10, 5))
            last -= len(x) + int(rng.integers(0, self.words.rate // 4))
        return y


def some_noise(noise: Corpus | None, frames: int, rate: int, rng: np.random.Generator) -> Samples:
    """Return recorded noise; coloured noise if there is none, and in a fifth of the cases anyway."""
    if noise is None or not len(noise) or rng.random() < 0.2:
        return coloured(rng, frames, rate=rate) * np.float32(0.03)
    index = int(rng.integers(len(noise)))
    known = noise[index].frames
    if known > frames and noise[index].rate == rate:
        return noise.take(index, int(rng.integers(0, known - frames + 1)), frames)[1]
    return looped(rng, noise.take(index)[1], frames)


def without_words(speech: Corpus, words: Sequence[str]) -> Corpus:
    """Return the clips with a transcript that has none of the words."""
    excluded = {word.lower() for word in words}
    return speech.of(
        clip
        for clip in speech
        if (said := re.findall(r"[a-z']+", clip.labels.get("transcript", "").lower())) and excluded.isdisjoint(said)
    )
