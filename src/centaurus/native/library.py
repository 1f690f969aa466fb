"""The compiled kernels, loaded by ctypes, and whether this process has them.

They are used when a C compiler is there, and never needed. ``CENTAURUS_NATIVE=0`` switches them off.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from centaurus.native.build import BuildError, build_library, find_compiler

SWITCH = "CENTAURUS_NATIVE"
FOLDER = Path(__file__).parent
# Not -ffast-math: rounding by adding a large number must stay, and NaN must be seen.
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-w")

POINTER, LONG, INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
SIGNATURES: dict[str, list[Any]] = {
    "scan_forward": [*[POINTER] * 6, LONG, LONG],
    "scan_backward": [*[POINTER] * 9, LONG, LONG],
    "norm_forward": [*[POINTER] * 9, LONG, LONG, LONG, INT, ctypes.c_float, LONG, LONG],
    "norm_backward": [*[POINTER] * 12, LONG, LONG, LONG, INT, LONG, LONG],
    "compressed": [*[POINTER] * 5, LONG, *[ctypes.c_float] * 3, LONG, LONG],
    "spectrum": [*[POINTER] * 3, *[LONG] * 5],
    "signal": [*[POINTER] * 3, *[LONG] * 5],
    "selective_forward": [*[POINTER] * 8, *[LONG] * 5],
    "selective_backward": [*[POINTER] * 14, *[LONG] * 5],
}


@dataclass(frozen=True)
class Status:
    """Whether the kernels are used, by which compiler and from which file, or why not."""

    used: bool
    reason: str = ""  # why they are not used
    compiler: str = ""
    library: str = ""
    lanes: int = 0  # floats of a vector

    def json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@lru_cache(maxsize=4)
def _load(switch: str) -> tuple[ctypes.CDLL | None, Status]:
    if switch == "0":
        return None, Status(False, f"switched off by {SWITCH}=0")
    compiler = find_compiler()
    if compiler is None:
        return None, Status(False, "no C compiler (cc, gcc or clang) was found")
    command = " ".join(compiler)
    try:
        path = build_library(sorted(FOLDER.glob("*.c")), sorted(FOLDER.glob("*.h")), FLAGS, compiler)
        library = ctypes.CDLL(str(path))
        for name, arguments in SIGNATURES.items():
            function = getattr(library, f"centaurus_{name}")
            function.argtypes, function.restype = arguments, INT
        lanes = int(library.centaurus_lanes())
    except (BuildError, OSError, AttributeError) as error:
        return None, Status(False, str(error), command)
    return library, Status(True, "", command, str(path), lanes)


def library() -> ctypes.CDLL | None:
    """Return the kernels, compiled at the first call if the cache does not have them; None where there are none."""
    return _load(os.environ.get(SWITCH, ""))[0]


def status() -> Status:
    """Return whether this process uses the kernels, and why not."""
    return _load(os.environ.get(SWITCH, ""))[1]
