"""Training speed of whole networks, as planned, with Listing 1 and in natural order.

    python bench/networks.py [--rounds 3] [--out out/networks]

Prints audio-seconds trained per second, ratios, and the shares of a planned step by kind of operation. Writes JSON and
a plot.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import host  # noqa: F401, which chooses threads before torch is imported
import torch
from baseline import in_order
from timing import Run, alternate, machine, wait
from torch import nn
from torch.profiler import ProfilerActivity, profile

import centaurus as ct
from centaurus.system import plot_style

RATE = 16_000
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "denoiser/hybrid": (lambda: ct.denoiser("hybrid"), 8, 2**15),
    "kws-hybrid-8": (lambda: ct.classifier("kws-hybrid-8", classes=35), 64, 16_000),
    "recognizer/base": (lambda: ct.recognizer("base"), 2, 2**17),
}
GROUPS = {
    "matrix products": ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::baddbmm_", "aten::convolution"),
    "transforms": ("aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c"),
    "copies and transposes": ("aten::copy_", "aten::cat", "aten::fill_"),
    "state recurrences": ("aten::addcmul",),
}


def training_step(net: nn.Module, u: torch.Tensor) -> Run:
    """Return a function that runs forward and backward, with gradients of every parameter."""

    def run() -> object:
        net.zero_grad(set_to_none=True)
        net(u).square().mean().backward()
        return None

    return run


def spent(run: Run) -> dict[str, float]:
    """Return the shares of the time of a run by kind of operation."""
    gpu = torch.get_default_device().type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]) as prof:
        run()
        wait()
    events = prof.key_averages()
    spent_in = {event.key: event.self_device_time_total if gpu else event.self_cpu_time_total for event in events}
    total = sum(spent_in.values())
    shares = {name: sum(spent_in.get(key, 0) for key in keys) / total for name, keys in GROUPS.items()}
    return shares | {"element-wise, norms and overhead": 1 - sum(shares.values())}


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Time a training step of a network in each order."""
    build, batch, samples = NETWORKS[name]
    torch.manual_seed(0)
    net, u = build().train(), torch.randn(batch, 1, samples)
    step = training_step(net, u)
    runs = {which: in_order(net, which, step) for which in ("planned", "paper", "natural")}
    seconds = alternate(runs, rounds=rounds, budget=60.0)
    audio = batch * samples / RATE
    return {
        "network": name,
        "batch": batch,
        "samples": samples,
        "seconds": seconds,
        "ratio": {which: seconds[which] / seconds["planned"] for which in ("paper", "natural")},
        "audio_seconds_per_second": {which: audio / value for which, value in seconds.items()},
        "spent": spent(runs["planned"]),
    }


LABELS = {"planned": "planned", "paper": "Listing 1", "natural": "natural"}


def plot(points: list[dict[str, Any]], path: Path) -> None:
    """Plot training speed over that of Listing 1, and the shares of a planned step."""
    import matplotlib.pyplot as plt

    names = [p["network"] for p in points]
    with plt.style.context(plot_style()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.2))
        for k, (order, label) in enumerate(LABELS.items()):
            speeds = [p["audio_seconds_per_second"] for p in points]
            heights = [s[order] / s["paper"] for s in speeds]
            bars = left.bar([place + 0.28 * (k - 1) for place in range(len(points))], heights, 0.26, label=label)
            left.bar_label(bars, [f"{s[order]:.0f}" if s[order] >= 10 else f"{s[order]:.1f}" for s in speeds])
        left.set_xticks(range(len(points)), names)
        left.set(title="numbers: audio-seconds trained per second", ylabel="speed over Listing 1")
        left.legend(loc="upper center", ncols=3)
        left.set_ylim(0, 1.3 * left.get_ylim()[1])
        left.grid(axis="x", visible=False)
        bottom = [0.0] * len(points)
        for share in points[0]["spent"]:
            values = [100 * p["spent"][share] for p in points]
            bars = right.barh(range(len(points)), values, left=bottom, label=share)
            right.bar_label(bars, [f"{v:.0f}" if v >= 3 else "" for v in values], label_type="center", color="white")
            bottom = [a + b for a, b in zip(bottom, values, strict=True)]
        right.set_yticks(range(len(points)), names)
        right.set(xlabel="share of a planned step, %", xlim=(0, 100))
        right.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
        right.grid(visible=False)
        figure.savefig(path)


def main() -> None:
    """Measure the networks, print their figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=sorted(NETWORKS))
    parser.add_argument("--out", default="out/networks")
    parser.add_argument("--device", default="cpu", help="torch device: cpu, cuda, cuda:1 …")
    options = parser.parse_args()
    torch.set_default_device(options.device)
    assert torch.backends.opt_einsum.is_available(), "Listing 1 runs with opt_einsum enabled"
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    points = []
    for name in [options.only] if options.only else NETWORKS:
        point = measure(name, options.rounds)
        points.append(point)
        rates = ", ".join(f"{method} {value:.1f}" for method, value in point["audio_seconds_per_second"].items())
        print(
            f"{name}: audio-seconds per second: {rates}; over Listing 1 {point['ratio']['paper']:.2f}x, "
            f"over natural {point['ratio']['natural']:.2f}x",
            flush=True,
        )
        print("   " + ", ".join(f"{what} {share:.0%}" for what, share in point["spent"].items()), flush=True)
    out.with_suffix(".json").write_text(json.dumps({"machine": machine(), "networks": points}, indent=1))
    plot(points, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
