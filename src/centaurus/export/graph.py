"""An ONNX graph under construction: constants, nodes, and signals that know their shape.

Inside the graph a signal is (batch, 1, frames, channels), time before channels: projections, resampling and norms then
are plain matrix products and reductions over the last axis, and nothing is transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from centaurus.export.step import Signal, array

__all__ = ["Graph", "Signal", "StateSpec", "after", "array"]
OPSET, IR_VERSION = 17, 8
BATCH = "batch"


class StateSpec(NamedTuple):
    """A state of the graph: its name and its shape without the batch."""

    name: str
    shape: tuple[int, ...]


class Graph:
    """Nodes and constants in the order they are made; every constant is stored once."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.states: list[StateSpec] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._after: dict[str, str] = {}

    def constant(self, value: Any) -> str:
        """Return the name of a constant in single precision, or of integers if the value has those."""
        array = np.asarray(value)
        array = np.ascontiguousarray(array, np.int64 if array.dtype.kind == "i" else np.float32)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"c{len(self._constants)}"
            self._constants[key] = name
            self._initializers.append(numpy_helper.from_array(array, name))
        return self._constants[key]

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator and return its result."""
        return self.nodes_of(op, 1, *inputs, **attributes)[0]

    def nodes_of(self, op: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add an operator and return its results."""
        names = [f"{op.lower()}{len(self.nodes)}" + (f".{k}" if outputs > 1 else "") for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def reshape(self, x: str, *shape: int) -> str:
        """Return x in another shape behind the batch axis."""
        return self.node("Reshape", x, self.constant(np.array([0, *shape])))

    def transpose(self, x: str, *order: int) -> str:
        """Return x with its axes in another order."""
        return self.node("Transpose", x, perm=order)

    def split(self, x: str, sizes: Sequence[int], axis: int = -1) -> list[str]:
        """Return pieces of these sizes along an axis."""
        return self.nodes_of("Split", len(sizes), x, self.constant(np.array(sizes)), axis=axis)

    def concat(self, *parts: str, axis: int = -1) -> str:
        """Return pieces joined along an axis."""
        return self.node("Concat", *parts, axis=axis)

    def part(self, x: str, start: int, stop: int, axis: int) -> str:
        """Return a range along an axis."""
        return self.node("Slice", x, *(self.constant(np.array([n])) for n in (start, stop, axis)))

    def add(self, x: str, y: str) -> str:
        """Return the sum, broadcast."""
        return self.node("Add", x, y)

    def multiply(self, x: str, y: str) -> str:
        """Return the product, element by element."""
        return self.node("Mul", x, y)

    def matmul(self, x: str, y: str) -> str:
        """Return the matrix product over the last two axes."""
        return self.node("MatMul", x, y)

    def silu(self, x: str) -> str:
        """Return x · sigmoid(x)."""
        return self.multiply(x, self.node("Sigmoid", x))

    def state(self, name: str, *shape: int) -> str:
        """Return the name of a new state as an input; it is zero at the start of a stream."""
        unique = f"state.{name}"
        self.states.append(StateSpec(unique, shape))
        return unique

    def keep(self, state: str, value: str) -> None:
        """Set the value of a state after this piece."""
        self._after[state] = value

    def model(
        self, audio: str, samples: int, output: str, shape: Sequence[int], words: dict[str, str]
    ) -> onnx.ModelProto:
        """Return the graph as a model: audio and states in, output and states out, words in its metadata."""

        def value(name: str, inner: Sequence[int]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, *inner])

        for spec in self.states:
            self.nodes.append(helper.make_node("Identity", [self._after[spec.name]], [after(spec.name)]))
        self.nodes.append(helper.make_node("Identity", [output], ["output"]))
        graph = helper.make_graph(
            _without_identities(self.nodes),
            "centaurus",
            [value(audio, [1, samples]), *(value(s.name, s.shape) for s in self.states)],
            [value("output", shape), *(value(after(s.name), s.shape) for s in self.states)],
            self._initializers,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        made.producer_name = "centaurus"
        helper.set_model_props(made, words)
        return made


def after(state: str) -> str:
    """Return the name of a state as an output."""
    return state.replace("state.", "next.", 1)


def _without_identities(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes without identities: a value that is an output has the name of the output."""
    made = {name for node in nodes if node.op_type != "Identity" for name in node.output}
    outer: dict[str, str] = {}
    kept = []
    for node in nodes:
        if node.op_type == "Identity" and node.input[0] in made and node.input[0] not in outer:
            outer[node.input[0]] = node.output[0]
        else:
            kept.append(node)
    for node in kept:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = outer.get(name, name)
    return kept
