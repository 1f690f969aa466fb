"""``python -m centaurus.cli``."""

from centaurus.cli.main import main

main()
