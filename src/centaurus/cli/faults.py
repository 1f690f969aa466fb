"""How commands end: each kind of fault has an exit code, and an interrupt or a closed pipe is no traceback."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from centaurus.cli import output

USAGE, INPUT, MODEL, OUTPUT, DEVICE = 2, 3, 4, 5, 6
INTERRUPTED, CLOSED_PIPE, TERMINATED = 130, 141, 143
# By name, so that the command line imports nothing to know them.
CODES = {"AudioError": INPUT, "SessionError": MODEL, "OutputError": OUTPUT, "DeviceError": DEVICE}
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class Terminated(KeyboardInterrupt):
    """SIGTERM, treated like an interrupt."""


def exit_code(error: BaseException) -> int:
    """The documented exit code of an error."""
    if isinstance(error, KeyboardInterrupt):
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    if isinstance(error, OSError) and error.errno in FULL:
        return OUTPUT
    return next((CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in CODES), USAGE)


@contextmanager
def handled() -> Iterator[None]:
    """Around a command that streams: interrupts, a closed pipe and a full disk end it with one line and their code."""
    previous = signal.signal(signal.SIGTERM, _terminate)
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
        signal.signal(signal.SIGTERM, previous)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _let_go_of_stdout() -> None:
    """What is still buffered cannot be written, and must not fail once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
