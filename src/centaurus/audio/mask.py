"""Stretches of time and bands of frequency taken out of a waveform: SpecAugment without a spectrogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]


def mask_time(rng: np.random.Generator, x: Samples, count: int = 2, longest: int = 3200, fade: int = 64) -> Samples:
    """The signal with up to ``longest`` frames silenced at ``count`` random places, faded in and out."""
    y = x.copy()
    for _ in range(count):
        width = int(rng.integers(0, min(longest, len(x)) + 1))
        start = int(rng.integers(0, len(x) - width + 1))
        edge = min(fade, width // 2)
        y[start : start + width] *= _notch(width, edge)
    return y


def mask_frequency(
    rng: np.random.Generator, x: Samples, count: int = 2, widest: float = 0.1, rate: int = 16_000
) -> Samples:
    """The signal without ``count`` random bands, each up to ``widest`` of the mel scale, over the whole length."""
    if not len(x):
        return x.copy()
    spectrum = np.fft.rfft(x)
    spectrum *= frequency_mask(rng, len(x), count, widest, rate)
    return np.fft.irfft(spectrum, len(x)).astype(np.float32, copy=False)


def frequency_mask(
    rng: np.random.Generator, frames: int, count: int = 2, widest: float = 0.1, rate: int = 16_000
) -> Samples:
    """What to multiply the spectrum of so many frames with: one, and zero in random bands with soft edges of 40 Hz."""
    keep = np.ones(frames // 2 + 1, np.float32)
    top = _mel(rate / 2)
    for _ in range(count):
        width = rng.uniform(0, widest) * top
        low = rng.uniform(0, top - width)
        first, last = (int(_hertz(edge) * frames / rate) for edge in (low, low + width))
        last = min(last, keep.size)
        edge = min((last - first) // 2, int(40 * frames / rate))
        keep[first:last] *= _notch(last - first, edge)
    return keep


def _notch(width: int, edge: int) -> Samples:
    """One, falling to zero over ``edge``, and back at the end, by a raised cosine."""
    notch = np.zeros(width, np.float32)
    if edge:
        ramp = (0.5 + 0.5 * np.cos(np.pi * (np.arange(edge) + 0.5) / edge)).astype(np.float32)
        notch[:edge], notch[width - edge :] = ramp, ramp[::-1]
    return notch


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))


def _hertz(mel: float) -> float:
    return float(700 * (10 ** (mel / 2595) - 1))
