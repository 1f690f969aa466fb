"""The command line: one file per group of commands, each importing what it needs when it runs."""

import sys


def start() -> None:
    """Run the command line; an interrupt during its imports does not print a traceback either."""
    try:
        from centaurus.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("centaurus: interrupted\n")
        raise SystemExit(130) from None
