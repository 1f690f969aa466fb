"""Sound as a network wants it: finite, at its rate, one channel if it takes one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from centaurus.audio import Resampler

LOUDEST = 1e4  # 80 dB above full scale: beyond it a sample is an accident, such as raw bytes of another format


def as_rows(samples: ArrayLike) -> NDArray[np.float32]:
    """(t,) or (channels, t) as float32 (channels, t); integers are scaled to ±1."""
    x: NDArray[Any] = np.asarray(samples)
    if x.ndim not in (1, 2):
        raise ValueError(f"samples should be (t,) or (channels, t), got shape {x.shape}")
    if x.ndim == 2 and x.shape[0] > max(x.shape[1], 32):
        raise ValueError(f"samples should be (channels, t), got shape {x.shape}: transpose them")
    if x.dtype.kind == "i":
        x = x / -float(np.iinfo(x.dtype).min)
    elif x.dtype.kind != "f":
        raise ValueError(f"samples should be floats or signed integers, got {x.dtype}")
    return np.atleast_2d(x.astype(np.float32))


class Intake:
    """From any rate to the network's. Samples that are no numbers, or absurdly large, become zeros and are counted.

    A stream cannot be refused halfway, and one such sample would stay in a network's state for ever.
    """

    def __init__(self, rate: int, channels: int, wanted: int, mono: bool = False) -> None:
        self.channels, self.mono, self.repaired = channels, mono, 0
        self._resampler = Resampler(rate, wanted, 1 if mono else channels)

    def finite(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The samples with accidents taken out."""
        if x.ndim != 2 or x.shape[0] != self.channels:
            raise ValueError(f"blocks should be ({self.channels}, n), got shape {x.shape}")
        fine = np.abs(x) <= LOUDEST  # false for NaN
        if fine.all():
            return x
        self.repaired += int(fine.size - fine.sum())
        return np.where(fine, x, np.float32(0))

    def process(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(channels, n) in; what is ready at the network's rate out, as (1, m) or (channels, m)."""
        x = self.finite(x)
        return self._resampler.process(x.mean(axis=0, keepdims=True, dtype=np.float32) if self.mono else x)

    def flush(self) -> NDArray[np.float32]:
        """The rest; then as new."""
        return self._resampler.flush()
