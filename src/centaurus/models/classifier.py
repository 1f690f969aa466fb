"""Keyword spotting: from a table to a network that gives class logits at every frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar, final

from torch import Tensor

from centaurus.layer import Layer, State
from centaurus.models.network import Network
from centaurus.models.rows import front, lookup, state_space, with_states
from centaurus.models.tables import CLASSIFIERS, ClassifierTable, Row
from centaurus.nn import AvgPool, Block, Composite, Part, Pointwise, RunningMean, Serial, SiLU, WindowedMean

FEW_FEATURES = 4  # channels are dropped only where there are more


@final
class Dense(Composite):
    """Two dense layers on the mean. Costs are counted for one reading a second, as for a one-second clip."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        first, last = Pointwise(channels, channels), Pointwise(channels, classes)
        self.layers = Serial({"first": first, "silu": SiLU(), "last": last})

    def parts(self) -> list[Part]:
        return [Part("layers", self.layers, Fraction(1), hertz=Fraction(1))]

    def init_state(self, batch: int) -> State:
        return self.layers.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return self.layers.run(u, state, keep)


@final
class Classifier(Network):
    """Logits (batch, classes, frames) of the mean of all frames so far, or of the last ``window`` frames."""

    task: ClassVar[str] = "classifier"

    def __init__(self, table: ClassifierTable, settings: Mapping[str, Any] | None = None) -> None:
        first, rows = front(table.blocks)
        blocks, channels = pooled_blocks(rows, table.dropout)
        mean = RunningMean(channels) if table.window is None else WindowedMean(channels, table.window)
        head = Dense(channels, table.classes)
        body = Serial({"blocks": Serial([*first, *blocks]), "mean": mean, "head": head})
        super().__init__(table, body, settings)

    def parts(self) -> list[Part]:
        return self.body.parts()


def pooled_blocks(rows: Sequence[Row], dropout: float) -> tuple[list[Layer], int]:
    """Blocks and the channels they end with. All but the very first have a projection for a skip."""
    blocks: list[Layer] = []
    channels = 1
    for row in [same for given in rows for same in [given] * given.times]:
        body = state_space(row, channels, row.channels)
        skip = Pointwise(channels, row.channels, bias=False) if blocks else None
        drop = dropout if row.channels > FEW_FEATURES else 0.0
        blocks.append(Block(body, row.channels, skip, drop, resample=AvgPool(row.resample)))
        channels = row.channels
    return blocks, channels


def classifier(
    table: str | ClassifierTable,
    classes: int | Sequence[str] | None = None,
    states: int | None = None,
    window: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Classifier:
    """A classifier by name (``kws-hybrid-8``) or from a table of your own; ``classes`` may be their names.

    ``states`` replaces the states of every row, ``window`` the mean over all frames by one over the last few.
    """
    found = lookup(CLASSIFIERS, table, "classifier") if isinstance(table, str) else table
    chosen = dict(settings or {})
    if classes is not None and not isinstance(classes, int):
        chosen["classes"] = list(classes)
        classes = len(classes)
    found = replace(
        found,
        blocks=with_states(found.blocks, states),
        classes=found.classes if classes is None else classes,
        window=found.window if window is None else window,
    )
    return Classifier(found, chosen)
