"""Stretches of time and bands of frequency taken out of a waveform: SpecAugment without a spectrogram."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.audio.filter import filtered

Samples = NDArray[np.float32]
EDGE = 40.0  # Hz over which a band is faded out: sharper edges would ring


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
    bands = draw_bands(rng, count, widest, rate)

    def response(hertz: NDArray[np.floating[Any]]) -> Samples:
        keep = np.ones(hertz.size, np.float32)
        for low, high in bands:
            first, last = (int(np.searchsorted(hertz, edge)) for edge in (low, high))
            edge = min((last - first) // 2, int(EDGE / hertz[1]))
            keep[first:last] *= _notch(last - first, edge)
        return keep

    return filtered(x, response, rate)


def draw_bands(
    rng: np.random.Generator, count: int = 2, widest: float = 0.1, rate: int = 16_000
) -> list[tuple[float, float]]:
    """Random bands in Hz, as wide to the ear wherever they lie."""
    top = _mel(rate / 2)
    bands = []
    for _ in range(count):
        width = rng.uniform(0, widest) * top
        low = rng.uniform(0, top - width)
        bands.append((_hertz(low), _hertz(low + width)))
    return bands


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
