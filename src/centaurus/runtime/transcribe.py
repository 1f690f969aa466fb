"""Transcribe audio of any rate: a session, then greedy CTC."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import ArrayLike, NDArray

from centaurus.decode import Greedy, Vocabulary, Word, Words
from centaurus.runtime.io import Intake, as_rows
from centaurus.runtime.session import SessionError, Streaming, open_for
from centaurus.tasks import RECOGNIZER

MODEL = RECOGNIZER.model


class Transcriber:
    """Blocks (channels, n) in, words out when they end. Channels are averaged."""

    def __init__(
        self, model: str | os.PathLike[str] | Streaming = MODEL, rate: int = 16_000, channels: int = 1, threads: int = 1
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


def transcribe(samples: ArrayLike, rate: int, model: str | os.PathLike[str] = MODEL) -> list[Word]:
    """Return the words in samples (t,) or (channels, t), with their times."""
    x = as_rows(samples)
    job = Transcriber(model, rate, x.shape[0])
    return job.process(x) + job.flush()
