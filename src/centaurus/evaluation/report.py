"""Write an evaluation as files: metrics as JSON, a CSV table of clips and of groups, and a plot."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from centaurus.evaluation.live import Point
from centaurus.evaluation.metrics import Evaluation
from centaurus.system import plot_style, write_file
from centaurus.tasks import CLASSIFIER, DENOISER, RECOGNIZER, TASKS


def write(report: Evaluation, folder: Path) -> list[Path]:
    """Write all files of a report and return their paths; the plot only if matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "figures.json", json.dumps(report.json(), indent=2) + "\n")
    written = [folder / "figures.json"]
    task = TASKS[report.task]
    for name, rows in ((task.clips, report.rows), (task.groups, report.groups)):
        if rows:
            write_file(folder / name, table(rows))
            written.append(folder / name)
    return written + pictures(report, folder)


def save_curve(points: Sequence[Point], folder: Path, chosen: Point | None = None) -> list[Path]:
    """Write misses against false alarms an hour as ``curve.json`` and, if matplotlib is installed, ``curve.png``."""
    rows = [point._asdict() for point in points]
    write_file(folder / "curve.json", json.dumps(rows, indent=1) + "\n")
    try:
        import matplotlib.style
    except ModuleNotFoundError:
        return [folder / "curve.json"]
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    with matplotlib.style.context(plot_style()):
        figure = Figure(figsize=(6, 4))
        axes = figure.subplots()
    axes.plot([p.alarms_per_hour for p in points], [100 * p.misses for p in points], marker=".", color="#0072b2")
    if chosen is not None:
        axes.plot(chosen.alarms_per_hour, 100 * chosen.misses, marker="o", color="#d55e00")
        note = f"threshold {chosen.threshold:g}"
        place = (chosen.alarms_per_hour, 100 * chosen.misses)
        axes.annotate(note, place, xytext=(6, 6), textcoords="offset points")
    axes.set_xscale("symlog", linthresh=0.5)
    axes.set(xlabel="false alarms an hour", ylabel="misses, %", ylim=(0, None))
    figure.savefig(folder / "curve.png", dpi=110)
    return [folder / "curve.json", folder / "curve.png"]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV, with a column for every key that occurs."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def pictures(report: Evaluation, folder: Path) -> list[Path]:
    """Plot class confusions, SI-SDR by SNR, or the distribution of error rates; return the paths."""
    draw = {CLASSIFIER.name: _confusions, DENOISER.name: _by_snr, RECOGNIZER.name: _errors}.get(report.task)
    try:
        import matplotlib.style
    except ModuleNotFoundError:
        return []
    if draw is None:
        return []
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    with matplotlib.style.context(plot_style()):
        figure = Figure(figsize=(7, 5))
        draw(report, figure.subplots())
    path = folder / "plot.png"
    figure.savefig(path, dpi=110)
    return [path]


def _confusions(report: Evaluation, axes: Any) -> None:
    names = [group["class"] for group in report.groups]
    place = {name: k for k, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)))
    for row in report.rows:
        counts[place[row["class"]], place[row["predicted"]]] += 1
    axes.grid(visible=False)
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="predicted", ylabel="spoken", title=f"accuracy {report.figures['accuracy']:.1%}")


def _by_snr(report: Evaluation, axes: Any) -> None:
    groups = [group for group in report.groups if "si_sdr" in group]
    bands = [group["snr"] for group in groups]
    for name, label in (("si_sdr_before", "noisy"), ("si_sdr", "denoised")):
        axes.plot(bands, [group[name] for group in groups], marker="o", label=label)
    axes.set(xlabel="SNR of the noisy signal, dB", ylabel="SI-SDR, dB")
    axes.legend()


def _errors(report: Evaluation, axes: Any) -> None:
    for name in ("wer", "cer"):
        values = np.sort([row[name] for row in report.rows])
        axes.plot(values, np.arange(1, len(values) + 1) / len(values), label=f"{name} {report.figures[name]:.1%}")
    axes.set(xlabel="error rate", ylabel="share of utterances at or below")
    axes.legend()
