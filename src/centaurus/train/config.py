"""A run's configuration: frozen dataclasses of plain values, overridden by ``key=value`` and kept as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

C = TypeVar("C", bound="Training")
BUDGETS = ("epochs", "steps", "minutes")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "muon")
COMPILE = ("auto", "true", "false")


@dataclass(frozen=True, kw_only=True)
class Training:
    """What every recipe has. Of ``epochs``, ``steps`` and ``minutes`` one is given and the others are 0.

    ``batch`` is rows for one optimiser step over all processes, taken in ``accumulate`` parts. ``validations`` are
    spread evenly over the run; a checkpoint is written at each, and every ``save_minutes`` between them. ``start`` is
    a trained model of the same table, by file or shipped name, whose weights are gone on from.

    ``clip`` limits the norm of the gradient, then ``clip_value`` each of its values; 0 turns either off. ``ema`` 0
    keeps no average of the weights. ``compile`` auto uses torch.compile where there is a GPU with Triton.
    """

    epochs: float = 0.0
    steps: int = 0
    minutes: float = 0.0
    batch: int
    lr: float
    decay: float
    optimizer: str = "adamw"
    warmup: float = 0.01
    clip: float = 1.0
    clip_value: float = 0.0
    ema: float = 0.999
    accumulate: int = 1
    precision: str = "auto"
    compile: str = "false"
    seed: int = 0
    start: str = ""
    workers: int = 2
    validations: int = 20
    validation_items: int = 0
    save_minutes: float = 10.0
    log_every: int = 10

    def __post_init__(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"give one of epochs, steps and minutes: got {', '.join(given) or 'none'}")
        for name in (given[0], "batch", "accumulate", "log_every", "save_minutes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} should be above 0, got {getattr(self, name)}")
        for name in ("workers", "validations", "validation_items", "decay", "clip", "clip_value"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} should not be negative, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"lr should be above 0, got {self.lr}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision should be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer should be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}")
        if self.compile not in COMPILE:
            raise ValueError(f"compile should be one of {', '.join(COMPILE)}, got {self.compile!r}")
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} cannot be taken in {self.accumulate} equal parts (accumulate)")

    def total_steps(self, epoch_items: int) -> int:
        """Optimiser steps of the whole run, where the budget is not the clock."""
        return self.steps if self.steps else math.ceil(self.epochs * epoch_items / self.batch)


def override(config: C, pairs: Iterable[str]) -> C:
    """The configuration with ``key=value`` pairs applied. A budget replaces the one that was there."""
    values = dict(_pair(config, text) for text in pairs)
    budgets = [name for name in BUDGETS if name in values]
    cleared: dict[str, Any] = dict.fromkeys(BUDGETS, 0) if budgets else {}
    return replace(config, **(cleared | values))


def _pair(config: Training, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"settings are given as key=value, got {text!r}")
    known = get_type_hints(type(config))
    if key not in known:
        raise ValueError(f"there is no setting {key!r}{nearest(key, known)}")
    try:
        return key, msgspec.convert(value, known[key], strict=False)
    except msgspec.ValidationError as error:
        choices = " or ".join(map(str, get_args(known[key])))  # of a Literal
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(known[key], choices)
        raise ValueError(f"{key} should be {wanted}, got {value!r}") from error


def nearest(key: str, known: Iterable[str]) -> str:
    """``; did you mean batch?``, or all that there are."""
    names = list(known)
    close = get_close_matches(key, names, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(names))}"


def to_data(config: Training) -> dict[str, Any]:
    """The configuration as JSON holds it."""
    return asdict(config)


def from_data(kind: type[C], data: dict[str, Any]) -> C:
    """A configuration from what ``to_data`` gave."""
    names = {field.name for field in fields(kind)}
    unknown = sorted(set(data) - names)
    if unknown:
        raise ValueError(f"the configuration has unknown settings {', '.join(unknown)}: written by another version?")
    if isinstance(data.get("compile"), bool):  # as runs had it before it could be auto
        data = {**data, "compile": str(data["compile"]).lower()}
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"the configuration cannot be used: {error}") from error
