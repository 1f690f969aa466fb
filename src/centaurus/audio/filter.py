"""A signal through any smooth response, in blocks small enough to stay in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]
Response = Callable[[NDArray[np.floating[Any]]], NDArray[np.floating[Any]]]

BLOCK, GUARD, TOGETHER = 8192, 1024, 4


def filtered(x: Samples, response: Response, rate: int = 16_000) -> Samples:
    """The signal with every frequency multiplied by ``response(hertz)``, without delay.

    Each block is transformed with a guard of 64 ms (at 16 kHz) on both sides, the memory that a response may have:
    one with edges of 20 Hz or more is exact to −70 dB. A few blocks at a time share the transform's tables.
    """
    if not len(x):
        return x.copy()
    keep = np.asarray(response(np.fft.rfftfreq(BLOCK, 1 / rate)), dtype=np.float32)
    hop = BLOCK - 2 * GUARD
    count = -(-len(x) // hop)
    padded = np.zeros(count * hop + 2 * GUARD, np.float32)
    padded[GUARD : GUARD + len(x)] = x
    blocks = np.lib.stride_tricks.sliding_window_view(padded, BLOCK)[::hop]
    y = np.empty((count, hop), np.float32)
    for first in range(0, count, TOGETHER):
        spectra = np.fft.rfft(blocks[first : first + TOGETHER])
        spectra *= keep
        y[first : first + TOGETHER] = np.fft.irfft(spectra, BLOCK)[:, GUARD:-GUARD]
    return y.reshape(-1)[: len(x)]
