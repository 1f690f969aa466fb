"""``centaurus export``: a trained model as ONNX files for the runtime without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centaurus.cli import output
from centaurus.cli.names import network


def export(
    name: Annotated[
        str, typer.Argument(help="A model file, a shipped model's name, or a network such as denoiser/hybrid.")
    ],
    file: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file to write.")],
    chunk: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Samples in one step, a multiple of the hop; give it several times for several files."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite a file that is there.")] = False,
    json: output.Json = False,
) -> None:
    """Write a model's streaming step as ONNX, with its states as inputs and outputs, and compare it with torch."""
    chunks: list[int | None] = [*chunk] if chunk else [None]
    several = len(set(chunks)) > 1
    targets = {n: file.with_name(f"{file.stem}-{n}{file.suffix}") if several else file for n in chunks}
    for target in targets.values():
        if target.exists() and not force:
            raise FileExistsError(f"{target} is there already: -f overwrites it")
        if not target.parent.is_dir():
            raise FileNotFoundError(f"there is no folder {target.parent} to write {target.name} into")
    from centaurus.export.write import export_and_compare
    from centaurus.runtime.session import Session

    net, rows, data = network(name), [], []
    for samples, target in targets.items():
        made = export_and_compare(net, target, samples)
        settings, size = Session(target).settings, target.stat().st_size
        milliseconds = 1000 * settings.chunk / settings.rate
        numbers = {"bytes": size, "chunk": settings.chunk, "chunk_ms": milliseconds, "states": len(settings.states)}
        data.append({"file": str(target)} | numbers | {"difference": made.difference})
        row = [output.size(size), str(settings.chunk), f"{milliseconds:g}", str(len(settings.states))]
        rows.append([str(target), *row, f"{made.difference:.0e}"])
    if json:
        output.show_json(data)
    else:
        output.show_table(["file", "size", "chunk", "ms", "states", "off by"], rows)
