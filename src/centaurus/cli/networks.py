"""``centaurus models``, ``count`` and ``verify``: which networks there are, what they cost, whether they are right."""

from __future__ import annotations

import importlib.util
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centaurus.cli import output

if TYPE_CHECKING:
    from centaurus.layer import Layer
    from centaurus.verification import Verification

Name = Annotated[str, typer.Argument(help="A network such as denoiser/hybrid, or a model file.")]
File = Annotated[str, typer.Argument(help="A network such as denoiser/hybrid, a model file, or an ONNX file.")]
Rate = Annotated[int, typer.Option(min=1, help="Samples a second.")]


class Convention(StrEnum):
    """How the paper counts: by its table of formulas, or as in its tables of results."""

    TABLE = "table"
    RESULTS = "results"


def models(
    networks: Annotated[
        bool, typer.Option("--networks", help="The networks that can be built and trained, counted; needs torch.")
    ] = False,
    rate: Rate = 16_000,
    json: output.Json = False,
) -> None:
    """List the models that ship, or the networks to train.

    Task, rate, latency, size, score and licence.
    """
    if networks:
        _show_networks(rate, json)
        return
    from centaurus.runtime.cards import describe_shipped

    shipped = describe_shipped()
    if json:
        output.show_json([model.json() for model in shipped])
        return
    columns = ["name", "command", "kHz", "ms", "size", "score", "licence"]
    rows = [
        [m.name, m.command, f"{m.rate / 1000:g}", f"{1000 * m.latency:g}", output.size(m.bytes), m.score, m.licence]
        for m in shipped
    ]
    output.show_table(columns, rows, text=("command", "score", "licence"))
    output.show("\nms: latency. Networks to build and train: centaurus models --networks")


def _show_networks(rate: int, json: bool) -> None:
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
    """Count a network's parameters, operations and state.

    Layer by layer, with operations for each second, hop and latency.
    """
    check_file(name)
    from centaurus import models

    report = models.count(network(name), rate, convention.value)
    if json:
        output.show_json(report.json())
    else:
        output.show(report)


def verify(name: File, json: output.Json = False) -> None:
    """Check that a model streams exactly: pieces are the whole.

    Measures the laws that a network or an ONNX file must keep; the exit code is 1 where one fails.
    """
    if not name.endswith(".onnx"):
        check_file(name)
    with output.progress_bar(f"verifying {name}", None):
        report = _verify_file(name) if name.endswith(".onnx") or _only_exported(name) else _verify_network(name)
    if json:
        output.show_json(report.json())
    else:
        output.show(report)
    if not report.holds:
        raise typer.Exit(1)


def _verify_network(name: str) -> Verification:
    from centaurus import models

    return models.verify(network(name))


def _only_exported(name: str) -> bool:
    """Whether this is a shipped model where there is no torch to build it with."""
    from centaurus.runtime.modelfile import shipped_models

    return importlib.util.find_spec("torch") is None and name in shipped_models()


def _verify_file(name: str) -> Verification:
    """A file by itself, and against torch where torch and the weights beside the file are there."""
    from centaurus.runtime.modelfile import find_model
    from centaurus.runtime.verify import verify_file
    from centaurus.verification import Law

    path = find_model(name)
    beside, extra = path.with_suffix(".safetensors"), []
    if beside.is_file() and importlib.util.find_spec("torch") is not None:
        from centaurus.export.write import TOLERANCE, difference

        extra = [Law(f"pieces = {beside.name} whole, in torch", difference(network(str(beside)), path), TOLERANCE)]
    return verify_file(path, extra)


def network(name: str) -> Layer:
    """``kws-hybrid-8``, ``denoiser/hybrid``, ``recognizer/base``, a model file or a shipped model's name."""
    check_file(name)
    from centaurus.models import build, load, shipped
    from centaurus.system import HUB

    file = os.path.isfile(name) or name.endswith(".safetensors")
    return load(name) if file or name.startswith(HUB) or name in shipped() else build(name)


def check_file(name: str) -> None:
    """Refuse a file that is not there or not a model that torch reads: before torch is imported, which takes long."""
    from centaurus.runtime.modelfile import SUFFIX, WEIGHTS, SessionError, check_kind, shipped_models

    path = Path(name)
    if os.path.isfile(name):  # which a name longer than any file's is not, instead of an error
        check_kind(path, (WEIGHTS,))
    elif path.suffix in (WEIGHTS, SUFFIX):
        known = ", ".join(shipped_models())
        raise SessionError(f"there is no model file {name!r:.200}, and no shipped model of that name ({known})")
