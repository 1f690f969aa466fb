"""What commands that listen have in common: their inputs, where results go, and what is said about them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

import typer

from centaurus.cli import faults, output

if TYPE_CHECKING:
    from centaurus.runtime.io import Layout, Source

PIPE = "-"
CORES = os.cpu_count() or 1
SHOWN = 5  # skipped files that are named

Inputs = Annotated[
    list[str] | None, typer.Argument(metavar="[IN]...", help="Audio files, folders, or - for standard input.")
]
Mic = Annotated[bool, typer.Option("--mic", help="Listen to a microphone until Ctrl-C.")]
Device = Annotated[str | None, typer.Option(help="Which microphone: its number or a part of its name.")]
Rate = Annotated[int | None, typer.Option(help="Sample rate of raw samples on standard input, in Hz.")]
Channels = Annotated[int, typer.Option(help="Channels of raw samples on standard input.")]
Raw = Annotated[
    str | None,
    typer.Option("--raw", help="Standard input is raw: u8, s16le, s24le, s32le, f32le or f64le. Else it is WAV."),
]
Threads = Annotated[
    int, typer.Option(min=1, max=CORES, clamp=True, help="Threads of the network, at most as many as cores.")
]
Out = Annotated[
    str | None, typer.Option("--out", "-o", help="File or folder for the results.", show_default="standard output")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files that exist.")]


def layout(raw: str | None, rate: int | None, channels: int) -> Layout | None:
    """The layout of raw samples, if there are any."""
    from centaurus.runtime.io import Encoding, Layout

    if raw is None:
        if rate is not None:
            raise typer.BadParameter("--rate describes raw samples: say which kind as well, such as --raw s16le")
        return None
    if raw not in {encoding.value for encoding in Encoding}:
        known = ", ".join(encoding.value for encoding in Encoding)
        raise typer.BadParameter(f"raw samples are one of {known}, got {raw!r}")
    if rate is None:
        raise typer.BadParameter("raw samples need their rate, such as --rate 16000")
    return Layout(rate, channels, Encoding(raw))


class Task(NamedTuple):
    """One input to listen to, and where its results go: a file, or standard output."""

    open: Callable[[], Source]
    output: Path | None
    seconds: Callable[[], float | None]


def plan(
    inputs: Sequence[str] | None,
    mic: bool,
    device: str | None,
    raw: Layout | None,
    out: str | None,
    force: bool,
    suffix: str,
) -> list[Task]:
    """Return the inputs: files and folders, standard input, or a microphone (at 16 kHz)."""
    from centaurus.runtime.io import from_microphone, from_pipe
    from centaurus.runtime.jobs import Job, find_inputs, open_source, plan_jobs

    if mic == bool(inputs):
        raise typer.BadParameter("give audio files, folders, - for standard input, or --mic")
    if raw is not None and inputs != [PIPE]:
        raise typer.BadParameter("--raw describes standard input: give - as the input")
    if not inputs or PIPE in inputs:
        if inputs and len(inputs) > 1:
            raise typer.BadParameter("- stands for one stream: give no other input beside it")
        if not mic:
            refuse_terminal_input()
        live = (lambda: from_microphone(16_000, device)) if mic else (lambda: from_pipe(sys.stdin.buffer, raw))
        return [Task(live, None if out is None else _free(Path(out), force), lambda: None)]
    if out is None:
        located = find_inputs(inputs)
        jobs, skipped = [Job(path, Path()) for path, _, _ in located.files], located.skipped
    else:
        jobs, skipped = plan_jobs(inputs, out, force, suffix=suffix)
    note_skipped(skipped)
    return [
        Task(partial(open_source, job.source), None if out is None else job.output, partial(length, job.source))
        for job in jobs
    ]


def _free(path: Path, force: bool) -> Path:
    from centaurus.system import OutputError

    if path.exists() and not force:
        raise OutputError("exists already; -f overwrites", path)
    return path


def length(path: Path) -> float:
    """Seconds of a file, as far as its header says; 0 for one that cannot be read, whose error comes later."""
    from centaurus.audio import AudioError, info
    from centaurus.runtime import ffmpeg

    try:
        return ffmpeg.seconds(path) if ffmpeg.is_container(path) else info(path).seconds
    except AudioError:
        return 0.0


def refuse_terminal_input() -> None:
    """Refuse samples from a terminal."""
    if sys.stdin.isatty():
        raise typer.BadParameter("standard input is a terminal: pipe sound into it, as arecord -f S16_LE -r 16000 | …")


def run_all(tasks: Sequence[Task], what: str, run: Callable[[Task, Callable[[float], object]], None]) -> None:
    """Run every task in turn. One that fails does not stop the others; the exit code is that of the first failure."""
    errors: list[Exception] = []
    total = sum(task.seconds() or 0.0 for task in tasks)
    with output.progress_bar(what, total) as advance:
        for task in tasks:
            try:
                run(task, advance)
            except (ValueError, OSError) as error:
                if len(tasks) == 1 or isinstance(error, BrokenPipeError):
                    raise
                output.note(error)
                errors.append(error)
    if errors:
        raise SystemExit(faults.exit_code(errors[0]))


def write_result(task: Task, text: str) -> None:
    """Write a whole result to its file."""
    from centaurus.runtime.io import make_folder
    from centaurus.system import write_file

    assert task.output is not None
    make_folder(task.output.parent)
    write_file(task.output, text)
    output.note(f"wrote {task.output}")


class Interruptible:
    """A context around reading a source: an interrupt ends live sound, and results up to it are kept.

    For a microphone Ctrl-C is how to stop, and not a fault; for a pipe it is one after everything has been written.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._interrupt: KeyboardInterrupt | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, KeyboardInterrupt) or not self._source.live:
            return False
        self._interrupt = error
        return True

    def end(self, repaired: int, mic: bool) -> None:
        """Report repaired samples; raise the interrupt of a pipe."""
        note_repaired(repaired)
        if self._interrupt is not None and not mic:
            raise self._interrupt


def note_repaired(count: int) -> None:
    """Say that samples were not finite, or louder than the model takes."""
    if count:
        output.note(f"{count} samples were not finite (taken as zeros) or far above full scale (limited)")


def note_skipped(skipped: dict[Path, str]) -> None:
    """Say which files of a folder were left out, and why."""
    for reason in dict.fromkeys(skipped.values()):
        names = [path.name for path, why in skipped.items() if why == reason]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        output.note(f"skipped ({reason}): {', '.join(names[:SHOWN])}{more}")
