"""Find keywords, or transcribe, in audio of any rate: a session, then smoothing or greedy CTC."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from centaurus.decode import Greedy, Keyword, Smoothing, Spotting, Vocabulary, Word, Words
from centaurus.runtime.io import Intake, as_rows
from centaurus.runtime.modelfile import Settings
from centaurus.runtime.session import SessionError, Streaming, open_for
from centaurus.tasks import CLASSIFIER, RECOGNIZER


class Spotter:
    """Find keywords in a stream: blocks (channels, n) in, keywords out. Channels are averaged.

    ``smoothing`` decides when a keyword is reported, by default as the model's file says; ``words`` are those of its
    classes that may be reported, by default all.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Streaming = CLASSIFIER.model,
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
    model: str | os.PathLike[str] = CLASSIFIER.model,
    smoothing: Smoothing | None = None,
    words: Sequence[str] | None = None,
) -> list[Keyword]:
    """Return the keywords in samples (t,) or (channels, t), with their times and confidence."""
    x = as_rows(samples)
    job = Spotter(model, rate, x.shape[0], smoothing, words=words)
    return job.process(x) + job.flush()


class Transcriber:
    """Transcribe a stream: blocks (channels, n) in, words out when they end. Channels are averaged."""

    def __init__(
        self,
        model: str | os.PathLike[str] | Streaming = RECOGNIZER.model,
        rate: int = 16_000,
        channels: int = 1,
        threads: int = 1,
    ) -> None:
        self.session: Streaming = open_for("recognizer", model, batch=1, threads=threads)
        settings = self.session.settings
        if not settings.tokens:
            raise SessionError(f"{settings.name!r:.60} names no tokens: export it with its tokenizer")
        vocabulary = Vocabulary.of(settings.tokens)
        self._intake = Intake(rate, channels, settings.rate, mono=True, peak=settings.peak)
        self._collapse = Greedy(vocabulary)
        self._words = Words(vocabulary, 1 / float(settings.rate * settings.ratio))

    @property
    def repaired(self) -> int:
        """Samples that were NaN, infinite or out of range and became zeros."""
        return self._intake.repaired

    def process(self, x: NDArray[np.float32]) -> list[Word]:
        """Return the words that have ended."""
        return self._decode(self.session.process(self._intake.process(x)[0]))

    @property
    def partial(self) -> list[Word]:
        """The word that has begun and may still change."""
        return self._words.partial(self._collapse.open)

    def flush(self) -> list[Word]:
        """Return the last words and reset the stream."""
        words = self._decode(self.session.process(self._intake.flush()[0])) + self._decode(self.session.flush())
        return words + self._words.push(self._collapse.flush()) + self._words.flush()

    def _decode(self, logits: NDArray[np.float32]) -> list[Word]:
        return self._words.push(self._collapse.push(logits))


def transcribe(samples: ArrayLike, rate: int, model: str | os.PathLike[str] = RECOGNIZER.model) -> list[Word]:
    """Return the words in samples (t,) or (channels, t), with their times."""
    x = as_rows(samples)
    job = Transcriber(model, rate, x.shape[0])
    return job.process(x) + job.flush()
