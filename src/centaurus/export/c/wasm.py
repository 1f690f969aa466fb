"""A step in C as a WebAssembly module, by clang and lld alone: ``write.py`` says what it exports."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from centaurus.export.c.write import ExportedC, export_c
from centaurus.export.write import ExportError
from centaurus.layer import Layer
from centaurus.system import write_file

FLAGS = (
    "--target=wasm32",
    "-std=gnu99",
    "-O3",
    "-msimd128",
    "-mbulk-memory",
    "-nostdlib",
    "-Wl,--no-entry",
    "-Wl,--strip-all",
    "-Wl,-z,stack-size=65536",
)


def find_clang() -> str | None:
    """The command of a clang that can link WebAssembly, if there is one."""
    return "clang" if shutil.which("clang") and shutil.which("wasm-ld") else None


def compile_wasm(source: Path, target: Path) -> None:
    """Compile a C file that ``export_c`` wrote."""
    clang = find_clang()
    if clang is None:
        raise ExportError("a WebAssembly module needs clang and lld (Debian: apt install clang lld)")
    done = subprocess.run([clang, *FLAGS, str(source), "-o", str(target)], capture_output=True, text=True)
    if done.returncode:
        raise ExportError(f"clang cannot compile {source}: {(done.stderr.splitlines() or ['no message'])[0]:.300}")


def export_wasm(
    model: Layer,
    path: str | os.PathLike[str],
    chunk: int | None = None,
    weights: str = "int16",
    name: str | None = None,
) -> ExportedC:
    """Write the network's step as a WebAssembly module; arguments as for ``export_c``."""
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}.") as folder:
        made = export_c(model, Path(folder) / f"{target.stem}.c", chunk, weights, name)
        compile_wasm(made.source, Path(folder) / target.name)
        write_file(target, (Path(folder) / target.name).read_bytes())
    return made._replace(source=target, header=target)
