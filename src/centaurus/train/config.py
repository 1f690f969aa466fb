"""A run's configuration: frozen dataclasses of plain values, overridden by ``key=value`` and kept as JSON."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

C = TypeVar("C", bound="Training")
BUDGETS = ("epochs", "steps", "minutes")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "muon")
COMPILE = ("auto", "true", "false")


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of every recipe. Of ``epochs``, ``steps`` and ``minutes`` one is given and the others are 0."""

    epochs: float = 0.0
    """Passes over the training data; or give steps or minutes."""
    steps: int = 0
    """Optimiser steps; or give epochs or minutes."""
    minutes: float = 0.0
    """Minutes of training by the clock; or give epochs or steps."""
    batch: int
    """Rows of one optimiser step, over all processes."""
    lr: float
    """The highest learning rate."""
    decay: float
    """Weight decay of weights that are decayed."""
    optimizer: str = "adamw"
    """adamw or muon."""
    warmup: float = 0.01
    """Share of the run over which the learning rate rises; then it falls along a cosine."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    clip_value: float = 0.0
    """Largest value in the gradient, after clip; 0 for no limit."""
    ema: float = 0.999
    """Decay of the moving average of the weights that is validated and kept; 0 for none."""
    accumulate: int = 1
    """Parts that a batch is taken in, to need less memory."""
    precision: str = "auto"
    """auto, fp32, bf16 or fp16; auto is bf16 where a GPU has it, else fp32. On a CPU bf16 needs its instructions."""
    compile: str = "false"
    """true, false or auto: torch.compile, with auto where there is a GPU with Triton."""
    seed: int = 0
    """Of the initial weights and the order of the data."""
    start: str = ""
    """A trained model of the same table to start from, by file or shipped name."""
    workers: int = 2
    """Processes that read data; 0 reads in the training process."""
    validations: int = 20
    """Validations, spread evenly over the run; a checkpoint is written at each."""
    validation_items: int = 0
    """Rows of a validation; 0 for all."""
    save_minutes: float = 10.0
    """Minutes between checkpoints that come between validations."""
    log_every: int = 10
    """Steps between lines of the log."""

    def __post_init__(self) -> None:
        budgets = [name for name in BUDGETS if getattr(self, name)]
        if len(budgets) != 1:
            raise ValueError(f"give one of epochs, steps and minutes: got {', '.join(budgets) or 'none'}")
        for name in (budgets[0], "batch", "accumulate", "log_every", "save_minutes"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} should be above 0, got {getattr(self, name)}")
        for name in ("workers", "validations", "validation_items", "decay", "clip", "clip_value"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} should not be negative, got {getattr(self, name)}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed should be a whole number from 0 to 2^63 - 1, got {self.seed}")
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
        """Return the optimiser steps of the whole run, where the budget is not minutes."""
        return self.steps if self.steps else math.ceil(self.epochs * epoch_items / self.batch)


def override(config: C, pairs: Iterable[str]) -> C:
    """Return the configuration with ``key=value`` pairs applied. A budget replaces the one before."""
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
        expected = {bool: "true or false", int: "a whole number", float: "a number"}.get(known[key], choices)
        raise ValueError(f"{key} should be {expected}, got {value!r}") from error


def nearest(key: str, known: Iterable[str]) -> str:
    """Return ``; did you mean batch?``, or a list of all names if none is close."""
    names = list(known)
    close = get_close_matches(key, names, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(names))}"


def explain(kind: type[Training]) -> dict[str, str]:
    """Return the docstring that follows each setting in the source of its class, by the setting's name."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = str(text.value.value)
    return {field.name: texts[field.name] for field in fields(kind)}


def to_data(config: Training) -> dict[str, Any]:
    """Return the configuration as plain data."""
    return asdict(config)


def from_data(kind: type[C], data: dict[str, Any]) -> C:
    """Return a configuration from the result of ``to_data``."""
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
