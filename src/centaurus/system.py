"""Files written whole or not at all, the user's cache folder, and packages that are not always installed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

EXTRAS = {
    "torch": ("torch", "safetensors"),
    "export": ("onnx",),
    "train": ("accelerate", "tensorboard", "tokenizers"),
    "plot": ("matplotlib",),
    "eval": ("pesq", "pystoi", "speechmos", "jiwer"),
    "mic": ("sounddevice",),
    "serve": ("websockets",),
    "hub": ("huggingface_hub",),
}
"""The optional packages of each extra of ``centaurus-ssm``."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its name if the block succeeds and is removed if it raises.

    No reader and no crash ever sees half of the file.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write text (UTF-8) or bytes to a file: whole and on the disk, or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())


def cache_folder(name: str = "") -> Path:
    """Return ``centaurus`` in the user's cache folder, or a folder of that name in it; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "centaurus" / name


def extra(package: str) -> Any:
    """Import an optional package; if it is not installed, the error names the extra that has it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ImportError(what_to_install(error)) from error


def what_to_install(error: ModuleNotFoundError) -> str:
    """Return the error's text, naming the extra that has the missing package if there is one."""
    package = (error.name or "").partition(".")[0]
    for name, packages in EXTRAS.items():
        if package in packages:
            return f"{package} is needed for this and is not installed: pip install 'centaurus-ssm[{name}]'"
    return str(error)
