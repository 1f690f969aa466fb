"""Read an ONNX file without running it, and refuse whatever an export of ours would not contain.

The reader knows a few messages of onnx.proto, field by field. A field it does not know, one of another wire type, a
singular field that comes twice (protobuf would merge the two) and a tag or length outside protobuf's range are errors:
there is nothing in an accepted file that the runtime would see and this check would not.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime.modelfile import SessionError
from centaurus.runtime.shapes import OPERATORS, Node, Shape

MOST_FILE_BYTES = 1 << 30
MOST_METADATA_BYTES = 1 << 25
MOST_NODES = 1 << 16
OPSETS = range(17, 24)  # the operators that are used mean the same in all of them
FLOAT, INT64 = 1, 7  # TensorProto.DataType
ELEMENT_BYTES = {FLOAT: 4, INT64: 8}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types of protobuf; groups (3 and 4) are not used by ONNX
TAG_BYTES, NUMBER_BYTES = 5, 10  # the longest encodings protobuf reads
MOST_TAG, MOST_LENGTH = (1 << 32) - 1, (1 << 31) - 1
INT32 = (1 << 31) - 1  # protobuf cuts larger values of an int32 or an enum


class Field(NamedTuple):
    """A field of a message that may occur: its name, wire type, whether more than once, and the largest number."""

    name: str
    wire: int
    repeated: bool = False
    most: int = (1 << 64) - 1


Schema = Mapping[int, Field]

# The fields of onnx.proto that an export may have. Repeated numbers may come packed as well.
MODEL: Schema = {
    1: Field("ir_version", VARINT),
    2: Field("producer_name", BYTES),
    3: Field("producer_version", BYTES),
    4: Field("domain", BYTES),
    5: Field("model_version", VARINT),
    6: Field("doc_string", BYTES),
    7: Field("graph", BYTES),
    8: Field("opset_import", BYTES, repeated=True),
    14: Field("metadata_props", BYTES, repeated=True),
}
OPSET: Schema = {1: Field("domain", BYTES), 2: Field("version", VARINT)}
ENTRY: Schema = {1: Field("key", BYTES), 2: Field("value", BYTES)}
GRAPH: Schema = {
    1: Field("node", BYTES, repeated=True),
    2: Field("name", BYTES),
    5: Field("initializer", BYTES, repeated=True),
    10: Field("doc_string", BYTES),
    11: Field("input", BYTES, repeated=True),
    12: Field("output", BYTES, repeated=True),
}
NODE: Schema = {
    1: Field("input", BYTES, repeated=True),
    2: Field("output", BYTES, repeated=True),
    3: Field("name", BYTES),
    4: Field("op_type", BYTES),
    5: Field("attribute", BYTES, repeated=True),
    6: Field("doc_string", BYTES),
    7: Field("domain", BYTES),
}
ATTRIBUTE: Schema = {
    1: Field("name", BYTES),
    2: Field("f", FIXED32),
    3: Field("i", VARINT),
    8: Field("ints", VARINT, repeated=True),
    13: Field("doc_string", BYTES),
    20: Field("type", VARINT, most=INT32),
}
ATTRIBUTE_VALUES = {1: "f", 2: "i", 7: "ints"}  # AttributeProto.AttributeType
TENSOR: Schema = {
    1: Field("dims", VARINT, repeated=True),
    2: Field("data_type", VARINT, most=INT32),
    8: Field("name", BYTES),
    9: Field("raw_data", BYTES),
    12: Field("doc_string", BYTES),
    14: Field("data_location", VARINT, most=INT32),
}
VALUE: Schema = {1: Field("name", BYTES), 2: Field("type", BYTES), 3: Field("doc_string", BYTES)}
TYPE: Schema = {1: Field("tensor_type", BYTES)}
TENSOR_TYPE: Schema = {1: Field("elem_type", VARINT, most=INT32), 2: Field("shape", BYTES)}
SHAPE: Schema = {1: Field("dim", BYTES, repeated=True)}
AXIS: Schema = {1: Field("dim_value", VARINT), 2: Field("dim_param", BYTES)}

# Fields that would reach beyond arithmetic on constants, with what a message says about them.
FORBIDDEN = {
    "model": {20: "training information", 25: "functions of its own", 26: "a device configuration"},
    "graph": {13: "shapes of values inside the graph", 14: "quantization notes", 15: "sparse constants"},
    "attribute": {
        5: "a tensor",
        6: "a graph",
        10: "tensors",
        11: "graphs",
        22: "a sparse tensor",
        23: "sparse tensors",
    },
    "constant": {13: "data in another file", 3: "a segment of a larger tensor"},
}


class Value(NamedTuple):
    """An input or output: its name, element type and axes (a name stands for an open one)."""

    name: str
    kind: int
    shape: tuple[int | str, ...]


class Constant(NamedTuple):
    """A constant of the graph: its shape, and its values where they are whole numbers."""

    shape: Shape
    integers: NDArray[np.int64] | None


@dataclass(frozen=True)
class Contents:
    """The bytes of an ONNX file and the graph they describe."""

    data: bytes
    metadata: dict[str, str]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: dict[str, Constant]
    nodes: tuple[Node, ...]


class _DamagedError(ValueError):
    """Bytes that are not a protobuf message."""


def inspect(path: Path) -> Contents:
    """Read and check a file. The bytes that were checked are kept, so that the very same can be run."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise SessionError(f"cannot be read: {error.strerror}", path) from error
    return inspect_bytes(data, path)


def inspect_bytes(data: bytes, path: Path | None = None) -> Contents:
    """Check the bytes of a file; ``path`` is for messages."""
    try:
        if not data:
            raise _DamagedError("it is empty")
        if len(data) > MOST_FILE_BYTES:
            raise SessionError(f"it has more than {MOST_FILE_BYTES:,} bytes")
        return _model(data)
    except (_DamagedError, UnicodeDecodeError) as error:
        raise SessionError(f"is not an ONNX file, or a damaged one: {error}", path) from error
    except SessionError as error:
        raise SessionError(f"will not be run: {error.reason}", path) from error


def _model(data: bytes) -> Contents:
    model = _Message(memoryview(data), MODEL, "model")
    metadata: dict[str, str] = {}
    for entry in model.messages("metadata_props", ENTRY, "metadata"):
        key, value = entry.text("key"), entry.text("value")
        if key in metadata:
            raise SessionError(f"its metadata have {key!r:.60} twice")
        metadata[key] = value
    if sum(map(len, metadata.values())) > MOST_METADATA_BYTES:
        raise SessionError(f"its metadata have more than {MOST_METADATA_BYTES:,} bytes")
    opsets = [(x.text("domain"), x.number("version")) for x in model.messages("opset_import", OPSET, "operator set")]
    if len(opsets) != 1 or opsets[0][0] not in ("", "ai.onnx") or opsets[0][1] not in OPSETS:
        raise SessionError(f"it should import the operators of one version from {OPSETS[0]} to {OPSETS[-1]}")
    graphs = list(model.messages("graph", GRAPH, "graph"))
    if not graphs:
        raise _DamagedError("there is no graph in it")
    return _graph(graphs[0], data, metadata)


def _graph(graph: _Message, data: bytes, metadata: dict[str, str]) -> Contents:
    if len(graph.values["node"]) > MOST_NODES:
        raise SessionError(f"it has {len(graph.values['node']):,} nodes, more than {MOST_NODES:,}")
    constants: dict[str, Constant] = {}
    for tensor in graph.messages("initializer", TENSOR, "constant"):
        name = tensor.text("name")
        if not name or name in constants:
            raise SessionError(f"it has two constants, or one without a name, called {name!r:.60}")
        constants[name] = _constant(tensor)
    return Contents(
        data=data,
        metadata=metadata,
        inputs=tuple(_value(value) for value in graph.messages("input", VALUE, "input")),
        outputs=tuple(_value(value) for value in graph.messages("output", VALUE, "output")),
        constants=constants,
        nodes=tuple(_node(node) for node in graph.messages("node", NODE, "node")),
    )


def _node(node: _Message) -> Node:
    """One of the known operators; no control flow, and no constants but those of the graph."""
    operator, domain = node.text("op_type"), node.text("domain")
    if operator not in OPERATORS or domain not in ("", "ai.onnx"):
        name = f"{domain}.{operator}".lstrip(".")
        raise SessionError(f"it uses the operator {name!r:.60}, which no file written by centaurus does")
    attributes: dict[str, float | int | tuple[int, ...]] = {}
    for attribute in node.messages("attribute", ATTRIBUTE, "attribute"):
        name, kind = attribute.text("name"), ATTRIBUTE_VALUES.get(attribute.number("type"))
        others = [key for key in ATTRIBUTE_VALUES.values() if key != kind and attribute.values[key]]
        if name in attributes or kind is None or others:
            raise SessionError(f"the attribute {name!r:.60} of {operator} is not one number or one list of integers")
        if kind == "ints":
            attributes[name] = attribute.integers("ints")
        else:
            attributes[name] = float(attribute.real("f")) if kind == "f" else attribute.number("i")
    return Node(operator, node.texts("input"), node.texts("output"), attributes)


def _constant(tensor: _Message) -> Constant:
    kind, shape = tensor.number("data_type"), tensor.integers("dims")
    if tensor.number("data_location") != 0:
        raise SessionError("a constant has data in another file; a file written by centaurus is self-contained")
    if kind not in ELEMENT_BYTES:
        raise SessionError(
            f"a constant has elements of type {kind}; those of float32 and int64 are {FLOAT} and {INT64}"
        )
    raw = tensor.values["raw_data"]
    data = raw[0] if raw else memoryview(b"")
    assert isinstance(data, memoryview)
    if min(shape, default=0) < 0 or math.prod(shape) * ELEMENT_BYTES[kind] != len(data):
        raise SessionError(f"a constant of shape {_short(shape)} has {len(data)} bytes")
    return Constant(shape, np.frombuffer(data, "<i8").reshape(shape) if kind == INT64 else None)


def _value(value: _Message) -> Value:
    for kind in value.messages("type", TYPE, "type"):
        for tensor in kind.messages("tensor_type", TENSOR_TYPE, "tensor type"):
            axes = [
                axis
                for shape in tensor.messages("shape", SHAPE, "shape")
                for axis in shape.messages("dim", AXIS, "axis")
            ]
            return Value(value.text("name"), tensor.number("elem_type"), tuple(map(_axis, axes)))
    return Value(value.text("name"), 0, ())


def _axis(axis: _Message) -> int | str:
    if axis.values["dim_value"] and axis.values["dim_param"]:
        raise SessionError("an axis has a size and a name")
    return axis.number("dim_value") if axis.values["dim_value"] else axis.text("dim_param")


class _Message:
    """The fields of a protobuf message that a schema allows; everything else in it is an error."""

    def __init__(self, data: memoryview, schema: Schema, what: str) -> None:
        self.values: dict[str, list[int | memoryview]] = {field.name: [] for field in schema.values()}
        for number, wire, value in _fields(data):
            field = schema.get(number)
            if field is None:
                which = FORBIDDEN.get(what, {}).get(number, f"a field {number}")
                raise SessionError(f"one {what} in it has {which}, which no file written by centaurus has")
            packed = field.repeated and field.wire == VARINT and wire == BYTES
            if wire != field.wire and not packed:
                raise _DamagedError(f"{field.name} of a {what} is encoded as something else")
            if isinstance(value, int) and value > field.most:
                raise _DamagedError(f"{field.name} of a {what} is out of range")
            self.values[field.name] += _packed(value) if packed else [value]
            if not field.repeated and len(self.values[field.name]) > 1:
                raise _DamagedError(f"a {what} has {field.name} twice")

    def messages(self, name: str, schema: Schema, what: str) -> Iterator[_Message]:
        """The messages in a field."""
        for value in self.values[name]:
            assert isinstance(value, memoryview)
            yield _Message(value, schema, what)

    def texts(self, name: str) -> tuple[str, ...]:
        """All strings of a field."""
        return tuple(bytes(value).decode() for value in self.values[name] if isinstance(value, memoryview))

    def text(self, name: str) -> str:
        """The string in a singular field; empty if it is absent."""
        return "".join(self.texts(name))

    def integers(self, name: str) -> tuple[int, ...]:
        """All whole numbers of a field, as signed 64-bit integers."""
        return tuple((value ^ 1 << 63) - (1 << 63) for value in self.values[name] if isinstance(value, int))

    def number(self, name: str) -> int:
        """The whole number in a singular field; zero if it is absent."""
        return sum(self.integers(name))

    def real(self, name: str) -> float:
        """The float32 in a singular field; zero if it is absent."""
        return sum(struct.unpack("<f", value)[0] for value in self.values[name] if isinstance(value, memoryview))


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Field numbers, wire types and values of a message, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, TAG_BYTES)
        number, wire = tag >> 3, tag & 7
        if tag > MOST_TAG or number == 0:
            raise _DamagedError(f"there is no field {number}")
        if wire == VARINT:
            value, at = _varint(data, at, NUMBER_BYTES)
            yield number, wire, value & ((1 << 64) - 1)
            continue
        if wire == BYTES:
            length, at = _varint(data, at, TAG_BYTES)
        elif wire in (FIXED32, FIXED64):
            length = 4 if wire == FIXED32 else 8
        else:
            raise _DamagedError(f"unknown wire type {wire}")
        if length > min(MOST_LENGTH, len(data) - at):
            raise _DamagedError("it ends in the middle")
        yield number, wire, data[at : at + length]
        at += length


def _packed(value: int | memoryview) -> Iterator[int]:
    assert isinstance(value, memoryview)
    at = 0
    while at < len(value):
        number, at = _varint(value, at, NUMBER_BYTES)
        yield number & ((1 << 64) - 1)


def _varint(data: memoryview, at: int, longest: int) -> tuple[int, int]:
    number = 0
    for position in range(longest):
        if at >= len(data):
            raise _DamagedError("it ends in the middle")
        byte = data[at]
        at += 1
        number |= (byte & 127) << 7 * position
        if byte < 128:
            return number, at
    raise _DamagedError("a number in it does not end")


def _short(shape: tuple[int, ...]) -> str:
    return f"{shape!r:.60}"
