"""``centaurus bench``: how fast a model is on this machine, step by step."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centaurus.cli import output
from centaurus.cli.networks import check_file, network

if TYPE_CHECKING:
    from centaurus.layer import Layer
    from centaurus.runtime.modelfile import Settings
    from centaurus.runtime.timing import Timing


def bench(
    model: Annotated[
        str | None, typer.Argument(help="An ONNX file, a shipped model's name, a model file or a network.")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Samples in one step, for a model that is exported for this first.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long to measure each way.")] = 5.0,
    environment: Annotated[
        bool, typer.Option("--environment", help="Show what speed depends on here: versions, threads, native kernels.")
    ] = False,
    json: output.Json = False,
) -> None:
    """Time a model on this machine, step by step.

    On one thread and on all: real-time factor, slow steps, memory and latency.
    """
    if environment:
        _show_environment(json)
        return
    if model is None:
        raise ValueError("which model? an ONNX file, a shipped model's name, a model file or a network")
    if not model.endswith(".onnx"):
        check_file(model)
    from centaurus.runtime.session import Session
    from centaurus.runtime.timing import time_session, weigh

    with _file(model, chunk) as path:
        settings = Session(path).settings
        cores = os.cpu_count() or 1
        rows = [time_session(path, 1, seconds, "1 thread")]
        if cores > 1:
            rows.append(time_session(path, 0, seconds, f"{cores} threads"))
        net = _network(model, path)
        if net is not None:
            rows.append(time_torch(net, settings, seconds))
        memory, size = weigh(path), path.stat().st_size
    algorithmic = 1e3 * settings.latency / settings.rate
    if json:
        output.show_json(
            {
                "model": settings.name,
                "task": settings.task,
                "rate": settings.rate,
                "chunk": settings.chunk,
                "file_bytes": size,
                "memory_bytes": memory,
                "algorithmic_latency_ms": algorithmic,
                "runs": [row.json() for row in rows],
            }
        )
        return
    output.show(
        f"{settings.name}: a {settings.task} in steps of {settings.chunk} samples, "
        f"{1e3 * settings.chunk / settings.rate:g} ms of audio at {settings.rate} Hz"
    )
    output.show_table(
        ["", "RTF", "p50 ms", "p95 ms", "p99 ms", "max ms", "xruns", "latency ms"], [_row(row) for row in rows]
    )
    weight = "" if memory is None else f", {output.size(memory)} of memory above numpy and onnxruntime"
    output.show(
        f"\nRTF: time of a step over the time its audio lasts. xruns: steps that took longer. "
        f"Latency: {algorithmic:g} ms until a step is full, and 99 of 100 steps. "
        f"The file has {output.size(size)}{weight}."
    )


def _show_environment(json: bool) -> None:
    """Show the machine, the versions, the threads and whether the native kernels are used."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from centaurus.native.build import status

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    native = status()
    environment: dict[str, object] = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "torch": installed("torch"),
        "onnxruntime": installed("onnxruntime"),
    }
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CENTAURUS_NATIVE"):
        environment[name] = os.environ.get(name, "")
    if json:
        output.show_json(environment | {"native": native.json()})
        return
    words = f"{native.lanes} floats a vector, by {native.compiler}, {native.library}" if native.used else native.reason
    environment["native kernels"] = f"{'used' if native.used else 'not used'}: {words}"
    output.show_table(["", ""], [[name, str(value) or "not set"] for name, value in environment.items()])


def _row(row: Timing) -> list[str]:
    times = (row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms)
    return [row.name, f"{row.rtf:.4f}", *(f"{ms:.2f}" for ms in times), str(row.xruns), f"{row.latency_ms:.1f}"]


@contextmanager
def _file(model: str, chunk: int | None) -> Iterator[Path]:
    """The exported file of a model; one is made for the time being where there is none."""
    from centaurus.runtime.modelfile import find_model, shipped_models

    if chunk is None and (model.endswith(".onnx") or model in shipped_models()):
        yield find_model(model)
        return
    if model.endswith(".onnx"):
        raise ValueError(f"{model} has a fixed number of samples in a step: --chunk goes with a model to be exported")
    from centaurus.export.write import export_onnx

    with tempfile.TemporaryDirectory(prefix="centaurus-") as folder:
        name = Path(model).stem
        yield export_onnx(network(model), Path(folder) / f"{name}.onnx", chunk)


def _network(model: str, path: Path) -> Layer | None:
    """The same model in torch, if torch is here and the model's weights are."""
    if importlib.util.find_spec("torch") is None:
        return None
    if model.endswith(".onnx"):
        beside = path.with_suffix(".safetensors")
        return network(str(beside)) if beside.is_file() else None
    return network(model)


def time_torch(
    net: Layer, settings: Settings, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Timing:
    """The network step by step in torch on one thread, with its tables made once."""
    import torch

    from centaurus.nn import Stream
    from centaurus.runtime.timing import summary, time_steps

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        live = Stream(net.float())
        spent = time_steps(lambda x: live(torch.from_numpy(x)[None, None]), settings.chunk, seconds, clock)
    finally:
        torch.set_num_threads(before)
    return summary("torch, 1 thread", settings, spent)
