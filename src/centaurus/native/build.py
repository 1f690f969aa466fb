"""Compile C sources into the user's cache, once per source, compiler and CPU, and load the compiled kernels.

The kernels are optional: they are used if a C compiler is installed. ``CENTAURUS_NATIVE=0`` switches them off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from centaurus.system import cache_folder, replacing

COMPILERS = ("cc", "gcc", "clang")
TUNED = "-march=native"  # omitted if the compiler does not support it
PATIENCE = 120.0  # seconds after which a compiler is stopped
SWITCH = "CENTAURUS_NATIVE"  # environment variable
FOLDER = Path(__file__).parent
# No -ffast-math: it removes rounding by adding a large number, and tests for NaN.
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-w")

POINTER, LONG, INT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int
SIGNATURES: dict[str, list[Any]] = {
    "scan_forward": [*[POINTER] * 6, LONG, LONG],
    "scan_backward": [*[POINTER] * 9, LONG, LONG],
    "norm_forward": [*[POINTER] * 9, LONG, LONG, LONG, INT, ctypes.c_float, LONG, LONG],
    "norm_backward": [*[POINTER] * 12, LONG, LONG, LONG, INT, LONG, LONG],
    "compressed": [*[POINTER] * 5, LONG, *[ctypes.c_float] * 3, LONG, LONG],
    "spectrum": [*[POINTER] * 3, *[LONG] * 6],
    "signal": [*[POINTER] * 3, *[LONG] * 6],
    "products": [*[POINTER] * 4, LONG, LONG],
    "selective_forward": [*[POINTER] * 9, *[LONG] * 5],
    "selective_backward": [*[POINTER] * 15, *[LONG] * 5],
}


class BuildError(RuntimeError):
    """The compiler is missing, failed or took too long."""


def find_compiler() -> list[str] | None:
    """Return the command of the C compiler: ``CC`` if it is set, else the first of cc, gcc and clang, else None."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    compiler = next((name for name in COMPILERS if shutil.which(name)), None)
    return None if compiler is None else [compiler]


def cpu_name() -> str:
    """Return the model and the instruction sets of this CPU, on which compiled code depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)  # of the first core
    words = {key.strip(): value.strip() for key, value in kept.items()}
    return " ".join(words.get(key, "") for key in ("model name", "flags", "Features"))


def compiler_identity(compiler: Sequence[str]) -> str:
    """Return the compiler's path, size, modification time and arguments, which change when it is replaced."""
    path = shutil.which(compiler[0])
    if path is None:
        raise BuildError(f"the C compiler {compiler[0]!r} was not found")
    real = os.path.realpath(path)
    about = os.stat(real)
    return " ".join([real, str(about.st_size), str(about.st_mtime_ns), *compiler[1:]])


def build_library(sources: Sequence[Path], headers: Sequence[Path], flags: Sequence[str], compiler: list[str]) -> Path:
    """Return the path of a shared library of the sources, compiled unless it is cached; raises ``BuildError``."""
    parts = [path.read_bytes() for path in (*sources, *headers)]
    words = [*flags, TUNED, compiler_identity(compiler), cpu_name()]
    key = hashlib.sha256(b"\0".join([*parts, "\0".join(words).encode()])).hexdigest()[:32]
    target = cache_folder("native") / f"{key}.so"
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(prefix="centaurus-native-") as folder:
        made = Path(folder) / "library.so"
        command = [*compiler, *flags, *map(str, sources), "-o", str(made), "-lm"]
        message = _run([*command, TUNED])
        if message:
            message = _run(command)
        if message:
            raise BuildError(f"{' '.join(compiler)} failed: {message:.300}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as staged:
                shutil.copy(made, staged)
        except OSError as error:
            raise BuildError(f"the library cannot be kept in {target.parent}: {error}") from error
    return target


def _run(command: list[str]) -> str:
    """Run a compiler; return the first line of its error message, or "" if it succeeds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]


@dataclass(frozen=True)
class Status:
    """Whether the kernels are used, and why not; the compiler that built them and the file of the library."""

    used: bool
    reason: str = ""  # why they are not used
    compiler: str = ""
    library: str = ""
    lanes: int = 0  # floats in a vector

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
    """Return the kernels, compiled at the first call unless they are cached; None if they are not available."""
    return _load(os.environ.get(SWITCH, ""))[0]


def status() -> Status:
    """Return whether this process uses the kernels, or why not."""
    return _load(os.environ.get(SWITCH, ""))[1]
