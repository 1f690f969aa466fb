"""Exported models step by step on one pinned core, as a device would run them, against the bars set for them.

    python bench/realtime.py [--seconds 6] [--core 0] [--out docs/speed/realtime] [--page docs/speed.md]

Weights are random: they make no difference to the time. Writes JSON and a plot, and the table into the page.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch

from centaurus.cli.bench import time_torch
from centaurus.export.c import export_c
from centaurus.export.write import build as exported
from centaurus.models import build
from centaurus.runtime.native import find_compiler
from centaurus.runtime.session import Session
from centaurus.runtime.timing import summary, time_steps, weigh
from centaurus.system import plot_style

MARKS = "<!-- realtime -->\n", "<!-- /realtime -->\n"


class Case(NamedTuple):
    """A network at a chunk, and what is asked of it: real-time factor, p99 in ms, memory in MB."""

    network: str
    chunk: int
    rtf: float | None = None
    p99_ms: float | None = None
    memory_mb: float | None = None
    c_rtf: float | None = None  # of the compiled step


CASES = [
    Case("denoiser/hybrid", 256, rtf=0.06, p99_ms=4.0, memory_mb=40.0, c_rtf=0.01),
    Case("denoiser/hybrid", 2048),
    Case("denoiser/hybrid-slim", 256),
    Case("denoiser/spectral", 128, rtf=0.02, c_rtf=0.005),
    Case("kws-hybrid-2", 2048, rtf=0.005, c_rtf=0.001),
    Case("kws-hybrid-8", 2048),
    Case("recognizer/base", 2560, rtf=0.25),
]


def measure(case: Case, seconds: float, folder: Path) -> dict[str, Any]:
    """Figures of a case, with torch step by step on the same core beside them."""
    net = build(case.network).eval()
    path = folder / "model.onnx"
    path.write_bytes(exported(net.double(), case.chunk, case.network, None))
    memory = weigh(path)
    session = Session(path)
    spent = time_steps(session.process, case.chunk, seconds)
    compiled = None
    if find_compiler() is not None:
        export_c(net, folder / "model.c", case.chunk)
        native = Session(folder / "model.c", engine="c")
        compiled = summary(case.network, native.settings, time_steps(native.process, case.chunk, seconds)).json()
    timing = summary(case.network, session.settings, spent)
    eager = time_torch(net, path, seconds / 4)
    quantiles = np.quantile(1e3 * spent, np.linspace(0, 1, 201))
    return {
        "case": case._asdict(),
        "onnxruntime": timing.json(),
        "c": compiled,
        "torch": eager.json(),
        "memory_mb": None if memory is None else memory / 1e6,
        "file_mb": path.stat().st_size / 1e6,
        "quantiles_ms": [round(float(ms), 4) for ms in quantiles],
    }


def table(points: list[dict[str, Any]]) -> str:
    """The figures as Markdown; a bar stands behind the figure it is for."""
    lines = [
        "| network | chunk ms | RTF | p50 ms | p99 ms | max ms | memory MB | file MB | C RTF | torch RTF |",
        "|" + "---|" * 10,
    ]
    for point in points:
        case, t = point["case"], point["onnxruntime"]
        cells = [
            case["network"],
            f"{1e3 * t['chunk'] / t['rate']:g}",
            _barred(t["rtf"], case["rtf"], "{:.4f}"),
            f"{t['p50_ms']:.2f}",
            _barred(t["p99_ms"], case["p99_ms"], "{:.2f}"),
            f"{t['max_ms']:.2f}",
            "–" if point["memory_mb"] is None else _barred(point["memory_mb"], case["memory_mb"], "{:.0f}"),
            f"{point['file_mb']:.1f}",
            "–" if point["c"] is None else _barred(point["c"]["rtf"], case["c_rtf"], "{:.4f}"),
            f"{point['torch']['rtf']:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _barred(value: float, bar: float | None, form: str) -> str:
    text = form.format(value)
    return text if bar is None else f"{text} (≤ {bar:g})" if value <= bar else f"**{text}** (> {bar:g})"


def plot(points: list[dict[str, Any]], path: Path) -> None:
    """How long steps take, from the fastest to the slowest, as a share of the duration of their audio."""
    import matplotlib.pyplot as plt

    with plt.style.context(plot_style()):
        figure, axes = plt.subplots(figsize=(8, 3.8))
        for point in sorted(points, key=lambda p: -p["onnxruntime"]["rtf"]):
            t = point["onnxruntime"]
            duration = 1e3 * t["chunk"] / t["rate"]
            shares = 100 * np.array(point["quantiles_ms"]) / duration
            axes.plot(np.linspace(0, 100, len(shares)), shares, label=f"{t['name']}, {duration:g} ms")
        axes.set(yscale="log", xlabel="percentile of steps", ylabel="time of a step over its audio, %")
        axes.legend(title="network, chunk", loc="upper left", bbox_to_anchor=(1, 1))
        axes.axhline(100.0, color="black", linewidth=0.8)
        axes.annotate("real time", (0, 100), (0, 3), textcoords="offset points")
        figure.savefig(path)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--out", default="docs/speed/realtime")
    parser.add_argument("--page", default="docs/speed.md")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        points = [measure(case, options.seconds, Path(folder)) for case in CASES]
    out, page = Path(options.out), Path(options.page)
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"onnxruntime": onnxruntime.__version__, "torch": torch.__version__, "threads": 1}
    out.with_suffix(".json").write_text(json.dumps({"machine": machine, "cases": points}, indent=1))
    plot(points, out.with_suffix(".png"))
    print(table(points))
    text = page.read_text(encoding="utf-8")
    if all(mark in text for mark in MARKS):
        head, rest = text.split(MARKS[0])
        page.write_text(head + MARKS[0] + table(points) + MARKS[1] + rest.split(MARKS[1])[1], encoding="utf-8")


if __name__ == "__main__":
    main()
