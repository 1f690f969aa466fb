"""``python -m centaurus`` is the command ``centaurus``."""

from centaurus.cli import start

if __name__ == "__main__":
    start()
