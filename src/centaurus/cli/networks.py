"""``centaurus models``, ``count`` and ``verify``: which networks there are, what they cost, whether they are right."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from centaurus.cli import output
from centaurus.cli.names import network

Name = Annotated[str, typer.Argument(help="A network such as denoiser/hybrid, or a model file.")]
Rate = Annotated[int, typer.Option(min=1, help="Samples a second.")]


class Convention(StrEnum):
    """How the paper counts: by its table of formulas, or as in its tables of results."""

    TABLE = "table"
    RESULTS = "results"


def models(rate: Rate = 16_000, json: output.Json = False) -> None:
    """List the networks by name, with their parameters and floating-point operations for each second of audio."""
    from centaurus.models import build, count, names

    reports = {name: count(build(name), rate) for name in names()}
    if json:
        rows = [
            {"name": name, "parameters": r.parameters, "flops_per_second": r.flops_per_second}
            for name, r in reports.items()
        ]
        output.show_json(rows)
        return
    output.show_table(
        ["name", "parameters", "MFLOPs/s"],
        [[name, f"{r.parameters:,}", f"{r.flops_per_second / 1e6:.1f}"] for name, r in reports.items()],
    )


def count(
    name: Name, rate: Rate = 16_000, convention: Convention = Convention.TABLE, json: output.Json = False
) -> None:
    """Count a network layer by layer: parameters, operations for each second, state, hop and latency."""
    from centaurus import models

    report = models.count(network(name), rate, convention.value)
    if json:
        output.show_json(report.json())
    else:
        output.show(report)


def verify(name: Name, json: output.Json = False) -> None:
    """Measure the laws a network must keep (streaming equals offline, and so on); exit with 1 where one fails."""
    from centaurus import models

    report = models.verify(network(name))
    if json:
        output.show_json(report.json())
    else:
        output.show(report)
    if not report.holds:
        raise typer.Exit(1)
