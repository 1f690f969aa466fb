"""The tasks of networks: a record each, with what other packages need to know.

To add a task, add its record here, a network (``models/build.py``), an objective (``train/objectives.py``), a recipe
(a file of ``recipes`` and its line in ``recipes/__init__.py``) and its evaluation (``evaluation/__init__.py``): six
files. Training, saving, counting, verifying, exporting and evaluating by the command line then work; a command of its
own is a function in ``cli/audio.py``, listed in ``cli/main.py``, and what it runs in ``runtime``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One task. ``name`` is what model files carry."""

    name: str
    command: str
    """The verb of the command line and of the server; empty for a task without one."""
    does: str
    """The verb of messages, as in "it denoises"."""
    purpose: str
    """The first line of a model card."""
    outputs: str
    """The setting that names the network's outputs; empty where they are samples."""
    chunk_seconds: float
    """An exported step takes the fewest hops that last this long; 0 for a single hop."""
    clips: str
    """The file with a row for each clip of an evaluation."""
    groups: str
    """The file with a row for each group of clips: classes, SNRs, conditions."""
    model: str
    """The shipped model that is used by default; empty if there is none."""
    recipes: tuple[str, ...]
    """The recipes that train a network for this task, files of ``recipes``."""


DENOISER = Task(
    name="denoiser",
    command="denoise",
    does="denoises",
    purpose="Speech denoising: clean samples from noisy ones, as a stream.",
    outputs="",
    chunk_seconds=0.0,
    clips="clips.csv",
    groups="snr.csv",
    model="denoise-16k",
    recipes=("denoise",),
)
CLASSIFIER = Task(
    name="classifier",
    command="spot",
    does="spots keywords",
    purpose="Keyword spotting: class logits at every frame of a stream.",
    outputs="classes",
    chunk_seconds=0.128,
    clips="clips.csv",
    groups="classes.csv",
    model="kws-30",
    recipes=("kws", "wake"),
)
RECOGNIZER = Task(
    name="recognizer",
    command="transcribe",
    does="transcribes",
    purpose="Speech recognition: token logits at every frame of a stream, for CTC decoding.",
    outputs="tokens",
    chunk_seconds=0.0,
    clips="utterances.csv",
    groups="conditions.csv",
    model="commands",
    recipes=("commands", "asr"),
)
TASKS: dict[str, Task] = {task.name: task for task in (DENOISER, CLASSIFIER, RECOGNIZER)}
"""Every task by name."""
RECIPES: tuple[str, ...] = tuple(name for task in TASKS.values() for name in task.recipes)
"""The names of every recipe."""
LAYERS = "layers"
"""The task in files of layers without a task."""
