"""``Recipe``: named presets of settings, and a function from a folder of data to a network, its losses and examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from centaurus.data import Corpus, Index, measured, open_corpus, prepared
from centaurus.data.corpus import OnFault
from centaurus.train.config import Training, nearest
from centaurus.train.loop import Data
from centaurus.train.objectives import Objective
from centaurus.train.run import Run

T = TypeVar("T")
Preset = Literal["paper", "ours", "small"]

# What the paper's runs have in common (appendix E): AdamW with torch's defaults, cosine decay after a warm-up of 0.01,
# "gradient clip value of 1" read as the norm (docs/decisions/0007), mixed precision and torch.compile, no averaging.
PAPER: dict[str, Any] = {
    "optimizer": "adamw",
    "warmup": 0.01,
    "clip": 1.0,
    "clip_value": 0.0,
    "ema": 0.0,
    "precision": "auto",
    "compile": "auto",
}


@dataclass(frozen=True)
class Prepared:
    """A network with its losses, examples in order, what is worth knowing about the data, and files left out.

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

    ``presets`` are their names, the default first: ``paper`` has exactly the paper's settings, ``ours`` its scale with
    what learns better, ``small`` a network for minutes on two cores.
    ``finish(run, settings, folder)``, if there is one, makes what users need of the best model.
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
    """Decode all recordings into the cache first, instead of reading files again and again."""
    cache: str = ""
    """Folder of decoded recordings; by default one in the user's cache folder."""
    on_fault: OnFault = "skip"
    """What a recording that cannot be read does: skip (it is left out and named) or fail."""

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
