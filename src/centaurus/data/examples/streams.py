"""Examples for continuous keyword spotting: words in seconds of silence, noise and other speech.

Every frame has a label: the word that has just ended, or the background. Frames around the end of a word, where both
labels are right, have no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centaurus.audio.augment import change_speed, equalised, hum
from centaurus.audio.level import dbfs, gain
from centaurus.data.corpus import Corpus
from centaurus.data.examples.keywords import some_noise
from centaurus.data.examples.phrases import bounds, faded

Samples = NDArray[np.float32]
Item = dict[str, NDArray[np.generic]]

EARLY, LATE = 0.06, 0.34  # seconds before and after the end of a word in which frames have its label
UNSURE = 0.16  # seconds before and after the label that have no weight
QUIETEST = -120.0  # dBFS: a quieter recording counts as digital silence
ROOM_SECONDS = 0.3  # length of a room's response


@dataclass(frozen=True)
class Streaming:
    """Settings of streams. Ranges are sampled uniformly; times are in seconds, levels in dBFS."""

    seconds: float = 6.0
    negative: float = 0.5
    """The share of streams with other speech, in all of it or before the words."""
    alone: float = 0.1
    """The share of streams that are noise alone, as loud as speech: without them a loud noise is taken for a word."""
    dense: float = 0.6
    """The share of streams with short pauses."""
    pause: tuple[float, float] = (0.12, 0.8)
    long_pause: tuple[float, float] = (0.3, 4.0)
    speed: float = 0.13
    tone_db: float = 6.0
    level: tuple[float, float] = (-33.0, -13.0)
    noisy: float = 0.85
    snr: tuple[float, float] = (3.0, 45.0)
    room: float = 0.3
    """The share of words with the reverberation of a room."""
    partial: float = 0.08
    """The share of words that are truncated, and labelled as background."""


class Streams:
    """``count`` streams an epoch; with ``fixed``, a seed, the same ones in every epoch.

    ``words`` are clips with a ``word``: those of ``classes`` are labelled, others are other speech. ``classes`` end
    with the background, whose label is the last. ``frame`` is how many samples a frame of the network stands for.
    """

    def __init__(
        self,
        words: Corpus,
        classes: Sequence[str],
        frame: int,
        noise: Corpus | None = None,
        speech: Corpus | None = None,
        how: Streaming = Streaming(),  # noqa: B008, it is frozen
        count: int = 1000,
        fixed: int | None = None,
    ) -> None:
        self.classes, self.frame, self.noise, self.speech, self.how = tuple(classes), frame, noise, speech, how
        self.words = words.where(word=self.classes[:-1])
        self.others = words.of(clip for clip in words if clip.labels.get("word") not in self.classes)
        if not len(self.words):
            raise ValueError(f"the {words.name} corpus has no clips of {', '.join(self.classes[:-1])}")
        self.rate, self.count, self.fixed = words.rate, count, fixed
        self.frames = round(how.seconds * self.rate) // frame
        self.length = self.frames * frame

    def size(self) -> int:
        """Streams in an epoch."""
        return self.count

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices in order; the generator makes another stream of each in every epoch."""
        return np.arange(self.count)

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` (1, t), ``labels`` (frames,) and ``weights`` (frames,)."""
        if self.fixed is not None:
            rng = np.random.default_rng([self.fixed, index])
        y = np.zeros(self.length, np.float32)
        labels = np.full(self.frames, len(self.classes) - 1)
        weights = np.ones(self.frames, np.float32)
        if rng.random() < self.how.alone:
            noise = some_noise(self.noise, self.length, self.rate, rng)
            loud = noise * gain(rng.uniform(*self.how.level) - max(dbfs(noise), QUIETEST))
            return {"audio": loud.astype(np.float32)[None], "labels": labels, "weights": weights}
        at = round(rng.uniform(0, 0.6) * self.rate)
        if rng.random() < self.how.negative and (self.speech is not None or len(self.others)):
            at = self._talk(rng, y) + round(rng.uniform(0.1, 1.0) * self.rate)
        self._say(rng, y, labels, weights, at)
        return {"audio": self._mixed(rng, y)[None], "labels": labels, "weights": weights}

    def _talk(self, rng: np.random.Generator, y: Samples) -> int:
        """Add other speech from the start on, and return where it ends."""
        end = self.length if rng.random() < 0.6 else round(rng.uniform(0.3, 0.8) * self.length)
        level, at = rng.uniform(*self.how.level), 0
        while at < end:
            x = self._other(rng)
            x = x[int(rng.integers(0, max(1, len(x) - self.length + 1))) :][: end - at]
            y[at : at + len(x)] += x * gain(level - max(dbfs(x), QUIETEST))
            at += len(x) + round(rng.exponential(0.3) * self.rate)
        return end

    def _other(self, rng: np.random.Generator) -> Samples:
        if self.speech is None or not len(self.speech) or (len(self.others) and rng.random() < 0.3):
            return self.others.take(int(rng.integers(len(self.others))))[1]
        return self.speech.take(int(rng.integers(len(self.speech))))[1]

    def _say(
        self,
        rng: np.random.Generator,
        y: Samples,
        labels: NDArray[np.int64],
        weights: NDArray[np.float32],
        at: int,
    ) -> None:
        """Add words from ``at`` on, with their labels."""
        pauses = self.how.pause if rng.random() < self.how.dense else self.how.long_pause
        while at < self.length - self.rate // 3:
            name, x, end = self._word(rng)
            if rng.random() < self.how.partial:
                cut = round(end * rng.uniform(0.2, 0.45))
                x = faded(x[:cut] if rng.random() < 0.6 else x[end - cut : end])
            else:
                self._label(self.classes.index(name), at + end, labels, weights)
            piece = x[: self.length - at]
            y[at : at + len(piece)] += piece
            at += end + round(rng.uniform(*pauses) * self.rate)

    def _label(self, label: int, end: int, labels: NDArray[np.int64], weights: NDArray[np.float32]) -> None:
        frames = self.rate / self.frame  # a second
        place = end / self.frame
        first, last = round(place - EARLY * frames), round(place + LATE * frames) + 1
        around = round(UNSURE * frames)
        weights[max(0, first - around) : last + around] = 0
        labels[max(0, first) : last] = label
        weights[max(0, first) : last] = 1

    def _word(self, rng: np.random.Generator) -> tuple[str, Samples, int]:
        """Return a word's name, its samples and where among them it ends."""
        how = self.how
        clip, x = self.words.take(int(rng.integers(len(self.words))))
        if how.speed:
            x = change_speed(x, float(rng.uniform(1 - how.speed, 1 + how.speed)))
        first, last = bounds(x)
        x = faded(x[first:last])
        end = len(x)
        if how.tone_db and rng.random() < 0.6:
            x = equalised(rng, x, how.tone_db, rate=self.rate)
        if rng.random() < how.room:
            x = reverberant(rng, x, self.rate)
        return clip.labels["word"], x * gain(rng.uniform(*how.level) - max(dbfs(x[:end]), QUIETEST)), end

    def _mixed(self, rng: np.random.Generator, y: Samples) -> Samples:
        """Return the stream in noise, as far below the loud parts as the SNR says; in some streams with hum."""
        loud = float(np.quantile(np.abs(y), 0.95)) or float(gain(-25.0))
        if rng.random() < self.how.noisy:
            noise = some_noise(self.noise, self.length, self.rate, rng)
            level = 20 * np.log10(loud) - 6 - rng.uniform(*self.how.snr)
            y = y + noise * gain(level - max(dbfs(noise), QUIETEST))
        if rng.random() < 0.1:
            tone = hum(rng, self.length, rate=self.rate)
            y = y + tone * gain(rng.uniform(-70, -40) - max(dbfs(tone), QUIETEST))
        return y.astype(np.float32)


def reverberant(rng: np.random.Generator, x: Samples, rate: int) -> Samples:
    """Return a signal with the reverberation of a room: noise that decays by 60 dB in 0.1 to 0.6 s."""
    time = np.arange(round(ROOM_SECONDS * rate)) / rate
    response = rng.standard_normal(len(time)) * np.exp(-6.9 * time / rng.uniform(0.1, 0.6))
    response *= gain(rng.uniform(-14, 0)) / np.sqrt(np.square(response).sum())
    response[0] = 1.0
    size = len(x) + len(response) - 1
    spectrum = np.fft.rfft(x, size) * np.fft.rfft(response, size)
    return np.asarray(np.fft.irfft(spectrum, size), np.float32)
