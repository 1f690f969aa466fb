"""How commands end: each kind of fault has an exit code, and an interrupt or a closed pipe is not a traceback."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from centaurus.cli import output

FAILED, USAGE, INPUT, MODEL, OUTPUT, DEVICE = 1, 2, 3, 4, 5, 6
INTERRUPTED, CLOSED_PIPE, TERMINATED = 130, 141, 143
# By name, so that the command line imports nothing to know them.
CODES = {
    "AudioError": INPUT,
    "SessionError": MODEL,
    "ModelError": MODEL,
    "MissingModelError": MODEL,
    "RunError": MODEL,
    "OutputError": OUTPUT,
    "DiskError": OUTPUT,
    "TrainingError": FAILED,
    "DeviceError": DEVICE,
}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated like an interrupt."""


def exit_code(error: BaseException) -> int:
    """The documented exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if isinstance(error, ImportError) and error.__cause__ is not None:
        return exit_code(error.__cause__)  # an extension module makes an import error of an interrupt
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    if isinstance(error, OSError) and error.errno in FULL:
        return OUTPUT
    return next((CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in CODES), USAGE)


@contextmanager
def handled() -> Iterator[None]:
    """A context around a command: interrupts, a closed pipe and a full disk end it with one line and their code."""
    main = threading.current_thread() is threading.main_thread()  # others cannot set what a signal does
    previous = signal.signal(signal.SIGTERM, _terminate) if main else None
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        output.fail("terminated" if isinstance(error, Terminated) else "interrupted", exit_code(error))
    except BrokenPipeError as error:
        _let_go_of_stdout()
        output.fail("the reader of standard output has gone", exit_code(error))
    except OSError as error:
        if error.errno in FULL:
            _let_go_of_stdout()
        output.fail(error, exit_code(error))
    finally:
        if main:
            signal.signal(signal.SIGTERM, previous)


class Guarded(TyperGroup):
    """The commands, each of which ends as ``handled`` says, and is listed in its section of the help."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        """Run the command."""
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

    A file that is opened must not get the number of a closed standard stream: what native code prints would go into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


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
    with suppress(io.UnsupportedOperation):  # it is not a file, but something in memory
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
