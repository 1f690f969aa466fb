"""From a recipe, its settings and a folder to a trained model in a run folder; alone, or as one of many processes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from centaurus.data import recognise
from centaurus.models import ClassifierTable, DenoiserTable, RecognizerTable, load_network
from centaurus.models.network import Network
from centaurus.recipes import RECIPES
from centaurus.train.config import Training, from_data, nearest, to_data
from centaurus.train.log import Watcher, card
from centaurus.train.loop import fit
from centaurus.train.memory import keep_memory
from centaurus.train.run import Run, Standing


def configure(name: str, preset: str | None = None) -> Training:
    """The settings of a recipe by its name, as one of its presets has them."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}{nearest(name, RECIPES)}")
    recipe = RECIPES[name]
    chosen = [known for known in recipe.presets if known == (preset or recipe.presets[0])]
    if not chosen:
        raise ValueError(f"the recipe {name} has no preset {preset!r}; it has {', '.join(recipe.presets)}")
    return recipe.configure(chosen[0])


def start(name: str, settings: Training, data: Path, out: Path) -> Run:
    """A new run folder; of many processes the first makes it."""
    recognise(data)
    if int(os.environ.get("RANK", "0")) > 0:
        return Run(out)
    return Run.create(out, {"recipe": name, "data": str(data.absolute()), "settings": to_data(settings)})


def train(run: Run, name: str, settings: Training, data: Path, watcher: Watcher | None = None) -> Standing:
    """Train, or go on with, a run. In its folder: the best and the last model, and a card."""
    keep_memory()
    state = PartialState(cpu=not torch.cuda.is_available())
    torch.manual_seed(settings.seed)
    with state.local_main_process_first():  # what one decodes, the others find in the cache
        ready = RECIPES[name].prepare(settings, data)
    if state.is_main_process:
        run.write_json("data.json", {"notes": ready.notes, "left_out": ready.faults})
    go_on_from(settings.start, ready.objective.net)
    standing = fit(ready.objective, ready.data, settings, run, watcher)
    if state.is_main_process:
        run.write_text("card.md", card(run, load_network(run.folder / "best.safetensors")))
    return standing


def leave() -> bool:
    """Part from the other processes after the last run; whether this was the first of them."""
    state = PartialState(cpu=not torch.cuda.is_available())
    first = bool(state.is_main_process)
    state.destroy_process_group()
    return first


def go_on_from(start: str, net: Network) -> None:
    """Take the weights of a trained model of the same table; or a keyword spotter's, for a backbone of its blocks.

    How much of its input a denoiser keeps does not matter, that is chosen after training; nor does dropout.
    """
    if not start:
        return
    given = load_network(start)
    old, new = given.table, net.table
    if isinstance(old, ClassifierTable) and isinstance(new, RecognizerTable):
        if new.pooled and old.blocks == new.backbone:
            net.body.layers()[0].load_state_dict(given.body.layers()[0].state_dict())
            return
        raise ValueError(f"the backbone cannot start from {start}: its blocks {old.blocks} are not {new.backbone}")
    if isinstance(old, DenoiserTable) and isinstance(new, DenoiserTable):
        old = replace(old, kept=new.kept)
    elif isinstance(old, ClassifierTable) and isinstance(new, ClassifierTable):
        old = replace(old, dropout=new.dropout)
    if old != new:
        raise ValueError(f"the run cannot start from {start}: it is of another table ({given.table}) than {net.table}")
    net.load_state_dict(given.state_dict())


def described(run: Run) -> tuple[str, Training, Path]:
    """The recipe, settings and folder that a run was started with."""
    found: dict[str, Any] = run.description()
    name = found["recipe"]
    kind = type(configure(name))
    return name, from_data(kind, found["settings"]), Path(found["data"])
