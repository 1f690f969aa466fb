"""Time exported models step by step on one pinned core, and compare with the limits set for them.

    python bench/realtime.py [--seconds 6] [--core 0] [--folder F] [--out docs/speed/realtime] [--page docs/speed.md]

Times are CPU time of the one thread, on which other work on the machine has little influence; --wall measures
wall-clock time. Weights are random, which does not change the time. Models are exported and compiled before anything is
timed, into --folder if it is given, from which a later run takes them. Writes JSON and a plot, and the table into the
page.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch

from centaurus.cli.networks import time_torch
from centaurus.export.c import export_c
from centaurus.export.write import build as exported
from centaurus.models import build
from centaurus.native.build import find_compiler
from centaurus.runtime.measure import summary, time_steps, weigh
from centaurus.runtime.session import Session
from centaurus.system import plot_style

COMPILED = 20e6  # bytes of an ONNX file up to which the step is compiled: its C file is ten times as large
COLOURS = 7  # in the style's cycle
MARKS = "<!-- realtime -->\n", "<!-- /realtime -->\n"


class Case(NamedTuple):
    """A network, its chunk in samples, and limits: real-time factor, p99 in ms, memory in MB."""

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
    Case("denoiser/spectral-32", 256, rtf=0.02, c_rtf=0.005),
    Case("kws-hybrid-2", 2048, rtf=0.005, c_rtf=0.001),
    Case("kws-hybrid-8", 2048),
    Case("recognizer/base", 2560, rtf=0.25),
]


def prepare(case: Case, folder: Path) -> Path:
    """Return the folder with a case's ONNX file and, unless that takes minutes, its compiled step in C."""
    place = folder / f"{case.network.replace('/', '-')}-{case.chunk}"
    if not (place / "model.onnx").exists():
        net = build(case.network).eval().double()
        data = exported(net, case.chunk, case.network, None)
        place.mkdir(parents=True, exist_ok=True)
        if find_compiler() is not None and len(data) < COMPILED:
            export_c(net, place / "model.c", case.chunk)
            Session(place / "model.c", engine="c")
        (place / "model.onnx").write_bytes(data)
    return place


class Opened:
    """A case with everything that is timed loaded: onnxruntime, the compiled step if there is one, and torch."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.path = case, folder / "model.onnx"
        self.memory = weigh(self.path)
        self.session = Session(self.path)
        self.native = Session(folder / "model.c", engine="c") if (folder / "model.c").exists() else None
        self.net = build(case.network).eval()

    def measure(self, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
        """Return the figures of the case."""
        name, settings = self.case.network, self.session.settings
        spent = time_steps(self.session.process, self.case.chunk, seconds, clock)
        compiled = None
        if self.native is not None:
            steps = time_steps(self.native.process, self.case.chunk, seconds, clock)
            compiled = summary(name, self.native.settings, steps).json()
        quantiles = np.quantile(1e3 * spent, np.linspace(0, 1, 201))
        return {
            "case": self.case._asdict(),
            "onnxruntime": summary(name, settings, spent).json(),
            "c": compiled,
            "torch": time_torch(self.net, settings, seconds / 4, clock).json(),
            "memory_mb": None if self.memory is None else self.memory / 1e6,
            "file_mb": self.path.stat().st_size / 1e6,
            "quantiles_ms": [round(float(ms), 4) for ms in quantiles],
        }


def table(points: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table, each with its limit if it has one."""
    lines = [
        "| network | chunk ms | RTF | p50 ms | p99 ms | max ms | memory MB | file MB | C RTF | torch RTF |",
        "|" + "---|" * 10,
    ]
    for point in points:
        case, t = point["case"], point["onnxruntime"]
        cells = [
            case["network"],
            f"{1e3 * t['chunk'] / t['rate']:g}",
            _limited(t["rtf"], case["rtf"], "{:.4f}"),
            f"{t['p50_ms']:.2f}",
            _limited(t["p99_ms"], case["p99_ms"], "{:.2f}"),
            f"{t['max_ms']:.2f}",
            "–" if point["memory_mb"] is None else _limited(point["memory_mb"], case["memory_mb"], "{:.0f}"),
            f"{point['file_mb']:.1f}",
            "–" if point["c"] is None else _limited(point["c"]["rtf"], case["c_rtf"], "{:.4f}"),
            f"{point['torch']['rtf']:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _limited(value: float, limit: float | None, form: str) -> str:
    text = form.format(value)
    return text if limit is None else f"{text} (≤ {limit:g})" if value <= limit else f"**{text}** (> {limit:g})"


def plot(points: list[dict[str, Any]], path: Path) -> None:
    """Plot the time of steps over the duration of their audio, by percentile."""
    import matplotlib.pyplot as plt

    with plt.style.context(plot_style()):
        figure, axes = plt.subplots(figsize=(8, 3.8))
        for k, point in enumerate(sorted(points, key=lambda p: -p["onnxruntime"]["rtf"])):
            t = point["onnxruntime"]
            duration = 1e3 * t["chunk"] / t["rate"]
            shares = 100 * np.array(point["quantiles_ms"]) / duration
            line = "-" if k < COLOURS else "--"
            axes.plot(np.linspace(0, 100, len(shares)), shares, line, label=f"{t['name']}, {duration:g} ms")
        axes.set(yscale="log", xlabel="percentile of steps", ylabel="time of a step over its audio, %")
        axes.legend(title="network, chunk", loc="upper left", bbox_to_anchor=(1, 1))
        axes.axhline(100.0, color="black", linewidth=0.8)
        axes.annotate("real time", (0, 100), (0, 3), textcoords="offset points")
        figure.savefig(path)


def main() -> None:
    """Measure the cases, print their table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--out", default="docs/speed/realtime")
    parser.add_argument("--page", default="docs/speed.md")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        cases = [Opened(case, prepare(case, options.folder or Path(temporary))) for case in CASES]
        clock = time.perf_counter if options.wall else time.thread_time
        points = [case.measure(options.seconds, clock) for case in cases]
    out, page = Path(options.out), Path(options.page)
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"onnxruntime": onnxruntime.__version__, "torch": torch.__version__, "threads": 1, "wall": options.wall}
    out.with_suffix(".json").write_text(json.dumps({"machine": machine, "cases": points}, indent=1))
    plot(points, out.with_suffix(".png"))
    print(table(points))
    text = page.read_text(encoding="utf-8")
    if all(mark in text for mark in MARKS):
        head, rest = text.split(MARKS[0])
        page.write_text(head + MARKS[0] + table(points) + MARKS[1] + rest.split(MARKS[1])[1], encoding="utf-8")


if __name__ == "__main__":
    main()
