"""Speech recognition: from a table to a backbone with a language head, and a character head for training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, final

from torch import Tensor
from torch.nn.functional import pad

from centaurus.layer import Layer
from centaurus.models.classifier import pooled_blocks
from centaurus.models.network import Network
from centaurus.models.rows import front, lookup, state_space, with_states
from centaurus.models.tables import RECOGNIZERS, RecognizerTable, Row
from centaurus.nn import Block, Down, Gated, LayerNorm, Part, Pointwise, Serial, SiLU, conv_module, feed_forward

MODULES: dict[str, Callable[[int], Layer] | None] = {"none": None, "ffn": feed_forward, "conv": conv_module}


class Heads(NamedTuple):
    """Logits of both heads: tokens (batch, vocabulary, frames) and, eight times as often, characters."""

    tokens: Tensor
    characters: Tensor


@final
class Recognizer(Network):
    """Token logits (batch, vocabulary, frames); ``heads`` gives the characters as well, for training."""

    task: ClassVar[str] = "recognizer"

    def __init__(self, table: RecognizerTable, settings: Mapping[str, Any] | None = None) -> None:
        if table.module not in MODULES:
            raise ValueError(f"there is no module {table.module!r}; there are {', '.join(MODULES)}")
        first, rows = front(table.backbone)
        module = MODULES[table.module]
        backbone, channels = pooled_blocks(rows, 0.0) if table.pooled else _blocks(_unstack(rows), 1, module)
        plain = _unstack(table.head)
        kept = len(plain) - table.gated
        head, wide = _blocks(plain[:kept], channels, module)
        head += [_gated(row, wide) for row in plain[kept:]]
        vocabulary = Pointwise(wide, table.vocabulary)
        body = Serial({"backbone": Serial([*first, *backbone]), "head": Serial(head), "vocabulary": vocabulary})
        super().__init__(table, body, settings)
        dense, last = Pointwise(channels, channels), Pointwise(channels, table.characters)
        self.characters = Serial({"first": dense, "silu": SiLU(), "last": last})

    def parts(self) -> list[Part]:
        backbone, head, vocabulary = self.body.parts()
        characters = Part("characters", self.characters, head.ratio, counted=False)
        return [backbone, head, vocabulary._replace(counted=False), characters]

    def heads(self, u: Tensor) -> Heads:
        """Both heads of a whole signal, padded and cut as ``forward`` does."""
        samples = u.shape[-1]
        backbone, head, vocabulary = self.body.layers()
        features, _ = backbone.run(pad(u, (0, -samples % self.hop)), None, False)
        tokens = vocabulary(head(features))[..., : self.frames(samples)]
        return Heads(tokens, self.characters(features)[..., : backbone.frames(samples)])


def _unstack(rows: Sequence[Row]) -> list[Row]:
    """Every block a row of its own: only the first of a stack resamples."""
    found = []
    for row in rows:
        found += [replace(row, times=1), *[replace(row, times=1, resample=1)] * (row.times - 1)]
    return found


def _blocks(rows: Sequence[Row], channels: int, module: Callable[[int], Layer] | None) -> tuple[list[Layer], int]:
    """Blocks with their modules, and the channels they end with."""
    blocks: list[Layer] = []
    for row in rows:
        body = state_space(row, channels, channels)
        shrinks = row.resample > 1 or row.channels != channels
        block = Block(body, channels, Serial(), resample=_shrink(channels, row) if shrinks else None)
        channels = row.channels
        blocks.append(block if module is None else Serial({"block": block, "module": module(channels)}))
    return blocks, channels


def _shrink(channels: int, row: Row) -> Serial:
    conv = Down(channels, row.channels, row.resample, bias=True)
    return Serial({"conv": conv, "norm": LayerNorm(row.channels, activate=True)})


def _gated(row: Row, channels: int) -> Gated:
    """The macro-block at twice the channels, around the row's state-space layer."""
    if row.resample != 1 or row.channels != channels:
        raise ValueError(f"a gated block keeps rate and channels ({channels}): {row}")
    return Gated(channels, 2 * channels, state_space(row, 2 * channels, 2 * channels))


def recognizer(
    table: str | RecognizerTable = "base",
    vocabulary: int | None = None,
    characters: int | None = None,
    states: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Recognizer:
    """A recogniser by name (``base``) or from a table of your own; ``states`` replaces the states of every row."""
    found = lookup(RECOGNIZERS, table, "recognizer") if isinstance(table, str) else table
    found = replace(
        found,
        backbone=with_states(found.backbone, states),
        head=with_states(found.head, states),
        vocabulary=found.vocabulary if vocabulary is None else vocabulary,
        characters=found.characters if characters is None else characters,
    )
    return Recognizer(found, settings)
