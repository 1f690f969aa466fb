"""Packages that are not always installed, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def extra(package: str, name: str) -> Any:
    """Import a package of one of the extras; if it is absent, the error says what to install."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise ImportError(
            f"{missing} is needed for this and is not installed: pip install 'centaurus-ssm[{name}]'"
        ) from error
