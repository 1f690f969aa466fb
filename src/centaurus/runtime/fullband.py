"""Sound above a network's band, scaled by the gain that the network has in its top band."""

from __future__ import annotations

import math
import sys
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Block = NDArray[np.float32]
Band = Literal["full", "narrow"]
BANDS: tuple[Band, ...] = ("full", "narrow")
FRAME = 64  # samples of the network between two gains: 4 ms at 16 kHz
TOP = 0.6  # the top band: from this share of the network's band up, 4.8 kHz at 16 kHz
TAPS = 33  # of the filter that keeps the top band
RELEASE = 0.01  # seconds over which powers are averaged
SILENT = 1e-10  # power of the top band below which there is no noise to remove: −100 dBFS


class UpperBand:
    """Splits an input of ``rate`` at half the network's rate and scales what lies above.

    The gain is the square root of the ratio of powers, network's output to input, in the network's top band. It is at
    most one, and goes linearly from one frame of the network to the next, so it does not depend on how a stream is cut.
    """

    def __init__(self, rate: int, network_rate: int, channels: int) -> None:
        self._frames_per_sample = network_rate / (FRAME * rate)
        self._keep = math.exp(-FRAME / (RELEASE * network_rate))
        self._filter = _high_pass(TOP, TAPS)
        self._channels = channels
        self.reset()

    def reset(self) -> None:
        """Begin a new stream."""
        self._pending: Block = np.zeros((self._channels, 0), np.float32)  # network input whose output is not known yet
        self._waiting: Block = np.zeros((2, self._channels, TAPS - 1), np.float32)  # less than a frame, and history
        self._power = np.zeros((2, self._channels))
        self._gains = np.ones((self._channels, 1))  # at the ends of frames, from ``_first`` on
        self._first = 0
        self._given = 0  # samples at the input's rate
        self._ended = False

    def pair(self, network_input: Block, clean: Block) -> Block:
        """Take network input and output (channels, t); return the part of the input that belongs to the output."""
        self._pending = np.concatenate([self._pending, network_input], axis=1)
        count = clean.shape[1]
        low, self._pending = self._pending[:, :count], self._pending[:, count:]
        self._measure(np.stack([low, clean]))
        return low

    def end(self) -> None:
        """Keep the last gain for the rest of the stream."""
        self._ended = True

    @property
    def ready(self) -> int:
        """Samples at the input's rate, from the last one that was scaled, whose gain is known."""
        if self._ended:
            return sys.maxsize
        frames = self._first + self._gains.shape[1] - 1
        return max(0, math.floor(frames / self._frames_per_sample) - self._given)

    def scale(self, high: Block) -> Block:
        """Return the next samples (channels, n) above the network's band times their gains."""
        at = (self._given + np.arange(high.shape[1])) * self._frames_per_sample
        frames = self._first + np.arange(self._gains.shape[1])
        scaled = np.stack([x * np.interp(at, frames, g) for x, g in zip(high, self._gains, strict=True)])
        self._given += high.shape[1]
        past = min(int(self._given * self._frames_per_sample) - self._first, self._gains.shape[1] - 1)
        self._gains, self._first = self._gains[:, past:], self._first + past
        return scaled.astype(np.float32)

    def _measure(self, pair: Block) -> None:
        self._waiting = np.concatenate([self._waiting, pair], axis=2)
        frames = (self._waiting.shape[2] - TAPS + 1) // FRAME
        if not frames:
            return
        used = frames * FRAME
        rows = self._waiting[:, :, : used + TAPS - 1].reshape(2 * self._channels, -1)
        top = np.stack([np.convolve(row, self._filter, "valid") for row in rows])
        powers = np.square(top, dtype=np.float64).reshape(2, self._channels, frames, FRAME).mean(axis=-1)
        means = (1 - self._keep) * np.moveaxis(powers, 2, 0)
        for k in range(frames):
            means[k] += self._keep * self._power
            self._power = means[k]
        before, after = np.moveaxis(means, 0, 2) + SILENT
        self._gains = np.concatenate([self._gains, np.sqrt(np.minimum(after / before, 1.0))], axis=1)
        self._waiting = self._waiting[:, :, used:]


def _high_pass(cut: float, taps: int) -> NDArray[np.float32]:
    """Return a linear-phase filter that keeps what lies above ``cut`` of the band: a windowed sinc."""
    at = np.arange(taps) - (taps - 1) / 2
    low = cut * np.sinc(cut * at) * np.hamming(taps)
    high = (at == 0) - low / low.sum()
    return (high / np.sum(high * np.cos(np.pi * at))).astype(np.float32)
