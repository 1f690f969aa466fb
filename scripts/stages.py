"""Train in stages: each in a run folder of its own, from the weights that the one before it ended with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from centaurus.cli.train import Display
from centaurus.models import load_network, save
from centaurus.recipes import launch
from centaurus.train.config import Training
from centaurus.train.run import Run

S = TypeVar("S", bound=Training)


def shorter(settings: S, share: float) -> S:
    """Return the same settings for a share of the budget."""
    return replace(
        settings,
        minutes=settings.minutes * share,
        epochs=settings.epochs * share,
        steps=round(settings.steps * share),
    )


def save_mean(models: Mapping[Path, float], path: Path) -> Path:
    """Write a model with the mean of the weights of several models of one table, each with its share."""
    (first, total), *others = [(load_network(str(model)), share) for model, share in models.items()]
    with torch.no_grad():
        for other, share in others:
            total += share
            for mean, weight in zip(first.parameters(), other.parameters(), strict=True):
                mean.lerp_(weight, share / total)
    save(first, path)
    return path


def train(recipe: str, stages: Mapping[str, Training], data: Path, out: Path) -> Path:
    """Run the missing stages and return the model of the last one; of many processes only one returns."""
    model = ""
    for name, settings in stages.items():
        folder = out / name
        if not (folder / "card.md").is_file():
            settings = replace(settings, start=model or settings.start)
            known = (folder / "config.json").is_file()
            run = Run.existing(folder) if known else launch.start(recipe, settings, data, folder)
            with Display(settings, quiet=False) as display:
                launch.train(run, recipe, settings, data, display)
        model = str(folder / "last.safetensors")
    if not launch.leave():
        sys.exit()
    return Path(model)
