"""From a row of a table to a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from centaurus.layer import Layer
from centaurus.models.tables import DC_BLOCK, SELECTIVE, SEPARABLE, Row
from centaurus.nn import DCBlock
from centaurus.ssm import S6, SSM

T = TypeVar("T")


def state_space(row: Row, in_channels: int, out_channels: int) -> Layer:
    """The row's state-space layer. S6 gates channels by channels: where there is one, it is ``separable`` instead."""
    if row.kind == SELECTIVE and in_channels > 1:
        return S6(in_channels, out_channels, row.states)
    kind = SEPARABLE if row.kind == SELECTIVE else row.kind
    return SSM(kind, in_channels, out_channels, row.states, row.substates, row.groups, row.complex)


def front(rows: Sequence[Row]) -> tuple[list[Layer], list[Row]]:
    """The DC blocker, if that is the first row, and the rows of blocks."""
    first = [DCBlock()] if rows and rows[0].kind == DC_BLOCK else []
    blocks = list(rows[len(first) :])
    if not blocks:
        raise ValueError(f"a network needs at least one block, got {len(rows)} rows without any")
    return list(first), blocks


def with_states(rows: tuple[Row, ...], states: int | None) -> tuple[Row, ...]:
    """The rows with this many states each; ``None`` leaves them as they are."""
    return rows if states is None else tuple(replace(row, states=states) for row in rows)


def lookup(tables: dict[str, T], name: str, task: str) -> T:
    """A table by its name, with or without the task before it."""
    short = name.removeprefix(f"{task}/")
    if short not in tables:
        raise ValueError(f"there is no {task} named {name!r}; there are {', '.join(tables)}")
    return tables[short]
