"""Named losses and their weights over training, as text: ``smooth_l1:1, erb:0..1``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from centaurus.training.config import nearest

NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
TERM = re.compile(rf"\s*(?P<name>\w+)\s*:\s*(?P<first>{NUMBER})(?:\.\.(?P<last>{NUMBER}))?\s*")


@dataclass(frozen=True)
class Weight:
    """A loss by name, and its weight at the start and at the end of training, on a line between."""

    name: str
    first: float
    last: float

    def at(self, progress: float) -> float:
        """The weight after this fraction of training."""
        return self.first + (self.last - self.first) * progress


def read_weights(text: str, known: Iterable[str]) -> tuple[Weight, ...]:
    """``"smooth_l1:1, erb:0..1"``: every name once, known, with a weight or a weight that moves."""
    names = list(known)
    found: list[Weight] = []
    for part in text.split(","):
        match = TERM.fullmatch(part)
        if match is None:
            raise ValueError(f"losses are written as name:weight or name:from..to with commas between: got {part!r}")
        name, first, last = match["name"], float(match["first"]), float(match["last"] or match["first"])
        if name not in names:
            raise ValueError(f"there is no loss {name!r} for this task{nearest(name, names)}")
        if name in {weight.name for weight in found}:
            raise ValueError(f"the loss {name!r} is given twice")
        found.append(Weight(name, first, last))
    if not any(weight.first or weight.last for weight in found):
        raise ValueError(f"every weight in {text!r} is zero: nothing would be learnt")
    return tuple(found)
