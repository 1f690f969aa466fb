"""Input, output and exit codes of commands: an error is one message and a code."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import stat
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

if TYPE_CHECKING:
    from centaurus.runtime.io import Layout, Source

FAILED, USAGE, INPUT, MODEL, OUTPUT, DEVICE = 1, 2, 3, 4, 5, 6
INTERRUPTED, CLOSED_PIPE, TERMINATED = 130, 141, 143
# By name, so that nothing has to be imported for them.
CODES = {"AudioError": INPUT, "TrainingError": FAILED, "DeviceError": DEVICE}
CODES |= dict.fromkeys(("SessionError", "ModelError", "MissingModelError", "RunError"), MODEL)
CODES |= dict.fromkeys(("OutputError", "DiskError"), OUTPUT)
WINDOWS = os.name == "nt"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
PIPE = "-"
CORES = os.cpu_count() or 1
SHOWN = 5  # skipped files listed by name

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
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing files.")]


class _Piped(Console):
    def on_broken_pipe(self) -> None:
        """Let ``handled`` deal with it: rich would exit with code 1."""
        raise  # rich calls this while it handles the error


Json = Annotated[bool, typer.Option("--json", help="Print JSON for another program.")]


def show(text: object) -> None:
    """Print a report, wrapped at the width of the terminal."""
    _Piped(highlight=False, markup=False, emoji=False).print(str(text))


def show_line(text: str) -> None:
    """Print a line unchanged and flush it: for results that arrive one by one."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show_sentence(text: str) -> None:
    """Print a line at once, broken between words on a narrower terminal, and one line elsewhere."""
    show_line(_fitted(text, sys.stdout))


def show_json(data: Any) -> None:
    """Print plain data as indented JSON."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def show_report(report: Any, as_json: bool) -> None:
    """Print an object that has ``json()`` as indented JSON, or as text."""
    if as_json:
        show_json(report.json())
    else:
        show(report)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[str] = ()) -> None:
    """Print a table whose first column and those in ``text`` are left-aligned and whose others are numbers."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for position, column in enumerate(columns):
        left = position == 0 or column in text
        table.add_column(column, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    for row in rows:
        table.add_row(*row)
    _Piped(highlight=False, markup=False, emoji=False).print(table)


@contextmanager
def progress_bar(what: str, total: float | None, unit: str = "") -> Iterator[Callable[[float], object]]:
    """Show the progress of a command on standard error, if that is a terminal; yield a function that moves the bar.

    Nothing is shown where standard output is piped: the other program's lines would overwrite the bar. Without a
    total the bar shows activity only, and with a ``unit`` the number done.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal or _is_piped():
        yield lambda amount: None
        return
    columns = [TextColumn("{task.description}"), BarColumn(20)]
    if total:
        columns += [TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn()]
    elif unit:
        columns += [TextColumn(f"{{task.completed:.0f}} {unit}"), TimeElapsedColumn()]
    else:
        columns += [TimeElapsedColumn()]
    # Results on the same terminal are printed above the bar; elsewhere standard output stays as it is.
    shown = Progress(*columns, console=console, transient=True, redirect_stdout=sys.stdout.isatty())
    with shown:
        task = shown.add_task(what, total=total or None)
        yield lambda amount: shown.advance(task, amount)


def _is_piped() -> bool:
    """Return whether standard output goes to another program."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # it is not a file
        return False


def note(message: object) -> None:
    """Print one line on standard error, broken between words on a narrower terminal."""
    sys.stderr.write(f"{_fitted(f'centaurus: {message}', sys.stderr)}\n")
    sys.stderr.flush()


def _fitted(text: str, stream: TextIO) -> str:
    """Return the text wrapped between words at the width of a terminal; names and paths are not broken."""
    if not stream.isatty():
        return text
    width = get_terminal_size().columns
    lines = (textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join("\n".join(part) for part in lines)


def fail(message: object, code: int = 2) -> NoReturn:
    """Print one message on standard error and exit with a code."""
    note(message)
    raise SystemExit(code)


def size(count: float) -> str:
    """Return a number of bytes with its unit: 1.5 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def duration(seconds: float) -> str:
    """Return a duration with its unit: 12 ms."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated like an interrupt."""


def exit_code(error: BaseException) -> int:
    """Return the documented exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if isinstance(error, ImportError) and error.__cause__ is not None:
        return exit_code(error.__cause__)  # an extension module turns an interrupt into an ImportError
    if is_closed_pipe(error):
        return CLOSED_PIPE
    if isinstance(error, OSError) and error.errno in FULL:
        return OUTPUT
    return next((CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in CODES), USAGE)


def is_closed_pipe(error: BaseException) -> bool:
    """Return whether the error is a closed pipe on standard output, which Windows reports as EINVAL without a file."""
    if WINDOWS and isinstance(error, OSError) and error.errno == errno.EINVAL:
        return error.filename is None
    return isinstance(error, BrokenPipeError)


@contextmanager
def handled() -> Iterator[None]:
    """Run a command in a context that ends it with one line and a code at an interrupt, closed pipe or full disk."""
    main = threading.current_thread() is threading.main_thread()  # other threads cannot set signal handlers
    previous = signal.signal(signal.SIGTERM, _terminate) if main else None
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        fail("terminated" if isinstance(error, Terminated) else "interrupted", exit_code(error))
    except OSError as error:
        if is_closed_pipe(error) or error.errno in FULL:
            _let_go_of_stdout()
        fail("standard output was closed by its reader" if is_closed_pipe(error) else error, exit_code(error))
    finally:
        if main:
            signal.signal(signal.SIGTERM, previous)


class Guarded(TyperGroup):
    """The commands, each run within ``handled`` and listed in its section of the help."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        with handled():
            return super().invoke(ctx)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write a list of the commands for every ``rich_help_panel`` that they name."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        limit = formatter.width - 6 - max(len(name) for name, _ in commands)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in commands:
            sections.setdefault(command.rich_help_panel, []).append((name, command.get_short_help_str(limit)))  # type: ignore[union-attr]
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def prepare_streams() -> None:
    """Make the standard streams safe to use: closed ones, and consoles that cannot encode every character.

    No opened file may get the descriptor of a closed standard stream: native code would print into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Files and pipes on Windows would have the encoding of the locale, which lacks most characters.
        encoding = "utf-8" if WINDOWS and not sys.stdout.isatty() else None
        sys.stdout.reconfigure(encoding=encoding, errors="replace")


class _Closed(io.TextIOWrapper):
    """Standard output that was closed before the start: an error for a command that writes to it, and only for that."""

    def __init__(self) -> None:
        super().__init__(_ClosedBytes(), encoding="utf-8", write_through=True)  # type: ignore[arg-type]


class _ClosedBytes(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object) -> NoReturn:
        from centaurus.system import OutputError

        raise OutputError("is closed", "standard output")


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _let_go_of_stdout() -> None:
    """Discard buffered output, which cannot be written and must not fail again when the interpreter ends."""
    with suppress(io.UnsupportedOperation):  # an in-memory stream, not a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def raw_layout(raw: str | None, rate: int | None, channels: int) -> Layout | None:
    """Return the layout of raw samples on standard input; None if it is WAV."""
    from centaurus.runtime.io import Encoding, Layout

    if raw is None:
        if rate is not None:
            raise typer.BadParameter("--rate is for raw samples: give their format too, such as --raw s16le")
        return None
    if raw not in {encoding.value for encoding in Encoding}:
        known = ", ".join(encoding.value for encoding in Encoding)
        raise typer.BadParameter(f"--raw should be one of {known}, got {raw!r}")
    if rate is None:
        raise typer.BadParameter("raw samples need their rate, such as --rate 16000")
    return Layout(rate, channels, Encoding(raw))


class Task(NamedTuple):
    """One input, and where its results go: a file or standard output."""

    open: Callable[[], Source]
    output: Path | None
    seconds: Callable[[], float | None]


def plan_tasks(
    inputs: Sequence[str] | None,
    mic: bool,
    device: str | None,
    raw: Layout | None,
    out: str | None,
    force: bool,
    suffix: str,
) -> list[Task]:
    """Return the inputs: files and folders, standard input, or a microphone (at 16 kHz)."""
    from centaurus.runtime.files import Job, find_inputs, open_source, plan_jobs
    from centaurus.runtime.io import from_microphone, from_pipe

    if mic == bool(inputs):
        raise typer.BadParameter("give audio files, folders, - for standard input, or --mic")
    if raw is not None and inputs != [PIPE]:
        raise typer.BadParameter("--raw describes standard input: give - as the input")
    if not inputs or PIPE in inputs:
        if inputs and len(inputs) > 1:
            raise typer.BadParameter("- is one stream: it cannot be combined with other inputs")
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
    """Return the seconds of a file by its header; 0 for one that cannot be read, whose error comes later."""
    from centaurus.audio import AudioError, info
    from centaurus.runtime.files import is_container, seconds

    try:
        return seconds(path) if is_container(path) else info(path).seconds
    except AudioError:
        return 0.0


def refuse_terminal_input() -> None:
    """Refuse samples from a terminal."""
    if sys.stdin.isatty():
        raise typer.BadParameter("standard input is a terminal: pipe audio into it: arecord -f S16_LE -r 16000 | …")


def run_all(tasks: Sequence[Task], what: str, run: Callable[[Task, Callable[[float], object]], None]) -> None:
    """Run every task. One that fails does not stop the others; the exit code is that of the first failure."""
    errors: list[Exception] = []
    total = sum(task.seconds() or 0.0 for task in tasks)
    with progress_bar(what, total) as advance:
        for task in tasks:
            try:
                run(task, advance)
            except (ValueError, OSError) as error:
                if len(tasks) == 1 or is_closed_pipe(error):
                    raise
                note(error)
                errors.append(error)
    if errors:
        raise SystemExit(exit_code(errors[0]))


def write_result(task: Task, text: str) -> None:
    """Write a whole result to its file."""
    from centaurus.runtime.io import make_folder
    from centaurus.system import write_file

    assert task.output is not None
    make_folder(task.output.parent)
    write_file(task.output, text)
    note(f"wrote {task.output}")


@contextmanager
def until_interrupted(source: Source) -> Iterator[list[KeyboardInterrupt]]:
    """Read a source in a context in which an interrupt ends live audio; yield a list that then has the interrupt."""
    interrupts: list[KeyboardInterrupt] = []
    try:
        yield interrupts
    except KeyboardInterrupt as error:
        if not source.live:
            raise
        interrupts.append(error)


def end_recording(interrupts: list[KeyboardInterrupt], repaired: int, mic: bool) -> None:
    """Report repaired samples. Re-raise an interrupt, except for a microphone, where it is the normal end."""
    note_repaired(repaired)
    if interrupts and not mic:
        raise interrupts[0]


def note_repaired(count: int) -> None:
    """Print how many samples were not finite or out of range, if any were."""
    if count:
        note(f"{count} samples were not finite (replaced by zeros) or far above full scale (clipped)")


def note_skipped(skipped: dict[Path, str]) -> None:
    """Print which files of a folder were skipped, and why."""
    for reason in dict.fromkeys(skipped.values()):
        names = [path.name for path, why in skipped.items() if why == reason]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        note(f"skipped ({reason}): {', '.join(names[:SHOWN])}{more}")
