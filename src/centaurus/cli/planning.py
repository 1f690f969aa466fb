"""``centaurus plan`` and ``centaurus calibrate``: how things will be contracted, and this machine's rates."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from centaurus.cli import output
from centaurus.cli.networks import check_file, network

if TYPE_CHECKING:
    from centaurus.layer import Layer
    from centaurus.planner import Plan
    from centaurus.ssm import SSM
    from centaurus.ssm.layer import TopologyName

UNITS = {
    "gemm": "FLOP/s",
    "complex_gemm": "FLOP/s",
    "matrix": "s",
    "fft": "FLOP/s",
    "bandwidth": "B/s",
    "transpose": "B/s",
    "fresh": "B/s",
    "exp": "1/s",
    "call": "s",
    "tile_bytes": "B",
    "scan": "1/s",
    "spectra": "FLOP/s",
}
MOST_NUMBERS = 1 << 48  # of all indices together: 2,000 times the memory of a large machine
Sizes = Annotated[str, typer.Option(help="Sizes of the indices, such as i=16,j=32,n=256,m=16.")]


def plan(
    name: Annotated[
        str,
        typer.Argument(help="A network, a model file, a topology (bottleneck), or an expression (bit,ni,nt,jn->bjt)."),
    ],
    batch: Annotated[int, typer.Option(min=1, max=1 << 20, help="Rows of the batch.")] = 8,
    length: Annotated[int, typer.Option(min=1, max=1 << 32, help="Input samples.")] = 16_384,
    sizes: Sizes = "",
    steps: Annotated[bool, typer.Option("--steps", help="Every layer's plan in full, step by step.")] = False,
    json: output.Json = False,
) -> None:
    """Show how a network or layer will run, and at what cost.

    Also for an expression; nothing is run.
    """
    check_file(name)
    if "->" in name and "_" not in name:
        _show_plan(_plan_of_expression(name, batch, length, read_sizes(sizes)), json)
    elif "->" in name or sizes or is_topology(name):
        _show_plan(_plan_of_layer(name, batch, length, read_sizes(sizes)), json)
    else:
        _show_network(name, batch, length, steps, json)


def read_sizes(text: str) -> dict[str, int]:
    """``"b=8,i=16"`` as a mapping."""
    sizes: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        index, _, size = item.partition("=")
        if len(index) != 1 or not size.isdecimal():
            raise ValueError(f"--sizes takes index=size pairs such as b=8,i=16: got {item!r}")
        if index in sizes:
            raise ValueError(f"--sizes gives index {index!r} twice")
        sizes[index] = int(size)
    if math.prod(sizes.values()) > MOST_NUMBERS:
        raise ValueError(f"--sizes {text} describe more than {MOST_NUMBERS:,} numbers, too many to plan for")
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
    """A layer by its topology; i and j are the channels of one group, as in the equations."""
    import centaurus as ct

    unknown = sorted(set(sizes) - set("ijnmg"))
    if unknown:
        raise ValueError(f"a {name} layer has no index {unknown[0]!r}: its sizes are among b, t, i, j, n, m, g")
    if "i" not in sizes:
        raise ValueError(f"a {name} layer needs its sizes, such as --sizes i=16,j=32,n=256")
    groups = sizes.get("g", 1)
    j = sizes["j"] * groups if "j" in sizes else None
    kind = cast("TopologyName", name)  # SSM says which there are
    return ct.SSM(kind, sizes["i"] * groups, j, states=sizes.get("n", 4), substates=sizes.get("m", 1), groups=groups)


def _show_plan(plan: Plan, json: bool) -> None:
    if json:
        output.show_json(plan.json())
    else:
        output.show(plan)


def _show_network(name: str, batch: int, length: int, steps: bool, json: bool) -> None:
    plans = planned_layers(network(name), batch, length)
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
    """``inside.inside.body`` as ``inside×2.body``."""
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
    output.show_table(["rate", *(str(n) if isinstance(n, str) else _threads(n) for n in measured)], rows)
    output.show(f"Stored in {' and '.join(str(Device.path(n)) for n in measured)}")


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _rate(value: object, unit: str) -> str:
    return f"{value:.3g} {unit}".strip() if isinstance(value, float) else f"{value} {unit}".strip()


def is_topology(name: str) -> bool:
    """Whether a layer of that name stands for one of the equations."""
    from centaurus.ssm import EQUATIONS

    return name in EQUATIONS


def planned_layers(net: Layer, batch: int, length: int) -> list[tuple[str, Plan]]:
    """Every SSM layer of a network with its plan, at the length the signal has there."""
    hops = -(-length // net.hop)
    return list(_planned("", net, batch, Fraction(hops * net.hop)))


def _planned(name: str, layer: Layer, batch: int, length: Fraction) -> Iterator[tuple[str, Plan]]:
    from centaurus.nn.containers import Composite
    from centaurus.ssm import SSM

    if isinstance(layer, SSM):
        yield name, layer.plan(batch=batch, length=int(length))
    elif isinstance(layer, Composite):
        for part in layer.parts():
            yield from _planned(f"{name}.{part.name}".lstrip("."), part.layer, batch, length * part.ratio)
