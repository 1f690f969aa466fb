"""Examples of words: single keywords, phrases of connected words, and streams in which words are spotted.

A keyword is augmented, with other audio before it. A phrase has the places of its words. Every frame of a stream has a
label, the word that has just ended or the background; frames around the end of a word, where either label is right,
have zero weight.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from centaurus.audio.augment import add_noise, change_speed, coloured, equalised, fit, hum, looped, preceded, shift
from centaurus.audio.signal import dbfs, gain, to_level
from centaurus.data.corpus import Corpus
from centaurus.data.layouts import subset
from centaurus.decode import BACKGROUND

Samples = NDArray[np.float32]
Item = dict[str, NDArray[np.generic]]
Encode = Callable[[str], Mapping[str, NDArray[np.generic]]]

FRAME = 160  # of the envelope: 10 ms at 16 kHz
QUIET_DB, MARGIN = 30.0, 4  # a word ends this far below its loudest frame, and extends this many frames beyond
FLOOR, ABOVE_DB, SURE_DB = 0.15, 8.0, 12.0  # or this far above this quantile, but at most this far below the loudest
PAUSE = 16  # frames: segments further apart than this are separate
FADE = 160  # samples of the fades at both ends of a word
EARLY, LATE = 0.06, 0.34  # seconds before and after the end of a word in which frames have its label
UNSURE = 0.16  # seconds before and after the label that have zero weight
QUIETEST = -120.0  # dBFS: a quieter recording counts as digital silence
SYNTHETIC_NOISE, SYNTHETIC_GAIN = 0.2, 0.03  # share of noise that is coloured noise, and its amplitude
# Cumulative shares of backgrounds that are other speech and near-silence (the rest is noise), and their gains in dB.
OTHER_SPEECH, NEAR_SILENCE = 0.4, 0.6
NEAR_SILENCE_GAIN, NOISE_GAIN = (-50, 0), (-12, 6)
# Cumulative shares of histories that are silence and noise (the rest is words), and their gains in dB.
SILENT_HISTORY, NOISY_HISTORY = 0.2, 0.6
NOISY_HISTORY_GAIN, WORD_HISTORY_GAIN = (-30, 0), (-10, 5)
ROOM_SECONDS = 0.3  # length of a room's response


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
        """Return the number of words and backgrounds in an epoch."""
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
        if kind < OTHER_SPEECH and (self.speech or len(self.others)):
            return self._varied(self._other_speech(rng), rng)
        level = rng.uniform(*(NEAR_SILENCE_GAIN if kind < NEAR_SILENCE else NOISE_GAIN))
        return self._noise(rng, self.frames) * gain(level)

    def _other_speech(self, rng: np.random.Generator) -> Samples:
        """Return a second of speech, or a word that is not a class."""
        if not self.speech or (len(self.others) and rng.random() < 0.5):
            return self.others.take(int(rng.integers(len(self.others))))[1]
        return some_speech(self.speech, self.frames, rng)

    def _before(self, rng: np.random.Generator) -> Samples:
        """Return silence, noise, or the ends of other words, as long as the history."""
        kind = rng.random()
        if kind < SILENT_HISTORY:
            return np.zeros(self.history, np.float32)
        if kind < NOISY_HISTORY:
            return fit(self._noise(rng, self.history) * gain(rng.uniform(*NOISY_HISTORY_GAIN)), self.history)
        y, last = np.zeros(self.history, np.float32), self.history
        while last > 0:
            x = self.words.take(int(rng.integers(len(self.words))))[1][-last:]
            y[last - len(x) : last] = x * gain(rng.uniform(*WORD_HISTORY_GAIN))
            last -= len(x) + int(rng.integers(0, self.words.rate // 4))
        return y


def some_noise(noise: Corpus | None, frames: int, rate: int, rng: np.random.Generator) -> Samples:
    """Return recorded noise; coloured noise in a fifth of the cases, and if there are no recordings."""
    if noise is None or not len(noise) or rng.random() < SYNTHETIC_NOISE:
        return coloured(rng, frames, rate=rate) * np.float32(SYNTHETIC_GAIN)
    index = int(rng.integers(len(noise)))
    known = noise[index].frames
    if known > frames and noise[index].rate == rate:
        return noise.take(index, int(rng.integers(0, known - frames + 1)), frames)[1]
    return looped(rng, noise.take(index)[1], frames)


def some_speech(speech: Corpus, frames: int, rng: np.random.Generator) -> Samples:
    """Return ``frames`` of a random clip from a random place, or all of a shorter one."""
    x = speech.take(int(rng.integers(len(speech))))[1]
    start = int(rng.integers(0, max(0, len(x) - frames) + 1))
    return x[start : start + frames]


def without_words(speech: Corpus, words: Sequence[str]) -> Corpus:
    """Return the clips whose transcript has none of the words."""
    excluded = {word.lower() for word in words}
    return speech.of(
        clip for clip in speech if (said := words_in(clip.labels.get("transcript", ""))) and excluded.isdisjoint(said)
    )


def words_in(transcript: str) -> list[str]:
    """Return the words of a transcript in lower case."""
    return re.findall(r"[a-z']+", transcript.lower())


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


class Composed:
    """``count`` examples an epoch, composed at random; with ``fixed``, a seed, the same ones in every epoch."""

    def __init__(self, count: int, fixed: int | None) -> None:
        self.count, self.fixed = count, fixed

    def size(self) -> int:
        """Return the number of examples in an epoch."""
        return self.count

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the indices in order; the generator makes another example of each in every epoch."""
        return np.arange(self.count)

    def generator(self, index: int, rng: np.random.Generator) -> np.random.Generator:
        """Return the generator of an example: ``rng``, or the same one every time."""
        return rng if self.fixed is None else np.random.default_rng([self.fixed, index])


class Phrases(Composed):
    """Words in a row, by one speaker or several, with their places."""

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
        super().__init__(count, fixed)
        if not len(words) or not words.values("word"):
            raise ValueError(f"the {words.name} corpus has no clips with a word")
        self.words, self.noise, self.how, self.encode, self.length = words, noise, how, encode, length
        self.speech = None if speech is None else without_words(speech, words.values("word"))
        by_speaker: dict[str, list[int]] = defaultdict(list)
        for index, clip in enumerate(words):
            by_speaker[clip.labels.get("speaker", "")].append(index)
        self._speakers = [members for members in by_speaker.values() if len(members) >= 4]

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` (1, t), the ``samples`` before padding, ``starts`` and ``ends`` of words, and their text."""
        x, said = self.phrase(index, rng)
        audio = x if self.length is None else np.pad(x, (0, self.length - len(x)))
        text = self.encode(" ".join(spoken.word for spoken in said)) if self.encode else {}
        starts, ends = np.array([(spoken.start, spoken.end) for spoken in said], np.int64).reshape(-1, 2).T
        return {"audio": audio[None], "samples": np.array(len(x)), "starts": starts, "ends": ends, **text}

    def phrase(self, index: int, rng: np.random.Generator) -> tuple[Samples, list[Spoken]]:
        """Return a phrase and the places of its words, as many as fit in ``length``."""
        rng = self.generator(index, rng)
        y, said = self._wordless(rng) if rng.random() < self.how.wordless else self._said(rng)
        y = to_level(y, rng.uniform(*self.how.level))[: self.length]
        return y / np.float32(max(1.0, np.abs(y).max(initial=0))), said

    def _wordless(self, rng: np.random.Generator) -> tuple[Samples, list[Spoken]]:
        """Return other speech, or noise."""
        frames = round(rng.uniform(1, 4) * self.words.rate)
        if not self.speech or rng.random() < 0.5:
            return some_noise(self.noise, frames, self.words.rate, rng), []
        return some_speech(self.speech, frames, rng), []

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


@dataclass(frozen=True)
class Streaming:
    """Settings of streams. Ranges are sampled uniformly; times are in seconds, levels in dBFS."""

    seconds: float = 6.0
    negative: float = 0.5
    """The share of streams with other speech, in all of it or before the words."""
    alone: float = 0.1
    """The share of streams that are noise alone, as loud as speech: without them loud noise is classified as words."""
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


class Streams(Composed):
    """Words in seconds of silence, noise and other speech, with a label for every frame.

    ``words`` are clips with a ``word``: those of ``classes`` are labelled, others are other speech. ``classes`` end
    with the background, whose label is the last. ``frame`` is the number of samples per frame of the network.
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
        super().__init__(count, fixed)
        self.classes, self.frame, self.noise, self.speech, self.how = tuple(classes), frame, noise, speech, how
        self.words = words.where(word=self.classes[:-1])
        self.others = words.of(clip for clip in words if clip.labels.get("word") not in self.classes)
        if not len(self.words):
            raise ValueError(f"the {words.name} corpus has no clips of {', '.join(self.classes[:-1])}")
        self.rate = words.rate
        self.frames = round(how.seconds * self.rate) // frame
        self.length = self.frames * frame

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` (1, t), ``labels`` (frames,) and ``weights`` (frames,)."""
        rng = self.generator(index, rng)
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
        self, rng: np.random.Generator, y: Samples, labels: NDArray[np.int64], weights: NDArray[np.float32], at: int
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
        """Return the stream in noise at an SNR relative to its loud parts; in some streams with hum."""
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
