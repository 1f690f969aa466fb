"""Keywords out of class logits: probabilities averaged over a moment, a threshold, and one report a word.

A keyword begins where its averaged probability reaches the threshold, is reported at its peak (or ``PATIENCE`` after it
began, whichever is sooner), and can be reported again only after its probability has fallen below the release level and
the refractory time has passed. Fed piece by piece; the pieces do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centaurus.decode.posterior import check_frames, softmax

PATIENCE = 0.5  # seconds from the threshold to the report, at most


@dataclass(frozen=True)
class Keyword:
    """A keyword heard: ``time`` is when it reached the threshold, ``confidence`` its peak probability."""

    word: str
    time: float
    confidence: float


@dataclass(frozen=True)
class Smoothing:
    """How sure and how long: probabilities in [0, 1], times in seconds. ``release`` is where a keyword ends."""

    threshold: float = 0.6
    release: float | None = None
    window: float = 0.1
    refractory: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"the threshold is a probability above 0 and up to 1, got {self.threshold:g}")
        if not 0.0 <= self.low <= self.threshold:
            raise ValueError(f"the release level lies between 0 and the threshold {self.threshold:g}, got {self.low:g}")
        if not (0.0 <= self.window < np.inf and 0.0 <= self.refractory < np.inf):
            raise ValueError(f"times are seconds from 0: window {self.window:g}, refractory {self.refractory:g}")

    @property
    def low(self) -> float:
        """The release level: 0.8 of the threshold if none is given."""
        return 0.8 * self.threshold if self.release is None else self.release


class MovingMean:
    """The mean of the last ``frames`` frames, of fewer at the beginning; (features, frames) in and out."""

    def __init__(self, features: int, frames: int) -> None:
        self.features, self.frames = features, frames
        self.reset()

    def reset(self) -> None:
        """As new."""
        self._past: NDArray[np.float64] = np.zeros((self.features, 0))

    def push(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """One mean for every frame given."""
        past, new = self._past.shape[1], x.shape[1]
        line = np.concatenate([np.zeros((self.features, self.frames - 1 - past)), self._past, x], axis=1)
        total = np.zeros((self.features, new))
        for k in range(self.frames):  # always in this order, so that a sum does not depend on the pieces
            total += line[:, k : k + new]
        heard = np.minimum(np.arange(past + 1, past + new + 1), self.frames)
        self._past = line[:, line.shape[1] - min(past + new, self.frames - 1) :]
        return total / heard


class Spotting:
    """Keywords from logits (classes, frames). ``ignored`` classes, such as the background, are never reported."""

    def __init__(
        self,
        classes: Sequence[str],
        seconds: float,
        smoothing: Smoothing | None = None,
        ignored: Sequence[str] = ("background",),
    ) -> None:
        self.classes, self.seconds = tuple(classes), seconds
        self.smoothing = smoothing or Smoothing()
        self._keywords = [k for k, name in enumerate(self.classes) if name not in ignored]
        if not self._keywords:
            raise ValueError(f"no class is left to report of {', '.join(self.classes) or 'none'}")
        self._mean = MovingMean(len(self.classes), max(1, round(self.smoothing.window / seconds)))
        self._refractory = round(self.smoothing.refractory / seconds)
        self._patience = max(1, round(PATIENCE / seconds))
        self.reset()

    def reset(self) -> None:
        """As new."""
        self._mean.reset()
        self._armed = np.ones(len(self._keywords), bool)  # which have been below the release level since their report
        self._frame = 0
        self._rising = -1  # the keyword above the threshold that waits for its peak
        self._began = self._quiet_until = 0
        self._peak = 0.0

    def push(self, logits: NDArray[np.floating]) -> list[Keyword]:
        """The keywords to report within these frames."""
        check_frames(logits, len(self.classes), "classes")
        scores = self._mean.push(softmax(logits))[self._keywords]
        low = scores < self.smoothing.low
        found: list[Keyword] = []
        for k, leader in enumerate(scores.argmax(axis=0).tolist()):
            self._armed |= low[:, k]
            found += self._look(leader, scores[:, k])
            self._frame += 1
        return found

    def flush(self) -> list[Keyword]:
        """The keyword that was still rising; then as new."""
        found = self._report() if self._rising >= 0 else []
        self.reset()
        return found

    def _look(self, leader: int, scores: NDArray[np.float64]) -> list[Keyword]:
        found: list[Keyword] = []
        if self._rising >= 0:
            score = float(scores[self._rising])
            if score >= self._peak and self._frame - self._began < self._patience:
                self._peak = score
            else:
                found = self._report()
        free = self._rising < 0 and self._frame >= self._quiet_until
        if free and self._armed[leader] and scores[leader] >= self.smoothing.threshold:
            self._rising, self._began, self._peak = leader, self._frame, float(scores[leader])
            self._armed[leader] = False
        return found

    def _report(self) -> list[Keyword]:
        word = self.classes[self._keywords[self._rising]]
        self._rising, self._quiet_until = -1, self._began + self._refractory
        return [Keyword(word, (self._began + 1) * self.seconds, self._peak)]
