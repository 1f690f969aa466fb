"""Short-time spectra of a whole signal and back, exactly."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def stft(x: NDArray[np.float32], size: int = 512, hop: int = 128) -> NDArray[np.complex64]:
    """Spectra (frames, size // 2 + 1) of a signal (t,); frame k is centred on sample k · hop − size / 2 + hop."""
    _check(size, hop)
    frames = frame_count(len(x), size, hop)
    padded = np.zeros(size + (frames - 1) * hop, np.float32)
    padded[size - hop : size - hop + len(x)] = x
    view = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    return np.fft.rfft(view * window(size)).astype(np.complex64, copy=False)


def istft(spectra: NDArray[np.complex64], length: int, size: int = 512, hop: int = 128) -> NDArray[np.float32]:
    """The signal (t,) of ``length`` samples whose spectra these are: overlapped, added and divided by the windows."""
    _check(size, hop)
    if len(spectra) != frame_count(length, size, hop):
        raise ValueError(f"{len(spectra)} spectra are not those of {length} samples in hops of {hop}")
    pieces = np.fft.irfft(spectra, size).astype(np.float32, copy=False) * window(size)
    total = _overlap(pieces, hop)
    total /= _overlap(np.broadcast_to(np.square(window(size)), pieces.shape), hop) + np.float32(1e-8)
    return total[size - hop : size - hop + length]


def frame_count(length: int, size: int = 512, hop: int = 128) -> int:
    """How many spectra a signal has: every sample lies in ``size / hop`` of them."""
    return max(1, -(-length // hop)) + size // hop - 1


@lru_cache(maxsize=8)
def window(size: int) -> NDArray[np.float32]:
    """Hann's, periodic."""
    return np.hanning(size + 1)[:-1].astype(np.float32)


def _overlap(pieces: NDArray[np.float32], hop: int) -> NDArray[np.float32]:
    count, size = pieces.shape
    parts = size // hop
    total = np.zeros((count + parts - 1, hop), np.float32)
    for part in range(parts):
        total[part : part + count] += pieces[:, part * hop : (part + 1) * hop]
    return total.reshape(-1)


def _check(size: int, hop: int) -> None:
    if hop < 1 or size % hop or size // hop < 2:
        raise ValueError(f"a window of {size} must be two or more whole hops, not {size / hop:g} of {hop}")
