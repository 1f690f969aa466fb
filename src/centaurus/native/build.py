"""Compile C sources with the system's compiler into the user's cache, once for every source, compiler and CPU."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from centaurus.system import cache_folder, replacing

COMPILERS = ("cc", "gcc", "clang")
TUNED = "-march=native"  # left out where a compiler does not know it
PATIENCE = 120.0  # seconds after which a compiler is given up


class BuildError(RuntimeError):
    """The compiler is missing, failed or took too long."""


def find_compiler() -> list[str] | None:
    """Return the command of the C compiler: ``CC`` if it is set, else the first of cc, gcc and clang, else None."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    compiler = next((name for name in COMPILERS if shutil.which(name)), None)
    return None if compiler is None else [compiler]


def cpu_name() -> str:
    """Return what distinguishes this CPU for a compiler: its model and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)  # of the first core
    words = {key.strip(): value.strip() for key, value in kept.items()}
    return " ".join(words.get(key, "") for key in ("model name", "flags", "Features"))


def compiler_identity(compiler: Sequence[str]) -> str:
    """Return what changes when the compiler does: its path, size and date, and its arguments."""
    path = shutil.which(compiler[0])
    if path is None:
        raise BuildError(f"the C compiler {compiler[0]!r} was not found")
    real = os.path.realpath(path)
    about = os.stat(real)
    return " ".join([real, str(about.st_size), str(about.st_mtime_ns), *compiler[1:]])


def build_library(sources: Sequence[Path], headers: Sequence[Path], flags: Sequence[str], compiler: list[str]) -> Path:
    """Return a shared library of the sources, compiled unless the cache has it; raises ``BuildError``."""
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
    """Run a compiler; return the first line of its complaint, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
