"""A task small enough to train in a second: which of three tones is it? Also a program, to be run under torchrun."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from centaurus.models import ClassifierTable, Row, classifier
from centaurus.recipes.launch import leave
from centaurus.train.config import Training
from centaurus.train.loop import Data, Item, fit
from centaurus.train.objectives import Classify
from centaurus.train.run import Run

RATE, SAMPLES, TONES = 16_000, 256, (500.0, 1500.0, 4000.0)
TABLE = ClassifierTable((Row("full", 4, 4, 2), Row("pointwise", 4, 8, 8)))


class Tones:
    """Tones in noise, made when asked for."""

    def __init__(self, size: int = 30, hook: Callable[[int], None] | None = None) -> None:
        self.examples, self.hook = size, hook

    def size(self) -> int:
        return self.examples

    def draw(self, epoch: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        return rng.permutation(self.examples)

    def example(self, index: int, rng: np.random.Generator) -> Item:
        if self.hook is not None:
            self.hook(index)
        phase = 2 * np.pi * (TONES[index % 3] * np.arange(SAMPLES) / RATE + rng.uniform())
        audio = np.sin(phase) + 0.3 * rng.standard_normal(SAMPLES)
        return {"audio": audio[None].astype(np.float32), "label": np.array(index % 3)}


def settings(**changed: Any) -> Training:
    """A run of a few steps, every one logged."""
    settings: dict[str, Any] = {"steps": 12, "batch": 6, "lr": 0.01, "decay": 0.01, "workers": 0, "log_every": 1}
    return Training(**(settings | {"validations": 2} | changed))


def train(run: Run, config: Training, corpus: Tones | None = None, dropout: float = 0.1) -> Any:
    """Train the toy network in this run's folder."""
    torch.manual_seed(config.seed)
    net = classifier(replace(TABLE, dropout=dropout), classes=["low", "middle", "high"])
    return fit(Classify(net), Data(corpus or Tones(), Tones()), config, run)


def new_run(folder: Any, config: Training) -> Run:
    return Run.create(folder, {"batch": config.batch})


def losses(run: Run) -> list[tuple[Any, ...]]:
    """The log without its times."""
    timed = ("seconds", "audio_per_second")
    return [tuple((k, v) for k, v in record.items() if k not in timed) for record in run.records()]


def main(folder: str, kill_rank: int, kill_step: int) -> None:
    """Train with a checkpoint at every fourth step, then another run in the same processes.

    The rank given kills itself without warning in a later step.
    """
    made = [0]

    def count(index: int) -> None:
        made[0] += 1
        if int(os.environ["RANK"]) == kill_rank and made[0] > 3 * kill_step:
            os.kill(os.getpid(), 9)

    for name, steps in (("", 16), ("-next", 4)):
        config = settings(steps=steps, validations=4, accumulate=1, optimizer="muon")
        run = Run(folder + name)
        if not (run.folder / "config.json").exists() and os.environ["RANK"] == "0":
            new_run(run.folder, config)
        while not (run.folder / "config.json").exists():
            time.sleep(0.05)
        train(run, config, Tones(hook=count))
    leave()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
