"""How the learning rate goes over training, as a function of the fraction that is done."""

from __future__ import annotations

import math
from dataclasses import dataclass


def cosine(progress: float, warmup: float) -> float:
    """The factor on the learning rate: a line to 1 over the first ``warmup`` of training, then half a cosine to 0."""
    if not 0 <= warmup < 1:
        raise ValueError(f"the warm-up is a fraction of training, at least 0 and below 1: got {warmup}")
    if progress < warmup:
        return max(progress, 0.0) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup) / (1 - warmup))))


@dataclass(frozen=True)
class Budget:
    """How long to train, by optimiser steps or by the clock; exactly one is given."""

    steps: int = 0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.minutes > 0):
            raise ValueError(f"a budget is a number of steps or of minutes, got {self.steps} and {self.minutes}")

    def progress(self, steps: int, seconds: float) -> float:
        """The fraction done after so many steps and seconds: 0 at the start, 1 when it is over."""
        return steps / self.steps if self.steps else seconds / (60 * self.minutes)

    def coming(self, steps: int, seconds: float) -> float:
        """The fraction at the step to be taken next: its middle, so that neither the first nor the last is idle."""
        return (steps + 0.5) / self.steps if self.steps else min(1.0, self.progress(steps, seconds))
