"""Level in dBFS, and mixing at a given signal-to-noise ratio. 0 dBFS is a root mean square of one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Signal = NDArray[np.floating[Any]]


def power(x: Signal) -> float:
    """Return the mean square over all samples, summed in float64; zero for no samples."""
    x = np.asarray(x)
    if not x.size:
        return 0.0
    flat = x.reshape(-1)
    if flat.dtype == np.float64:
        return float(np.dot(flat, flat)) / flat.size
    # A dot product per thousand samples is as fast as one, and sums of float32 stay exact enough.
    whole = flat.size // 1024 * 1024
    rows = flat[:whole].reshape(-1, 1024)
    total = np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64)
    rest = flat[whole:].astype(np.float64)
    return (float(total) + float(np.dot(rest, rest))) / flat.size


def dbfs(x: Signal) -> float:
    """Return 20 log10 of the root mean square; −inf for silence."""
    mean = power(x)
    return 10 * math.log10(mean) if mean > 0 else -math.inf


def gain(db: float) -> np.float32:
    """Return the amplitude factor of a gain in dB."""
    return np.float32(10 ** (db / 20))


def to_level(x: Signal, level_dbfs: float) -> Signal:
    """Return the signal scaled to a level in dBFS; silence stays silence."""
    now = dbfs(x)
    return x.copy() if math.isinf(now) else x * gain(level_dbfs - now)


def mix(speech: Signal, noise: Signal, snr_db: float, level_dbfs: float | None = None) -> tuple[Signal, Signal]:
    """Return (noisy, clean): noise added at an SNR in dB, both scaled so that noisy has the level in dBFS.

    Silent speech gets the noise as it is, silent noise changes nothing: neither has a ratio.
    """
    if speech.shape != noise.shape:
        raise ValueError(f"speech {speech.shape} and noise {noise.shape} differ in shape")
    of_speech, of_noise = dbfs(speech), dbfs(noise)
    if math.isinf(of_noise):
        noisy = speech.copy()
    elif math.isinf(of_speech):
        noisy = noise.copy()
    else:
        noisy = noise * gain(of_speech - snr_db - of_noise)
        noisy += speech
    now = dbfs(noisy)
    if level_dbfs is None or math.isinf(now):
        return noisy, speech.copy()
    factor = gain(level_dbfs - now)
    noisy *= factor
    return noisy, speech * factor
