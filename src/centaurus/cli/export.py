"""``centaurus export`` and ``push``: a trained model as ONNX or C, and on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centaurus.cli import output
from centaurus.cli.networks import check_file, network


def export(
    name: Annotated[
        str, typer.Argument(help="A model file, a shipped model's name, or a network such as denoiser/hybrid.")
    ],
    file: Annotated[
        Path,
        typer.Option("--output", "-o", help="model.onnx, model.c with model.h beside it, or model.wasm."),
    ],
    chunk: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Samples in one step, a multiple of the hop; give it several times for several files."
        ),
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Of a step in C: fp32, fp16, or int16 and int8 with a scale for every column.")
    ] = "fp32",
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite a file that is there.")] = False,
    json: output.Json = False,
) -> None:
    """Write a model's streaming step as ONNX or C.

    It is compared with torch before it gets its name.
    """
    check_file(name)
    from centaurus.system import OutputError

    chunks: list[int | None] = [*chunk] if chunk else [None]
    several = len(set(chunks)) > 1
    targets = {n: file.with_name(f"{file.stem}-{n}{file.suffix}") if several else file for n in chunks}
    for target in targets.values():
        if target.exists() and not force:
            raise OutputError("exists already; -f overwrites", target)
        if not target.parent.is_dir():
            raise OutputError(f"there is no folder {target.parent}", target)
    if file.suffix in (".c", ".wasm"):
        _write_c(name, targets, weights, force, json)
        return
    if weights != "fp32":
        raise ValueError(f"--weights {weights} is for steps in C: an ONNX file has fp32 weights")
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


def _write_c(name: str, targets: dict[int | None, Path], weights: str, force: bool, json: bool) -> None:
    """Write a step in C, or as WebAssembly, for every chunk."""
    from centaurus.export.c import export_c, export_wasm

    for target in targets.values():
        if target.suffix == ".c" and target.with_suffix(".h").exists() and not force:
            raise FileExistsError(f"{target.with_suffix('.h')} is there already: -f overwrites it")
    net = network(name)
    made = {}
    for samples, target in targets.items():
        write = export_wasm if target.suffix == ".wasm" else export_c
        made[samples] = write(net, target, samples, weights)
    if json:
        output.show_json([one.json() for one in made.values()])
        return
    rows = []
    for samples, one in made.items():
        off = "not compared" if one.difference is None else f"{one.difference:.0e}"
        rows.append(
            [str(one.source), output.size(one.weight_bytes), output.size(one.state_bytes), str(samples or net.hop), off]
        )
    output.show_table(["file", f"{weights} weights", "memory", "chunk", "off by"], rows)
    if any(one.difference is None for one in made.values()):
        output.note("there is no C compiler here (CC, cc, gcc, clang): the step was not compared with torch")


def push(
    model: Annotated[str, typer.Argument(help="A .safetensors or .onnx file, or a shipped model's name.")],
    repository: Annotated[str, typer.Argument(metavar="USER/MODEL", help="Made if it does not exist.")],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private.")] = False,
) -> None:
    """Upload a model to the Hugging Face Hub.

    Its card and its other form go with it if they lie beside it. Others then use it as hf:USER/MODEL. Needs the package
    huggingface_hub and its token (hf auth login).
    """
    from centaurus import hub

    uploaded = hub.push(model, repository, private)
    output.show(f"Uploaded {', '.join(uploaded)}: use it as hf:{repository.removeprefix('hf:')}")
