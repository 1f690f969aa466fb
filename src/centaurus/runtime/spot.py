"""Find keywords in audio of any rate: a session, then smoothing to one report per word."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from centaurus.decode import Keyword, Smoothing, Spotting
from centaurus.runtime.io import Intake, as_rows
from centaurus.runtime.modelfile import Settings
from centaurus.runtime.session import SessionError, Streaming, open_for
from centaurus.tasks import CLASSIFIER

MODEL = CLASSIFIER.model


class Spotter:
    """Blocks (channels, n) in, keywords out as soon as they are sure. Channels are averaged.

    ``smoothing`` decides when a keyword is reported, by default as the model's file says; ``words`` are those of its
    classes that may be reported, by default all.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Streaming = MODEL,
        rate: int = 16_000,
        channels: int = 1,
        smoothing: Smoothing | None = None,
        threads: int = 1,
        words: Sequence[str] | None = None,
    ) -> None:
        self.session: Streaming = open_for("classifier", model, batch=1, threads=threads)
        settings = self.session.settings
        if not settings.classes:
            raise SessionError(f"{settings.name!r:.60} names no classes: export it with their names")
        self._intake = Intake(rate, channels, settings.rate, mono=True, peak=settings.peak)
        self.smoothing = smoothing or smoothing_of(settings)
        self._spotting = Spotting(settings.classes, 1 / float(settings.rate * settings.ratio), self.smoothing, words)

    @property
    def repaired(self) -> int:
        """Samples that were NaN, infinite or out of range and became zeros."""
        return self._intake.repaired

    def process(self, x: NDArray[np.float32]) -> list[Keyword]:
        """Return the keywords that can be reported now."""
        return self._spotting.push(self.session.process(self._intake.process(x)[0]))

    def flush(self) -> list[Keyword]:
        """Return the last keywords and reset the stream."""
        keywords = self._spotting.push(self.session.process(self._intake.flush()[0]))
        return keywords + self._spotting.push(self.session.flush()) + self._spotting.flush()


def smoothing_of(settings: Settings) -> Smoothing:
    """Return the smoothing that a model's file asks for."""
    usual = Smoothing()
    return Smoothing(settings.threshold or usual.threshold, window=settings.window or usual.window)


def spot(
    samples: ArrayLike,
    rate: int,
    model: str | os.PathLike[str] = MODEL,
    smoothing: Smoothing | None = None,
    words: Sequence[str] | None = None,
) -> list[Keyword]:
    """Return the keywords in samples (t,) or (channels, t), with their times and confidence."""
    x = as_rows(samples)
    job = Spotter(model, rate, x.shape[0], smoothing, words=words)
    return job.process(x) + job.flush()
