"""How far a command is: a bar on standard error where that is a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(what: str, total: float | None, unit: str = "") -> Iterator[Callable[[float], object]]:
    """Yield a function that moves the bar by an amount.

    Without a total the bar shows that something happens, and with a ``unit`` how many of them are done.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
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
