"""Time forward and backward of one block over the paper's grid, against Listing 1 and the natural order.

    python bench/contraction.py [grid selective growth layers random] [--quick] [--natural] [--out out/contraction]

``grid`` has the paper's shapes, ``selective`` compares S6 with ``separable``, ``growth`` is the time against length and
batch, ``layers`` are those of the networks, and ``random`` compares the planner's choice with other plans at random
shapes. Alternatives take turns in one process. Writes JSON and a plot.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import host  # noqa: F401, which chooses threads before torch is imported
import listing1
import torch
from baseline import in_order
from timing import Run, alternate, machine, peak_bytes
from torch import Tensor

from centaurus.kernels.calibrate import current
from centaurus.kernels.program import Program
from centaurus.planner.expression import ExpressionError
from centaurus.planner.plan import Plan
from centaurus.planner.search import plan_expression
from centaurus.ssm import S6, SSM
from centaurus.ssm.layer import _planned_expression
from centaurus.system import plot_style

BASE = {"batch": 256, "states": 256, "length": 2048}
H_IN, H_OUT, SUBSTATES = 16, 32, 16
AXIS = (32, 64, 128, 256, 512, 1024, 2048)
LAYERS = {
    "kws (batch 64)": [
        ("full", 1, 8, 4, 1, 64, 16000),
        ("full", 8, 16, 4, 1, 64, 4000),
        ("bottleneck", 16, 32, 64, 4, 64, 1000),
        ("bottleneck", 32, 64, 128, 4, 64, 500),
        ("pointwise", 64, 128, 256, 1, 64, 250),
        ("pointwise", 128, 256, 512, 1, 64, 125),
    ],
    "denoiser (batch 8, 2^15 samples)": [
        ("full", 1, 1, 16, 1, 8, 32768),
        ("full", 16, 16, 4, 1, 8, 8192),
        ("bottleneck", 32, 32, 128, 4, 8, 2048),
        ("bottleneck", 64, 64, 128, 4, 8, 1024),
        ("pointwise", 96, 96, 256, 1, 8, 512),
        ("pointwise", 128, 128, 256, 1, 8, 256),
        ("pointwise", 256, 256, 256, 1, 8, 128),
    ],
    "recogniser (batch 2, 2^17 samples)": [
        ("full", 1, 1, 64, 1, 2, 131072),
        ("full", 16, 16, 4, 1, 2, 26214),
        ("bottleneck", 32, 32, 128, 4, 2, 6553),
        ("bottleneck", 64, 64, 256, 4, 2, 3276),
        ("pointwise", 128, 128, 512, 1, 2, 1638),
        ("pointwise", 256, 256, 1024, 1, 2, 819),
        ("pointwise", 512, 512, 1024, 1, 2, 409),
    ],
}


def forward_backward(layer: SSM, u: Tensor, grad: Tensor, program: Program | None = None) -> Run:
    """Return a function that runs forward and backward, with gradients of the signal and every parameter."""
    inputs = [u, *layer.parameters()]

    def run() -> object:
        y = layer(u) if program is None else layer.run_program(program, u)
        return torch.autograd.grad(y, inputs, grad)

    return run


def without_native(run: Run) -> Run:
    """Return the run without native kernels."""

    def inner() -> object:
        before = os.environ.get("CENTAURUS_NATIVE", "")
        os.environ["CENTAURUS_NATIVE"] = "0"
        try:
            return run()
        finally:
            os.environ["CENTAURUS_NATIVE"] = before

    return inner


def listing(layer: SSM, u: Tensor, grad: Tensor, natural: bool = False) -> Run:
    """Return a function that runs the paper's Listing 1 with this layer's parameters, or in natural order."""
    dt = layer.log_dt.detach().exp().requires_grad_()
    a = torch.complex(-torch.nn.functional.softplus(layer.A_real.detach()), layer.A_imag.detach()).requires_grad_()
    b, c, e = (layer.get_parameter(n).detach().clone().requires_grad_() for n in "BCE")
    with torch.no_grad():
        y, z = layer(u), listing1.ssm_bottleneck(u, dt, a, b, c, e, natural)
        assert (y - z).abs().max() < 1e-4 * y.abs().max(), "Listing 1 and the layer disagree"

    def run() -> object:
        return torch.autograd.grad(listing1.ssm_bottleneck(u, dt, a, b, c, e, natural), [u, dt, a, b, c, e], grad)

    return run


CONVOLUTIONS = ("multiply", "dft", "fft", "direct", "chunked", "scan")


def candidates(layer: SSM, u: Tensor) -> list[Plan]:
    """Return the planner's choice, its closest runner-up, and the best plan with each other kind of convolution."""
    chosen = layer.plan(u.shape[0], u.shape[-1])
    expression, modes, phase = _planned_expression(layer.topology)
    sizes = {"b": u.shape[0], "t": u.shape[-1], **layer.topology.size}
    plans = [chosen, *chosen.runners_up[:1]]
    for only in CONVOLUTIONS:

        def allowed(a: int, b: int, kind: str, domain: str, only: str = only) -> bool:
            return kind == only or kind not in CONVOLUTIONS

        if not any(step.kind == only for step in chosen.steps):
            with suppress(ExpressionError):  # raised if a layer has no plan with this convolution
                plans.append(
                    plan_expression(
                        expression, sizes, modes=modes, phase=phase, device=current(u.detach()), allowed=allowed
                    )
                )
    return plans


def choices(layer: SSM, u: Tensor, grad: Tensor) -> dict[str, Any]:
    """Time the planner's choice and its alternatives, without those estimated at four times the choice's time."""
    first, *others = candidates(layer, u)
    plans = [first, *(p for p in others if p.seconds < 4 * first.seconds)]
    runs = {str(place): forward_backward(layer, u, grad, Program(p)) for place, p in enumerate(plans)}
    seconds = alternate(runs, rounds=5, budget=4.0)
    fastest = min(seconds.values())
    return {
        "plan": first.summary(),
        "estimated": first.seconds,
        "chosen_over_fastest": seconds["0"] / fastest,
        "plans": [
            {"plan": p.summary(), "estimated": p.seconds, "measured": seconds[str(i)]} for i, p in enumerate(plans)
        ],
    }


def grid_point(
    batch: int, states: int, length: int, rounds: int, compiled: bool, with_natural: bool, fast: bool
) -> dict[str, Any]:
    """Measure one shape: seconds, ratios, peak memory, the plan."""
    torch.manual_seed(0)
    layer = SSM("bottleneck", H_IN, H_OUT, states=states, substates=SUBSTATES)
    u, grad = torch.randn(batch, H_IN, length, requires_grad=True), torch.randn(batch, H_OUT, length)
    planned = forward_backward(layer, u, grad)
    runs = {"planned": planned, "torch": without_native(planned), "listing1": listing(layer, u, grad)}
    if with_natural and 8 * batch * states * 2 * length * 6 < 3.5e9:  # bytes of its six spectra of states
        runs["natural"] = listing(layer, u, grad, natural=True)
    if compiled:
        eager = listing1.get_kernel
        listing1.get_kernel = torch.compile(eager)
        try:
            runs["listing1_compiled"] = _bound(listing(layer, u, grad), listing1.get_kernel, eager)
            runs["listing1_compiled"]()
        finally:
            listing1.get_kernel = eager
    seconds = alternate(runs, rounds=rounds, budget=12.0)
    point: dict[str, Any] = {"batch": batch, "states": states, "length": length, "seconds": seconds}
    point["ratio"] = {name: seconds[name] / seconds["planned"] for name in seconds if name != "planned"}
    point["torch_ratio"] = seconds["listing1"] / seconds["torch"]
    point["flops"] = 3 * layer.plan(batch, length).flops  # backward has two products for each of forward
    point["kernel_dominates"] = states * SUBSTATES > batch * (H_IN + H_OUT) / 4
    if fast:
        return point | {"plan": layer.plan(batch, length).summary()}
    point["peak_bytes"] = {name: peak_bytes(runs[name]) for name in ("planned", "torch", "listing1")}
    point["memory_ratio"] = point["peak_bytes"]["planned"] / point["peak_bytes"]["listing1"]
    return point | choices(layer, u, grad)


def _bound(run: Run, kernel: Any, eager: Any) -> Run:
    """Run with the compiled kernel function in place."""

    def inner() -> object:
        listing1.get_kernel = kernel
        try:
            return run()
        finally:
            listing1.get_kernel = eager

    return inner


def layer_point(row: tuple[str, int, int, int, int, int, int], rounds: int, fast: bool) -> dict[str, Any]:
    """Time a layer of a network: planned, in the paper's order and in the natural order."""
    name, i, j, n, m, batch, length = row
    torch.manual_seed(0)
    layer = SSM(name, i, j, states=n, substates=m)
    u = torch.randn(i, batch, length).permute(1, 0, 2).requires_grad_()
    grad = torch.randn(j, batch, length).permute(1, 0, 2)

    run = forward_backward(layer, u, grad)
    orders = ("planned",) if fast else ("planned", "paper", "natural")
    seconds = alternate({order: in_order(layer, order, run) for order in orders}, rounds, budget=6.0)
    point: dict[str, Any] = {"layer": f"{name} {i}→{j} {n}×{m}", "batch": batch, "length": length, "seconds": seconds}
    point["ratio"] = {which: seconds[which] / seconds["planned"] for which in orders[1:]}
    return point | choices(layer, u, grad)


def random_points(count: int) -> list[dict[str, Any]]:
    """Time the planner's choices at random shapes of random topologies, with up to 2^21 numbers in a signal."""
    draw, points = random.Random(0), []
    while len(points) < count:
        topology = draw.choice(("full", "bottleneck", "pointwise", "separable", "depthwise"))
        batch, length = 2 ** draw.randint(0, 7), int(2 ** draw.uniform(5, 14))
        inputs, outputs = (2 ** draw.randint(0, 7) for _ in range(2))
        states, substates = 2 ** draw.randint(0, 8), 2 ** draw.randint(0, 4)
        if topology in ("full", "depthwise", "separable"):
            states = min(states, 16)
        outputs = inputs if topology == "depthwise" else outputs
        if batch * length * max(inputs, outputs, states) > 1 << 21 or (topology == "full" and inputs * outputs > 1024):
            continue
        sizes = {"states": states} | ({"substates": substates} if topology == "bottleneck" else {})
        layer = SSM(topology, inputs, outputs, **sizes)
        u, grad = torch.randn(batch, inputs, length, requires_grad=True), torch.randn(batch, outputs, length)
        title = f"{topology} {inputs}→{outputs} {states}×{sizes.get('substates', 1)}"
        points.append({"layer": title, "batch": batch, "length": length} | choices(layer, u, grad))
        print(f"  {title:<28} {batch:4d} × {length:<6d} {points[-1]['chosen_over_fastest']:.2f}", flush=True)
    return points


def growth(rounds: int) -> dict[str, Any]:
    """Time a bottleneck 16→32 64×4 against length (batch 1) and batch (2048 samples), and fit slopes in log-log."""
    layer = SSM("bottleneck", H_IN, H_OUT, states=64, substates=4)
    lines: dict[str, Any] = {}
    for which, shapes in {
        "length": [(1, 2**k) for k in range(10, 21, 2)],
        "batch": [(2**k, 2048) for k in range(0, 10, 2)],
    }.items():
        points = []
        for batch, length in shapes:
            u, grad = torch.randn(batch, H_IN, length, requires_grad=True), torch.randn(batch, H_OUT, length)
            seconds = alternate({"planned": forward_backward(layer, u, grad)}, rounds, budget=4.0)["planned"]
            points.append({"batch": batch, "length": length, "seconds": seconds})
            print(f"  {batch:4d} × {length:<8d} {1e3 * seconds:9.2f} ms", flush=True)
        x, y = ([math.log(p[key]) for p in points[-4:]] for key in (which, "seconds"))
        middle = sum(x) / len(x)
        slope = sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)
        lines[which] = {"points": points, "slope_of_the_last_four": slope}
        print(f"  slope against {which}: {slope:.2f}")
    return lines


def selective(rounds: int) -> dict[str, Any]:
    """Time S6 (16 channels, 64 states, 8,192 frames, one row) against ``separable`` of the same size."""
    torch.manual_seed(0)
    u, grad = torch.randn(1, 16, 8192, requires_grad=True), torch.randn(1, 16, 8192)
    layers = {"s6": S6(16, 16, states=64), "separable": SSM("separable", 16, 16, states=64)}

    def run_of(layer: torch.nn.Module) -> Run:
        return lambda: torch.autograd.grad(layer(u), [u, *layer.parameters()], grad)

    runs = {name: run_of(layer) for name, layer in layers.items()}
    runs |= {f"{name}_torch": without_native(run) for name, run in runs.items()}
    seconds = alternate(runs, max(rounds, 5))
    ratios = {"ratio": seconds["s6"] / seconds["separable"]}
    ratios["torch_ratio"] = seconds["s6_torch"] / seconds["separable_torch"]
    print(f"S6 over separable: {ratios['ratio']:.2f}, with torch alone {ratios['torch_ratio']:.2f}")
    return {"seconds": seconds} | ratios


def summary(points: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures that docs/speed.md quotes; those that were not measured are left out."""
    ratios = [p["ratio"]["listing1"] for p in points]
    dominated = [p["ratio"]["listing1"] for p in points if p["kernel_dominates"]]
    other = [p["ratio"]["listing1"] for p in points if not p["kernel_dominates"]]
    figures = {
        "geometric_mean": _geometric_mean(ratios),
        "geometric_mean_of_torch_alone": _geometric_mean([p["torch_ratio"] for p in points]),
        "lowest_of_torch_alone": min(p["torch_ratio"] for p in points),
        "lowest": min(ratios),
        "lowest_where_kernel_dominates": min(dominated, default=None),
        "lowest_elsewhere": min(other, default=None),
        "largest_memory_ratio": max((p["memory_ratio"] for p in points if "memory_ratio" in p), default=None),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def _geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


LINES = {
    "planned": ("planned", "C0o-"),
    "torch": ("torch alone", "C3v-"),
    "listing1": ("Listing 1", "C1s-"),
    "listing1_compiled": ("compiled", "C5d-"),
    "natural": ("natural order", "C2^-"),
    "arithmetic": ("arithmetic", "k--"),
}
"""Label, colour, marker and line of each alternative, the same in every picture."""
TITLES = {"batch": "batch, rows", "states": "states N", "length": "length, samples"}


def plot(result: dict[str, Any], path: Path) -> None:
    """Plot time over batch, states and length as in the paper, and the time of the arithmetic alone if it is known."""
    import matplotlib.pyplot as plt

    gemm = result["machine"].get("gemm_flops_per_second")
    with plt.style.context(plot_style()):
        figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
        for axis, (which, title) in zip(axes, TITLES.items(), strict=True):
            points = [p for p in result["grid"] if all(p[k] == BASE[k] for k in BASE if k != which)]
            points.sort(key=lambda p: p[which])
            for name, (label, style) in LINES.items():
                times = {p[which]: 1e3 * seconds for p in points if (seconds := _seconds(p, name, gemm))}
                if times:
                    (line,) = axis.plot(list(times), list(times.values()), style)
                    end, colour = list(times.items())[-1], line.get_color()
                    axis.annotate(label, end, (7, 0), textcoords="offset points", va="center", color=colour)
            axis.set(xlabel=title, yscale="log")
            axis.set_xscale("log", base=2)
            axis.set_xticks([p[which] for p in points], [str(p[which]) for p in points])
        axes[0].set_ylabel("forward and backward, ms")
        figure.savefig(path)


def _seconds(point: dict[str, Any], name: str, gemm: float | None) -> float | None:
    """Return the time of an alternative at a shape, or of its arithmetic at the GEMM's rate; None if not measured."""
    if name == "arithmetic":
        return point["flops"] / gemm if gemm else None
    return point["seconds"].get(name)


EXTRAS = ("memory_ratio", "chosen_over_fastest")  # figures of a shape that --fast does not measure
PARTS = ("grid", "selective", "growth", "layers", "random")


def main() -> None:
    """Measure the chosen parts, print a line for each shape, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="four values per axis, two rounds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", action="store_true", help="also time Listing 1 with a compiled get_kernel")
    parser.add_argument("--natural", action="store_true", help="also time the natural order, which is slow")
    parser.add_argument("--largest", type=int, default=1 << 40, help="skip shapes with more samples in a batch")
    parser.add_argument(
        "--fast", action="store_true", help="skip memory and other plans of the grid, and other orders of layers"
    )
    parser.add_argument("--out", default="out/contraction", help="path of the JSON and the picture, without a suffix")
    parser.add_argument("--draw", action="store_true", help="only draw the picture of the JSON that is there")
    parser.add_argument("--device", default="cpu", help="torch device: cpu, cuda, cuda:1 …")
    options = parser.parse_args()
    if options.draw:
        stored = Path(options.out).with_suffix(".json")
        plot(json.loads(stored.read_text(encoding="utf-8")), stored.with_suffix(".png"))
        return
    parts = options.parts or PARTS
    torch.set_default_device(options.device)
    assert torch.backends.opt_einsum.is_available(), "Listing 1 runs with opt_einsum enabled"
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    rounds = 2 if options.quick else options.rounds
    result: dict[str, Any] = {"machine": machine()}

    def write() -> None:
        out.with_suffix(".json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")

    if "grid" in parts:
        values = AXIS[::2] if options.quick else AXIS
        every_shape = {tuple((BASE | {axis: value}).values()) for axis in BASE for value in values}
        shapes = sorted(shape for shape in every_shape if shape[0] * shape[2] <= options.largest)
        result["grid"] = []
        for shape in shapes:
            point = grid_point(*shape, rounds, options.compiled, options.natural, options.fast)
            result["grid"].append(point)
            print(
                f"batch {shape[0]:5d} states {shape[1]:5d} length {shape[2]:5d}: "
                f"{point['seconds']['planned'] * 1e3:8.1f} ms, "
                + ", ".join(f"{name} {ratio:.2f}x" for name, ratio in point["ratio"].items())
                + "".join(f", {name} {point[name]:.2f}" for name in EXTRAS if name in point),
                flush=True,
            )
            result["summary"] = summary(result["grid"])
            write()
        print(json.dumps(result["summary"], indent=1))
        plot(result, out.with_suffix(".png"))
    if "selective" in parts:
        result["selective"] = selective(rounds)
    if "growth" in parts:
        result["growth"] = growth(rounds)
        write()
    if "layers" in parts:
        result["layers"] = {}
        for title, rows in LAYERS.items():
            print(title)
            result["layers"][title] = []
            for row in rows:
                point = layer_point(row, rounds, options.fast)
                result["layers"][title].append(point)
                print(
                    f"  {point['layer']:<24} {point['seconds']['planned'] * 1e3:8.1f} ms  "
                    + "".join(f"{order} {ratio:.2f}x  " for order, ratio in point["ratio"].items())
                    + f"chosen/fastest {point['chosen_over_fastest']:.2f}  {point['plan']}",
                    flush=True,
                )
                write()
    every = [*result.get("grid", []), *(p for rows in result.get("layers", {}).values() for p in rows)]
    every = [point for point in every if "chosen_over_fastest" in point]
    if every:
        result["choice_within_15_percent"] = _share_right(every)
        print("choice within 15 % of the fastest measured plan:", result["choice_within_15_percent"])
    if "random" in parts:
        result["random"] = random_points(20)
        result["random_choice_within_15_percent"] = _share_right(result["random"])
        print("at random shapes:", result["random_choice_within_15_percent"])
    write()


def _share_right(points: list[dict[str, Any]]) -> str:
    """Return at how many of the points the planner's choice was within 15 % of the fastest plan."""
    return f"{sum(p['chosen_over_fastest'] <= 1.15 for p in points)} of {len(points)}"


if __name__ == "__main__":
    main()
