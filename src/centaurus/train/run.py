"""A run folder that describes itself: configuration, environment, log, checkpoints, models and card.

config.json        the recipe with every setting          environment.json   versions, machine, git revision
data.json          notes on the data, and files left out  clips.json         a fingerprint of every clip
log.jsonl          a line for every logged step
tensorboard/       the same, with audio and spectrograms  checkpoints/       step-N: all that resuming needs
best.safetensors   EMA weights of the best validation     last.safetensors   those of the newest checkpoint
card.md            the model card with its metrics        live.json          of a wake phrase: its threshold, in streams
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from centaurus.audio.signal import Samples, spectrogram
from centaurus.models.network import Network, count
from centaurus.system import AnyPath, FileError, OutputError, installed_version, write_file
from centaurus.tasks import TASKS
from centaurus.train.objectives import Example

CHECKSUMS, STANDING = "checksums.json", "standing.json"
PACKAGES = ("centaurus-ssm", "torch", "accelerate", "numpy", "soundfile", "soxr", "tokenizers", "safetensors")
SECONDS = 10  # of audio for each example
LIVE = "live.json"
HIDDEN = ("kind", "step", "seconds", "best")  # what a record of a validation has besides its figures


class TrainingError(RuntimeError):
    """Training failed; the message says why, and where the last good checkpoint is."""


class DiskError(TrainingError):
    """The files of a run cannot be written, as on a full disk."""


class RunError(FileError, ValueError):
    """A run folder that cannot be used: damaged, incomplete, in use, or not a run."""


@dataclass(frozen=True)
class Standing:
    """The state of a run besides weights, optimiser and RNG states."""

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    validations: int = 0
    processes: int = 1


class Run:
    """The files of one run. Every file is written atomically, except the log, which grows by whole lines."""

    def __init__(self, folder: AnyPath) -> None:
        self.folder = Path(folder)
        self._made: list[Path] = []  # folders that this process created, innermost first

    @classmethod
    def create(cls, folder: AnyPath, description: dict[str, Any]) -> Run:
        """Create a run folder. One that is not empty is an error: resume the run, or choose another name."""
        run = cls(folder)
        if (run.folder / "config.json").exists():
            raise OutputError(f"already holds a run: resume it with --resume {run.folder}, or choose --out", run.folder)
        try:
            if run.folder.exists() and any(run.folder.iterdir()):
                raise OutputError("is not empty and not a run: name another folder with --out", run.folder)
            made = [path for path in (run.folder, *run.folder.parents) if not path.exists()]
            run.folder.mkdir(parents=True, exist_ok=True)
        except NotADirectoryError as error:
            raise OutputError("cannot be a folder: there is a file of that name", run.folder) from error
        run._made = made or [run.folder]
        run.write_json("config.json", description)
        run.write_json("environment.json", environment())
        return run

    def discard(self) -> None:
        """Remove a folder that this process made, and its new parent folders, if nothing was trained in it."""
        if not self._made or self.last_checkpoint() is not None or next(self.records(), None) is not None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in self._made[1:]:
            with suppress(OSError):  # other files have been added
                path.rmdir()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes, where the system supports it (Linux, macOS)."""
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows
            yield
            return
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise RunError("is in use by another training process", self.folder) from error
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            os.close(handle)

    @classmethod
    def existing(cls, folder: AnyPath) -> Run:
        """Return a run that was started before."""
        run = cls(folder)
        if not (run.folder / "config.json").is_file():
            raise RunError("is not a run folder: it has no config.json", run.folder)
        return run

    def description(self) -> dict[str, Any]:
        """Return the recipe, the data and every setting, as at the start of the run."""
        return self.read_json("config.json")

    def notes(self) -> dict[str, Any]:
        """Return the notes that were written about the data."""
        notes = self.read_json("data.json").get("notes", {}) if (self.folder / "data.json").exists() else {}
        if not isinstance(notes, dict):
            raise RunError("is damaged: its notes are not an object", self.folder / "data.json")
        return notes

    def clips(self) -> dict[str, str] | None:
        """Return the fingerprints of the clips it is trained on; None for a run that has not begun."""
        return self.read_json("clips.json") if (self.folder / "clips.json").exists() else None

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the contents of a JSON file of the run; the error for a damaged one names it."""
        path = self.folder / name
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"is damaged: {error}", path) from error
        if not isinstance(data, dict):
            raise RunError("is damaged: it should hold an object", path)
        return data

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file of the run, atomically."""
        self.write_text(name, json.dumps(data, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run, atomically."""
        write_file(self.folder / name, text)

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to the log."""
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the log, up to a line that is damaged, as the last one is if it was cut off."""
        path = self.folder / "log.jsonl"
        for line in path.read_bytes().splitlines() if path.exists() else ():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                return
            if not isinstance(record, dict) or not isinstance(record.get("step"), int) or "kind" not in record:
                return
            yield record

    def validations(self) -> list[dict[str, Any]]:
        """Return the records of the validations."""
        return [record for record in self.records() if record["kind"] == "validation"]

    def best(self) -> dict[str, Any]:
        """Return the record of the validation that best.safetensors is from; empty before the first."""
        return next((record for record in reversed(self.validations()) if record.get("best")), {})

    def rewind(self, step: int) -> None:
        """Discard what was logged after a step: the run will log it again."""
        kept = [json.dumps(record) for record in self.records() if record["step"] <= step]
        self.write_text("log.jsonl", "".join(line + "\n" for line in kept))

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    def last_checkpoint(self) -> Path | None:
        """Return the newest complete checkpoint, if there is one."""
        written = sorted(self.checkpoints.glob("step-*")) if self.checkpoints.is_dir() else []
        return written[-1] if written else None

    @property
    def unfinished(self) -> Path:
        """The folder in which the next checkpoint is written before it has its name."""
        return self.checkpoints / "unfinished"

    def begin_checkpoint(self) -> None:
        """Make an empty folder for the next checkpoint; remove one that an earlier attempt left."""
        shutil.rmtree(self.unfinished, ignore_errors=True)
        self.unfinished.mkdir(parents=True)

    def finish_checkpoint(self, standing: Standing) -> Path:
        """Give the written checkpoint its name, and only then remove the older ones."""
        folder = self.unfinished
        write_file(folder / STANDING, json.dumps(asdict(standing)))
        write_file(folder / CHECKSUMS, json.dumps(_checksums(folder)))
        for path in folder.rglob("*"):
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
        """Return the state of the run at a checkpoint, after comparing its files with their checksums."""
        expected = self.read_json(str((checkpoint / CHECKSUMS).relative_to(self.folder)))
        for name in expected:
            if not (checkpoint / name).is_file():
                raise RunError(f"is damaged: {name} is missing", checkpoint)
        actual = _checksums(checkpoint)
        wrong = [name for name in sorted(actual) if actual[name] != expected.get(name)]
        if wrong:
            raise RunError(f"is damaged: wrong checksum of {', '.join(wrong)}", checkpoint)
        try:
            return msgspec.json.decode((checkpoint / STANDING).read_bytes(), type=Standing)
        except (OSError, msgspec.DecodeError) as error:
            raise RunError(f"is damaged: {STANDING}: {error}", checkpoint) from error


def _checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in a checkpoint but the list of them."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != CHECKSUMS:
            with path.open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


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
    """Return the environment of a run: versions, machine, command and source revision."""
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: version for name in PACKAGES if (version := installed_version(name))},
        "revision": revision(),
    }


def revision() -> str | None:
    """Return the git revision of the source, with ``+changes`` if files differ; None for an installed package."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        return commit + ("+changes" if _git(here, "status", "--porcelain", "--untracked-files=no", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


class Watcher(Protocol):
    """Callbacks of a run in progress."""

    def prepared(self, notes: dict[str, Any], left_out: dict[str, str]) -> None:
        """Called before the first step, with notes on the data and the files that were left out, with the reasons."""

    def trained(self, record: dict[str, Any]) -> None:
        """Called after a step that was logged."""

    def validated(self, record: dict[str, Any], best: bool) -> None:
        """Called after a validation."""


class Logger:
    """Writes figures to the log, to TensorBoard and to a watcher. Equal runs have equal lines, but for the times."""

    def __init__(self, run: Run, watcher: Watcher | None, standing: Standing) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.watcher = run, watcher
        # Records after this step are from before a crash, and are hidden.
        self.board = SummaryWriter(str(run.folder / "tensorboard"), purge_step=standing.step + 1)
        self.since, self.audio = standing.seconds, 0.0

    def count_audio(self, seconds: float) -> None:
        """Count the audio of a step, for the speed."""
        self.audio += seconds

    def trained(self, standing: Standing, place: dict[str, float], terms: dict[str, float]) -> None:
        """Log a step, with the speed since the last one."""
        speed = self.audio / max(standing.seconds - self.since, 1e-9)
        times = {"seconds": round(standing.seconds, 3), "audio_per_second": round(speed, 2)}
        record = {"kind": "train", "step": standing.step, **place, **terms, **times}
        self.since, self.audio = standing.seconds, 0.0
        self._write(record)
        if self.watcher is not None:
            self.watcher.trained(record)

    def validated(self, standing: Standing, figures: dict[str, float], best: bool) -> None:
        """Log a validation."""
        place = {"kind": "validation", "step": standing.step, "best": best}
        record = {**place, **figures, "seconds": round(standing.seconds, 3)}
        self._write(record)
        if self.watcher is not None:
            self.watcher.validated(record, best)

    def _write(self, record: dict[str, Any]) -> None:
        self.run.log(record)
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                self.board.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def examples(self, examples: Sequence[Example], rate: int, step: int) -> None:
        """Write signals of a validation and their spectrograms to TensorBoard."""
        for name, samples in examples:
            shown = samples[: SECONDS * rate].detach().float().cpu()
            self.board.add_audio(name, shown.clamp(-1, 1)[None], step, sample_rate=rate)
            self.board.add_image(name, picture(shown.numpy()), step)

    def close(self) -> None:
        """Write what is buffered."""
        self.board.close()


def picture(x: Samples, floor: float = 80.0) -> Samples:
    """Return a grey spectrogram (1, frequency, time), high frequencies on top, scaled from below its peak to it."""
    decibels = spectrogram(x)
    return (1 + (decibels - decibels.max()).clip(-floor, 0) / floor)[None, ::-1]


def card(run: Run, net: Network) -> str:
    """Return the model card: its size and cost, its data, its training, and its figures on the validation examples."""
    described, rate = run.description(), int(net.settings["sample_rate"])
    report = count(net, rate)
    checks, best = run.validations(), run.best()
    last = checks[-1] if checks else {"step": 0, "seconds": 0.0}
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
        _table("figure", {name: f"{value:.4g}" for name, value in best.items() if name not in HIDDEN}),
        "## Data",
        f"`{described.get('data', '')}`",
        _table("", run.notes()),
        "## Training",
        f"{last['step']} steps, {last['seconds'] / 60:.1f} minutes. Every setting:",
        _table("setting", described["settings"]),
        "## Limits",
        "The figures above are for data like the validation examples, and only for those. Measure on recordings of "
        "your own before you rely on it: `centaurus eval best.safetensors --data FOLDER`.",
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: str, rows: dict[str, Any]) -> str:
    shown = [f"| {name} | {value if isinstance(value, str) else json.dumps(value)} |" for name, value in rows.items()]
    return "\n".join([f"| {head} | |", "|---|---|", *shown])
