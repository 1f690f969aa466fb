"""Small models with random weights, exported once a test run: how the runtime treats them does not depend on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CLASSES = ("yes", "no", "background")
TOKENS = ("<blank>", "go", "stop", "left", "right")
_folder = TemporaryDirectory(prefix="centaurus-models-")


@cache
def network(task: str) -> Any:
    """A network for a task: denoiser, classifier or recognizer; "nameless" is a classifier without class names."""
    import torch

    from tests.models.small import narrow

    torch.manual_seed(7)
    rows = {"denoiser": "denoiser/hybrid", "recognizer": "recognizer/base"}
    net = narrow(rows.get(task, "kws-hybrid-2")).eval()
    net.settings |= {"classifier": {"classes": CLASSES}, "recognizer": {"tokens": TOKENS}}.get(task, {})
    return net


@cache
def exported(task: str) -> Path:
    """The model file of the network for a task."""
    from centaurus.export import export_onnx

    return export_onnx(network(task), Path(_folder.name) / f"{task}.onnx")


@cache
def session(task: str) -> Any:
    """A session of that model."""
    from centaurus.runtime import Session

    return Session(exported(task))
