"""Other ways to have said the same: speed, gain, shift, noise, and something before it."""

from __future__ import annotations

import math

import numpy as np
import soxr
from numpy.typing import NDArray

from centaurus.audio.level import dbfs, gain

Samples = NDArray[np.float32]


def change_speed(x: Samples, factor: float) -> Samples:
    """Faster (above one) or slower, pitch with it, as a tape would: round(t / factor) frames."""
    if not 0.1 < factor < 10:
        raise ValueError(f"a speed between 0.1 and 10 is possible, not {factor}")
    if factor == 1 or not len(x):
        return x.copy()
    return soxr.resample(np.ascontiguousarray(x), factor, 1.0, quality="MQ").astype(np.float32, copy=False)


def shift(x: Samples, frames: int) -> Samples:
    """Later by so many frames, or earlier if negative; what leaves is lost, what enters is zero."""
    y = np.zeros_like(x)
    if frames >= 0:
        y[frames:] = x[: max(0, len(x) - frames)]
    else:
        y[:frames] = x[-frames:]
    return y


def fit(x: Samples, frames: int, at: int = 0) -> Samples:
    """Exactly so many frames: cut at the end, or put at ``at`` among zeros."""
    if len(x) >= frames:
        return x[:frames].copy()
    at = min(at, frames - len(x))
    y = np.zeros(frames, np.float32)
    y[at : at + len(x)] = x
    return y


def add_noise(x: Samples, noise: Samples, snr_db: float) -> Samples:
    """The signal at its own level, with noise so many dB below it; silence on either side changes nothing."""
    of_signal, of_noise = dbfs(x), dbfs(noise)
    if math.isinf(of_signal) or math.isinf(of_noise):
        return x.copy()
    return x + noise * gain(of_signal - snr_db - of_noise)


def preceded(x: Samples, before: Samples, fade: int = 160) -> Samples:
    """A signal with something before it, the two joined by a cross-fade of ``fade`` frames within ``before``."""
    if not len(before):
        return x.copy()
    y = np.concatenate([before, x])
    edge = min(fade, len(before), len(x))
    ramp = np.linspace(0, 1, edge, dtype=np.float32)
    y[len(before) - edge : len(before)] *= ramp[::-1]
    return y
