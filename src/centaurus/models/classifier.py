"""Keyword spotting: from a table to a network that gives class logits at every frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar, final

from torch import Tensor

from centaurus.layer import Layer, State
from centaurus.models.network import SAMPLE_RATE, Network
from centaurus.models.rows import front, lookup, mel_bands, residual_blocks, state_space, with_states
from centaurus.models.tables import CLASSIFIERS, MEL, ClassifierTable, Row, SpotterTable
from centaurus.nn import (
    AvgPool,
    Block,
    Composite,
    Down,
    LayerNorm,
    Part,
    Pointwise,
    RunningMean,
    Serial,
    SiLU,
    WindowedMean,
)

FEW_FEATURES = 4  # channels are dropped only where there are more


@final
class Dense(Composite):
    """Two dense layers on the mean. Costs are counted for one reading a second, as for a one-second clip."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.channels, self.classes = channels, classes
        first, last = Pointwise(channels, channels), Pointwise(channels, classes)
        self.layers = Serial({"first": first, "silu": SiLU(), "last": last})

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.channels, "classes": self.classes}

    def parts(self) -> list[Part]:
        return [Part("layers", self.layers, Fraction(1), hertz=Fraction(1))]

    def init_state(self, batch: int) -> State:
        return self.layers.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return self.layers.run(u, state, keep)


@final
class Classifier(Network):
    """Logits (batch, classes, frames) of the mean of all frames so far, or of the last ``window`` frames.

    A ``ClassifierTable`` gives the paper's blocks with pooling, a ``SpotterTable`` residual blocks on mel frames.
    """

    task: ClassVar[str] = "classifier"

    def __init__(self, table: ClassifierTable | SpotterTable, settings: Mapping[str, Any] | None = None) -> None:
        rate = int((settings or {}).get("sample_rate", SAMPLE_RATE))
        body = pooled(table) if isinstance(table, ClassifierTable) else on_mel_frames(table, rate)
        super().__init__(table, body, settings)

    def parts(self) -> list[Part]:
        return self.body.parts()


def pooled(table: ClassifierTable) -> Serial:
    """The paper's keyword spotter: blocks with pooling, a mean over time and two dense layers."""
    first, rows = front(table.blocks)
    start = table.blocks[0].channels if table.blocks[0].kind == MEL else 1
    blocks, channels = pooled_blocks(rows, table.dropout, start)
    head = Dense(channels, table.classes)
    return Serial({"blocks": Serial([*first, *blocks]), "mean": _mean(channels, table.window), "head": head})


def on_mel_frames(table: SpotterTable, rate: int) -> Serial:
    """Residual blocks on stacked mel frames, and logits of every frame.

    Parameters: ``into`` (stacked bands to channels), ``norm``, ``blocks.K.mixer.body.{norm,ssm}``,
    ``blocks.K.ffn.body.{norm,wide,narrow}``, ``last`` (a norm) and ``out``.
    """
    if not table.blocks or table.blocks[0].kind != MEL:
        raise ValueError(f"a spotter on mel frames starts with a row of kind 'mel', got {table.blocks[:1]}")
    mel, *rows = table.blocks
    blocks, channels = residual_blocks(rows, table.expansion, table.dropout)
    if not rows:
        raise ValueError("a network needs at least one block, got a mel row alone")
    parts: dict[str, Layer] = {
        "front": mel_bands(mel, table.power, table.release, table.low, table.high, rate),
        "into": Down(mel.channels, channels, table.stack, bias=True),
        "norm": LayerNorm(channels),
        "blocks": blocks,
        "last": LayerNorm(channels),
    }
    if table.window != 1:
        parts["mean"] = _mean(channels, table.window)
    return Serial(parts | {"out": Pointwise(channels, table.classes)})


def _mean(channels: int, window: int | None) -> Layer:
    return RunningMean(channels) if window is None else WindowedMean(channels, window)


def pooled_blocks(rows: Sequence[Row], dropout: float, channels: int = 1) -> tuple[list[Layer], int]:
    """Blocks and the channels they end with. All but a first one of one channel have a projection for a skip."""
    blocks: list[Layer] = []
    for row in [same for given in rows for same in [given] * given.times]:
        body = state_space(row, channels, row.channels)
        skip = Pointwise(channels, row.channels, bias=False) if blocks or channels > 1 else None
        drop = dropout if row.channels > FEW_FEATURES else 0.0
        blocks.append(Block(body, row.channels, skip, drop, resample=AvgPool(row.resample)))
        channels = row.channels
    return blocks, channels


def classifier(
    table: str | ClassifierTable | SpotterTable,
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
