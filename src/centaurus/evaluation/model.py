"""What is measured, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Model:
    """A model to measure: its task, what its outputs mean, and ``run``: samples (t,) to (features, frames).

    ``listen`` starts a new stream, whose pieces of samples become pieces of frames.
    """

    task: str
    rate: int
    ratio: Fraction
    classes: Sequence[str]
    tokens: Sequence[str]
    run: Callable[[Samples], NDArray[np.floating[Any]]]
    listen: Callable[[], Callable[[Samples], NDArray[np.floating[Any]]]] | None = None


@dataclass
class Evaluation:
    """Figures over all clips, rows for each clip, groups (classes, SNRs), and what could not be measured."""

    task: str
    figures: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """As plain data; every row is in the CSV file instead."""
        return {
            "task": self.task,
            "clips": len(self.rows),
            **self.figures,
            "groups": self.groups,
            "missing": self.missing,
        }
