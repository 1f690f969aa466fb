"""Differential fuzzing of the check of ONNX files: whatever the onnx package sees in a file, the check has seen.

CENTAURUS_FUZZ_SECONDS (2 if not set) and CENTAURUS_FUZZ_SEED let it search further.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from centaurus.runtime.modelfile import SessionError
from centaurus.runtime.onnxfile import Contents, inspect_bytes
from tests.fuzz.mutate import mutate
from tests.runtime.models import exported

SECONDS = float(os.environ.get("CENTAURUS_FUZZ_SECONDS", "2"))
FIRST = int(os.environ.get("CENTAURUS_FUZZ_SEED", "0"))
LEAST = 300  # mutations, even on a busy machine
FIELDS = list(range(1, 27))


def varint(number: int, padding: int = 0) -> bytes:
    """A number as protobuf writes it, or with needless bytes."""
    out = []
    while number > 127 or padding > len(out) + 1:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def split(data: bytes) -> list[tuple[int, bytes | int]] | None:
    """The fields of a message as (tag, value); None if it is not a message."""
    fields: list[tuple[int, bytes | int]] = []
    at = 0

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    try:
        while at < len(data):
            tag = number()
            if tag & 7 == 0:
                fields.append((tag, number()))
                continue
            size = {1: 8, 5: 4}.get(tag & 7) or (number() if tag & 7 == 2 else len(data) + 1)
            if at + size > len(data) or not tag >> 3:
                return None
            fields.append((tag, data[at : at + size]))
            at += size
    except IndexError:
        return None
    return fields


def joined(fields: list[tuple[int, bytes | int]], rng: np.random.Generator, odd: float) -> bytes:
    """The fields as a message; with probability ``odd`` tags and lengths are encoded as no writer encodes them."""
    out = b""
    for tag, value in fields:
        strange = rng.random() < odd
        high = int(rng.integers(8)) << 32 if strange and rng.random() < 0.5 else 0
        out += varint(tag | high, int(rng.integers(1, 7)) if strange else 0)
        if isinstance(value, int):
            out += varint(value, int(rng.integers(1, 11)) if strange else 0)
        else:
            out += (varint(len(value), int(rng.integers(1, 6)) if strange else 0) if tag & 7 == 2 else b"") + value
    return out


def damaged(data: bytes, rng: np.random.Generator, depth: int = 0) -> bytes:
    """A message with something changed in it or in a message inside."""
    fields = split(data)
    if not fields:
        return mutate(data, int(rng.integers(1 << 30)))
    place = int(rng.integers(len(fields)))
    tag, value = fields[place]
    inner = [k for k, (t, v) in enumerate(fields) if t & 7 == 2 and isinstance(v, bytes) and split(v)]
    if inner and rng.random() < (0.85 if depth < 4 else 0.2):
        place = inner[int(rng.integers(len(inner)))]
        tag, value = fields[place]
        assert isinstance(value, bytes)
        fields[place] = (tag, damaged(value, rng, depth + 1))
        return joined(fields, rng, 0.0)
    kind = int(rng.integers(6))
    if kind == 0:
        fields.insert(int(rng.integers(len(fields) + 1)), fields[place])
    elif kind == 1:
        fields[place] = ((int(rng.choice(FIELDS)) << 3) | tag & 7, value)
    elif kind == 2:
        fields[place] = (tag, int(rng.integers(1 << 62)) if isinstance(value, int) else mutate(value, place))
    elif kind == 3:
        del fields[place]
    elif kind == 4:
        extra = onnx.NodeProto(op_type="Loop", input=["a"], output=["b"]).SerializeToString()
        fields.insert(place, ((int(rng.choice(FIELDS)) << 3) | 2, extra))
    return joined(fields, rng, 0.3 if kind == 5 else 0.02)


def seen(contents: Contents) -> dict[str, Any]:
    """What the check saw."""
    return {
        "metadata": contents.metadata,
        "inputs": [tuple(value) for value in contents.inputs],
        "outputs": [tuple(value) for value in contents.outputs],
        "constants": {name: constant.shape for name, constant in contents.constants.items()},
        "nodes": [(n.operator, n.inputs, n.outputs, dict(n.attributes)) for n in contents.nodes],
    }


def expected(model: onnx.ModelProto) -> dict[str, Any]:
    """The same from the onnx package."""

    def values(protos: Any) -> list[Any]:
        return [(v.name, v.type.tensor_type.elem_type, axes(v.type.tensor_type.shape)) for v in protos]

    def axes(shape: Any) -> tuple[int | str, ...]:
        return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in shape.dim)

    def attributes(node: Any) -> dict[str, Any]:
        values = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        return {name: value if np.isscalar(value) else tuple(value) for name, value in values.items()}

    g = model.graph
    return {
        "metadata": {entry.key: entry.value for entry in model.metadata_props},
        "inputs": values(g.input),
        "outputs": values(g.output),
        "constants": {t.name: tuple(t.dims) for t in g.initializer},
        "nodes": [(n.op_type, tuple(n.input), tuple(n.output), attributes(n)) for n in g.node],
    }


def harmless(model: onnx.ModelProto) -> None:
    """No message inside has a field that reaches beyond arithmetic on constants of its own."""
    g = model.graph
    assert not model.functions
    assert not model.training_info
    assert not g.sparse_initializer
    for node in g.node:
        assert node.domain in ("", "ai.onnx")
        assert not any(a.HasField("g") or a.graphs or a.HasField("t") or a.tensors for a in node.attribute)
    for tensor in g.initializer:
        assert tensor.data_location == onnx.TensorProto.DEFAULT
        assert not tensor.external_data


def compare(data: bytes) -> bool:
    """Whether the check accepts a file; if so, it has seen what the onnx package sees."""
    try:
        contents = inspect_bytes(data)
    except SessionError:
        return False
    model = onnx.ModelProto.FromString(data)
    harmless(model)
    assert repr(seen(contents)) == repr(expected(model))
    return True


def small() -> bytes:
    """A model with every kind of field that an export has, in 1 kB: thousands of mutations take seconds."""

    def value(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", *shape])

    nodes = [
        helper.make_node("Reshape", ["audio", "shape"], ["rows"]),
        helper.make_node("MatMul", ["rows", "weight"], ["product"]),
        helper.make_node("LayerNormalization", ["product", "scale"], ["normal"], axis=-1, epsilon=1e-5),
        helper.make_node("Transpose", ["normal"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("ReduceMax", ["turned"], ["output"], axes=[1], keepdims=1),
        helper.make_node("Add", ["state.0", "scale"], ["next.0"]),
    ]
    constants = {
        "shape": np.array([0, 4, 2]),
        "weight": np.ones((2, 2), np.float32),
        "scale": np.ones(2, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "centaurus",
        [value("audio", 1, 8), value("state.0", 2)],
        [value("output", 1, 4), value("next.0", 2)],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"centaurus": "{}"})
    return model.SerializeToString()


def test_the_check_sees_what_the_onnx_package_sees() -> None:
    data = small()
    assert compare(data)
    accepted = tried = 0
    end = time.monotonic() + SECONDS
    while tried < LEAST or time.monotonic() < end:
        rng = np.random.default_rng(FIRST + tried)
        tried += 1
        try:
            accepted += compare(damaged(data, rng))
        except (AssertionError, DecodeError) as error:
            raise AssertionError(f"seed {FIRST + tried - 1}: {error!s:.2000}") from error
    assert tried / 100 < accepted < tried / 2


def test_exported_files_are_seen_whole() -> None:
    for task in ("denoiser", "classifier", "recognizer"):
        assert compare(exported(task).read_bytes())
