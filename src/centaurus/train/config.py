"""A run's configuration: frozen dataclasses of plain values, overridden by ``key=value`` and kept as JSON.

A ``Recipe`` has named presets of them, and a function from a folder of data to a network, its losses and examples.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_type_hints

import msgspec

from centaurus.data import Corpus, Index, measured, open_corpus, prepared
from centaurus.data.corpus import OnFault

if TYPE_CHECKING:
    from centaurus.train.loop import Data
    from centaurus.train.objectives import Objective
    from centaurus.train.run import Run

C = TypeVar("C", bound="Training")
BUDGETS = ("epochs", "steps", "minutes")
OPTIMIZERS = ("adamw", "muon")
CHOICES = {"precision": ("auto", "fp32", "bf16", "fp16"), "optimizer": OPTIMIZERS, "compile": ("auto", "true", "false")}


@dataclass(frozen=True, kw_only=True)
class Training:
    """The settings of every recipe. Of ``epochs``, ``steps`` and ``minutes`` one is set and the others are 0."""

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
    """Weight decay."""
    optimizer: str = "adamw"
    """adamw or muon."""
    warmup: float = 0.01
    """Share of the run for warm-up; then the learning rate follows a cosine."""
    clip: float = 1.0
    """Clip the norm of the gradient to this; 0 for no limit."""
    clip_value: float = 0.0
    """Clip every value of the gradient to this, after clip; 0 for no limit."""
    ema: float = 0.999
    """Decay of the EMA of the weights, which is validated and saved; 0 for none."""
    accumulate: int = 1
    """Gradient accumulation: parts of a batch, to save memory."""
    precision: str = "auto"
    """auto, fp32, bf16 or fp16; auto is bf16 where a GPU has it, else fp32. On a CPU bf16 needs its instructions."""
    compile: str = "false"
    """true, false or auto: torch.compile, with auto where there is a GPU with Triton."""
    seed: int = 0
    """Seed of the initial weights and the order of the data."""
    start: str = ""
    """A trained model of the same table to start from, by file or shipped name."""
    workers: int = 2
    """Data worker processes; 0 reads in the training process."""
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
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name} should be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} cannot be split into {self.accumulate} equal parts (accumulate)")

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
        for entry, text in pairwise(definition.body):
            if isinstance(entry, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(entry.target)] = str(text.value.value)
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
    if isinstance(data.get("compile"), bool):  # as in runs before auto existed
        data = {**data, "compile": str(data["compile"]).lower()}
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"the configuration cannot be used: {error}") from error


T = TypeVar("T")
Preset = Literal["paper", "ours", "small"]

# What the paper's runs have in common (appendix E): AdamW with torch's defaults, cosine decay after a warm-up of 0.01,
# "gradient clip value of 1" read as the norm (docs/decisions/0007), mixed precision and torch.compile, no averaging.
PAPER: dict[str, Any] = {"optimizer": "adamw", "warmup": 0.01, "clip": 1.0, "clip_value": 0.0, "ema": 0.0}
PAPER |= {"precision": "auto", "compile": "auto"}


@dataclass(frozen=True)
class Prepared:
    """A network with its losses, examples in order, notes on the data, and files left out.

    ``corpora`` are the clips that examples are made of: a resumed run must have the same ones.
    """

    objective: Objective
    data: Data
    notes: dict[str, Any]
    corpora: tuple[Corpus, ...]
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """``configure(preset)`` gives every setting; ``prepare(settings, folder)`` reads the folder.

    ``presets`` are their names, the default first: ``paper`` has exactly the paper's settings, ``ours`` the same
    scale with settings that learn better, ``small`` a network for minutes on two cores.
    ``finish(run, settings, folder)``, if there is one, turns the best model into what users need.
    """

    configure: Callable[[Preset], Training]
    prepare: Callable[[Any, Path], Prepared]
    presets: tuple[Preset, ...] = get_args(Preset)
    finish: Callable[[Run, Any, Path], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Reading(Training):
    """Settings of how recordings are read."""

    rate: int = 16_000
    """Sample rate of the network, in Hz; recordings are resampled to it."""
    decode_once: bool = False
    """Decode all recordings into the cache first, instead of decoding files in every epoch."""
    cache: str = ""
    """Folder of decoded recordings; by default one in the user's cache folder."""
    on_fault: OnFault = "skip"
    """On a recording that cannot be read: skip (it is left out and reported) or fail."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on_fault not in get_args(OnFault):
            raise ValueError(f"on_fault should be {' or '.join(get_args(OnFault))}, got {self.on_fault!r}")

    def find(
        self, folder: str | Path, splits: Iterable[str] | None = None, kinds: Iterable[str] | None = None
    ) -> Corpus:
        """Return the clips of a folder, of some splits and kinds or all."""
        return open_corpus(folder, splits, kinds, self.rate, self.cache or None, self.on_fault)

    def read(self, corpus: Corpus) -> Corpus:
        """Return the corpus with all lengths known: decoded once, or from the headers of its files."""
        return prepared(corpus, self.cache or None) if self.decode_once else measured(corpus)


def table_named(name: str, tables: Mapping[str, T], purpose: str) -> T:
    """Return a table of a recipe by its name."""
    if name not in tables:
        raise ValueError(f"there is no network {name!r} for {purpose}{nearest(name, tables)}")
    return tables[name]


def hours(corpus: Corpus | Index) -> float:
    """Return the length of a corpus in hours, rounded."""
    return round(corpus.seconds / 3600, 3)
