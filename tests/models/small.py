"""The paper's networks made narrow, for tests: the same rows and rates with few channels and states."""

from __future__ import annotations

from dataclasses import replace

from centaurus.models import (
    ClassifierTable,
    DenoiserTable,
    Network,
    RecognizerTable,
    Row,
    SpectralTable,
    SpotterTable,
    classifier,
    denoiser,
    recognizer,
)
from centaurus.models.tables import CLASSIFIERS, DENOISERS, MEL, RECOGNIZERS, Table

FAMILIES = [
    *(name for name in CLASSIFIERS if name.endswith("-2") or name.startswith("mel")),
    *(f"denoiser/{name}" for name in DENOISERS),
    *(f"recognizer/{name}" for name in RECOGNIZERS),
]


def _rows(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """A few channels, different at different rates, and at most four states; stacks of two."""
    channels = [min(row.channels, 4 + row.channels // 128) for row in rows]
    return tuple(
        replace(row, channels=c, states=min(row.states, 4), times=min(row.times, 2))
        for row, c in zip(rows, channels, strict=True)
    )


def narrow_table(name: str) -> Table:
    """The table of this name's family with few channels and states."""
    task, _, row = name.rpartition("/")
    if task == "denoiser":
        table = DENOISERS[row]
        if isinstance(table, SpectralTable):
            low = min(table.low, 5)
            return SpectralTable(_rows(table.blocks), 2, analysis=64, synthesis=32, hop=16, taps=table.taps, low=low)
        parts = [_rows(rows) for rows in (table.encoder, table.middle, table.decoder, table.output)]
        return DenoiserTable(*parts, conv=table.conv)
    if task == "recognizer":
        table = RECOGNIZERS[row]
        return RecognizerTable(_rows(table.backbone), _rows(table.head), table.module, min(table.gated, 2))
    blocks = _rows(CLASSIFIERS[row].blocks)
    if blocks[0].kind == MEL:
        blocks = (Row(MEL, 16, 6, window=64), *blocks[1:])
    kind = SpotterTable if isinstance(CLASSIFIERS[row], SpotterTable) else ClassifierTable
    return kind(blocks)


def narrow(name: str) -> Network:
    """A network of this name's family, small enough to check in a second or two."""
    table = narrow_table(name)
    if isinstance(table, DenoiserTable | SpectralTable):
        return denoiser(table)
    if isinstance(table, RecognizerTable):
        return recognizer(table, vocabulary=5, characters=3)
    return classifier(table, classes=3)
