"""What a recipe is: a configuration in two sizes, and a function from a folder of data to what the loop needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from centaurus.data import Corpus, measured, prepared
from centaurus.training.config import Training
from centaurus.training.fit import Data
from centaurus.training.objective import Objective


@dataclass(frozen=True)
class Prepared:
    """A network with its losses, data in order, what is worth knowing about the data, and files that were left out."""

    objective: Objective
    data: Data
    notes: dict[str, Any]
    faults: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """``configure(small)`` gives every setting; ``prepare(settings, folder)`` reads the folder."""

    configure: Callable[[bool], Training]
    prepare: Callable[[Any, Path], Prepared]


def read(corpus: Corpus, decode_once: bool, cache: str) -> Corpus:
    """The corpus with all lengths known: decoded into the cache, or from the headers where it is too large for that."""
    return prepared(corpus, cache or None) if decode_once else measured(corpus)


def hours(corpus: Corpus) -> float:
    """Its length, for people."""
    return round(corpus.seconds / 3600, 3)
