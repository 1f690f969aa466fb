"""The command line: one file a group of commands, each importing what it needs when it runs."""

import sys


def start() -> None:
    """Run the command line. An interrupt while it is still being imported is not a traceback either."""
    try:
        from centaurus.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("centaurus: interrupted\n")
        raise SystemExit(130) from None
