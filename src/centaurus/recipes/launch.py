"""Train a recipe on a folder into a run folder, in one process or as one of many."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from centaurus.audio import AudioError
from centaurus.data import recognise
from centaurus.data.corpus import Changes, fingerprints
from centaurus.models import ClassifierTable, DenoiserTable, RecognizerTable, SpotterTable, load_network
from centaurus.models.network import Network
from centaurus.recipes import RECIPES, Prepared
from centaurus.train.config import BUDGETS, Training, from_data, nearest, override, to_data
from centaurus.train.loop import check_precision, fit, keep_memory
from centaurus.train.run import Run, RunError, Standing, Watcher, card

SHORT = 60  # characters of a list in a message


def configure(name: str, preset: str | None = None) -> Training:
    """Return the settings of a preset of a recipe, the first by default."""
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}{nearest(name, RECIPES)}")
    recipe = RECIPES[name]
    chosen = [known for known in recipe.presets if known == (preset or recipe.presets[0])]
    if not chosen:
        raise ValueError(f"the recipe {name} has no preset {preset!r}; it has {', '.join(recipe.presets)}")
    return recipe.configure(chosen[0])


def start(name: str, settings: Training, data: Path, out: Path) -> Run:
    """Return a new run folder; of several processes the first creates it."""
    recognise(data)
    if int(os.environ.get("RANK", "0")) > 0:
        return Run(out)
    return Run.create(out, {"recipe": name, "data": str(data.absolute()), "settings": to_data(settings)})


def train(
    run: Run,
    name: str,
    settings: Training,
    data: Path,
    watcher: Watcher | None = None,
    allow_changed_data: bool = False,
) -> Standing:
    """Train a run from its start or its last checkpoint; its folder gets the best and the last model, and a card.

    A resumed run refuses clips other than those it began with, unless ``allow_changed_data``. One that fails
    before its first step leaves no folder behind.
    """
    keep_memory()
    state = PartialState(cpu=not torch.cuda.is_available())
    with run.locked() if state.is_main_process else nullcontext():
        try:
            check_precision(settings.precision)
            torch.manual_seed(settings.seed)
            with state.local_main_process_first():  # the first process decodes into the cache, the others read it
                ready = RECIPES[name].prepare(settings, data)
            if state.is_main_process:
                _record_data(run, ready, watcher, allow_changed_data)
            go_on_from(settings.start, ready.objective.net)
            standing = fit(ready.objective, ready.data, settings, run, watcher)
            if state.is_main_process:
                run.write_text("card.md", card(run, load_network(run.folder / "best.safetensors")))
                if (finish := RECIPES[name].finish) is not None:
                    finish(run, settings, data)
            return standing
        except BaseException:
            if state.is_main_process:
                run.discard()
            raise


def _record_data(run: Run, ready: Prepared, watcher: Watcher | None, allow_changed_data: bool) -> None:
    """Record which clips a run is trained on, after comparing them with those it began with."""
    notes = ready.notes | {"clips": sum(len(corpus) for corpus in ready.corpora)}
    clips = fingerprints(ready.corpora)
    _check_data(run, notes, clips, allow_changed_data)
    run.write_json("clips.json", clips)
    run.write_json("data.json", {"notes": notes, "left_out": ready.faults})
    if watcher is not None:
        watcher.prepared(notes, ready.faults)


def _check_data(run: Run, notes: dict[str, Any], clips: dict[str, str], allowed: bool) -> None:
    """Raise an error that names the changes if clips, classes or tokens are not those that the run began with."""
    before = run.clips()
    if before is None:
        if run.last_checkpoint() is not None and not allowed:
            raise RunError("does not say which clips it was trained on: --allow-changed-data continues", run.folder)
        return
    old = run.notes()
    for key in ("classes", "words", "tokens"):
        if key in old and old[key] != notes.get(key):
            raise RunError(f"has {key} {_short(old[key])}, the data have {_short(notes.get(key))}", run.folder)
    changes = Changes.between(before, clips)
    if changes and not allowed:
        raise AudioError(
            f"the data are not those that {run.folder} began with: {changes}. --allow-changed-data continues with them"
        )


def _short(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def leave() -> bool:
    """Leave the process group after the last run; return whether this was its first process."""
    state = PartialState(cpu=not torch.cuda.is_available())
    first = bool(state.is_main_process)
    state.destroy_process_group()
    return first


def go_on_from(start: str, net: Network) -> None:
    """Take the weights of a trained model of the same table; or a keyword spotter's, for a backbone of its blocks.

    A spotter on mel frames may have other classes: then its last layer starts untrained. It may have fewer
    blocks: then the others start untrained.

    ``kept`` of a denoiser may differ, since it is chosen after training; so may dropout.
    """
    if not start:
        return
    trained = load_network(start)
    old, new = trained.table, net.table
    if isinstance(old, ClassifierTable) and isinstance(new, RecognizerTable):
        if new.pooled and old.blocks == new.backbone:
            net.body.layers()[0].load_state_dict(trained.body.layers()[0].state_dict())
            return
        raise ValueError(f"the backbone cannot start from {start}: its blocks {old.blocks} are not {new.backbone}")
    if isinstance(old, SpotterTable) and isinstance(new, SpotterTable) and _begins(old, new):
        weights = trained.state_dict()
        if (trained.task, old.classes) != (net.task, new.classes):
            weights = {name: x for name, x in weights.items() if not name.startswith("body.out.")}
        net.load_state_dict(net.state_dict() | weights)
        return
    if isinstance(old, DenoiserTable) and isinstance(new, DenoiserTable):
        old = replace(old, kept=new.kept)
    elif isinstance(old, ClassifierTable) and isinstance(new, ClassifierTable):
        old = replace(old, dropout=new.dropout)
    if old != new:
        raise ValueError(f"the run cannot start from {start}: its table is {trained.table}, not {net.table}")
    net.load_state_dict(trained.state_dict())


def _begins(old: SpotterTable, new: SpotterTable) -> bool:
    """Return whether the blocks of one spotter on mel frames are the first of another's."""
    fewer = old.blocks[-1].times <= new.blocks[-1].times
    rows = (*new.blocks[:-1], replace(new.blocks[-1], times=old.blocks[-1].times))
    same = replace(new, blocks=rows, classes=old.classes, dropout=old.dropout, window=old.window)
    return fewer and old == same


def described(run: Run) -> tuple[str, Training, Path]:
    """Return the recipe, settings and data folder that a run was started with."""
    description: dict[str, Any] = run.description()
    path = run.folder / "config.json"
    missing = [key for key in ("recipe", "settings", "data") if key not in description]
    if missing:
        raise RunError(f"is damaged: it has no {', '.join(missing)}", path)
    name, settings, data = description["recipe"], description["settings"], description["data"]
    if not (isinstance(name, str) and isinstance(settings, dict) and isinstance(data, str)):
        raise RunError("is damaged: recipe and data should be text, settings an object", path)
    try:
        return name, from_data(type(configure(name)), settings), Path(data)
    except ValueError as error:
        raise RunError(f"cannot be used: {error}", path) from error


def extend(run: Run, settings: Training, pairs: Sequence[str]) -> Training:
    """Change the budget of a run (epochs=, steps= or minutes=), and nothing else, before it is resumed."""
    others = [pair for pair in pairs if pair.partition("=")[0] not in BUDGETS]
    if others:
        raise ValueError(
            f"a resumed run keeps its settings: only {', '.join(BUDGETS)} can be changed, got {others[0]!r}"
        )
    extended = override(settings, pairs)
    if extended != settings:
        described = run.description()
        before = {name: getattr(settings, name) for name in BUDGETS if getattr(settings, name)}
        history = [*described.get("extended_from", []), before]
        run.write_json("config.json", described | {"settings": to_data(extended), "extended_from": history})
    return extended
