"""``centaurus eval``: how well a model does on a folder of recordings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centaurus.cli import output
from centaurus.cli.networks import check_file

if TYPE_CHECKING:
    from centaurus.evaluation.metrics import Evaluation, Model

PIECE = 1 << 14  # lengths are rounded up to this many samples: few plans, and what comes later changes nothing before


def evaluate(
    model: Annotated[str, typer.Argument(help="A model file (.safetensors or .onnx) or a shipped model's name.")],
    data: Annotated[Path, typer.Option(help="A folder of recordings, in any layout that is known.")],
    split: Annotated[str | None, typer.Option(help="train, val or test; by default test, or val without one.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="So many clips, spread over all; 0 for all.")] = 0,
    noise: Annotated[Path | None, typer.Option(help="Noise to mix speech with.")] = None,
    others: Annotated[
        Path | None, typer.Option(help="For keywords: sound without them, to count false alarms in.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for tables and a plot.")] = None,
    json: output.Json = False,
) -> None:
    """Measure a model on a folder of recordings.

    Accuracy; PESQ, STOI, SI-SDR and DNSMOS; or word and character error rates.
    """
    from centaurus.evaluation.metrics import evaluate as measure
    from centaurus.evaluation.report import write

    judged = engine(model)
    with output.progress_bar(f"measuring {Path(model).name}", None, "clips") as done:
        report = measure(_counted(judged, done), data, split, limit, noise)
    written = write(report, out) if out is not None else []
    if others is not None:
        with output.progress_bar("counting false alarms", None):
            written += _live(judged, report, data, split, noise, others, out)
    if json:
        output.show_json(report.json())
        return
    _show(report)
    for path in written:
        output.show(path)


def _live(
    judged: Model, report: Evaluation, data: Path, split: str | None, noise: Path | None, others: Path, out: Path | None
) -> list[Path]:
    """Misses against false alarms in continuous streams: points in the report, the curve in the folder."""
    from centaurus.data import open_corpus
    from centaurus.decode.keywords import Smoothing, Spotting
    from centaurus.evaluation import live
    from centaurus.evaluation.metrics import clips
    from centaurus.evaluation.report import save_curve

    if judged.listen is None or judged.task != "classifier":
        raise ValueError(f"--others counts false alarms of keyword spotters; this model is a {judged.task}")
    smoothing = Smoothing() if judged.window is None else Smoothing(window=judged.window)
    spotting = Spotting(judged.classes, judged.seconds, smoothing)
    sounds = None if noise is None else clips(noise, ("noise",), judged.rate, split)
    quiet = open_corpus(others, None, None, judged.rate)
    points = live.measure(judged.listen, spotting, clips(data, ("word",), judged.rate, split), quiet, sounds)
    for alarms in (0.5, 1.0, 10.0):
        best = live.threshold_for(points, alarms)
        report.figures[f"misses_at_{alarms:g}_alarms_per_hour"] = best.misses
        report.figures[f"threshold_for_{alarms:g}_alarms_per_hour"] = best.threshold
        report.figures[f"most_alarms_per_hour_at_{best.threshold:g}"] = best.at_most
    return save_curve(points, out) if out is not None else []


def _counted(model: Model, done: Callable[[float], object]) -> Model:
    """The model, which moves the bar with every clip."""

    def run(x: Any) -> Any:
        frames = model.run(x)
        done(1)
        return frames

    return replace(model, run=run)


def engine(model: str) -> Model:
    """The model to measure, in torch or in onnxruntime."""
    if model.endswith(".onnx"):
        return _session(model)
    check_file(model)
    return _network(model)


def _session(model: str) -> Model:
    import numpy as np

    from centaurus.evaluation.metrics import Model
    from centaurus.runtime import Session

    session = Session(model)
    known = session.settings

    def run(x: Any) -> Any:
        pieces = [session.process(np.pad(x, (0, known.delay))), session.flush()]
        return np.concatenate(pieces, axis=-1)[..., known.frames(known.delay) :]

    def listen() -> Any:
        session.reset()
        return session.process

    return Model(
        known.task, known.rate, known.ratio, known.classes or (), known.tokens or (), run, listen, known.window
    )


def _network(model: str) -> Model:
    import torch

    from centaurus.evaluation.metrics import Model
    from centaurus.models import load_network
    from centaurus.nn import Stream
    from centaurus.tasks import TASKS

    net = load_network(model)
    known = net.settings

    @torch.inference_mode()
    def run(x: Any) -> Any:
        audio = torch.nn.functional.pad(torch.from_numpy(x), (0, -len(x) % PIECE))
        return net.aligned(audio[None, None])[0, :, : net.frames(len(x))].numpy()

    meaning = TASKS[net.task].outputs
    if meaning and not known.get(meaning):
        raise ValueError(f"{model} does not say what its {meaning} are: its outputs cannot be read")
    rate, classes, tokens = int(known["sample_rate"]), known.get("classes", ()), known.get("tokens", ())

    def listen() -> Any:
        stream = Stream(net)
        return torch.inference_mode()(lambda x: stream(torch.from_numpy(x)[None, None])[0].numpy())

    return Model(net.task, rate, net.ratio, classes, tokens, run, listen, known.get("window"))


def _show(report: Evaluation) -> None:
    output.show_table(["figure", ""], [[name, cell] for name, cell in _cells(report.figures).items()])
    if report.groups:
        rows = [_cells(group) for group in report.groups]
        names = list(dict.fromkeys(name for row in rows for name in row))
        output.show_table(names, [[row.get(name, "") for name in names] for row in rows])
    output.show(f"{len(report.rows)} clips")
    for name, why in list(report.missing.items())[:10]:
        output.show(f"not measured: {name}: {why}")


def _cells(figures: dict[str, Any]) -> dict[str, str]:
    """Figures as text; one that was also taken before shows both, such as 1.9 → 2.6."""
    after = {name: value for name, value in figures.items() if not name.endswith("_before")}
    before = {name: f"{_number(figures[f'{name}_before'])} → " for name in after if f"{name}_before" in figures}
    return {name: before.get(name, "") + _number(value) for name, value in after.items()}


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
