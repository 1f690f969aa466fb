"""Training examples for the spectral denoiser: recorded pairs, and mixtures of speech with every kind of noise.

Everything is drawn by a NumPy generator, at 16 kHz, from corpora that were decoded once (``data.prepared``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray
from scipy.signal import lfilter

from centaurus.data import Clip, Corpus

Samples = NDArray[np.float32]
RATE = 16_000
TINY = 1e-6  # of an RMS: digital silence is not scaled up
VOICES = 0.45  # share of the pairs whose speech is replaced by another voice's
RESPED, SPEEDS = 0.4, (0.9, 1.12)  # share of the pairs that are played faster or slower, and how much
SCENES = 0.25  # share of the pairs whose noise is replaced by a recording of another place
EXCHANGED, RESCALED = 0.15, 0.35  # shares of the pairs that get the noise of another pair, or another SNR
RUMBLING, RUMBLE = 0.2, 70.0  # share of the pairs whose noise below this many Hz is changed by itself
BORROWED, BORROWED_IN_SCENES = 0.3, 0.7  # shares whose noise gets the rumble of another pair's there
RECOLOURED, COLOUR = 0.4, 9.0  # share of the pairs whose noise gets another spectrum, and by how many dB at most


def rms(x: Samples) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(x)) + 1e-12))


def speech_rms(x: Samples, frame: int = 320) -> float:
    """Root mean square of the 20 ms frames within 30 dB of the loudest: the level of speech without its pauses."""
    power = np.square(x[: len(x) // frame * frame].reshape(-1, frame)).mean(1)
    return float(np.sqrt(power[power > power.max() * 1e-3].mean())) if power.max() > 0 else TINY


@dataclass(frozen=True)
class Sources:
    """What examples are made of: (noisy, clean) pairs, corpora of speech with their shares, noise, music, effects.

    ``short`` is the part of the noise that is taken for speech most easily: sneezes, cries, engines.
    """

    pairs: Sequence[tuple[Clip, Clip]]
    speech: Sequence[tuple[Corpus, float]]
    noise: Corpus
    music: Corpus | None
    effects: Corpus | None
    short: Corpus | None = None


class Mixer:
    """Draws (noisy, clean) rows of ``length`` samples; ``own`` is the share that is mixed here, the rest are pairs."""

    def __init__(self, sources: Sources, length: int, own: float) -> None:
        self.sources, self.length, self.own = sources, length, own
        self.pair_corpus = sources.speech[0][0]  # any corpus loads any clip of its rate

    def batch(self, rng: np.random.Generator, rows: int) -> tuple[Samples, Samples]:
        """Noisy and clean rows, each (rows, 1, length), at levels from -36 to -14 dBFS."""
        noisy, clean = zip(*(self.example(rng) for _ in range(rows)), strict=True)
        return np.stack(noisy)[:, None], np.stack(clean)[:, None]

    def example(self, rng: np.random.Generator) -> tuple[Samples, Samples]:
        """One noisy row and the clean row that belongs to it."""
        noisy, clean = self.mixture(rng) if rng.random() < self.own else self.pair(rng)
        gain = 10 ** (rng.uniform(-36, -14) / 20) / (rms(noisy) + 1e-5)
        return (noisy * gain).astype(np.float32), (clean * gain).astype(np.float32)

    def pair(self, rng: np.random.Generator) -> tuple[Samples, Samples]:
        """Recorded pairs, many with another voice or place, another spectrum of the noise, another speed or SNR.

        The official training pairs have ten kinds of noise at 0 to 15 dB: without changes the network learns these
        kinds, and what it gains does not carry over to others.
        """
        speed = rng.uniform(*SPEEDS) if rng.random() < RESPED else 1.0
        length = int(np.ceil(self.length * speed)) + 1
        noisy, clean = self._joined_pairs(rng, length)
        if rng.random() < VOICES:
            voice = self._joined_speech(rng, length)
            noisy, clean = voice + (noisy - clean) * speech_rms(voice) / (speech_rms(clean) + TINY), voice
        noise, kind = noisy - clean, rng.random()
        if kind < SCENES:
            scene = varied(rng, self._recorded(rng, self.sources.noise, length))
            noise = (at_snr(clean, scene, rng.uniform(0, 20)) - clean).astype(np.float32)
        elif kind < SCENES + EXCHANGED:
            other = self._pair_noise(rng, length)
            if rng.random() < 0.3:
                other = other + noise
            noise = at_snr(clean, other, rng.uniform(-2, 20)) - clean
        elif kind < SCENES + EXCHANGED + RESCALED:
            noise = noise * 10 ** (rng.uniform(-10, 4) / 20)
        if rng.random() < RECOLOURED:
            noise = recoloured(rng, noise)
        change = rng.random()
        if change < (BORROWED_IN_SCENES if kind < SCENES else BORROWED):
            noise = with_rumble(noise, self._pair_noise(rng, length, speech_rms(clean)))
        elif change > 1 - RUMBLING:
            noise = rumbling(rng, noise, rms(clean))
        noisy = (clean + noise).astype(np.float32)
        if speed != 1:
            noisy, clean = (soxr.resample(x, RATE * speed, RATE, "MQ") for x in (noisy, clean))
        return noisy[: self.length], clean[: self.length]

    def mixture(self, rng: np.random.Generator) -> tuple[Samples, Samples]:
        """Speech in noise from -7 to 18 dB; some of it alone, some noise alone, in rooms, clipped, filtered."""
        clean = self.talk(rng)
        if rng.random() < 0.22:
            clean = in_room(rng, clean)  # reverberation belongs to the target: this network does not remove it
        kind = rng.random()
        if kind < 0.05:
            noisy = clean
        else:
            alone = kind < 0.34
            noise = self.mistakable(rng) if alone and rng.random() < 0.6 else self.noise(rng)
            if rng.random() < 0.2:
                noise = noise / (rms(noise) + TINY) + at_level(self.noise(rng), rng.uniform(-12, 3))
            noisy = at_level(noise, -20) if alone else at_snr(clean, noise, rng.uniform(-7, 18))
            if rng.random() < 0.25 and not alone:
                noisy = clean + rumbling(rng, noisy - clean, rms(clean))
            clean = np.zeros_like(clean) if alone else clean
        if rng.random() < 0.3:
            noisy, clean = through_microphone(rng, noisy, clean)
        if rng.random() < 0.08:
            top = np.abs(noisy).max() * rng.uniform(0.15, 0.7)
            noisy = np.clip(noisy, -top, top)
        if rng.random() < 0.05:
            noisy = noisy + rms(noisy) * rng.uniform(-0.5, 0.5)  # an offset, as cheap converters have
        return noisy, clean

    def talk(self, rng: np.random.Generator) -> Samples:
        """Utterances of one corpus one after another, from anywhere in them, sometimes after a pause."""
        shares = np.array([share for _, share in self.sources.speech])
        corpus = self.sources.speech[int(rng.choice(len(shares), p=shares / shares.sum()))][0]
        out, at = np.zeros(self.length, np.float32), 0
        if rng.random() < 0.3:
            at = int(rng.integers(0, self.length // 3))
        while at < self.length:
            clip = corpus[int(rng.integers(len(corpus)))]
            start = int(rng.integers(max(1, clip.frames - self.length // 2))) if rng.random() < 0.7 else 0
            piece = corpus.load(clip, start, min(clip.frames - start, self.length - at))
            out[at : at + len(piece)] = piece
            at += len(piece) + int(rng.integers(800, 9600))
        return out

    def noise(self, rng: np.random.Generator) -> Samples:
        """Noise of pairs, ambience, effects, music, babble, or synthetic noise."""
        kind = rng.random()
        if kind < 0.22:
            return self._pair_noise(rng, self.length)
        if kind < 0.50 or (kind < 0.62 and self.sources.effects is None):
            return varied(rng, self._recorded(rng, self.sources.noise))
        if kind < 0.62 and self.sources.effects is not None:
            return varied(rng, self._recorded(rng, self.sources.effects))
        if kind < 0.78 and self.sources.music is not None:
            return varied(rng, self._recorded(rng, self.sources.music))
        if kind < 0.87:
            voices = [self.talk(rng) for _ in range(int(rng.integers(3, 9)))]
            return np.sum([x / (speech_rms(x) + TINY) * rng.uniform(0.4, 1) for x in voices], 0)
        return synthetic(rng, self.length)

    def mistakable(self, rng: np.random.Generator) -> Samples:
        """Effects, sneezes, clicks, bursts, cries, engines: over before they are known, or pitched as voices are."""
        kind = rng.random()
        if self.sources.short is not None and kind < 0.45:
            return recoloured(rng, varied(rng, self._recorded(rng, self.sources.short)))
        if self.sources.effects is not None and kind < 0.65:
            return varied(rng, self._recorded(rng, self.sources.effects))
        make = (_clicks, _bursts, _engine, _cries)[int(rng.integers(4))]
        return make(rng, self.length).astype(np.float32)

    def _joined_pairs(self, rng: np.random.Generator, length: int) -> tuple[Samples, Samples]:
        noisy, clean, at = [], [], 0
        while at < length:
            a, b = self.sources.pairs[int(rng.integers(len(self.sources.pairs)))]
            start = int(rng.integers(max(1, a.frames - length // 2))) if rng.random() < 0.5 else 0
            frames = min(a.frames - start, length - at)
            noisy.append(self.pair_corpus.load(a, start, frames))
            clean.append(self.pair_corpus.load(b, start, frames))
            at += frames
        return np.concatenate(noisy), np.concatenate(clean)

    def _joined_speech(self, rng: np.random.Generator, length: int) -> Samples:
        corpus, pieces, at = self.sources.speech[0][0], [], 0
        while at < length:
            clip = corpus[int(rng.integers(len(corpus)))]
            start = int(rng.integers(max(1, clip.frames - length // 2))) if rng.random() < 0.5 else 0
            pieces.append(corpus.load(clip, start, min(clip.frames - start, length - at)))
            at += len(pieces[-1])
        return np.concatenate(pieces)

    def _pair_noise(self, rng: np.random.Generator, length: int, speech: float | None = None) -> Samples:
        """Noise of a pair, forwards and backwards until the row is full; scaled from its own speech to this RMS."""
        a, b = self.sources.pairs[int(rng.integers(len(self.sources.pairs)))]
        start = int(rng.integers(max(1, a.frames - length)))
        frames = min(a.frames - start, length)
        noisy, clean = (self.pair_corpus.load(clip, start, frames) for clip in (a, b))
        noise = np.pad(noisy - clean, (0, length - frames), "symmetric")
        return noise if speech is None else noise * speech / (speech_rms(clean) + TINY)

    def _recorded(self, rng: np.random.Generator, corpus: Corpus, length: int = 0) -> Samples:
        """Recordings from a random place, one after another until the row is full; short effects with pauses."""
        length = length or self.length
        out, at = np.zeros(length, np.float32), 0
        while at < length:
            clip = corpus[int(rng.integers(len(corpus)))]
            start = int(rng.integers(max(1, clip.frames - (length - at))))
            piece = corpus.load(clip, start, min(clip.frames - start, length - at))
            out[at : at + len(piece)] = piece
            at += len(piece) + (int(rng.integers(800, 8000)) if clip.frames < RATE // 4 else 0)
        return out


def varied(rng: np.random.Generator, x: Samples) -> Samples:
    """A recording faster or slower by up to 30 % half of the time, and sometimes backwards."""
    if rng.random() < 0.5:
        at = np.arange(len(x)) * rng.uniform(0.75, 1.3) % (len(x) - 1)
        x = np.interp(at, np.arange(len(x)), x).astype(np.float32)
    return x[::-1].copy() if rng.random() < 0.15 else x


def at_level(x: Samples, db: float) -> Samples:
    """The signal with this RMS in dB re 1."""
    return x / (rms(x) + TINY) * 10 ** (db / 20)


def at_snr(clean: Samples, noise: Samples, snr: float) -> Samples:
    """Speech with noise added, ``snr`` dB below the level of the speech without its pauses."""
    return clean + noise * speech_rms(clean) / (rms(noise) + TINY) * 10 ** (-snr / 20)


def in_room(rng: np.random.Generator, x: Samples) -> Samples:
    """Speech in a simulated room: the direct sound, a few reflections, and noise that decays with T60 0.15 to 0.9 s."""
    frames, t60 = int(rng.uniform(0.1, 0.6) * RATE), rng.uniform(0.15, 0.9)
    tail = rng.standard_normal(frames) * 10 ** (-3 * np.arange(frames) / RATE / t60)
    gap = int(rng.integers(20, 160))
    tail[:gap] = 0
    for _ in range(int(rng.integers(3, 8))):
        tail[int(rng.integers(gap, gap + 600)) % frames] += 3 * rng.uniform(-1, 1)
    tail *= 10 ** (rng.uniform(-14, 3) / 20) / (np.sqrt(np.square(tail).sum()) + 1e-9)
    tail[0] = 1
    size = 1 << (len(x) + frames - 1).bit_length()
    return np.fft.irfft(np.fft.rfft(x, size) * np.fft.rfft(tail, size), size)[: len(x)].astype(np.float32)


def recoloured(rng: np.random.Generator, noise: Samples) -> Samples:
    """Noise of the same power through a smooth random response over octaves from 15 Hz up."""
    hertz = np.arange(len(noise) // 2 + 1) * RATE / len(noise)
    octaves = np.log2(np.maximum(hertz, 15) / 15)
    response = np.interp(octaves, np.linspace(0, 9.1, 8), rng.uniform(-COLOUR, COLOUR, 8))
    y = np.fft.irfft(np.fft.rfft(noise) * 10 ** (response / 20), len(noise))
    return (y * rms(noise) / (rms(y) + TINY)).astype(np.float32)


def rumbling(rng: np.random.Generator, noise: Samples, speech: float) -> Samples:
    """Noise whose rumble is weaker or stronger, sometimes with another one added, up to the level of the speech.

    Recordings of speech rumble too, some 20 dB below the voice. What is noise there cannot be known from the rest of
    the spectrum, and examples in which both go together teach the opposite.
    """
    hertz = np.fft.rfftfreq(len(noise), 1 / RATE)
    spectrum = np.fft.rfft(noise)
    spectrum[hertz < RUMBLE] *= 10 ** (rng.uniform(-24, 6) / 20)
    if rng.random() < 0.4:
        centre, width = 10 ** rng.uniform(0.4, 1.8), rng.uniform(0.2, 1.2)  # Hz, and the width in natural logarithms
        shape = np.exp(-0.5 * (np.log(np.maximum(hertz, 0.5) / centre) / width) ** 2) * (hertz > 1) * (hertz < 100)
        added = shape * np.fft.rfft(rng.standard_normal(len(noise)))
        added /= np.sqrt(2 * np.square(np.abs(added)).sum()) / len(noise) + TINY
        spectrum += added * speech * 10 ** (rng.uniform(-34, 0) / 20)
    return np.fft.irfft(spectrum, len(noise)).astype(np.float32)


def with_rumble(noise: Samples, other: Samples) -> Samples:
    """Noise with the rumble of another recording in place of its own."""
    spectrum, low = np.fft.rfft(noise), np.fft.rfftfreq(len(noise), 1 / RATE) < RUMBLE
    spectrum[low] = np.fft.rfft(other)[low]
    return np.fft.irfft(spectrum, len(noise)).astype(np.float32)


def through_microphone(rng: np.random.Generator, *signals: Samples) -> list[Samples]:
    """Signals through one smooth random response within 6 dB; one in ten has no treble at all."""
    share = np.linspace(0, 1, len(signals[0]) // 2 + 1)
    response = 10 ** (np.interp(share, np.sort(np.r_[0, rng.random(4) ** 2, 1]), rng.uniform(-6, 6, 6)) / 20)
    if rng.random() < 0.1:
        response = response * (share < rng.uniform(0.4, 0.9))
    return [np.fft.irfft(np.fft.rfft(x) * response, len(x)).astype(np.float32) for x in signals]


def synthetic(rng: np.random.Generator, length: int) -> Samples:
    """Coloured noise, hum and tones, clicks as of keys and knocks, bursts as of sneezes, or an engine."""
    make = (_coloured, _tones, _clicks, _bursts, _engine)[int(rng.choice(5, p=(0.34, 0.2, 0.22, 0.1, 0.14)))]
    return make(rng, length).astype(np.float32)


def _coloured(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    spectrum = np.fft.rfft(rng.standard_normal(length))
    bins = np.arange(len(spectrum)) + 1.0
    spectrum *= bins ** -rng.uniform(-0.3, 1.2)
    if rng.random() < 0.4:  # a band
        centre = 10 ** rng.uniform(2, 3.8) * length / RATE
        spectrum *= np.exp(-0.5 * ((bins - centre) / (centre * rng.uniform(0.1, 1))) ** 2) + 0.02
    x = np.fft.irfft(spectrum, length)
    if rng.random() < 0.4:  # swelling
        time = np.arange(length) / RATE
        x *= 1 + rng.uniform(0.2, 0.9) * np.sin(2 * np.pi * (rng.uniform(0.3, 12) * time + rng.random()))
    return x


def _tones(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    time = np.arange(length) / RATE
    base = rng.choice([50.0, 60.0, 100.0, 120.0]) if rng.random() < 0.6 else rng.uniform(40, 1000)
    x = np.zeros(length)
    for order in range(1, int(rng.integers(2, 24))):
        if base * order > 7800:
            break
        phase = base * order * time * (1 + rng.uniform(-2e-3, 2e-3)) + rng.random()
        x += np.sin(2 * np.pi * phase) * order ** -rng.uniform(0.3, 1.8) * rng.random()
    return x + 0.05 * rms(x) * rng.standard_normal(length)


def _clicks(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    x, at, base = 0.003 * rng.standard_normal(length), int(rng.integers(0, 4000)), rng.uniform(300, 4500)
    resonant = rng.random() < 0.7
    while at < length:
        frames = int(rng.integers(200, 2400))
        burst = rng.standard_normal(frames) * np.exp(-np.arange(frames) / rng.uniform(15, frames / 4))
        if resonant:
            radius, angle = rng.uniform(0.6, 0.97), base * rng.uniform(0.7, 1.4) * 2 * np.pi / RATE
            burst = lfilter([1], [1, -2 * radius * np.cos(angle), radius**2], burst)
        burst *= rng.uniform(0.2, 1) / (np.abs(burst).max() + 1e-9)
        x[at : at + frames] += burst[: length - at]
        at += int(rng.exponential(2200)) + 300
    return x


def _bursts(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    x, at = 0.003 * rng.standard_normal(length), int(rng.integers(0, RATE // 2))
    while at < length:
        frames = int(rng.uniform(0.08, 0.6) * RATE)
        time = np.arange(frames) / frames
        envelope = time ** rng.uniform(0.05, 1) * (1 - time) ** rng.uniform(0.5, 4)
        burst = _resonant(rng, rng.standard_normal(frames)) * envelope
        x[at : at + frames] += (burst * rng.uniform(0.2, 1) / (np.abs(burst).max() + 1e-9))[: length - at]
        at += int(rng.exponential(0.7) * RATE) + RATE // 10
    return x


def _engine(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    knots = np.arange(0, length + RATE, int(rng.uniform(0.15, 1.5) * RATE))
    octaves = np.interp(np.arange(length), knots, rng.uniform(-0.5, 0.5, len(knots)) * rng.uniform(0.02, 1))
    turns = np.cumsum(10 ** rng.uniform(1.4, 2.5) * 2**octaves) / RATE  # 25 to 320 a second
    strokes = rng.uniform(1 - rng.uniform(0, 0.7), 1, int(turns[-1]) + 2)  # no two are alike
    pulses = strokes[turns.astype(int)] * np.exp(-(turns % 1) * rng.uniform(2, 12))
    loud = np.interp(np.arange(length), knots, rng.uniform(1 - rng.uniform(0, 0.9), 1, len(knots)))
    noise = rng.standard_normal(length) * (rng.uniform(0, 0.3) + rng.uniform(0, 1) * pulses)
    return _resonant(rng, pulses - pulses.mean() + noise) * loud


def _cries(rng: np.random.Generator, length: int) -> NDArray[np.float64]:
    """Cries as of infants: 0.3 to 1.6 s, a hoarse voice of 330 to 750 Hz that rises and falls, a breath between two."""
    x, at, base = 0.002 * rng.standard_normal(length), int(rng.integers(0, RATE // 2)), rng.uniform(330, 750)
    rough, span = rng.uniform(0, 0.5), rng.uniform(0.05, 0.5)
    while at < length:
        frames = int(rng.uniform(0.3, 1.6) * RATE)
        share = np.linspace(0, 1, frames)
        octaves = np.sin(np.pi * share ** rng.uniform(0.5, 1.5)) * span
        octaves += 0.03 * np.sin(2 * np.pi * 6 * frames / RATE * share) + 0.004 * rng.standard_normal(frames)
        turns = np.cumsum(base * rng.uniform(0.9, 1.1) * 2**octaves) / RATE
        voice = (turns % 1) ** rng.uniform(1, 6) - 0.3 + rough * rng.standard_normal(frames) * (turns % 1)
        cry = _resonant(rng, voice) * share ** rng.uniform(0.05, 0.4) * (1 - share) ** rng.uniform(0.1, 0.8)
        x[at : at + frames] += (cry * rng.uniform(0.5, 1) / (np.abs(cry).max() + 1e-9))[: length - at]
        at += frames + int(rng.uniform(0.03, 0.2) * RATE)
        breath = _resonant(rng, rng.standard_normal(int(rng.uniform(0.1, 0.4) * RATE)))
        breath *= np.hanning(len(breath)) * rng.uniform(0, 0.2) / (np.abs(breath).max() + 1e-9)
        x[at : at + len(breath)] += breath[: max(0, length - at)]
        at += len(breath) + int(rng.exponential(0.1) * RATE)
    return x


def _resonant(rng: np.random.Generator, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """A signal through one to three resonances, beside itself."""
    y = rng.uniform(0, 0.5) * x
    for _ in range(int(rng.integers(1, 4))):
        radius, angle = rng.uniform(0.8, 0.985), 10 ** rng.uniform(2.3, 3.7) * 2 * np.pi / RATE
        y = y + lfilter([1 - radius], [1, -2 * radius * np.cos(angle), radius**2], x)
    return y
