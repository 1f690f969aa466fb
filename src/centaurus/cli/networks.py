"""``centaurus models``, ``count``, ``verify``, ``plan``, ``calibrate`` and ``bench``: inspect networks."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from centaurus.cli import output

if TYPE_CHECKING:
    from centaurus.layer import Layer
    from centaurus.planner import Plan
    from centaurus.runtime.measure import Timing
    from centaurus.runtime.modelfile import Settings
    from centaurus.ssm import SSM
    from centaurus.ssm.layer import TopologyName
    from centaurus.verification import Verification

Name = Annotated[str, typer.Argument(help="A network such as denoiser/hybrid, or a model file.")]
File = Annotated[str, typer.Argument(help="A network such as denoiser/hybrid, a model file, or an ONNX file.")]
Rate = Annotated[int, typer.Option(min=1, help="Sample rate in Hz.")]
UNITS = {  # of the rates of a device
    **dict.fromkeys(("gemm", "complex_gemm", "fft", "spectra"), "FLOP/s"),
    **dict.fromkeys(("bandwidth", "transpose", "fresh"), "B/s"),
    **dict.fromkeys(("exp", "scan"), "1/s"),
    **dict.fromkeys(("matrix", "call"), "s"),
    "tile_bytes": "B",
}
MOST_NUMBERS = 1 << 48  # of all indices together: 2,000 times the memory of a large machine


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
    from centaurus.runtime.measure import describe_shipped

    shipped = describe_shipped()
    if json:
        output.show_json([asdict(model) for model in shipped])
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
        shown = ("parameters", "flops_per_second")
        output.show_json([{"name": name} | {key: getattr(r, key) for key in shown} for name, r in reports.items()])
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
    net = network(name)
    from centaurus import models

    output.show_report(models.count(net, rate, convention.value), json)


def verify(name: File, json: output.Json = False) -> None:
    """Check that streaming equals offline.

    Measures the invariants of a network or an ONNX file; the exit code is 1 if one is violated.
    """
    with output.progress_bar(f"verifying {name}", None):
        if name.endswith(".onnx") or _only_exported(name):
            report = _verify_file(name)
        else:
            net = network(name)
            from centaurus import models

            report = models.verify(net)
    output.show_report(report, json)
    if not report.holds:
        raise typer.Exit(1)


def _only_exported(name: str) -> bool:
    """Return whether this is a shipped model and torch, which would build the network, is not installed."""
    from centaurus.runtime.modelfile import shipped_models

    return importlib.util.find_spec("torch") is None and name in shipped_models()


def _verify_file(name: str) -> Verification:
    """Verify a file by itself, and against torch if torch is installed and the weights are beside the file."""
    from centaurus.runtime.measure import verify_file
    from centaurus.runtime.modelfile import find_model
    from centaurus.verification import Law

    path = find_model(name)
    beside, extra = path.with_suffix(".safetensors"), []
    if beside.is_file() and importlib.util.find_spec("torch") is not None:
        from centaurus.export.write import TOLERANCE, difference

        extra = [Law(f"pieces = {beside.name} whole, in torch", difference(network(str(beside)), path), TOLERANCE)]
    return verify_file(path, extra)


def network(name: str) -> Layer:
    """Return a network: ``kws-hybrid-8``, ``denoiser/hybrid``, ``recognizer/base``, a model file or a shipped model."""
    check_file(name)
    from centaurus.models import build, load, shipped
    from centaurus.system import HUB

    file = os.path.isfile(name) or name.endswith(".safetensors")
    return load(name) if file or name.startswith(HUB) or name in shipped() else build(name)


def check_file(name: str) -> None:
    """Refuse a file that does not exist or that torch cannot read, before torch is imported, which takes seconds."""
    from centaurus.runtime.modelfile import SUFFIX, WEIGHTS, SessionError, check_kind, shipped_models

    path = Path(name)
    if os.path.isfile(name):  # False instead of an error for a name that is too long
        check_kind(path, (WEIGHTS,))
    elif path.suffix in (WEIGHTS, SUFFIX):
        known = ", ".join(shipped_models())
        raise SessionError(f"there is no model file {name!r:.200}, and no shipped model of that name ({known})")


Sizes = Annotated[str, typer.Option(help="Sizes of the indices, such as i=16,j=32,n=256,m=16.")]


def plan(
    name: Annotated[
        str,
        typer.Argument(help="A network, a model file, a topology (bottleneck), or an expression (bit,ni,nt,jn->bjt)."),
    ],
    batch: Annotated[int, typer.Option(min=1, max=1 << 20, help="Batch size.")] = 8,
    length: Annotated[int, typer.Option(min=1, max=1 << 32, help="Input samples.")] = 16_384,
    sizes: Sizes = "",
    steps: Annotated[bool, typer.Option("--steps", help="Every layer's plan in full, step by step.")] = False,
    json: output.Json = False,
) -> None:
    """Show how a network or layer will run, and at what cost.

    Also for an expression; nothing is run.
    """
    check_file(name)
    from centaurus.ssm import EQUATIONS

    if "->" in name and "_" not in name:
        output.show_report(_plan_of_expression(name, batch, length, read_sizes(sizes)), json)
    elif "->" in name or sizes or name in EQUATIONS:
        output.show_report(_plan_of_layer(name, batch, length, read_sizes(sizes)), json)
    else:
        _show_network(name, batch, length, steps, json)


def read_sizes(text: str) -> dict[str, int]:
    """Return ``"b=8,i=16"`` as a mapping."""
    sizes: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        index, _, size = item.partition("=")
        if len(index) != 1 or not size.isdecimal():
            raise ValueError(f"--sizes takes index=size pairs such as b=8,i=16: got {item!r}")
        if index in sizes:
            raise ValueError(f"--sizes gives index {index!r} twice")
        sizes[index] = int(size)
    if math.prod(sizes.values()) > MOST_NUMBERS:
        raise ValueError(f"--sizes {text} give tensors of more than {MOST_NUMBERS:,} numbers, too many to plan for")
    return sizes


def _plan_of_expression(text: str, batch: int, length: int, sizes: dict[str, int]) -> Plan:
    from centaurus.planner import parse, plan_expression

    expression = parse(text)
    known = {index for operand in expression.operands for index in operand}
    defaults = {index: size for index, size in (("b", batch), ("t", length)) if index in known}
    return plan_expression(expression, defaults | sizes)


def _plan_of_layer(name: str, batch: int, length: int, sizes: dict[str, int]) -> Plan:
    import torch

    import centaurus as ct

    inner = {index: size for index, size in sizes.items() if index not in "bt"}
    with torch.device("meta"):  # a plan needs sizes, not memory for the weights
        layer = ct.SSM(name, sizes=inner) if "->" in name else _named_layer(name, inner)
    return layer.plan(batch=sizes.get("b", batch), length=sizes.get("t", length))


def _named_layer(name: str, sizes: dict[str, int]) -> SSM:
    """Return a layer of a topology; i and j are the channels of one group, as in the equations."""
    import centaurus as ct

    unknown = sorted(set(sizes) - set("ijnmg"))
    if unknown:
        raise ValueError(f"a {name} layer has no index {unknown[0]!r}: its sizes are among b, t, i, j, n, m, g")
    if "i" not in sizes:
        raise ValueError(f"a {name} layer needs its sizes, such as --sizes i=16,j=32,n=256")
    groups = sizes.get("g", 1)
    j = sizes["j"] * groups if "j" in sizes else None
    kind = cast("TopologyName", name)  # SSM's error lists the topologies
    return ct.SSM(kind, sizes["i"] * groups, j, states=sizes.get("n", 4), substates=sizes.get("m", 1), groups=groups)


def _show_network(name: str, batch: int, length: int, steps: bool, json: bool) -> None:
    from centaurus.models.network import plan_layers

    plans = plan_layers(network(name), batch, length)
    seconds = sum(plan.seconds for _, plan in plans)
    peak = max((plan.peak_bytes for _, plan in plans), default=0)
    if json:
        layers = [{"layer": layer, "plan": plan.json()} for layer, plan in plans]
        output.show_json(
            {"name": name, "batch": batch, "length": length, "seconds": seconds, "peak_bytes": peak, "layers": layers}
        )
        return
    for layer, plan in plans if steps else ():
        output.show(f"{layer}\n{plan}\n")
    rows = [_row(layer, plan) for layer, plan in plans]
    output.show_table(["layer", "samples", "convolved", "fwd ms", "bwd ms", "MB"], rows)
    output.show(
        f"\n{len(plans)} SSM layers, batch {batch} × {length} samples: {output.duration(seconds)} forward and "
        f"backward, {output.size(peak)} at most in one layer. Other layers are not in the estimate."
    )


def _row(layer: str, plan: Plan) -> list[str]:
    sizes: dict[str, int] = dict(plan.sizes)
    methods = {"multiply": "FFT", "direct": "directly", "chunked": "chunks", "scan": "recurrence"}
    methods |= {"fft": "native FFT", "dft": "DFT products"}
    method = next(f"{methods[step.kind]} {step.chunk or ''}" for step in plan.steps if step.kind in methods)
    numbers = [plan.forward_seconds * 1e3, (plan.seconds - plan.forward_seconds) * 1e3, plan.peak_bytes / 1e6]
    return [_short(layer), str(sizes["t"]), method.strip(), *(f"{number:.1f}" for number in numbers)]


def _short(path: str) -> str:
    """Return ``inside.inside.body`` as ``inside×2.body``."""
    return re.sub(r"\b(\w+)(\.\1\b)+", lambda run: f"{run[1]}×{run[0].count('.') + 1}", path)


def calibrate(
    device: Annotated[str, typer.Option(help="cpu or cuda: what to measure.")] = "cpu", json: output.Json = False
) -> None:
    """Measure this machine's rates, for plans that fit it.

    They are stored for later; best on an idle machine. A CPU is measured on one thread and on all.
    """
    from centaurus.kernels.calibrate import measure, measure_gpu
    from centaurus.planner import Device

    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda, got {device!r}")
    kinds: list[int | str] = ["cuda"] if device == "cuda" else [*sorted({1, os.cpu_count() or 1})]
    measured: dict[int | str, dict[str, Any]] = {}
    with output.progress_bar("measuring this machine, about ten seconds for each number of threads", None):
        for kind in kinds:
            rates = measure_gpu() if isinstance(kind, str) else measure(kind)
            rates.write(Device.path(kind))
            measured[kind] = asdict(rates)
    if json:
        output.show_json({str(n): {"path": str(Device.path(n)), "device": rates} for n, rates in measured.items()})
        return
    keys = list(next(iter(measured.values())))
    rows = [[key, *(_rate(rates[key], UNITS.get(key, "")) for rates in measured.values())] for key in keys]
    columns = [n if isinstance(n, str) else f"{n} threads" if n > 1 else "1 thread" for n in measured]
    output.show_table(["rate", *columns], rows)
    output.show(f"Stored in {' and '.join(str(Device.path(n)) for n in measured)}")


def _rate(value: object, unit: str) -> str:
    return f"{value:.3g} {unit}".strip() if isinstance(value, float) else f"{value} {unit}".strip()


def bench(
    model: Annotated[
        str | None, typer.Argument(help="An ONNX file, a shipped model's name, a model file or a network.")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Samples in one step, for a model that is exported for this first.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds to measure each configuration.")] = 5.0,
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
    from centaurus.runtime.measure import time_session, weigh
    from centaurus.runtime.session import Session

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
        about = {name: getattr(settings, name) for name in ("task", "rate", "chunk")}
        sizes = {"file_bytes": size, "memory_bytes": memory, "algorithmic_latency_ms": algorithmic}
        output.show_json({"model": settings.name, **about, **sizes, "runs": [row.json() for row in rows]})
        return
    output.show(
        f"{settings.name}: a {settings.task} in steps of {settings.chunk} samples, "
        f"{1e3 * settings.chunk / settings.rate:g} ms of audio at {settings.rate} Hz"
    )
    output.show_table(
        ["", "RTF", "p50 ms", "p95 ms", "p99 ms", "max ms", "xruns", "latency ms"], [_timing_row(row) for row in rows]
    )
    weight = "" if memory is None else f", {output.size(memory)} of memory above numpy and onnxruntime"
    output.show(
        f"\nRTF: time of a step over the time its audio lasts. xruns: steps that took longer. "
        f"Latency: {algorithmic:g} ms until a step is full, and 99 of 100 steps. "
        f"The file is {output.size(size)}{weight}."
    )


def _show_environment(json: bool) -> None:
    """Show the machine, the versions, the threads and whether the native kernels are used."""
    import platform

    from centaurus.native.build import status
    from centaurus.system import installed_version

    native = status()
    environment: dict[str, object] = {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
    for package in ("torch", "onnxruntime"):
        environment[package] = installed_version(package) or "not installed"
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CENTAURUS_NATIVE"):
        environment[name] = os.environ.get(name, "")
    if json:
        output.show_json(environment | {"native": native.json()})
        return
    words = f"{native.lanes} floats a vector, by {native.compiler}, {native.library}" if native.used else native.reason
    environment["native kernels"] = f"{'used' if native.used else 'not used'}: {words}"
    output.show_table(["", ""], [[name, str(value) or "not set"] for name, value in environment.items()])


def _timing_row(row: Timing) -> list[str]:
    times = (row.p50_ms, row.p95_ms, row.p99_ms, row.max_ms)
    return [row.name, f"{row.rtf:.4f}", *(f"{ms:.2f}" for ms in times), str(row.xruns), f"{row.latency_ms:.1f}"]


@contextmanager
def _file(model: str, chunk: int | None) -> Iterator[Path]:
    """Yield the exported file of a model; without one, a temporary export."""
    from centaurus.runtime.modelfile import find_model, shipped_models

    if chunk is None and (model.endswith(".onnx") or model in shipped_models()):
        yield find_model(model)
        return
    if model.endswith(".onnx"):
        raise ValueError(f"{model} has a fixed number of samples in a step: --chunk needs a model that is not exported")
    from centaurus.export.write import export_onnx

    with tempfile.TemporaryDirectory(prefix="centaurus-") as folder:
        name = Path(model).stem
        yield export_onnx(network(model), Path(folder) / f"{name}.onnx", chunk)


def _network(model: str, path: Path) -> Layer | None:
    """Return the same model in torch, if torch and the model's weights are available."""
    if importlib.util.find_spec("torch") is None:
        return None
    if model.endswith(".onnx"):
        beside = path.with_suffix(".safetensors")
        return network(str(beside)) if beside.is_file() else None
    return network(model)


def time_torch(
    net: Layer, settings: Settings, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> Timing:
    """Time the steps of a network in torch on one thread."""
    import torch

    from centaurus.nn import Stream
    from centaurus.runtime.measure import summary, time_steps

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        live = Stream(net.float())
        spent = time_steps(lambda x: live(torch.from_numpy(x)[None, None]), settings.chunk, seconds, clock)
    finally:
        torch.set_num_threads(before)
    return summary("torch, 1 thread", settings, spent)
