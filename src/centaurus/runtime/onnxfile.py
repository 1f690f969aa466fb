"""Look into an ONNX file before anything runs it: its metadata, inputs and outputs, and whether it is only arithmetic.

A few lines of protobuf are enough for that. A file that reaches outside itself, has operators that an export of ours
does not, or is cut off, never gets as far as the runtime.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from centaurus.runtime.modelfile import SessionError

OPERATORS = frozenset(
    [
        "Add",
        "Concat",
        "Div",
        "Identity",
        "LayerNormalization",
        "MatMul",
        "Min",
        "Mul",
        "ReduceMax",
        "Reshape",
        "Sigmoid",
        "Slice",
        "Split",
        "Sqrt",
        "Sub",
        "Transpose",
    ]
)
FLOAT = 1  # TensorProto.DataType
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
MOST_WORDS = 1 << 25  # bytes of metadata

# Field numbers of the messages in onnx.proto.
MODEL_GRAPH, MODEL_METADATA, MODEL_FUNCTIONS, MODEL_TRAINING, MODEL_OPSET = 7, 14, 25, 20, 8
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_SPARSE = 1, 5, 11, 12, 15
NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN = 4, 5, 7
ATTRIBUTE_OTHER = {5: "tensor", 6: "graph", 10: "tensors", 11: "graphs", 22: "sparse tensor", 23: "sparse tensors"}
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14


class Value(NamedTuple):
    """An input or output: its name, element type and axes (a name stands for an open one)."""

    name: str
    kind: int
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Contents:
    """What an ONNX file says without being run."""

    metadata: dict[str, str]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class _DamagedError(ValueError):
    """Bytes that are no protobuf message."""


def inspect(path: Path) -> Contents:
    """The contents of a file, or an error if it is no ONNX file or not one that is safe to run."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise _DamagedError("it is empty")
            return _model(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    except (_DamagedError, UnicodeDecodeError) as error:
        raise SessionError(f"{path} is not an ONNX file, or a damaged one: {error}") from error
    except SessionError as error:
        raise SessionError(f"{path} will not be run: {error}") from error


def _model(data: memoryview) -> Contents:
    metadata: dict[str, str] = {}
    graphs = []
    for field, value in _fields(data):
        if field == MODEL_GRAPH:
            graphs.append(_bytes(value))
        elif field == MODEL_METADATA:
            entry = _bytes(value)
            if len(entry) > MOST_WORDS:
                raise SessionError(f"its metadata have {len(entry)} bytes")
            words = {k: _text(v) for k, v in _fields(entry) if k in (1, 2)}
            metadata[words.get(1, "")] = words.get(2, "")
        elif field in (MODEL_FUNCTIONS, MODEL_TRAINING):
            raise SessionError("it has functions or training information of its own")
    if len(graphs) != 1:
        raise _DamagedError(f"there should be one graph in it, got {len(graphs)}")
    return _graph(graphs[0], metadata)


def _graph(data: memoryview, metadata: dict[str, str]) -> Contents:
    inputs, outputs = [], []
    for field, value in _fields(data):
        if field == GRAPH_NODE:
            _check_node(_bytes(value))
        elif field == GRAPH_INITIALIZER:
            _check_tensor(_bytes(value))
        elif field == GRAPH_SPARSE:
            raise SessionError("it has sparse constants")
        elif field == GRAPH_INPUT:
            inputs.append(_value(_bytes(value)))
        elif field == GRAPH_OUTPUT:
            outputs.append(_value(_bytes(value)))
    return Contents(metadata, tuple(inputs), tuple(outputs))


def _check_node(data: memoryview) -> None:
    """Only arithmetic: no control flow, nothing from elsewhere, constants only where they can be checked."""
    operator, domain = "", ""
    for field, value in _fields(data):
        if field == NODE_OPERATOR:
            operator = _text(value)
        elif field == NODE_DOMAIN:
            domain = _text(value)
        elif field == NODE_ATTRIBUTE:
            for inner, _ in _fields(_bytes(value)):
                if inner in ATTRIBUTE_OTHER:
                    raise SessionError(f"a node has a {ATTRIBUTE_OTHER[inner]} as an attribute")
    if operator not in OPERATORS or domain not in ("", "ai.onnx"):
        name = f"{domain}.{operator}".lstrip(".")
        raise SessionError(f"it uses the operator {name!r:.60}, which no file written by centaurus does")


def _check_tensor(data: memoryview) -> None:
    for field, value in _fields(data):
        if field == TENSOR_EXTERNAL or (field == TENSOR_LOCATION and value != 0):
            raise SessionError("it takes constants from other files; a centaurus file is self-contained")


def _value(data: memoryview) -> Value:
    """ValueInfoProto: name, and type.tensor_type of element type and shape."""
    name, kind = "", 0
    shape: tuple[int | str, ...] = ()
    for field, value in _fields(data):
        if field == 1:
            name = _text(value)
        elif field == 2:
            for tensor, inner in _fields(_bytes(value)):
                if tensor == 1:
                    kind, shape = _tensor_type(_bytes(inner))
    return Value(name, kind, shape)


def _tensor_type(data: memoryview) -> tuple[int, tuple[int | str, ...]]:
    kind, axes = 0, []
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2:
            axes = [_axis(_bytes(axis)) for number, axis in _fields(_bytes(value)) if number == 1]
    return kind, tuple(axes)


def _axis(data: memoryview) -> int | str:
    size: int | str = ""
    for field, value in _fields(data):
        if field == 1 and isinstance(value, int):
            size = value
        elif field == 2:
            size = _text(value)
    return size


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers and values of a message, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == BYTES:
            length, at = _varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise _DamagedError(f"unknown wire type {kind}")
        if length > len(data) - at:
            raise _DamagedError("it ends in the middle")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for position in range(10):
        if at >= len(data):
            raise _DamagedError("it ends in the middle")
        byte = data[at]
        at += 1
        number |= (byte & 127) << 7 * position
        if byte < 128:
            return number, at
    raise _DamagedError("a number in it does not end")


def _bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _DamagedError("a number stands where a message should")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_bytes(value)).decode()
