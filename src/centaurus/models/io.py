"""Save and load: one safetensors file with the weights, and in its metadata the plain data that rebuilds the network.

Format 1 holds the table of a network, format 2 any tree of the library's layers. Loading reads numbers and JSON and
runs nothing from the file: only the layers of this library are known, and what a file describes is built without memory
and compared with its tensors before it gets any.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from centaurus import nn as library
from centaurus.layer import Layer, check_layer
from centaurus.models.build import NETWORKS, Dense
from centaurus.models.network import Network
from centaurus.models.tables import BandRow, Row
from centaurus.nn import Activation, Lift, Serial
from centaurus.nn.stream import pack, unpack
from centaurus.ssm import S6, SSM
from centaurus.system import AnyPath, FileError, MissingModelError, find_model, shipped_models, write_file

KIND, TABLE_FORMAT, TREE_FORMAT = "centaurus-model", 1, 2
SUFFIX = ".safetensors"
MOST_SIZE = 1 << 20  # of any number among a layer's arguments: channels, windows, stacks …
MOST_LAYERS, MOST_DEPTH, MOST_TEXT = 4096, 64, 1000

PUBLIC: tuple[type, ...] = tuple(x for name in library.__all__ if isinstance(x := getattr(library, name), type))
CONCRETE = tuple(x for x in PUBLIC if issubclass(x, Layer) and not inspect.isabstract(x))
KINDS: tuple[type[Layer], ...] = (S6, SSM, Dense, *CONCRETE)
LAYERS: dict[str, type[Layer]] = {kind.__name__: kind for kind in KINDS}
"""The layers that a file may name: S6, SSM and those of ``centaurus.nn``."""
LIFTED: dict[type[nn.Module], dict[str, str]] = {  # torch modules that a file may name, and types of their arguments
    nn.Conv1d: {"in_channels": "int", "out_channels": "int", "bias": "bool"},
    nn.GELU: {"approximate": "str"},
    nn.Identity: {},
    nn.ReLU: {},
    nn.SiLU: {},
    nn.Sigmoid: {},
    nn.Tanh: {},
}


class ModelError(FileError, ValueError):
    """A model's file that cannot be used: damaged, or not written by centaurus."""


class ModelNotFoundError(ModelError, MissingModelError):
    """Neither a file nor a shipped model has this name."""


def save(net: Layer, path: AnyPath) -> None:
    """Write a network, or any tree of the library's layers, to a safetensors file, atomically.

    Args:
        net: the network; its weights, settings and structure are saved, so that ``load`` needs the file alone.
        path: of the file, which is replaced if it exists.
    """
    check_layer(net, "save takes a centaurus layer or network")
    if isinstance(net, Network):
        words = {"version": str(TABLE_FORMAT), "task": net.task}
        words |= {"table": json.dumps(asdict(net.table)), "settings": json.dumps(net.settings)}
    else:
        words = {"version": str(TREE_FORMAT), "tree": json.dumps(describe(net))}
    write_file(path, pack(net.state_dict(), {"kind": KIND} | words))


def load(path: AnyPath) -> Layer:
    """Return the network or tree of layers of a file that ``save`` wrote, in eval mode. Nothing in a file is executed.

    Args:
        path: a .safetensors file, the name of a shipped model, or ``hf:user/model`` on the Hub.
    """
    try:
        file = find_model(path, SUFFIX)
    except MissingModelError as error:
        raise ModelNotFoundError(error.reason, path) from error
    try:
        return _load(file)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", file) from error


def _load(path: Path) -> Layer:
    data = path.read_bytes()
    try:
        tensors, words = unpack(data)
    except ValueError as error:
        raise ModelError(str(error), path) from error
    version = _check_words(words, path)
    try:
        with torch.device("meta"):
            if version == TABLE_FORMAT:
                net: Layer = rebuild(words["task"], _data(words, "table"), _data(words, "settings"))
            else:
                net = build_tree(_data(words, "tree"))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"describes a network that cannot be built: {error}", path) from error
    _check_tensors(net.state_dict(), tensors, path)
    kinds = {x.dtype for x in tensors.values()}
    if len(kinds) == 1:
        net = net.to(kinds.pop())
    net = net.to_empty(device="cpu")  # every number but empty buffers is in the file
    net.load_state_dict(tensors)
    return net.eval()


def load_network(path: AnyPath) -> Network:
    """Load a network with a task: a classifier, denoiser or recognizer."""
    net = load(path)
    if not isinstance(net, Network):
        raise ModelError("holds layers without a task, where a network is needed", path)
    return net


def shipped() -> list[str]:
    """Return the names of the models that come with the package."""
    return shipped_models(SUFFIX)


def _check_words(words: dict[str, str], path: Path) -> int:
    """Return the format version of a file, whose metadata are complete."""
    if words.get("kind") != KIND:
        raise ModelError(f"is a safetensors file but not a centaurus model: its metadata have {sorted(words)}", path)
    version = words.get("version", "")
    needed = {str(TABLE_FORMAT): ("task", "table", "settings"), str(TREE_FORMAT): ("tree",)}
    if version not in needed:
        known = " and ".join(needed)
        raise ModelError(f"has format {version!r:.60}, this centaurus reads formats {known}: use a newer version", path)
    missing = [name for name in needed[version] if name not in words]
    if missing:
        raise ModelError(f"lacks {', '.join(missing)} in its metadata", path)
    return int(version)


def _data(words: dict[str, str], name: str) -> Any:
    try:
        data = json.loads(words[name])
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"its {name} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"its {name} should be a mapping, got {_short(data)}")
    return data


def _check_tensors(expected: dict[str, Tensor], tensors: dict[str, Tensor], path: Path) -> None:
    missing, extra = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    if missing or extra:
        raise ModelError(f"does not fit its own table: missing {missing[:3]}, not known {extra[:3]}", path)
    for name, x in expected.items():
        if x.shape != tensors[name].shape:
            raise ModelError(
                f"does not fit its own table: {name} has shape {tuple(tensors[name].shape)}, "
                f"the table needs {tuple(x.shape)}",
                path,
            )


# Trees of layers.


def describe(layer: Layer, where: str = "the network") -> dict[str, Any]:
    """Return a layer as plain data: its class and constructor arguments, with the layers inside."""
    kind = type(layer).__name__
    if LAYERS.get(kind) is not type(layer):
        raise TypeError(f"{where} is a {kind}, which is not one of the library's layers and cannot be saved")
    if isinstance(layer, Lift):
        return {"layer": kind, "module": _describe_module(layer.module, where)}
    return {"layer": kind} | {name: _plain(x, f"{where}.{name}") for name, x in layer.arguments().items()}


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Layer):
        return describe(value, where)
    if isinstance(value, Mapping):
        return {name: _plain(x, f"{where}.{name}") for name, x in value.items()}
    return value.value if isinstance(value, Enum) else value


def _describe_module(module: nn.Module, where: str) -> dict[str, Any]:
    if type(module) not in LIFTED:
        known = ", ".join(kind.__name__ for kind in LIFTED)
        raise TypeError(f"{where} lifts a {type(module).__name__}, which cannot be saved; these can: {known}")
    if isinstance(module, nn.Conv1d) and module.groups != 1:
        raise TypeError(f"{where} lifts a Conv1d of {module.groups} groups, which cannot be saved: use one group")
    arguments = {name: getattr(module, name) for name in LIFTED[type(module)]}
    if "bias" in arguments:
        arguments["bias"] = module.bias is not None
    return {"layer": type(module).__name__} | arguments


def build_tree(data: Any) -> Layer:
    """Return the layer that ``describe`` described; anything unknown, missing or out of range is an error."""
    return _Builder().layer(data, "the network", 0)


class _Builder:
    """Build layers from data, and limit their number and depth."""

    def __init__(self) -> None:
        self.count = 0

    def layer(self, data: Any, where: str, depth: int) -> Layer:
        self.count += 1
        if depth > MOST_DEPTH or self.count > MOST_LAYERS:
            raise ValueError(f"{where}: more than {MOST_LAYERS} layers, or nested more than {MOST_DEPTH} deep")
        if not isinstance(data, Mapping) or not isinstance(data.get("layer"), str):
            raise ValueError(f"{where} should be a layer with its name, got {_short(data)}")
        kind = LAYERS.get(data["layer"])
        if kind is None:
            raise ValueError(f"{where} is a layer {_short(data['layer'])}, which this library does not have")
        arguments = {name: value for name, value in data.items() if name != "layer"}
        if kind is Serial:
            return Serial(self.named(arguments, where, depth))
        if kind is Lift:
            return Lift(_module(arguments.get("module"), where))
        known = inspect.signature(kind).parameters
        read: dict[str, Any] = {}
        for name, value in arguments.items():
            annotation = str(known[name].annotation) if name in known else ""
            if annotation.startswith("Layer"):
                optional = value is None and annotation.endswith("None")
                read[name] = None if optional else self.layer(value, f"{where}.{name}", depth + 1)
            elif annotation in READERS:
                read[name] = READERS[annotation](value, f"{where}.{name}")
            else:
                raise ValueError(f"{where} is a {kind.__name__}, which has no argument {name!r:.60}")
        needed = [name for name, p in known.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        missing = [name for name in needed if name not in read]
        if missing:
            raise ValueError(f"{where} is a {kind.__name__}, which lacks {', '.join(missing)}")
        return kind(**read)

    def named(self, arguments: Mapping[str, Any], where: str, depth: int) -> dict[str, Layer]:
        """Return the layers of a Serial by name."""
        layers = arguments.get("layers")
        if set(arguments) != {"layers"} or not isinstance(layers, Mapping):
            raise ValueError(f"{where} is a Serial, which has layers by name and nothing else, got {_short(arguments)}")
        return {name: self.layer(x, f"{where}.{name:.60}", depth + 1) for name, x in layers.items()}


def _module(data: Any, where: str) -> nn.Module:
    """Return a torch module that ``Lift`` may hold, from its name and arguments."""
    if not isinstance(data, Mapping) or not isinstance(data.get("layer"), str):
        raise ValueError(f"{where} should lift a module with its name, got {_short(data)}")
    known = {kind.__name__: kind for kind in LIFTED}
    if data["layer"] not in known:
        raise ValueError(f"{where} lifts {_short(data['layer'])}; a file may lift {', '.join(known)}")
    kind = known[data["layer"]]
    arguments = {name: value for name, value in data.items() if name != "layer"}
    if set(arguments) != set(LIFTED[kind]):
        needed = ", ".join(LIFTED[kind])
        raise ValueError(f"{where} lifts a {kind.__name__} with {sorted(arguments)}, its arguments are {needed}")
    read = {name: READERS[LIFTED[kind][name]](value, f"{where}.{name}") for name, value in arguments.items()}
    return kind(**read | ({"kernel_size": 1} if kind is nn.Conv1d else {}))


# Tables.


def rebuild(task: str, data: Mapping[str, Any], settings: Mapping[str, Any]) -> Network:
    """Return a new network of a task from the data of its table."""
    if task not in NETWORKS:
        raise ValueError(f"the task should be one of {', '.join(NETWORKS)}, got {_short(task)}")
    kinds = NETWORKS[task].tables
    fitting = [kind for kind in kinds if set(data) <= {field.name for field in fields(kind)}]
    net: Network = NETWORKS[task](_read((*fitting, *kinds)[0], data, task), settings)
    return net


def _rows(value: Any, where: str) -> tuple[Row, ...]:
    if not isinstance(value, list) or len(value) > MOST_LAYERS:
        raise ValueError(f"{where} should be a list of rows, got {_short(value)}")
    rows = tuple(_read(Row, row, f"{where}[{k}]") for k, row in enumerate(value))
    if sum(max(0, row.times) for row in rows) > MOST_LAYERS:
        raise ValueError(f"{where} should stack at most {MOST_LAYERS} blocks")
    return rows


def _band_rows(value: Any, where: str) -> tuple[BandRow, ...]:
    if not isinstance(value, list) or len(value) > MOST_LAYERS:
        raise ValueError(f"{where} should be a list of rows, got {_short(value)}")
    return tuple(_read(BandRow, row, f"{where}[{k}]") for k, row in enumerate(value))


def _pair(value: Any, where: str) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"{where} should be two integers, got {_short(value)}")
    return _of(int)(value[0], f"{where}[0]"), _of(int)(value[1], f"{where}[1]")


def _of(*kinds: type) -> Callable[[Any, str], Any]:
    """Return a reader of plain values of these types, of bounded size."""

    def read(value: Any, where: str) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"{where} should be of type {' or '.join(k.__name__ for k in kinds)}, got {_short(value)}")
        if isinstance(value, str) and len(value) > MOST_TEXT:
            raise ValueError(f"{where} should be at most {MOST_TEXT} characters long, got {len(value)}")
        if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= MOST_SIZE):
            raise ValueError(f"{where} should be a number up to {MOST_SIZE:,}, got {_short(value)}")
        return value

    return read


def _sizes(value: Any, where: str) -> dict[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} should be sizes by index, got {_short(value)}")
    return {name: _of(int)(size, f"{where}.{name:.60}") for name, size in value.items()}


def _activation(value: Any, where: str) -> Activation:
    known = [x.value for x in Activation]
    if value not in known:
        raise ValueError(f"{where} should be one of {known}, got {_short(value)}")
    return Activation(value)


READERS: dict[str, Callable[[Any, str], Any]] = {
    "str": _of(str),
    "int": _of(int),
    "bool": _of(bool),
    "float": _of(float, int),
    "int | None": _of(int, type(None)),
    "tuple[Row, ...]": _rows,
    "tuple[BandRow, ...]": _band_rows,
    "tuple[int, int]": _pair,
    "Mapping[str, int] | None": _sizes,
    "Activation": _activation,
}


def _read(kind: type, data: Any, where: str) -> Any:
    """Return a dataclass from a mapping; a field that is unknown, missing or of another type is an error."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} should be a mapping of fields, got {_short(data)}")
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(set(data) - set(known))
    missing = [name for name, field in known.items() if field.default is MISSING and name not in data]
    if unknown or missing:
        raise ValueError(f"{where} has unknown fields {unknown} and lacks {missing}")
    return kind(**{name: READERS[str(known[name].type)](value, f"{where}.{name}") for name, value in data.items()})


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
