"""Synthetic noise, and augmentation of recorded noise, for training mixtures: numpy arrays and a generator only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.audio.augment import filtered
from centaurus.audio.level import gain, power, to_level

Samples = NDArray[np.float32]


def coloured(rng: np.random.Generator, frames: int, slope: float | None = None, rate: int = 16_000) -> Samples:
    """Return noise whose amplitude falls as frequency^−slope: 0 white, ½ pink, 1 brown; a random slope by default."""
    slope = rng.uniform(-0.3, 1.3) if slope is None else slope
    white = rng.standard_normal(frames, dtype=np.float32)
    return unit(filtered(white, lambda hertz: (np.maximum(hertz, 30) / 1000) ** -slope, rate))


def hum(rng: np.random.Generator, frames: int, mains: float | None = None, rate: int = 16_000) -> Samples:
    """Return mains hum: 50 or 60 Hz, a little off, with up to eleven harmonics of random strength and phase."""
    base = (rng.choice([50.0, 60.0]) if mains is None else mains) * (1 + rng.uniform(-0.005, 0.005))
    count = int(rng.integers(1, 12))
    order = np.arange(1, count + 1)
    strength = (1 - rng.uniform(0, 0.9, count)) / order ** rng.uniform(0.3, 1.2)
    # One complex rotation gives every harmonic as its powers: a single sine and cosine for each sample.
    turn = np.exp(2j * np.pi * np.mod(base / rate * np.arange(frames), 1)).astype(np.complex64)
    total = np.zeros(frames, np.complex64)
    for weight, phase in zip(strength[::-1], rng.uniform(0, 2 * np.pi, count), strict=True):
        total = (total + np.complex64(weight * np.exp(1j * phase))) * turn
    return unit(np.ascontiguousarray(total.imag))


def rumble(rng: np.random.Generator, frames: int, rate: int = 16_000) -> Samples:
    """Return noise below 15 to 60 Hz, as of traffic, wind and handling: barely audible, but often most of the power."""
    corner, slope = rng.uniform(15, 60), rng.uniform(2, 5)
    white = rng.standard_normal(frames, dtype=np.float32)
    return unit(filtered(white, lambda hertz: 1 / (1 + (hertz / corner) ** slope), rate))


def babble(voices: Sequence[Samples]) -> Samples:
    """Return several voices at once, each as loud as the others."""
    if not voices:
        raise ValueError("babble needs at least one voice")
    return unit(np.sum([unit(voice) for voice in voices], axis=0, dtype=np.float32))


def combine(first: Samples, *others: tuple[Samples, float]) -> Samples:
    """Return a noise with others added, each at its level in dB relative to the first."""
    total = unit(first)
    for other, db in others:
        total = total + unit(other) * gain(db)
    return unit(total)


def equalised(rng: np.random.Generator, x: Samples, depth_db: float, points: int = 6, rate: int = 16_000) -> Samples:
    """Apply a smooth random response, up to ±depth at points over log frequency: another room, another microphone."""
    curve = rng.uniform(-depth_db, depth_db, points)

    def response(hertz: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        octave = np.log(np.maximum(hertz, 50) / 50) / np.log(rate / 100)
        return 10 ** (np.interp(octave, np.linspace(0, 1, points), curve) / 20)

    return filtered(x, response, rate)


def looped(rng: np.random.Generator, x: Samples, frames: int) -> Samples:
    """Return ``frames`` of a recording from a random place; a short one is repeated, crossfaded over 10 ms."""
    if not len(x):
        return np.zeros(frames, np.float32)
    if len(x) >= frames:
        start = int(rng.integers(0, len(x) - frames + 1))
        return x[start : start + frames]
    fade = min(160, len(x) // 2)
    ring = x.copy()
    if fade:
        ramp = np.linspace(0, 1, fade, dtype=np.float32)
        ring = x[:-fade].copy()
        ring[:fade] = x[:fade] * ramp + x[-fade:] * (1 - ramp)
    start = int(rng.integers(0, len(ring)))
    return np.resize(np.roll(ring, -start), frames)


def limited(noisy: Samples, clean: Samples, peak: float = 0.99) -> tuple[Samples, Samples]:
    """Return both signals, scaled down together if either exceeds ±peak: a recording cannot exceed full scale."""
    top = max(float(x.max(initial=0)) for x in (noisy, clean))
    top = max(top, *(-float(x.min(initial=0)) for x in (noisy, clean)))
    if top <= peak:
        return noisy, clean
    return noisy * np.float32(peak / top), clean * np.float32(peak / top)


def unit(x: Samples) -> Samples:
    """Return the signal at 0 dBFS; silence stays silence."""
    return to_level(x, 0.0) if power(x) > 1e-12 else x.copy()
