"""``python -m centaurus`` is the command ``centaurus``."""

from centaurus.cli.main import main

if __name__ == "__main__":
    main()
