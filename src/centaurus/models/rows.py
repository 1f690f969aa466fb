"""From a row of a table to a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar, cast

from centaurus.layer import Layer
from centaurus.models.tables import DC_BLOCK, MAMBA, MEL, SELECTIVE, SEPARABLE, Row
from centaurus.nn import Analysis, DCBlock, Dropout1d, Gated, LayerNorm, Mel, Pointwise, Residual, Serial, SiLU
from centaurus.ssm import S6, SSM
from centaurus.ssm.layer import Discretization, TopologyName

T = TypeVar("T")


def state_space(row: Row, in_channels: int, out_channels: int) -> Layer:
    """The row's state-space layer. S6 gates channels by channels: where there is one, it is ``separable`` instead.

    A Mamba block keeps its channels; where a row changes them a projection follows it.
    """
    if row.kind == MAMBA:
        block = Gated(in_channels, 2 * in_channels, S6(2 * in_channels, states=row.states, weighted=False))
        if in_channels == out_channels:
            return block
        return Serial({"mamba": block, "project": Pointwise(in_channels, out_channels, bias=False)})
    if row.kind == SELECTIVE and in_channels > 1:
        return S6(in_channels, out_channels, row.states, weighted=row.weighted)
    kind = SEPARABLE if row.kind == SELECTIVE else row.kind
    name = cast(TopologyName, kind)
    rule = cast(Discretization, row.discretization)
    return SSM(name, in_channels, out_channels, row.states, row.substates, row.groups, row.complex, rule)


def front(rows: Sequence[Row]) -> tuple[list[Layer], list[Row]]:
    """The DC blocker or mel bands, if that is the first row, and the rows of blocks."""
    first: list[Layer] = []
    if rows and rows[0].kind == DC_BLOCK:
        first = [DCBlock()]
    elif rows and rows[0].kind == MEL:
        first = [mel_bands(rows[0])]
    blocks = list(rows[len(first) :])
    if not blocks:
        raise ValueError(f"a network needs at least one block, got {len(rows)} rows without any")
    return first, blocks


def mel_bands(
    row: Row, power: float = 0.0, release: float = 0.0, low: float = 60.0, high: float = 7800.0, rate: int = 16_000
) -> Serial:
    """The mel bands of a ``mel`` row, frame by frame."""
    analysis = Analysis(row.window, row.resample)
    bands = Mel(analysis.bins, row.channels, rate, low, high, power, release)
    return Serial({"analysis": analysis, "mel": bands})


def residual_blocks(rows: Sequence[Row], expansion: float, dropout: float = 0.0) -> tuple[Serial, int]:
    """Pre-norm blocks at one rate and width, and that width: a state-space layer, then an FFN, each around a skip.

    The FFN's last weights start at zero, so that each block starts as its state-space layer alone.
    """
    blocks: list[Layer] = []
    width = rows[0].channels if rows else 0
    for row in [same for given in rows for same in [given] * given.times]:
        if row.resample != 1 or row.channels != width:
            raise ValueError(f"residual blocks keep the rate and their {width} channels: {row}")
        inside = {"norm": LayerNorm(width), "ssm": state_space(row, width, width), "silu": SiLU()}
        block = {"mixer": Residual(Serial(inside | ({"dropout": Dropout1d(dropout)} if dropout else {})))}
        if expansion:
            hidden = round(expansion * width)
            wide, narrow = Pointwise(width, hidden), Pointwise(hidden, width)
            narrow.weight.data.zero_()
            block["ffn"] = Residual(Serial({"norm": LayerNorm(width), "wide": wide, "silu": SiLU(), "narrow": narrow}))
        blocks.append(Serial(block))
    return Serial(blocks), width


def with_states(rows: tuple[Row, ...], states: int | None) -> tuple[Row, ...]:
    """The rows with this many states each; ``None`` leaves them as they are."""
    return rows if states is None else tuple(replace(row, states=states) for row in rows)


def lookup(tables: dict[str, T], name: str, task: str) -> T:
    """A table by its name, with or without the task before it."""
    short = name.removeprefix(f"{task}/")
    if short not in tables:
        raise ValueError(f"there is no {task} named {name!r}; there are {', '.join(tables)}")
    return tables[short]
