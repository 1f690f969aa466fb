"""``python -m centaurus.cli``."""

from centaurus.cli import start

start()
