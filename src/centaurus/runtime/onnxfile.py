"""Read an ONNX file without running it, and reject everything that ``export_onnx`` does not write.

The reader knows a few messages of onnx.proto, field by field. A field it does not know, one of another wire type, a
singular field that comes twice (protobuf would merge the two) and a tag or length outside protobuf's range are errors:
the runtime cannot see anything in an accepted file that this check did not. An operator is allowed if it
has a shape rule; the rules give what a step would allocate and compute before it runs.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime.modelfile import SessionError

Shape = tuple[int, ...]
MOST_STEP_BYTES = 1 << 31  # all values of a step together
MOST_STEP_OPERATIONS = 100_000_000_000  # about a minute on a slow core
ELEMENT_BYTES = 8  # at most: float32 or int64
ONE, TWO, SEVERAL = range(1, 2), range(2, 3), range(1, 17)
MOST_FILE_BYTES = 1 << 30
MOST_METADATA_BYTES = 1 << 25
MOST_NODES = 1 << 16
OPSETS = range(17, 24)  # the operators that are used mean the same in all of them
FLOAT, INT64 = 1, 7  # TensorProto.DataType
BYTES_OF = {FLOAT: 4, INT64: 8}
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types of protobuf; groups (3 and 4) are not used by ONNX
TAG_BYTES, NUMBER_BYTES = 5, 10  # the longest encodings protobuf reads
MOST_TAG, MOST_LENGTH = (1 << 32) - 1, (1 << 31) - 1
INT32 = (1 << 31) - 1  # protobuf truncates larger values of an int32 or an enum
ATTRIBUTE_VALUES = {1: "f", 2: "i", 7: "ints"}  # AttributeProto.AttributeType
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


class Node(NamedTuple):
    """An operator with the names of what it reads and writes."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, float | int | tuple[int, ...]]


class Operands(NamedTuple):
    """The arguments of a rule: shapes of the inputs, values of those that are integer constants, attributes."""

    shapes: Sequence[Shape]
    integers: Sequence[NDArray[np.int64] | None]
    attributes: Mapping[str, float | int | tuple[int, ...]]

    def constant(self, position: int) -> list[int]:
        """Return an input that must be an integer constant."""
        values = self.integers[position] if position < len(self.integers) else None
        if values is None:
            raise ValueError(f"input {position} should be an integer constant")
        return [int(n) for n in values.reshape(-1)]

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that must be a whole number."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise ValueError(f"{name} should be a whole number")
        return value


Rule = Callable[[Operands], list[Shape]]


def infer_shapes(
    inputs: Mapping[str, Shape], constants: Mapping[str, tuple[Shape, NDArray[np.int64] | None]], nodes: Sequence[Node]
) -> dict[str, Shape]:
    """Return every shape of a graph; refuse one that does not fit together or costs more than is allowed."""
    shapes = dict(inputs) | {name: constant[0] for name, constant in constants.items()}
    if len(shapes) != len(inputs) + len(constants):
        raise SessionError("an input and a constant have the same name")
    total, operations = 0, 0
    for position, node in enumerate(nodes):
        where = f"node {position} ({node.operator})"
        missing = [name for name in node.inputs if name not in shapes]
        if missing:
            raise SessionError(f"{where} reads {missing[0]!r:.60}, which no earlier node produces")
        operands = [shapes[name] for name in node.inputs]
        integers = [constants[name][1] if name in constants else None for name in node.inputs]
        rule, counts = OPERATORS[node.operator]
        try:
            if len(operands) not in counts:
                raise ValueError(f"{len(operands)} inputs")
            made = rule(Operands(operands, integers, node.attributes))
        except (ValueError, IndexError) as error:
            raise SessionError(f"{where} does not fit its inputs {_short(operands)}: {error}") from error
        if len(made) != len(node.outputs):
            raise SessionError(f"{where} has {len(node.outputs)} outputs, its operator makes {len(made)}")
        for name, shape in zip(node.outputs, made, strict=True):
            if name in shapes or not name:
                raise SessionError(f"{where} makes {name!r:.60}, which exists already")
            shapes[name] = shape
        elements = sum(map(math.prod, made))
        total += ELEMENT_BYTES * elements
        operations += 2 * elements * operands[0][-1] if node.operator == "MatMul" else elements
        if total > MOST_STEP_BYTES or operations > MOST_STEP_OPERATIONS:
            raise SessionError(
                f"a step would take {total:,} bytes and {operations:,} operations up to {where}; "
                f"{MOST_STEP_BYTES:,} and {MOST_STEP_OPERATIONS:,} are allowed"
            )
    return shapes


def _same(x: Operands) -> list[Shape]:
    return [x.shapes[0]]


def _broadcast(x: Operands) -> list[Shape]:
    return [tuple(np.broadcast_shapes(*x.shapes))]


def _matmul(x: Operands) -> list[Shape]:
    left, right = x.shapes
    if min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        raise ValueError("matrices of these shapes have no product")
    return [(*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])]


def _concat(x: Operands) -> list[Shape]:
    axis = _axis(x.integer("axis", len(x.shapes[0])), x.shapes[0])
    rest = {(*shape[:axis], 0, *shape[axis + 1 :]) for shape in x.shapes}
    if len(rest) != 1:
        raise ValueError("only the joined axis may differ")
    return [tuple(sum(s[axis] for s in x.shapes) if k == axis else n for k, n in enumerate(x.shapes[0]))]


def _split(x: Operands) -> list[Shape]:
    axis, sizes = _axis(x.integer("axis", 0), x.shapes[0]), x.constant(1)
    if sum(sizes) != x.shapes[0][axis] or min(sizes, default=-1) < 0:
        raise ValueError(f"parts of {sizes!r:.60} are not the whole axis")
    return [tuple(size if k == axis else n for k, n in enumerate(x.shapes[0])) for size in sizes]


def _slice(x: Operands) -> list[Shape]:
    starts, ends, axes = (x.constant(position) for position in (1, 2, 3))
    if not len(starts) == len(ends) == len(axes) or len({_axis(n, x.shapes[0]) for n in axes}) != len(axes):
        raise ValueError("starts, ends and axes should be of one length")
    shape = list(x.shapes[0])
    for start, end, axis in zip(starts, ends, axes, strict=True):
        place = _axis(axis, x.shapes[0])
        shape[place] = len(range(*slice(start, end).indices(shape[place])))
    return [tuple(shape)]


def _gather(x: Operands) -> list[Shape]:
    """The indices must be a constant, none of them outside the axis."""
    axis, places = _axis(x.integer("axis", 0), x.shapes[0]), x.constant(1)
    size = x.shapes[0][axis]
    if not all(-size <= place < size for place in places):
        raise ValueError(f"places from {min(places)} to {max(places)} are not all within an axis of {size}")
    return [(*x.shapes[0][:axis], *x.shapes[1], *x.shapes[0][axis + 1 :])]


def _reshape(x: Operands) -> list[Shape]:
    if x.integer("allowzero", 0):
        raise ValueError("allowzero is not used")
    shape_in, target = x.shapes[0], x.constant(1)
    shape = [shape_in[k] if n == 0 else n for k, n in enumerate(target)]
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise ValueError(f"{target!r:.60} is not a shape")
    if -1 in shape:
        known = -math.prod(shape)
        shape[shape.index(-1)] = math.prod(shape_in) // known if known else 0
    if math.prod(shape) != math.prod(shape_in):
        raise ValueError(f"they cannot be shaped as {target!r:.60}")
    return [tuple(shape)]


def _transpose(x: Operands) -> list[Shape]:
    order = x.attributes.get("perm", tuple(reversed(range(len(x.shapes[0])))))
    if not isinstance(order, tuple) or sorted(order) != list(range(len(x.shapes[0]))):
        raise ValueError(f"{order!r:.60} is not an order of the axes")
    return [tuple(x.shapes[0][k] for k in order)]


def _reduce(x: Operands) -> list[Shape]:
    """The axes are an attribute up to opset 17, an input from 18 on."""
    axes = x.constant(1) if len(x.shapes) == 2 else x.attributes.get("axes", tuple(range(len(x.shapes[0]))))
    if isinstance(axes, int | float):
        raise ValueError("axes should be a list")
    places = {_axis(n, x.shapes[0]) for n in axes}
    keep = x.integer("keepdims", 1)
    return [tuple(1 if k in places else n for k, n in enumerate(x.shapes[0]) if keep or k not in places)]


def _normalize(x: Operands) -> list[Shape]:
    """Layer normalization: scale and offset must not widen the input."""
    _axis(x.integer("axis", -1), x.shapes[0])
    if np.broadcast_shapes(*x.shapes) != x.shapes[0]:
        raise ValueError("scale and offset should fit the normalized axes")
    return [x.shapes[0]]


def _axis(axis: int, shape: Shape) -> int:
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"there is no axis {axis}")
    return axis % len(shape)


def _short(shapes: Sequence[Shape]) -> str:
    return f"{', '.join(map(str, shapes)):.120}"


ELEMENTWISE = ("Erf", "Exp", "Identity", "Log", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh")
OPERATORS: dict[str, tuple[Rule, range]] = {
    **dict.fromkeys(ELEMENTWISE, (_same, ONE)),
    **dict.fromkeys(("Add", "Div", "Min", "Mul", "Sub"), (_broadcast, SEVERAL)),
    "Concat": (_concat, range(1, 1 << 16)),
    "Gather": (_gather, TWO),
    "LayerNormalization": (_normalize, range(2, 4)),
    "MatMul": (_matmul, TWO),
    "ReduceMax": (_reduce, range(1, 3)),
    "Reshape": (_reshape, TWO),
    "Slice": (_slice, range(4, 5)),
    "Split": (_split, TWO),
    "Transpose": (_transpose, ONE),
}
"""The operators of an export: the rule for the shapes of their outputs, and how many inputs they may have."""


class Field(NamedTuple):
    """A field of a message that may occur: its name, wire type, whether more than once, and the largest number."""

    name: str
    wire: int
    repeated: bool
    most: int


Schema = Mapping[int, Field]
KINDS = {"int": VARINT, "enum": VARINT, "bytes": BYTES, "float": FIXED32}


def _schema(text: str) -> Schema:
    """Return a schema from "number name kind, …"; the kind of a field that may come more than once ends with "*"."""
    fields = {}
    for number, name, kind in (entry.split() for entry in text.split(",")):
        plain = kind.rstrip("*")
        most = INT32 if plain == "enum" else (1 << 64) - 1
        fields[int(number)] = Field(name, KINDS[plain], plain != kind, most)
    return fields


# The fields of onnx.proto that an export may have. Repeated numbers may come packed as well.
MODEL = _schema(
    "1 ir_version int, 2 producer_name bytes, 3 producer_version bytes, 4 domain bytes, 5 model_version int, "
    "6 doc_string bytes, 7 graph bytes, 8 opset_import bytes*, 14 metadata_props bytes*"
)
OPSET = _schema("1 domain bytes, 2 version int")
ENTRY = _schema("1 key bytes, 2 value bytes")
GRAPH = _schema(
    "1 node bytes*, 2 name bytes, 5 initializer bytes*, 10 doc_string bytes, 11 input bytes*, 12 output bytes*"
)
NODE = _schema(
    "1 input bytes*, 2 output bytes*, 3 name bytes, 4 op_type bytes, 5 attribute bytes*, 6 doc_string bytes, "
    "7 domain bytes"
)
ATTRIBUTE = _schema("1 name bytes, 2 f float, 3 i int, 8 ints int*, 13 doc_string bytes, 20 type enum")
TENSOR = _schema(
    "1 dims int*, 2 data_type enum, 8 name bytes, 9 raw_data bytes, 12 doc_string bytes, 14 data_location enum"
)
VALUE = _schema("1 name bytes, 2 type bytes, 3 doc_string bytes")
TYPE = _schema("1 tensor_type bytes")
TENSOR_TYPE = _schema("1 elem_type enum, 2 shape bytes")
SHAPE = _schema("1 dim bytes*")
AXIS = _schema("1 dim_value int, 2 dim_param bytes")


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
    """Return a node, which must be a known operator without control flow or constants of its own."""
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
    if kind not in BYTES_OF:
        raise SessionError(
            f"a constant has elements of type {kind}; those of float32 and int64 are {FLOAT} and {INT64}"
        )
    raw = tensor.values["raw_data"]
    data = raw[0] if raw else memoryview(b"")
    assert isinstance(data, memoryview)
    if min(shape, default=0) < 0 or math.prod(shape) * BYTES_OF[kind] != len(data):
        raise SessionError(f"a constant of shape {_short([shape])} has {len(data)} bytes")
    return Constant(shape, np.frombuffer(data, "<i8").reshape(shape) if kind == INT64 else None)


def _value(value: _Message) -> Value:
    for kind in value.messages("type", TYPE, "type"):
        for tensor in kind.messages("tensor_type", TENSOR_TYPE, "tensor type"):
            axes = [
                axis
                for shape in tensor.messages("shape", SHAPE, "shape")
                for axis in shape.messages("dim", AXIS, "axis")
            ]
            return Value(value.text("name"), tensor.number("elem_type"), tuple(map(_axis_size, axes)))
    return Value(value.text("name"), 0, ())


def _axis_size(axis: _Message) -> int | str:
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
                raise _DamagedError(f"{field.name} of a {what} has the wrong wire type")
            if isinstance(value, int) and value > field.most:
                raise _DamagedError(f"{field.name} of a {what} is out of range")
            self.values[field.name] += _packed(value) if packed else [value]
            if not field.repeated and len(self.values[field.name]) > 1:
                raise _DamagedError(f"a {what} has {field.name} twice")

    def messages(self, name: str, schema: Schema, what: str) -> Iterator[_Message]:
        """Yield the messages in a field."""
        for value in self.values[name]:
            assert isinstance(value, memoryview)
            yield _Message(value, schema, what)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return all strings of a field."""
        return tuple(bytes(value).decode() for value in self.values[name] if isinstance(value, memoryview))

    def text(self, name: str) -> str:
        """Return the string in a singular field; empty if it is absent."""
        return "".join(self.texts(name))

    def integers(self, name: str) -> tuple[int, ...]:
        """Return all whole numbers of a field, as signed 64-bit integers."""
        return tuple((value ^ 1 << 63) - (1 << 63) for value in self.values[name] if isinstance(value, int))

    def number(self, name: str) -> int:
        """Return the whole number in a singular field; zero if it is absent."""
        return sum(self.integers(name))

    def real(self, name: str) -> float:
        """Return the float32 in a singular field; zero if it is absent."""
        return sum(struct.unpack("<f", value)[0] for value in self.values[name] if isinstance(value, memoryview))


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield field numbers, wire types and values of a message, in order."""
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
            raise _DamagedError("it is truncated")
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
            raise _DamagedError("it is truncated")
        byte = data[at]
        at += 1
        number |= (byte & 127) << 7 * position
        if byte < 128:
            return number, at
    raise _DamagedError("a varint in it does not end")
