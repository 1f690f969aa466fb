"""What the shipped models are, from their ONNX files and the front matter of their cards."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from centaurus.runtime.modelfile import KEY, find_model, read_settings, shipped_models
from centaurus.runtime.onnxfile import inspect
from centaurus.tasks import TASKS

FENCE = "---"


@dataclass(frozen=True)
class Shipped:
    """A model that comes with the package. ``latency`` is in seconds, ``bytes`` the size of its ONNX file.

    ``score`` and ``licence`` are those of its card; ``command`` is the verb of the command line that runs it, and
    ``default`` whether that command takes it where no model is named.
    """

    name: str
    command: str
    default: bool
    rate: int
    latency: float
    bytes: int
    score: str
    licence: str

    def json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def describe_shipped() -> list[Shipped]:
    """Return the shipped models, those that commands take by default first."""
    models = [_describe(name) for name in shipped_models()]
    verbs = [task.command for task in TASKS.values()]
    return sorted(models, key=lambda model: (not model.default, verbs.index(model.command), model.name))


def _describe(name: str) -> Shipped:
    path = find_model(name)
    settings = read_settings(inspect(path).metadata[KEY], path)
    task, (card, _) = TASKS[settings.task], read_card(path.with_suffix(".md"))
    return Shipped(
        name=name,
        command=task.command,
        default=name == task.model,
        rate=settings.rate,
        latency=settings.latency / settings.rate,
        bytes=path.stat().st_size,
        score=card["score"],
        licence=card["license"],
    )


def read_card(path: str | os.PathLike[str]) -> tuple[dict[str, str], str]:
    """Return a model card's front matter, the ``key: value`` lines between its first two ``---``, and its text."""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    fences = [number for number, line in enumerate(lines) if line.strip() == FENCE]
    if len(fences) < 2 or fences[0] != 0:
        raise ValueError(f"{path}: a model card begins with key: value lines between two lines of {FENCE}")
    pairs = (line.partition(":") for line in lines[1 : fences[1]] if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}, "".join(lines[fences[1] + 1 :]).lstrip("\n")
