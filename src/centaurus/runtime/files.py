"""Where a model's file is: a path, or the name of one that comes with the package."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from centaurus.runtime.settings import SessionError

SUFFIX = ".onnx"


def shipped_models() -> list[str]:
    """The names of the models that come with the package."""
    folder = files("centaurus") / "pretrained"
    found = [x.name for x in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX))


def find_model(model: str | os.PathLike[str]) -> Path:
    """The path of a model given as a path or as a shipped name."""
    path = Path(model)
    if path.is_file():
        return path
    if str(model) in shipped_models():
        return Path(str(files("centaurus") / "pretrained" / f"{model}{SUFFIX}"))
    known = ", ".join(shipped_models()) or "none"
    raise SessionError(f"there is no model file {os.fspath(model)!r:.200}, and no shipped model of that name ({known})")
