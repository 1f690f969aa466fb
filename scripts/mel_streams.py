"""Streams of words for training, composed of mel frames instead of samples: about eight times cheaper.

Recordings become log mel power once. A stream is then a sum of powers with gains, in which words are faster or slower,
higher or lower, in a room, in noise, with a random phase between word and noise where both are audible. The network
sees what its own mel row gives, within rounding where there is one sound and nearly so where there are several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from centaurus.audio import AudioError
from centaurus.audio.augment import coloured, hum
from centaurus.audio.signal import dbfs, gain
from centaurus.data import Clip, Corpus, open_corpus, pairs
from centaurus.data.keywords import bounds
from centaurus.data.layouts import sound_files
from centaurus.evaluation.live import says
from centaurus.layer import Layer
from centaurus.models.tables import CLASSIFIERS, SpotterTable
from centaurus.nn import Analysis
from centaurus.nn.spectral import LOG_FLOOR, LOG_SCALE, mel_filters

Frames = NDArray[np.float32]
TABLE = CLASSIFIERS["kws-mel"]
assert isinstance(TABLE, SpotterTable)
RATE = 16_000
ROW, STACK = TABLE.blocks[0], TABLE.stack
BINS, BANDS, HOP = ROW.window // 2 + 1, ROW.channels, ROW.resample
FILTERS = mel_filters(BINS, BANDS, RATE, TABLE.low, TABLE.high).float()
PER_SECOND = RATE / HOP
WARPS = np.linspace(0.84, 1.18, 18)  # factors of pitch
EARLY, LATE, UNSURE = 1.9, 10.6, 5  # frames of the network around the end of a word: label, and no weight around it
SAID, ALARM = 0.15, 0.1  # probabilities from which a spotter reports a spoken word, or raises a false alarm
ALONE = 0.14  # share of streams that are noise alone
WHOLE = 0.35  # share of words that keep all of their clip
AROUND = 30  # frames of silence before and after a clip that is judged
MASKED = 0.2  # probability of each of two masks over bands
GATED = 0.15  # share of words without their steady noise
PAUSES = ((-0.03, 0.5), (0.12, 0.8), (0.3, 4.0))  # seconds between words
LEVEL_SCALE = 14.0  # sum of the band powers of speech at 0 dBFS, roughly
JOINED, NOISE_LEVEL = 24, -26.0  # pairs whose noise makes a sound, and its level in dBFS
HELD_OUT = ("p255", "p310")  # speakers of VCTK whose false alarms choose between models
TALK_LEVEL = -2.3  # log10 of the power at which speech is judged: -23 dBFS


@torch.no_grad()
def log_mel(x: NDArray[np.float32]) -> NDArray[np.float16]:
    """Log band powers (frames, bands) of samples (t,)."""
    spectra = Analysis(ROW.window, HOP)(torch.from_numpy(x[: len(x) // HOP * HOP])[None, None])[0]
    power = spectra[:BINS].square() + spectra[BINS:].square()
    return np.asarray((FILTERS @ power + 1e-11).log().T.half().numpy())


@dataclass(frozen=True)
class Word:
    """Frames of a clip, the label of its word (0 is the background), and the frames in which it begins and ends."""

    frames: NDArray[np.float16]
    label: int
    begin: float
    end: float


@dataclass
class Stream:
    """A stream that is being composed: band powers, and for each frame of the network a label and its weight.

    ``said`` are the words with the frames of the network in which they begin and end. ``certain`` is where it is known
    what is said, ``complete`` whether the words are all that is said.
    """

    power: Frames
    labels: NDArray[np.int64]
    weights: Frames
    certain: Frames
    said: list[tuple[int, float, float]]
    complete: bool = True


@dataclass(frozen=True)
class Sound:
    """Frames of other audio, and the output of a spotter for them.

    ``left_out`` are frames of the network in which it reports a word of the transcript, ``alarm`` is the frame of its
    most probable false alarm and ``surest`` the probability of that.
    """

    frames: NDArray[np.float16]
    transcript: str = ""
    left_out: NDArray[np.bool_] | None = None
    alarm: int = 0
    surest: float = 0.0


def opened(folder: Path, kind: str) -> Corpus:
    """The training clips of a kind in a folder of a known layout, or else every sound file below it.

    Then ``transcripts.txt`` may give texts, a line of name and text for each file. What ``HELD_OUT`` names is left out.
    """
    try:
        corpus = open_corpus(folder, ("train",), (kind,))
    except AudioError:
        files, texts = list(sound_files(folder)), folder / "transcripts.txt"
        lines = texts.read_text().splitlines() if texts.is_file() else []
        said = dict(line.split(" ", 1) for line in lines)
        clips = (Clip(f, f.stem, labels={"kind": kind, "transcript": said.get(f.stem, "")}) for f in files)
        corpus = Corpus(kind, tuple(clips))
    return corpus.of(clip for clip in corpus if not clip.id.startswith(HELD_OUT))


def words_of(corpus: Corpus, labels: dict[str, int]) -> list[Word]:
    """Return every clip of a corpus of words; words without a label are background."""
    words = []
    for clip in corpus:
        x = corpus.load(clip)
        first, last = bounds(x)
        label = labels.get(clip.labels["word"], 0)
        words.append(Word(log_mel(np.pad(x, (0, HOP))), label, first / HOP, last / HOP + 0.5))
    return words


def sounds_of(corpora: Iterable[Corpus]) -> list[Sound]:
    """Return the clips of at least 20 frames."""
    every = (
        Sound(log_mel(corpus.load(clip)), clip.labels.get("transcript", "")) for corpus in corpora for clip in corpus
    )
    return [sound for sound in every if len(sound.frames) >= 20]


def noise_of_pairs(corpus: Corpus) -> list[Sound]:
    """Return what (noisy, clean) pairs differ by, the noise of a few pairs joined to one sound."""
    both = pairs(corpus)
    sounds = []
    for first in range(0, len(both), JOINED):
        parts = [corpus.load(noisy) - corpus.load(clean) for noisy, clean in both[first : first + JOINED]]
        sounds.append(Sound(log_mel(np.concatenate([x * gain(NOISE_LEVEL - dbfs(x)) for x in parts]))))
    return sounds


@torch.no_grad()
def judged(sound: Sound, body: Layer, names: Sequence[str]) -> Sound:
    """Return the sound with the output of a spotter, ``body``, which takes mel frames and reports ``names``.

    Reports of words in the transcript are not mistakes, but their places are not labelled: those frames have no weight.
    Reports of other words are false alarms, the most useful examples for training.
    """
    frames = sound.frames[: len(sound.frames) // STACK * STACK].astype(np.float32)
    loudness = np.exp(frames).sum(1).mean()
    x = LOG_SCALE * np.log(np.exp(frames) * (10**TALK_LEVEL * LEVEL_SCALE / max(float(loudness), 1e-7)) + LOG_FLOOR)
    probabilities = body(torch.from_numpy(x.T.copy())[None])[0].softmax(0).numpy()
    said = np.array([says(sound.transcript, [name]) for name in names])
    never = np.zeros((1, probabilities.shape[1]), np.float32)
    spoken = np.concatenate([never, probabilities[: len(names)][said]]).max(0) > SAID
    spoken = np.convolve(spoken, np.ones(2 * UNSURE - 1), "same") > 0
    others = np.where(spoken, 0, np.concatenate([never, probabilities[: len(names)][~said]]).max(0))
    alarm = int(others.argmax())
    return replace(sound, left_out=spoken, alarm=alarm * STACK, surest=float(others[alarm]))


@torch.no_grad()
def understood(words: Sequence[Word], body: Layer, least: float) -> list[Word]:
    """Return the words without labelled ones that a spotter, ``body``, gives less than this probability anywhere.

    One clip in a hundred of Speech Commands is empty, cut off or another word.
    """
    kept = []
    for word in words:
        quiet = np.full((AROUND, BANDS), 1e-11, np.float32)
        power = np.concatenate([quiet, np.exp(word.frames.astype(np.float32)), quiet])
        x = LOG_SCALE * np.log(power[: len(power) // STACK * STACK].T + LOG_FLOOR)
        if not word.label or float(body(torch.from_numpy(x)[None])[0].softmax(0)[word.label - 1].max()) >= least:
            kept.append(word)
    return kept


def warp(factor: float) -> NDArray[np.float32]:
    """Return a matrix (bands, bands) that shifts log mel bands in frequency by a factor."""
    ends = [2595 * np.log10(1 + hertz / 700) for hertz in (TABLE.low, TABLE.high)]
    hertz = 700 * (10 ** (np.linspace(*ends, BANDS + 2)[1:-1] / 2595) - 1)
    place = np.interp(hertz / factor, hertz, np.arange(BANDS))
    low = np.clip(np.floor(place).astype(int), 0, BANDS - 2)
    matrix = np.zeros((BANDS, BANDS), np.float32)
    matrix[low, np.arange(BANDS)] = 1 - (place - low)
    matrix[low + 1, np.arange(BANDS)] += place - low
    return matrix


def label_frames(end: float) -> slice:
    """Return the frames of the network that are labelled with a word that ends at this frame."""
    return slice(max(0, round(end - EARLY)), round(end + LATE) + 1)


def targets(streams: Sequence[Stream]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return labels and weights (streams, frames) for a spotter."""
    labels, weights = np.stack([one.labels for one in streams]), np.stack([one.weights for one in streams])
    return torch.from_numpy(labels), torch.from_numpy(weights)


class MelStreams:
    """Random batches of streams of ``frames`` network frames, without end.

    ``negative`` is the share of streams with other speech, ``positive`` the share of words that are drawn from those
    with a label where only a few have one.
    """

    def __init__(
        self,
        words: list[Word],
        speech: list[Sound],
        noise: list[Sound],
        frames: int = 192,
        positive: float | None = None,
        seed: int = 0,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.words, self.speech, self.noise, self.positive = words, speech, noise, positive
        self.labelled = [word for word in words if word.label]
        self.others = [word for word in words if not word.label]
        self.frames, self.length = frames, frames * STACK
        samples = self.length * HOP
        steady = [coloured(self.rng, samples, slope) for slope in (0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0)]
        steady += [hum(self.rng, samples, mains) for mains in (50.0, 60.0, 100.0)]
        self.steady = [np.exp(log_mel(np.float32(x / x.std())).astype(np.float32)) for x in steady]
        self.warps = [warp(factor) for factor in WARPS]
        self.spread = (0.7 / np.sqrt(np.maximum(1, FILTERS.sum(1).numpy()))).astype(np.float32)
        self.paused = (0.4, 0.3, 0.3)  # shares of the ranges of pauses
        self.alone, self.whole = ALONE, WHOLE
        self.altered, self.bursts = 0.0, 0.0  # shares of noise alone at another speed and pitch, and cut into bursts
        self.masked = MASKED
        self.dull = 0.4  # share of other microphones that are far from flat
        self.voiced = 0.0  # share of noise alone that is speech at a speed at which nobody understands it
        self._order: list[int] = []
        self._find_hard()

    def hear(self, body: Layer, names: Sequence[str]) -> None:
        """Have a spotter hear all other sounds again: what it takes for a word now is drawn more often from now on."""
        self.speech, self.noise = ([judged(sound, body, names) for sound in pool] for pool in (self.speech, self.noise))
        self._find_hard()

    def _find_hard(self) -> None:
        pools = self.speech, self.noise
        self._hard = {id(pool): [sound for sound in pool if sound.surest > ALARM] for pool in pools}

    def batch(self, rows: int, negative: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Features (rows, bands, t) as the network's mel row gives them, labels and weights (rows, frames)."""
        x, streams = self.streams(rows, negative)
        return x, *targets(streams)

    def streams(self, rows: int, negative: float) -> tuple[torch.Tensor, list[Stream]]:
        """Features (rows, bands, t) as the network's mel row gives them, and how they were composed."""
        made = [self._stream(negative) for _ in range(rows)]
        power = np.stack([one.power for one in made])
        x = LOG_SCALE * np.log(np.maximum(power, 0) + LOG_FLOOR, dtype=np.float32)
        for row in x:
            self._mask(row)
        return torch.from_numpy(x).mT.contiguous(), made

    def _mask(self, row: Frames) -> None:
        """Mask up to two ranges of bands and short stretches of time (SpecAugment)."""
        r = self.rng
        for _ in range(2):
            if r.random() < self.masked:
                width = int(r.integers(1, 8))
                first = int(r.integers(BANDS - width))
                row[:, first : first + width] = row[:, first : first + width].mean()
        if r.random() < 0.3:
            for first in r.integers(self.length, size=5):
                last = first + int(r.integers(1, 5))
                row[first:last] = row[first:last].mean(0, keepdims=True)

    def _next(self) -> Word:
        if self.positive is not None:
            pool = self.labelled if self.rng.random() < self.positive else self.others
            return pool[int(self.rng.integers(len(pool)))]
        if not self._order:
            self._order = self.rng.permutation(len(self.words)).tolist()
        return self.words[self._order.pop()]

    def _word(self) -> tuple[int, Frames, float, float]:
        """Return the label of a word, its power in every frame, and the frames in which it begins and ends."""
        r, word = self.rng, self._next()
        whole = r.random() < self.whole
        first = 0 if whole else max(0, int(word.begin) - 3)
        frames = word.frames[first : len(word.frames) if whole else round(word.end) + 7].astype(np.float32)
        which = int(r.integers(len(WARPS)))
        speed = WARPS[which] * r.uniform(0.95, 1.05)
        if r.random() < 0.75:
            frames = frames @ self.warps[which]
        count = max(8, int(len(frames) / speed))
        place = np.minimum((np.arange(count) + r.random()) * speed, len(frames) - 1.001)
        low = place.astype(int)
        part = (place - low)[:, None].astype(np.float32)
        power = np.exp(frames[low] * (1 - part) + frames[low + 1] * part + self._tone())
        loud = np.sort(power.sum(1))[-max(4, count // 3) :].mean()
        level = 10 ** (r.uniform(-33, -12) / 10) * LEVEL_SCALE / loud
        power *= level if r.random() < 0.7 else 10 ** (r.uniform(-10, 3) / 10)
        if r.random() < GATED:
            power = self._gated(power)
        if r.random() < 0.3:
            power = self._room(power)
        return word.label, power.astype(np.float32), (word.begin - first) / speed, (word.end - first) / speed

    def _room(self, power: Frames) -> Frames:
        """Add reverberation that decays by 60 dB in 0.15 to 0.7 s."""
        decay = np.exp(-13.8 / PER_SECOND / self.rng.uniform(0.15, 0.7))
        share = (1 - decay) * 10 ** (self.rng.uniform(-12, 0) / 10)
        y = np.concatenate([power, np.zeros((8, BANDS), np.float32)])
        tail = np.zeros(BANDS)
        for k in range(1, len(y)):
            tail = decay * tail + share * y[k - 1]
            y[k] += tail
        return y

    def _tone(self) -> Frames:
        """Return the frequency response of another microphone: a smooth curve over the bands, in log power.

        Some are much duller than most, or lack the highest or lowest bands.
        """
        r = self.rng
        if r.random() < 0.3:
            return np.zeros(BANDS, np.float32)
        u = np.linspace(-1, 1, BANDS)
        tilt = r.uniform(-2.5, 1.2) if r.random() < self.dull else r.uniform(-0.7, 0.7)
        wave = np.cos(np.pi * u * r.uniform(0.5, 3) + r.uniform(0, 2 * np.pi))
        curve = tilt * u + r.uniform(-0.5, 0.5) * wave
        if r.random() < self.dull / 2:
            curve -= r.uniform(0.5, 6) * np.maximum(0, u - r.uniform(-0.6, 0.6))
        if r.random() < self.dull / 4:
            curve -= r.uniform(0.5, 6) * np.maximum(0, r.uniform(-1, -0.4) - u)
        return curve.astype(np.float32)

    def _gated(self, power: Frames) -> Frames:
        """Take away what is steady in a word, as noise reduction does before it is recorded."""
        r = self.rng
        floor = np.quantile(power, r.uniform(0.05, 0.4), axis=0) * r.uniform(1, 4)
        return np.maximum(power - floor, power * 10 ** r.uniform(-4, -1)).astype(np.float32)

    def _stream(self, negative: float) -> Stream:
        r = self.rng
        labels, weights = np.zeros(self.frames, np.int64), np.ones(self.frames, np.float32)
        made = Stream(np.zeros((self.length, BANDS), np.float32), labels, weights, weights.copy(), [])
        at, level, kind = round(r.uniform(0, 0.6) * PER_SECOND), -25.0, r.random()
        alone = kind < self.alone and bool(self.noise)
        if alone:
            voiced = bool(self.speech) and r.random() < self.voiced
            noise = (self._voice() if voiced else self._altered(self._recorded())) * np.exp(self._tone())
            made.power += noise * (10 ** r.uniform(-4.0, -0.8) * LEVEL_SCALE / max(float(noise.sum(1).mean()), 1e-9))
            at = self.length if r.random() < 0.7 else round(r.uniform(0.4, 0.8) * self.length)
        elif kind < self.alone + negative:
            level = r.uniform(-36, -11)
            at = self._talk(made.power, made.weights, level) + round(r.uniform(0.1, 1) * PER_SECOND)
            made.certain, made.complete = made.weights.copy(), False
        loudness = self._say(made, at)
        if r.random() < 0.8 and not alone:
            made.power = self._noisy(made.power, loudness or 10 ** (level / 10) * LEVEL_SCALE)
        return made

    def _talk(self, power: Frames, weights: Frames, level: float) -> int:
        """Add other speech, in all of the stream or before the words; return where it ends."""
        r = self.rng
        end = self.length if r.random() < 0.65 else round(r.uniform(0.3, 0.8) * self.length)
        tone, bands = self._tone(), self.warps[int(r.integers(len(WARPS)))] if r.random() < 0.4 else None
        hard = self._hard[id(self.speech)]
        if hard and r.random() < 0.5:
            sound = hard[int(r.integers(len(hard)))]
            at = int(r.integers(20, self.length - 20)) - sound.alarm
        else:
            sound, at = self._any(self.speech), -round(r.uniform(0, 3) * PER_SECOND)
        if at > 0:  # something before it
            earlier = self._any(self.speech)
            self._put(power, weights, earlier, at - len(earlier.frames), end, level, tone, bands)
        while at < end:
            self._put(power, weights, sound, at, end, level, tone, bands)
            at += len(sound.frames) + round(r.exponential(0.3) * PER_SECOND)
            sound = self._any(self.speech)
        if end < self.length:  # a word that was cut off may or may not have been said
            weights[end // STACK - 1 : end // STACK + 12] = 0
        return end

    def _any(self, pool: list[Sound]) -> Sound:
        return pool[int(self.rng.integers(len(pool)))]

    def _put(
        self,
        power: Frames,
        weights: Frames,
        sound: Sound,
        at: int,
        end: int,
        level: float,
        tone: Frames,
        bands: NDArray[np.float32] | None,
    ) -> None:
        """Add a sound to a stream from frame ``at`` on, which may be negative, until ``end`` at most."""
        x = sound.frames.astype(np.float32)
        factor = 10 ** (level / 10) * LEVEL_SCALE / max(float(np.exp(x).sum(1).mean()), 1e-7)
        skipped, at = max(0, -at), max(0, at)
        x = x[skipped : skipped + end - at]
        power[at : at + len(x)] += np.exp((x if bands is None else x @ bands) + tone) * factor
        if sound.left_out is not None:
            places = np.flatnonzero(sound.left_out[skipped // STACK :]) + at // STACK
            weights[places[places < self.frames]] = 0

    def _say(self, made: Stream, at: int) -> float:
        """Add words from frame ``at`` on with their labels; return their mean power."""
        r, loudness = self.rng, []
        pauses = PAUSES[int(r.choice(len(PAUSES), p=self.paused))]
        while at < self.length - 20:
            label, x, begin, end = self._word()
            if -8 < at + end - self.length + 10 < 14:  # too close to the end to be labelled
                break
            if r.random() < 0.04:  # a part of a word is not the word
                cut = max(3, int((end - begin) * r.uniform(0.2, 0.45)))
                x, label = (x[: int(begin) + cut] if r.random() < 0.6 else x[max(0, int(end) - cut) :]), 0
                end = min(end, len(x))
            piece = x[: self.length - at]
            made.power[at : at + len(piece)] += piece
            loudness.append(float(x.sum(1).mean()))
            self._mark(made, label, (at + begin) / STACK, (at + end) / STACK)
            at += int(max(end, len(x) - 6) + r.uniform(*pauses) * PER_SECOND)
        return float(np.mean(loudness)) if loudness else 0.0

    def _mark(self, made: Stream, label: int, begin: float, end: float) -> None:
        """Label the frames around the end of a word."""
        frames = label_frames(end)
        first, last = frames.start, frames.stop
        if label and first < self.frames:
            made.weights[max(0, first - UNSURE) : last + UNSURE] = 0
            made.labels[first:last], made.weights[first:last] = label, 1
            made.said.append((label, begin, end))

    def _recorded(self) -> Frames:
        """Return the power of recorded noise, as long as a stream; often where it caused a false alarm."""
        r, hard = self.rng, self._hard[id(self.noise)]
        if hard and r.random() < 0.4:
            sound = hard[int(r.integers(len(hard)))]
            first = min(sound.alarm - int(r.integers(20, self.length - 20)), len(sound.frames) - self.length)
        else:
            sound = self._any(self.noise)
            first = int(r.integers(max(1, len(sound.frames) - self.length)))
        x = sound.frames[max(0, first) : max(0, first) + self.length].astype(np.float32)
        return np.resize(np.exp(x), (self.length, BANDS))

    def _voice(self) -> Frames:
        """Return the power of speech 1.9 to 3.5 times slower or faster, higher or lower: as of animals."""
        r, x = self.rng, self._any(self.speech).frames
        speed = 2.0 ** (r.uniform(0.9, 1.8) * (1 if r.random() < 0.4 else -1))
        place = ((np.arange(self.length) + r.integers(len(x))) * speed).astype(int) % len(x)
        bands = np.clip(np.arange(BANDS) - round(r.uniform(-7, 7)), 0, BANDS - 1)
        return np.exp(x[place][:, bands].astype(np.float32))

    def _altered(self, power: Frames) -> Frames:
        """Noise at another speed and pitch, or in bursts, as of kinds that were not recorded."""
        r = self.rng
        if r.random() < self.altered:
            place = (np.arange(self.length) * 2 ** r.uniform(-1, 1)).astype(int) % self.length
            bands = np.arange(BANDS) - round(r.uniform(-8, 8))
            power = power[place][:, np.clip(bands, 0, BANDS - 1)]
        if r.random() < self.bursts:
            envelope = np.full(self.length, 1e-4, np.float32)
            at = int(r.integers(40))
            while at < self.length:
                count = int(r.integers(5, 50))
                rise, fall = r.uniform(1, 8), r.uniform(2, 25)
                shape = np.exp(-np.maximum(0, np.arange(count) - rise) / fall) * np.minimum(1, np.arange(count) / rise)
                envelope[at : at + count] += shape[: self.length - at].astype(np.float32)
                at += count + int(r.integers(3, 90))
            power = power * envelope[:, None]
        return power

    def _noisy(self, power: Frames, loudness: float) -> Frames:
        r = self.rng
        if r.random() < 0.65 and self.noise:
            noise = self._recorded()
        else:
            noise = np.roll(self.steady[int(r.integers(len(self.steady)))], int(r.integers(self.length)), axis=0)
        below = r.uniform(2, 18) if r.random() < 0.5 else r.uniform(10, 45)
        level = max(1e-7, loudness * 10 ** (-below / 10))
        noise = noise * np.float32(level / max(float(noise.sum(1).mean()), 1e-9))
        phase = np.clip(r.standard_normal(power.shape, np.float32) * self.spread, -0.95, 0.95)
        return power + noise + 2 * np.sqrt(power * noise) * phase
