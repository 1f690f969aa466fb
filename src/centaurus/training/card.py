"""The model card of a run, in Markdown, from what the run knows."""

from __future__ import annotations

import json
from typing import Any

from centaurus.models.count import count
from centaurus.models.network import Network
from centaurus.training.run import Run

PURPOSE = {
    "classifier": "Keyword spotting: class logits at every frame of a stream.",
    "denoiser": "Speech denoising: clean samples from noisy ones, as they come.",
    "recognizer": "Speech recognition: token logits at every frame of a stream, for CTC decoding.",
}


def card(run: Run, net: Network) -> str:
    """What the model is, what it learnt from, how it was trained, and how it does on the validation examples."""
    described, rate = run.description(), int(net.settings["sample_rate"])
    report = count(net, rate)
    checks = [record for record in run.records() if record["kind"] == "validation"]
    best = max(checks, key=lambda record: record.get("best", False) * record["step"], default={})
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
        PURPOSE[net.task],
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
