"""What a run writes down: the log, TensorBoard, and whoever is watching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from centaurus.training.board import Board
from centaurus.training.objective import Example
from centaurus.training.run import Run, Standing


class Watcher(Protocol):
    """Someone who looks on while a run trains."""

    def trained(self, record: dict[str, Any]) -> None:
        """After a step that was logged."""

    def validated(self, record: dict[str, Any], best: bool) -> None:
        """After a validation."""


class Diary:
    """Figures as they come. Numbers in the log are exact: two runs that agree have equal lines, but for the times."""

    def __init__(self, run: Run, watcher: Watcher | None, standing: Standing) -> None:
        self.run, self.watcher = run, watcher
        self.board = Board(run.folder / "tensorboard", standing.step)
        self.since, self.audio = standing.seconds, 0.0

    def heard(self, seconds: float) -> None:
        """So much audio went through a step, over all processes."""
        self.audio += seconds

    def trained(self, standing: Standing, place: dict[str, float], terms: dict[str, float]) -> None:
        """A step, with the speed since the last one that was logged."""
        speed = self.audio / max(standing.seconds - self.since, 1e-9)
        times = {"seconds": round(standing.seconds, 3), "audio_per_second": round(speed, 2)}
        record = {"kind": "train", "step": standing.step, **place, **terms, **times}
        self.since, self.audio = standing.seconds, 0.0
        self.run.log(record)
        self.board.scalars("train", record)
        if self.watcher is not None:
            self.watcher.trained(record)

    def validated(self, standing: Standing, figures: dict[str, float], best: bool) -> None:
        """A validation."""
        place = {"kind": "validation", "step": standing.step, "best": best}
        record = {**place, **figures, "seconds": round(standing.seconds, 3)}
        self.run.log(record)
        self.board.scalars("validation", record)
        if self.watcher is not None:
            self.watcher.validated(record, best)

    def examples(self, examples: Sequence[Example], rate: int, step: int) -> None:
        """Something to hear."""
        self.board.examples(examples, rate, step)

    def close(self) -> None:
        """Write what is waiting."""
        self.board.close()
