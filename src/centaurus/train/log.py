"""What a run reports: metrics as JSON lines and on TensorBoard, and the model card."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from centaurus.audio.spectrogram import Samples, spectrogram
from centaurus.models.count import count
from centaurus.models.network import Network
from centaurus.tasks import TASKS
from centaurus.train.objectives import Example
from centaurus.train.run import Run, Standing

SECONDS = 10  # of audio for each example


class Board:
    """A TensorBoard folder, written from the step given; records after it, from before a crash, are hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def scalars(self, kind: str, record: dict[str, Any]) -> None:
        """Write each number of a record under its kind."""
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                self.writer.add_scalar(f"{kind}/{name}", value, record["step"])

    def examples(self, examples: Sequence[Example], rate: int, step: int) -> None:
        """Write signals and their spectrograms."""
        for name, samples in examples:
            shown = samples[: SECONDS * rate].detach().float().cpu()
            self.writer.add_audio(name, shown.clamp(-1, 1)[None], step, sample_rate=rate)
            self.writer.add_image(name, picture(shown.numpy()), step)

    def close(self) -> None:
        """Write what is buffered."""
        self.writer.close()


def picture(x: Samples, floor: float = 80.0) -> Samples:
    """Return a grey spectrogram (1, frequency, time), high frequencies on top, scaled from below its peak to it."""
    decibels = spectrogram(x)
    return (1 + (decibels - decibels.max()).clip(-floor, 0) / floor)[None, ::-1]


class Watcher(Protocol):
    """Callbacks of a run in progress."""

    def prepared(self, notes: dict[str, Any], left_out: dict[str, str]) -> None:
        """Called before the first step, with notes on the data and the files that were left out, with the reasons."""

    def trained(self, record: dict[str, Any]) -> None:
        """Called after a step that was logged."""

    def validated(self, record: dict[str, Any], best: bool) -> None:
        """Called after a validation."""


class Diary:
    """Writes figures to the log, to TensorBoard and to a watcher. Equal runs have equal lines, but for the times."""

    def __init__(self, run: Run, watcher: Watcher | None, standing: Standing) -> None:
        self.run, self.watcher = run, watcher
        self.board = Board(run.folder / "tensorboard", standing.step)
        self.since, self.audio = standing.seconds, 0.0

    def count_audio(self, seconds: float) -> None:
        """Add the audio of a step, over all processes."""
        self.audio += seconds

    def trained(self, standing: Standing, place: dict[str, float], terms: dict[str, float]) -> None:
        """Log a step, with the speed since the last one."""
        speed = self.audio / max(standing.seconds - self.since, 1e-9)
        times = {"seconds": round(standing.seconds, 3), "audio_per_second": round(speed, 2)}
        record = {"kind": "train", "step": standing.step, **place, **terms, **times}
        self.since, self.audio = standing.seconds, 0.0
        self.run.log(record)
        self.board.scalars("train", record)
        if self.watcher is not None:
            self.watcher.trained(record)

    def validated(self, standing: Standing, figures: dict[str, float], best: bool) -> None:
        """Log a validation."""
        place = {"kind": "validation", "step": standing.step, "best": best}
        record = {**place, **figures, "seconds": round(standing.seconds, 3)}
        self.run.log(record)
        self.board.scalars("validation", record)
        if self.watcher is not None:
            self.watcher.validated(record, best)

    def examples(self, examples: Sequence[Example], rate: int, step: int) -> None:
        """Log signals of a validation."""
        self.board.examples(examples, rate, step)

    def close(self) -> None:
        """Write what is buffered."""
        self.board.close()


def card(run: Run, net: Network) -> str:
    """Return the model card: its size and cost, its data, its training, and its figures on the validation examples."""
    described, rate = run.description(), int(net.settings["sample_rate"])
    report = count(net, rate)
    checks, best = run.validations(), run.best()
    facts = {
        "parameters": f"{report.parameters:,} counted, {report.tensors:,} numbers in the file",
        "cost": f"{report.flops_per_second / 1e6:.1f} MFLOPs for each second of audio",
        "latency": f"{report.latency} samples ({1000 * report.latency / rate:g} ms) at {rate:,} Hz",
        "state": f"{report.state_floats:,} numbers",
    }
    if "classes" in net.settings:
        facts["classes"] = ", ".join(net.settings["classes"])
    if "tokens" in net.settings:
        facts["tokens"] = f"{len(net.settings['tokens']):,}"
    parts = [
        f"# {described.get('recipe', net.task)}: {described['settings'].get('network', net.task)}",
        TASKS[net.task].purpose,
        _table("", facts),
        "## Validation",
        f"The averaged weights at step {best.get('step', 0)}, the best of {len(checks)} validations:",
        _table("figure", _figures(best)),
        "## Data",
        f"`{described.get('data', '')}`",
        _table("", run.notes()),
        "## Training",
        f"{checks[-1]['step'] if checks else 0} steps, {_minutes(checks)} minutes. Every setting:",
        _table("setting", described["settings"]),
        "## Limits",
        "The figures above are for data like the validation examples, and only for those. Measure on recordings of "
        "your own before you rely on it: `centaurus eval best.safetensors --data FOLDER`.",
    ]
    return "\n\n".join(parts) + "\n"


def _figures(record: dict[str, Any]) -> dict[str, Any]:
    hidden = ("kind", "step", "seconds", "best")
    return {name: f"{value:.4g}" for name, value in record.items() if name not in hidden}


def _minutes(checks: list[dict[str, Any]]) -> str:
    return f"{checks[-1]['seconds'] / 60:.1f}" if checks else "0"


def _table(head: str, rows: dict[str, Any]) -> str:
    shown = [f"| {name} | {value if isinstance(value, str) else json.dumps(value)} |" for name, value in rows.items()]
    return "\n".join([f"| {head} | |", "|---|---|", *shown])
