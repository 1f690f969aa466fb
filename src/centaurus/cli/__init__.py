"""The command line: one file per group of commands, each importing what it needs when it runs."""

import os
import signal
import sys
import threading
from types import FrameType

MESSAGE = "centaurus: interrupted\n"


def start() -> None:
    """Run the command line; an interrupt during its imports does not print a traceback either."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as in the background of a shell
    if own and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from centaurus.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write(MESSAGE)
        raise SystemExit(130) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but end at once while torch is imported: in its C++ code an exception aborts."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch.__spec__, "_initializing", False):
        os.write(2, MESSAGE.encode())
        os._exit(130)
    signal.default_int_handler(number, frame)
