"""Time whole training steps (network, losses, optimiser): native kernels, bfloat16, torch alone, an older version.

    python bench/training.py [--only denoiser/spectral] [--rounds 5] [--against OLD/src] [--out out/training]

Versions run in separate processes and take turns, step by step. Times are CPU seconds of the process, on which other
work has less influence than on wall-clock time; the fastest round counts. The machine's limits, the rate of a large
matrix product and the bandwidth of memory, are measured between the rounds in the same way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RATE = 16_000
NETWORKS = {  # rows and samples of a batch
    "denoiser/spectral-32": (11, 3 * RATE),
    "denoiser/spectral": (16, 2 * RATE),
    "denoiser/hybrid": (8, 2**14),
    "kws-hybrid-4": (32, RATE),
    "kws-s6-4": (8, RATE),
    "recognizer/base": (2, 2**16),
}


def training_step(name: str, rounded: bool) -> Callable[[], None]:
    """Build a network and return its training step: forward, losses, backward, clipping, and the recipe's optimiser.

    ``rounded`` is ``precision=bf16`` of the recipes.
    """
    import torch

    import centaurus as ct
    from centaurus.train.losses import RELATIVE_LOSSES, to_unit
    from centaurus.train.optim import OPTIMIZERS

    try:
        from centaurus.train.loop import keep_memory
    except ImportError:  # its place in older versions
        from centaurus.train.memory import keep_memory  # type: ignore[import-not-found, no-redef]
    keep_memory()
    torch.manual_seed(0)
    rows, samples = NETWORKS[name]
    kind, _, table = name.rpartition("/")
    if kind == "denoiser":
        net: torch.nn.Module = ct.denoiser(table)
    else:
        net = ct.recognizer(table) if kind else ct.classifier(table, classes=35)
    net.train()
    optimizer = OPTIMIZERS["adamw" if kind == "recognizer" else "muon"](net, 1e-4, 0.02)
    if rounded and kind != "recognizer":
        optimizer.rounded = True
    noisy = 0.1 * torch.randn(rows, 1, samples)
    clean = 0.7 * noisy + 0.01 * torch.randn(rows, 1, samples)

    def loss(y: Any) -> torch.Tensor:
        if kind == "denoiser":
            ours, theirs = to_unit(noisy, y.float(), clean)
            return sum(RELATIVE_LOSSES[term](ours, theirs) for term in ("residual", "heard", "perceptual"))
        first = y if isinstance(y, torch.Tensor) else next(iter(y.values() if isinstance(y, dict) else y))
        return first.float().square().mean()

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            y = net(noisy)
        loss(y).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def serve(name: str, rounded: bool) -> None:
    """Run one step for every line of standard input; print its CPU seconds and the process's peak memory."""
    import resource

    step = training_step(name, rounded)
    step()
    for _ in sys.stdin:
        begin = time.process_time()
        step()
        spent = time.process_time() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": spent, "peak_bytes": peak}), flush=True)


class Version:
    """A process of one version of the library that runs a training step on request."""

    def __init__(self, name: str, source: str, native: bool, rounded: bool = False) -> None:
        switches = {"PYTHONPATH": source, "CENTAURUS_NATIVE": "1" if native else "0", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve", name, *(["--rounded"] if rounded else [])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=os.environ | switches, **pipes)
        self.rounds: list[dict[str, float]] = []

    def step(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.rounds.append(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    @property
    def seconds(self) -> float:
        return min(r["seconds"] for r in self.rounds)


def measure(name: str, rounds: int, against: str | None) -> dict[str, Any]:
    """Time every version in turns; return seconds, audio-seconds per second, ratios and memory."""
    from host import limits

    from centaurus.kernels.precision import why_no_bf16

    own = str(Path(__file__).parent.parent / "src")
    versions = {"native": Version(name, own, True), "torch": Version(name, own, False)}
    if not why_no_bf16():
        versions = {"bf16": Version(name, own, True, rounded=True), **versions}
    if against is not None:
        versions["before"] = Version(name, against, False)
    machine = []
    for _ in range(rounds):
        for version in versions.values():
            version.step()
        machine.append(limits())
    for version in versions.values():
        version.close()
    rows, samples = NETWORKS[name]
    seconds = {which: version.seconds for which, version in versions.items()}
    slowest = seconds.get("before", seconds["torch"])
    return {
        "network": name,
        "rows": rows,
        "samples": samples,
        "cpu_seconds": seconds,
        "audio_seconds_per_cpu_second": {which: rows * samples / RATE / s for which, s in seconds.items()},
        "faster_than": {which: slowest / s for which, s in seconds.items()},
        "peak_bytes": {which: max(r["peak_bytes"] for r in v.rounds) for which, v in versions.items()},
        "rounds": {which: [r["seconds"] for r in v.rounds] for which, v in versions.items()},
        "machine": {key: max(one[key] for one in machine) for key in machine[0]},
    }


LABELS = {"before": "older version", "torch": "torch alone", "native": "native kernels", "bf16": "native, bfloat16"}


def plot(points: list[dict[str, Any]], path: Path) -> None:
    """Plot the audio-seconds trained in a second of one core, a bar for each version."""
    import matplotlib.pyplot as plt

    from centaurus.system import plot_style

    which = list(max((p["cpu_seconds"] for p in points), key=len))[::-1]
    height = 0.8 / len(which)
    with plt.style.context(plot_style()):
        figure, axis = plt.subplots(figsize=(8, 0.9 + 0.75 * len(points)))
        for offset, name in enumerate(which):
            values = [p["audio_seconds_per_cpu_second"].get(name, 0.0) for p in points]
            places = [k + height * (offset - (len(which) - 1) / 2) for k in range(len(points))]
            bars = axis.barh(places, values, 0.9 * height, label=LABELS.get(name, name))
            axis.bar_label(bars, [f"{v:.1f}" if v else "" for v in values], padding=3, fontsize=8)
        axis.set_yticks(range(len(points)), [p["network"] for p in points])
        axis.grid(visible=False, axis="y")
        axis.invert_yaxis()
        axis.margins(x=0.1)
        rate = max(p["machine"]["gemm_flops_per_second"] for p in points) / 1e9
        band = max(p["machine"]["bandwidth_bytes_per_second"] for p in points) / 1e9
        axis.set_xlabel(f"audio-seconds trained in a CPU second (core: {rate:.0f} GFLOP/s GEMM, {band:.0f} GB/s)")
        axis.legend(loc="lower right")
        figure.savefig(path)


def main() -> None:
    """Measure the networks, print their figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", help="the src folder of an older version")
    parser.add_argument("--out", default="out/training")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--rounded", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.rounded)
        return
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    points = []
    for name in options.only:
        point = measure(name, options.rounds, options.against)
        points.append(point)
        rates = ", ".join(
            f"{which} {value:.1f} ({point['faster_than'][which]:.2f}x, {point['peak_bytes'][which] / 1e6:.0f} MB)"
            for which, value in point["audio_seconds_per_cpu_second"].items()
        )
        print(f"{name}: audio-seconds per CPU second: {rates}", flush=True)
        load = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores; CPU seconds of processes that take turns"
        out.with_suffix(".json").write_text(json.dumps({"measured": load, "networks": points}, indent=1) + "\n")
    plot(points, out.with_suffix(".png"))


if __name__ == "__main__":
    main()
