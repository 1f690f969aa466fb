"""The model under evaluation, and the metrics collected for it."""

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
    """A model under evaluation: its task, the meaning of its outputs, and ``run``, samples (t,) to (features, frames).

    ``listen`` starts a stream and returns a function from its next samples to its next frames. ``window`` is the time
    in seconds over which a spotter that answers every frame averages its probabilities.
    """

    task: str
    rate: int
    ratio: Fraction
    classes: Sequence[str]
    tokens: Sequence[str]
    run: Callable[[Samples], NDArray[np.floating[Any]]]
    listen: Callable[[], Callable[[Samples], NDArray[np.floating[Any]]]] | None = None
    window: float | None = None

    @property
    def seconds(self) -> float:
        """The time between two frames."""
        return float(1 / (self.rate * self.ratio))


@dataclass
class Evaluation:
    """Metrics over all clips, a row for each clip, groups (classes, SNRs), and metrics that are missing, with why."""

    task: str
    figures: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the metrics and groups as plain data; rows go to a CSV file."""
        return {
            "task": self.task,
            "clips": len(self.rows),
            **self.figures,
            "groups": self.groups,
            "missing": self.missing,
        }
