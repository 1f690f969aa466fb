"""State-space layers and streaming audio networks for PyTorch: trained like convolutions, run like recurrences.

Public names load when they are first used, so that ``import centaurus`` imports neither torch nor anything slow. They
are listed in ``__init__.pyi``, which type checkers read.
"""

from __future__ import annotations

import sys
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Import a public name from its module; where a package is missing, say which extra has it."""
    if name == "__version__":
        from centaurus.system import package_version

        return package_version()
    if name not in __all__ and not name.startswith("_"):
        raise AttributeError(f"module 'centaurus' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        from centaurus.system import what_to_install

        raise ImportError(what_to_install(error)) from error
