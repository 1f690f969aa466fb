"""Speed of data loading: audio-seconds per second of the loader alone, of training alone, and of both together.

    python bench/loading.py kws DATA [--seconds 3] [workers=1] [key=value ...]

``alone`` repeats one batch that is already in memory; ``together`` loads as the training loop does. They take turns,
and a figure is the median of three. Recipes have their small settings.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import torch

from centaurus.recipes import RECIPES
from centaurus.train.config import Training, override
from centaurus.train.loop import Order, batches, keep_memory
from centaurus.train.objectives import Batch, Objective
from centaurus.train.optim import adamw

AHEAD = 5  # batches that are not counted: they may have been loaded before


def speed(source: Iterator[Batch], use: Callable[[Batch], object], rate: int, seconds: float) -> float:
    """Return the audio-seconds per second that ``use`` takes from a source, measured over this many seconds."""
    for _ in range(AHEAD):
        use(next(source))
    seconds_read, start = 0.0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch = next(source)
        use(batch)
        seconds_read += batch["audio"].numel() / rate
    return seconds_read / (time.perf_counter() - start)


def measure(name: str, settings: Training, data: Path, seconds: float) -> dict[str, float]:
    """Return the three speeds, and the speed of training with loading over that without."""
    ready = RECIPES[name].prepare(settings, data)
    objective: Objective = ready.objective.train()
    optimizer = adamw(objective, settings.lr, settings.decay)

    def step(batch: Batch) -> None:
        objective(batch, 0.5)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad()

    def source() -> Iterator[Batch]:
        order = Order(ready.data.train, settings.seed, settings.batch)
        return iter(batches(ready.data.train, settings.seed, order, settings.workers))

    loaded, fixed = source(), repeat(next(source()))
    loader = speed(source(), lambda batch: None, objective.rate, seconds)
    turns = [
        (speed(fixed, step, objective.rate, seconds), speed(loaded, step, objective.rate, seconds)) for _ in range(3)
    ]
    alone, together = (statistics.median(values) for values in zip(*turns, strict=True))
    kept = statistics.median(b / a for a, b in turns)
    return {"loader": loader, "alone": alone, "together": together, "kept": kept}


def main() -> None:
    """Print the speeds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", choices=sorted(RECIPES))
    parser.add_argument("data", type=Path)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    keep_memory()
    torch.manual_seed(0)
    settings = override(RECIPES[options.recipe].configure("small"), options.settings)
    figures = measure(options.recipe, settings, options.data, options.seconds)
    print(json.dumps({"recipe": options.recipe, "workers": settings.workers, **figures}, indent=2))


if __name__ == "__main__":
    main()
