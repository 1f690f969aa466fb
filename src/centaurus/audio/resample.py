"""Sample rates: whole signals and streams, by soxr."""

from __future__ import annotations

from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray


def resample(x: NDArray[np.floating[Any]], rate_in: float, rate_out: float) -> NDArray[Any]:
    """The signal at another rate along the last axis: round(t · rate_out / rate_in) frames, the same dtype."""
    _check(rate_in, rate_out)
    x = np.asarray(x)
    if x.dtype not in (np.float32, np.float64):
        raise ValueError(f"only float32 and float64 are resampled, not {x.dtype}")
    if rate_in == rate_out or not x.size:
        frames = x.shape[-1] if rate_in == rate_out else 0
        return x.copy() if x.size else np.zeros((*x.shape[:-1], frames), x.dtype)
    if x.ndim == 1:
        return soxr.resample(np.ascontiguousarray(x), rate_in, rate_out)
    rows = x.reshape(-1, x.shape[-1])
    y = np.stack([soxr.resample(np.ascontiguousarray(row), rate_in, rate_out) for row in rows])
    return y.reshape(*x.shape[:-1], -1)


class Resampler:
    """A stream at another rate: pieces of any length in, what is ready out, the rest with ``flush``."""

    def __init__(self, rate_in: float, rate_out: float, channels: int = 1) -> None:
        _check(rate_in, rate_out)
        self.rate_in, self.rate_out, self.channels = rate_in, rate_out, channels
        self._stream: Any = None
        if rate_in != rate_out:
            self._stream = soxr.ResampleStream(rate_in, rate_out, channels, dtype="float32")
        self._flat = False

    def process(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """(channels, n) in, (channels, ready) out; (n,) in, (ready,) out for one channel."""
        x = np.asarray(x, dtype=np.float32)
        self._flat = x.ndim == 1
        if x.ndim not in (1, 2) or (1 if self._flat else len(x)) != self.channels:
            raise ValueError(f"this resampler has {self.channels} channels, the piece has shape {x.shape}")
        return self._run(x, last=False)

    def flush(self) -> NDArray[np.float32]:
        """Return what the filter still holds, so that all pieces together equal ``resample``, and start anew."""
        shape = (0,) if self._flat else (self.channels, 0)
        tail = self._run(np.zeros(shape, np.float32), last=True)
        if self._stream is not None:
            self._stream.clear()
        return tail

    def _run(self, x: NDArray[np.float32], last: bool) -> NDArray[np.float32]:
        if self._stream is None:
            return x.copy()
        # soxr wants (time, channels), and plain (time,) for one channel.
        piece = np.ascontiguousarray(x.reshape(self.channels, -1).T)
        y = self._stream.resample_chunk(piece[:, 0] if self.channels == 1 else piece, last=last)
        y = np.ascontiguousarray(y.reshape(-1, self.channels).T)
        return y[0] if self._flat else y


def _check(rate_in: float, rate_out: float) -> None:
    for rate in (rate_in, rate_out):
        if not (np.isfinite(rate) and rate > 0):
            raise ValueError(f"a sample rate must be positive, not {rate}")
