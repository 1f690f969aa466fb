"""What commands print: text, tables and progress bars for people, JSON for programs, errors as one message."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import Annotated, Any, NoReturn, TextIO

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


class _Piped(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to ``faults``: rich would end the program with code 1."""
        raise  # rich calls this while it handles the error


Json = Annotated[bool, typer.Option("--json", help="Print JSON for another program.")]


def show(text: object) -> None:
    """Print a report, wrapped at the width of the terminal."""
    _Piped(highlight=False, markup=False, emoji=False).print(str(text))


def show_line(text: str) -> None:
    """Print a line as it is, at once: for results that come one by one."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def show_sentence(text: str) -> None:
    """Print a line at once, broken between words on a narrower terminal, and one line elsewhere."""
    show_line(_fitted(text, sys.stdout))


def show_json(data: Any) -> None:
    """Print plain data as indented JSON."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


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
    """Show how far a command is on standard error, if that is a terminal; yield a function that moves the bar.

    Nothing is shown where standard output is piped: the lines of that program would run into the bar. Without a total
    the bar shows that something happens, and with a ``unit`` how many of them are done.
    """
    from rich.console import Console
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
    """Whether standard output goes to another program."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):  # it is not a file
        return False


def note(message: object) -> None:
    """Print one line on standard error, broken between words on a narrower terminal."""
    sys.stderr.write(f"{_fitted(f'centaurus: {message}', sys.stderr)}\n")
    sys.stderr.flush()


def _fitted(text: str, stream: TextIO) -> str:
    """The text, broken between words where a terminal would break it anywhere; names and paths stay whole."""
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
    """Return bytes for people: 1.5 GB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def duration(seconds: float) -> str:
    """Return seconds for people: 12 ms."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
