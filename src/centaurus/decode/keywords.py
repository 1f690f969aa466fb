"""Keywords from class logits: probabilities averaged over several frames, a threshold, and one report per word.

A keyword begins where its averaged probability reaches the threshold, is reported at its peak (or ``patience`` after it
began, whichever is sooner; with a patience of 0 at once), and can be reported again only after its probability has
fallen below the release level and the refractory time has passed. The input may be split into pieces of any length
without changing the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from centaurus.decode.ctc import check_frames, softmax

LONGEST_WINDOW = 60.0  # seconds: a keyword is shorter than that, and its frames are all kept
PATIENCE = 0.5  # seconds from the threshold to the report, at most
BACKGROUND = "background"  # the class of everything that is not a keyword


@dataclass(frozen=True)
class Keyword:
    """A detected keyword: ``time`` is when it reached the threshold, ``confidence`` its peak probability."""

    word: str
    time: float
    confidence: float


@dataclass(frozen=True)
class Smoothing:
    """When a keyword is reported: probabilities in [0, 1], times in seconds.

    ``threshold`` is compared with the probability averaged over ``window``; ``release`` is the level below which a
    keyword has ended (0.8 of the threshold if not given); ``refractory`` is the shortest time between two reports;
    ``patience`` is the longest wait for the peak, and 0 reports a keyword as soon as it reaches the threshold.
    """

    threshold: float = 0.6
    release: float | None = None
    window: float = 0.1
    refractory: float = 0.5
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"the threshold is a probability above 0 and up to 1, got {self.threshold:g}")
        if not 0.0 <= self.low <= self.threshold:
            raise ValueError(f"the release level lies between 0 and the threshold {self.threshold:g}, got {self.low:g}")
        if not 0.0 <= self.window <= LONGEST_WINDOW:
            raise ValueError(f"the window should be 0 to {LONGEST_WINDOW:g} seconds, got {self.window:g}")
        for name, seconds in {"refractory time": self.refractory, "patience": self.patience}.items():
            if not 0.0 <= seconds < np.inf:
                raise ValueError(f"the {name} should be seconds from 0 on, got {seconds:g}")

    @property
    def low(self) -> float:
        """The release level: 0.8 of the threshold if none is given."""
        return 0.8 * self.threshold if self.release is None else self.release

    def at(self, threshold: float) -> Smoothing:
        """Return the same smoothing with another threshold, and a release level in proportion to it."""
        return replace(self, threshold=threshold, release=None)


class MovingMean:
    """The mean of the last ``frames`` frames, of fewer at the beginning; (features, frames) in and out."""

    def __init__(self, features: int, frames: int) -> None:
        self.features, self.frames = features, frames
        self.reset()

    def reset(self) -> None:
        """Reset the state."""
        self._past: NDArray[np.float64] = np.zeros((self.features, 0))

    def push(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one mean for every frame."""
        past, new = self._past.shape[1], x.shape[1]
        line = np.concatenate([np.zeros((self.features, self.frames - 1 - past)), self._past, x], axis=1)
        total = np.zeros((self.features, new))
        for k in range(self.frames):  # always in this order, so that a sum does not depend on the pieces
            total += line[:, k : k + new]
        seen = np.minimum(np.arange(past + 1, past + new + 1), self.frames)
        self._past = line[:, line.shape[1] - min(past + new, self.frames - 1) :]
        return total / seen


class Decision:
    """Keywords from averaged scores (words, frames): threshold, peak, hysteresis, refractory time."""

    def __init__(self, words: Sequence[str], seconds: float, smoothing: Smoothing) -> None:
        self.words, self.seconds, self.smoothing = tuple(words), seconds, smoothing
        self._refractory = round(smoothing.refractory / seconds)
        self._patience = max(1, round(smoothing.patience / seconds)) if smoothing.patience else 0
        self.reset()

    def reset(self) -> None:
        """Reset the state."""
        self._armed = np.ones(len(self.words), bool)  # which have been below the release level since their report
        self._frame = 0
        self._rising = -1  # the keyword above the threshold that waits for its peak
        self._began = self._quiet_until = 0
        self._peak = 0.0

    def push(self, scores: NDArray[np.float64]) -> list[Keyword]:
        """Return the keywords to report within these frames. Only frames near the threshold are examined one by one."""
        keywords: list[Keyword] = []
        low = scores < self.smoothing.low
        loud = np.flatnonzero(scores.max(axis=0, initial=0.0) >= self.smoothing.threshold)
        first, frames, start = 0, scores.shape[1], self._frame
        while first < frames:
            if self._rising < 0:  # go to the next frame in which a word could begin
                later = loud[np.searchsorted(loud, first) :]
                target = int(later[0]) if len(later) else frames
                self._armed |= low[:, first:target].any(axis=1)
                first = target
                if first == frames:
                    break
            self._frame = start + first
            self._armed |= low[:, first]
            keywords += self._look(scores[:, first])
            first += 1
        self._frame = start + frames
        return keywords

    def flush(self) -> list[Keyword]:
        """Return the keyword that was still rising, if any, and reset the state."""
        keywords = self._report() if self._rising >= 0 else []
        self.reset()
        return keywords

    def _look(self, scores: NDArray[np.float64]) -> list[Keyword]:
        keywords: list[Keyword] = []
        if self._rising >= 0:
            score = float(scores[self._rising])
            if score >= self._peak and self._frame - self._began < self._patience:
                self._peak = score
            else:
                keywords = self._report()
        leader = int(scores.argmax())
        free = self._rising < 0 and self._frame >= self._quiet_until
        if free and self._armed[leader] and scores[leader] >= self.smoothing.threshold:
            self._rising, self._began, self._peak = leader, self._frame, float(scores[leader])
            self._armed[leader] = False
            if not self._patience:
                keywords += self._report()
        return keywords

    def _report(self) -> list[Keyword]:
        word = self.words[self._rising]
        self._rising, self._quiet_until = -1, self._began + self._refractory
        return [Keyword(word, (self._began + 1) * self.seconds, self._peak)]


class Spotting:
    """Keywords from logits (classes, frames), ``seconds`` apart.

    ``words`` are the classes that may be reported, by default all but the background: probabilities are still those
    over all classes, so that leaving words out only removes reports.
    """

    def __init__(
        self,
        classes: Sequence[str],
        seconds: float,
        smoothing: Smoothing | None = None,
        words: Sequence[str] | None = None,
    ) -> None:
        self.classes, self.seconds = tuple(classes), seconds
        self.smoothing = smoothing or Smoothing()
        chosen = [name for name in self.classes if name != BACKGROUND] if words is None else list(words)
        unknown = [word for word in chosen if word not in self.classes or word == BACKGROUND]
        if unknown or not chosen:
            known = ", ".join(name for name in self.classes if name != BACKGROUND) or "none"
            raise ValueError(f"cannot report {', '.join(unknown) or 'no word at all'}: the model's words are {known}")
        self.words = tuple(chosen)
        self._chosen = [self.classes.index(word) for word in chosen]
        self._mean = MovingMean(len(self.classes), max(1, round(self.smoothing.window / seconds)))
        self._decision = Decision(chosen, seconds, self.smoothing)

    def reset(self) -> None:
        """Reset the state."""
        self._mean.reset()
        self._decision.reset()

    def scores(self, logits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return averaged probabilities (words, frames) of the words that may be reported."""
        check_frames(logits, len(self.classes), "classes")
        return self._mean.push(softmax(logits))[self._chosen]

    def push(self, logits: NDArray[np.floating]) -> list[Keyword]:
        """Return the keywords to report within these frames."""
        return self._decision.push(self.scores(logits))

    def flush(self) -> list[Keyword]:
        """Return the keyword that was still rising, if any, and reset the state."""
        self._mean.reset()
        return self._decision.flush()
