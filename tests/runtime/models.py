"""Small models with random weights, exported once a test run: how the runtime treats them does not depend on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

CLASSES = ("yes", "no", "background")
TOKENS = ("<blank>", "go", "stop", "left", "right")
_folder = TemporaryDirectory(prefix="centaurus-models-")


@cache
def exported(task: str) -> Path:
    """A model file for a task: denoiser, classifier or recognizer; "nameless" is a classifier without class names."""
    import torch

    from centaurus.export import export_onnx
    from tests.models.small import narrow

    torch.manual_seed(7)
    rows = {"denoiser": "denoiser/hybrid", "recognizer": "recognizer/base"}
    net = narrow(rows.get(task, "kws-hybrid-2")).eval()
    net.settings |= {"classifier": {"classes": CLASSES}, "recognizer": {"tokens": TOKENS}}.get(task, {})
    return export_onnx(net, Path(_folder.name) / f"{task}.onnx")
