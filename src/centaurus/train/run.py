"""A run folder that describes itself: configuration, environment, log, checkpoints, models and card.

config.json        the recipe with every setting          environment.json   versions, machine, git revision
data.json          what was found, and what was left out  log.jsonl          a line for every figure taken
tensorboard/       the same, with audio and spectrograms  checkpoints/       step-N: all that resuming needs
best.safetensors   the averaged weights that did best     last.safetensors   those of the newest checkpoint
card.md            what the model is and how it does
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from centaurus.system import write_file

PACKAGES = ("centaurus-ssm", "torch", "accelerate", "numpy", "soundfile", "soxr", "tokenizers", "safetensors")


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why, and where the last good checkpoint is."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands: what resuming needs besides weights, optimiser and random numbers."""

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    validations: int = 0
    processes: int = 1


class Run:
    """The files of one run. Every file appears whole or not at all, but for the log, which grows by whole lines."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @classmethod
    def create(cls, folder: str | os.PathLike[str], description: dict[str, Any]) -> Run:
        """A new run folder. One that already holds a run is an error: resume it or take another name."""
        run = cls(folder)
        if (run.folder / "config.json").exists():
            raise ValueError(f"{run.folder} already holds a run: resume it with --resume {run.folder}, or choose --out")
        run.folder.mkdir(parents=True, exist_ok=True)
        run.write_json("config.json", description)
        run.write_json("environment.json", environment())
        return run

    @classmethod
    def existing(cls, folder: str | os.PathLike[str]) -> Run:
        """A run that was started before."""
        run = cls(folder)
        if not (run.folder / "config.json").is_file():
            raise ValueError(f"{run.folder} is not a run folder: it has no config.json")
        return run

    def description(self) -> dict[str, Any]:
        """The recipe, the data and every setting, as they were given at the start."""
        found: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        return found

    def notes(self) -> dict[str, Any]:
        """What was found in the data."""
        path = self.folder / "data.json"
        found: dict[str, Any] = json.loads(path.read_text())["notes"] if path.exists() else {}
        return found

    def write_json(self, name: str, data: Any) -> None:
        """A JSON file of the run, whole or not at all."""
        self.write_text(name, json.dumps(data, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """A text file of the run, whole or not at all."""
        write_file(self.folder / name, text)

    def log(self, record: dict[str, Any]) -> None:
        """One more line of the log."""
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> Iterator[dict[str, Any]]:
        """The log so far; a last line that was cut off is left out."""
        path = self.folder / "log.jsonl"
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def rewind(self, step: int) -> None:
        """Forget what was logged after a step: the run will log it again."""
        kept = [json.dumps(record) for record in self.records() if record["step"] <= step]
        self.write_text("log.jsonl", "".join(line + "\n" for line in kept))

    @property
    def checkpoints(self) -> Path:
        """Where the checkpoints are."""
        return self.folder / "checkpoints"

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint."""
        found = sorted(self.checkpoints.glob("step-*")) if self.checkpoints.is_dir() else []
        return found[-1] if found else None

    @property
    def unfinished(self) -> Path:
        """Where the next checkpoint is written before it has its name."""
        return self.checkpoints / "unfinished"

    def begin_checkpoint(self) -> None:
        """An empty folder for the next checkpoint; what an earlier attempt left is cleared away."""
        shutil.rmtree(self.unfinished, ignore_errors=True)
        self.unfinished.mkdir(parents=True)

    def finish_checkpoint(self, standing: Standing) -> Path:
        """Give the written checkpoint its name, and only then remove the older ones."""
        folder = self.unfinished
        write_file(folder / "standing.json", json.dumps(asdict(standing)))
        for path in folder.iterdir():
            _sync(path)
        named = self.checkpoints / f"step-{standing.step:09d}"
        shutil.rmtree(named, ignore_errors=True)
        os.replace(folder, named)
        _sync(self.checkpoints)
        for older in self.checkpoints.glob("step-*"):
            if older != named:
                shutil.rmtree(older)
        return named

    def standing(self, checkpoint: Path) -> Standing:
        """Where the run stood at a checkpoint."""
        return msgspec.json.decode((checkpoint / "standing.json").read_bytes(), type=Standing)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def environment() -> dict[str, Any]:
    """What a run was made with: versions, machine, command and source revision."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "revision": revision(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def revision() -> str | None:
    """The git revision of the source, with ``+changes`` where files differ from it; None for an installed package."""
    here = Path(__file__).parent
    try:
        found = _git(here, "rev-parse", "HEAD")
        return found + ("+changes" if _git(here, "status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
