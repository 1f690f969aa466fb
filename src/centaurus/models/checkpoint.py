"""A model is one safetensors file: the weights, and in its metadata the table and settings that rebuild the network.

Loading reads numbers and JSON and runs nothing from the file.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from centaurus.models.network import Network
from centaurus.models.rebuild import rebuild, table_to_data
from centaurus.nn.packed import pack, unpack

KIND, VERSION = "centaurus-model", 1
SUFFIX = ".safetensors"


def save(net: Network, path: str | os.PathLike[str]) -> None:
    """Write a network to one file: whole or not at all."""
    if not isinstance(net, Network):
        raise TypeError(f"save takes a classifier, denoiser or recognizer, got {type(net).__name__}")
    words = {
        "kind": KIND,
        "version": str(VERSION),
        "task": net.task,
        "table": json.dumps(table_to_data(net.table)),
        "settings": json.dumps(net.settings),
    }
    _write(Path(path), pack(net.state_dict(), words))


def _write(path: Path, data: bytes) -> None:
    """Into a file beside it first, then under its name, so that no reader ever sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def load(path: str | os.PathLike[str]) -> Network:
    """A network from a file that ``save`` wrote, or a shipped one by its name; in evaluation mode."""
    found = _find(path)
    tensors, words = unpack(found.read_bytes(), str(found))
    _check_words(words, found)
    try:
        with torch.device("meta"):
            net = rebuild(words["task"], _data(words, "table"), _data(words, "settings"))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{found} describes a network that cannot be built: {error}") from error
    _check_tensors(net.state_dict(), tensors, found)
    kinds = {x.dtype for x in tensors.values()}
    if len(kinds) == 1:
        net = net.to(kinds.pop())
    net = net.to_empty(device="cpu")  # every number but empty buffers is in the file
    net.load_state_dict(tensors)
    return net.eval()


def shipped() -> list[str]:
    """The names of the models that come with the package."""
    folder = files("centaurus") / "pretrained"
    found = [x.name for x in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX))


def _find(path: str | os.PathLike[str]) -> Path:
    if Path(path).is_file():
        return Path(path)
    if str(path) in shipped():
        return Path(str(files("centaurus") / "pretrained" / f"{path}{SUFFIX}"))
    known = ", ".join(shipped()) or "none"
    raise FileNotFoundError(f"there is no model file {os.fspath(path)!r}, and no shipped model of that name ({known})")


def _check_words(words: dict[str, str], path: Path) -> None:
    if words.get("kind") != KIND:
        raise ValueError(f"{path} is a safetensors file but not a centaurus model: its metadata say {sorted(words)}")
    version = words.get("version", "")
    if not version.isdecimal() or int(version) != VERSION:
        raise ValueError(f"{path} has format {version!r}, this centaurus reads format {VERSION}: use a newer one")
    missing = [name for name in ("task", "table", "settings") if name not in words]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)} in its metadata")


def _data(words: dict[str, str], name: str) -> Any:
    try:
        data = json.loads(words[name])
    except json.JSONDecodeError as error:
        raise ValueError(f"its {name} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"its {name} should be a mapping, got {data!r}")
    return data


def _check_tensors(wanted: dict[str, Tensor], given: dict[str, Tensor], path: Path) -> None:
    missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing or extra:
        raise ValueError(f"{path} does not fit its own table: missing {missing[:3]}, not known {extra[:3]}")
    for name, x in wanted.items():
        if x.shape != given[name].shape:
            raise ValueError(
                f"{path} does not fit its own table: {name} has shape {tuple(given[name].shape)}, "
                f"the table needs {tuple(x.shape)}"
            )
