"""Denoising at any rate and channel count: in to the network's rate, through a session, back, sample for sample."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import ArrayLike, NDArray

from centaurus.audio import Resampler
from centaurus.runtime.intake import Intake, as_rows
from centaurus.runtime.session import Session
from centaurus.runtime.tasks import open_for

MODEL = "denoise-16k"
Block = NDArray[np.float32]


class Denoiser:
    """Noisy blocks (channels, n) in, clean ones out: as many samples in all, each at its place.

    ``mix`` is the share of the cleaned signal (0 to 1). ``attn_limit_db`` keeps noise from falling by more than that.
    Sound above half the network's rate is not cleaned but removed, except in the share of the input that is mixed in.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = MODEL,
        rate: int = 16_000,
        channels: int = 1,
        mix: float = 1.0,
        attn_limit_db: float | None = None,
        threads: int = 1,
    ) -> None:
        self.rate, self.channels = rate, channels
        self._wet = cleaned_share(mix, attn_limit_db)
        self.session: Session = open_for("denoiser", model, batch=channels, threads=threads)
        self._intake = Intake(rate, channels, self.session.settings.rate)
        self._back = Resampler(self.session.settings.rate, rate, channels)
        self._dry: Block = np.zeros((channels, 0), np.float32)  # the input that has no output yet
        self._ready: Block = self._dry

    @property
    def repaired(self) -> int:
        """Samples that were no numbers and became zeros."""
        return self._intake.repaired

    @property
    def removed_above(self) -> float | None:
        """The frequency in Hz above which nothing is left of the input, if there was anything."""
        heard = self.session.settings.rate
        return heard / 2 if heard < self.rate and self._wet == 1.0 else None

    @property
    def latency(self) -> float:
        """Seconds from a sample to its output, at most, without resampling: the network's hop or chunk."""
        return self.session.settings.latency / self.session.settings.rate

    def process(self, x: Block) -> Block:
        """What is ready, at the input's rate; together with ``flush`` as many samples as were given."""
        x = self._intake.finite(x)
        self._dry = np.concatenate([self._dry, x], axis=1)
        return self._give(self._back.process(self.session.process(self._intake.process(x))))

    def flush(self) -> Block:
        """The rest; then as new."""
        clean = [self.session.process(self._intake.flush()), self.session.flush().reshape(self.channels, -1)]
        tail = np.concatenate([self._back.process(np.concatenate(clean, axis=1)), self._back.flush()], axis=1)
        missing = self._dry.shape[1] - self._ready.shape[1] - tail.shape[1]
        done = self._give(np.pad(tail, ((0, 0), (0, max(0, missing)))))
        self._ready = self._ready[:, :0]  # resampling there and back may end a few samples late
        return done

    def _give(self, clean: Block) -> Block:
        ready = np.concatenate([self._ready, clean], axis=1)
        count = min(ready.shape[1], self._dry.shape[1])
        dry, self._dry = self._dry[:, :count], self._dry[:, count:]
        wet, self._ready = ready[:, :count], ready[:, count:]
        return wet if self._wet == 1.0 else self._wet * wet + np.float32(1 - self._wet) * dry


def cleaned_share(mix: float, attn_limit_db: float | None) -> np.float32:
    """The share of the cleaned signal: the rest is input, so that noise falls by no more than the limit."""
    if not 0.0 <= mix <= 1.0:
        raise ValueError(f"mix is between 0 (the input) and 1 (the cleaned signal), got {mix:g}")
    if attn_limit_db is None:
        return np.float32(mix)
    if not attn_limit_db >= 0.0:
        raise ValueError(f"the limit of attenuation is a number of dB from 0, got {attn_limit_db:g}")
    return np.float32(mix * (1 - 10 ** (-attn_limit_db / 20)))


def denoise(
    samples: ArrayLike,
    rate: int,
    model: str | os.PathLike[str] = MODEL,
    mix: float = 1.0,
    attn_limit_db: float | None = None,
    threads: int = 1,
) -> Block:
    """The samples, (t,) or (channels, t) at any rate, without their noise: float32 in the same shape."""
    x = as_rows(samples)
    job = Denoiser(model, rate, x.shape[0], mix, attn_limit_db, threads)
    clean = np.concatenate(
        [*(job.process(x[:, k : k + rate]) for k in range(0, x.shape[1], rate)), job.flush()], axis=1
    )
    return clean.reshape(np.shape(samples))
