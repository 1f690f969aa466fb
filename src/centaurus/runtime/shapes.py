"""Shape inference for the operators of an exported graph: what a step would allocate and compute, before it runs.

An operator belongs to the allowed ones by having a rule here; every rule maps input shapes to output shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime.modelfile import SessionError

Shape = tuple[int, ...]
MOST_STEP_BYTES = 1 << 31  # all values of a step together
MOST_STEP_OPERATIONS = 100_000_000_000  # about a minute of a slow core
ELEMENT_BYTES = 8  # at most: float32 or int64


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
    outputs: int

    def constant(self, position: int) -> list[int]:
        """The integer constant that an operator takes as an input."""
        values = self.integers[position] if position < len(self.integers) else None
        if values is None:
            raise ValueError(f"input {position} should be an integer constant")
        return [int(n) for n in values.reshape(-1)]

    def integer(self, name: str, default: int) -> int:
        """An attribute that is a whole number."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise ValueError(f"{name} should be a whole number")
        return value


class Cost(NamedTuple):
    """Bytes of all values of a step, and its multiplications and additions."""

    bytes: int
    operations: int


def step_cost(
    inputs: Mapping[str, Shape], constants: Mapping[str, tuple[Shape, NDArray[np.int64] | None]], nodes: Sequence[Node]
) -> tuple[Cost, dict[str, Shape]]:
    """Infer every shape of a graph; refuse one that does not fit together or takes more than a model may."""
    shapes = dict(inputs) | {name: constant[0] for name, constant in constants.items()}
    if len(shapes) != len(inputs) + len(constants):
        raise SessionError("an input and a constant have the same name")
    total, operations = 0, 0
    for position, node in enumerate(nodes):
        where = f"node {position} ({node.operator})"
        missing = [name for name in node.inputs if name not in shapes]
        if missing:
            raise SessionError(f"{where} reads {missing[0]!r:.60}, which nothing before it makes")
        operands = [shapes[name] for name in node.inputs]
        integers = [constants[name][1] if name in constants else None for name in node.inputs]
        try:
            made = OPERATORS[node.operator](Operands(operands, integers, node.attributes, len(node.outputs)))
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
    return Cost(total, operations), shapes


def _same(x: Operands) -> list[Shape]:
    _count(x, 1, 1)
    return [x.shapes[0]]


def _broadcast(x: Operands) -> list[Shape]:
    _count(x, 1, 16)
    return [tuple(np.broadcast_shapes(*x.shapes))]


def _matmul(x: Operands) -> list[Shape]:
    _count(x, 2, 2)
    left, right = x.shapes
    if min(len(left), len(right)) < 2 or left[-1] != right[-2]:
        raise ValueError("matrices of these shapes have no product")
    return [(*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1])]


def _concat(x: Operands) -> list[Shape]:
    _count(x, 1, 1 << 16)
    axis = _axis(x.integer("axis", len(x.shapes[0])), x.shapes[0])
    rest = {(*shape[:axis], 0, *shape[axis + 1 :]) for shape in x.shapes}
    if len(rest) != 1:
        raise ValueError("only the joined axis may differ")
    return [tuple(sum(s[axis] for s in x.shapes) if k == axis else n for k, n in enumerate(x.shapes[0]))]


def _split(x: Operands) -> list[Shape]:
    _count(x, 2, 2)
    axis, sizes = _axis(x.integer("axis", 0), x.shapes[0]), x.constant(1)
    if sum(sizes) != x.shapes[0][axis] or min(sizes, default=-1) < 0:
        raise ValueError(f"parts of {sizes!r:.60} are not the whole axis")
    return [tuple(size if k == axis else n for k, n in enumerate(x.shapes[0])) for size in sizes]


def _slice(x: Operands) -> list[Shape]:
    _count(x, 4, 4)
    starts, ends, axes = (x.constant(position) for position in (1, 2, 3))
    if not len(starts) == len(ends) == len(axes) or len({_axis(n, x.shapes[0]) for n in axes}) != len(axes):
        raise ValueError("starts, ends and axes should be of one length")
    shape = list(x.shapes[0])
    for start, end, axis in zip(starts, ends, axes, strict=True):
        place = _axis(axis, x.shapes[0])
        shape[place] = len(range(*slice(start, end).indices(shape[place])))
    return [tuple(shape)]


def _gather(x: Operands) -> list[Shape]:
    """The places are a constant, none of them outside the axis."""
    _count(x, 2, 2)
    axis, places = _axis(x.integer("axis", 0), x.shapes[0]), x.constant(1)
    size = x.shapes[0][axis]
    if not all(-size <= place < size for place in places):
        raise ValueError(f"places from {min(places)} to {max(places)} are not all within an axis of {size}")
    return [(*x.shapes[0][:axis], *x.shapes[1], *x.shapes[0][axis + 1 :])]


def _reshape(x: Operands) -> list[Shape]:
    _count(x, 2, 2)
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
    _count(x, 1, 1)
    order = x.attributes.get("perm", tuple(reversed(range(len(x.shapes[0])))))
    if not isinstance(order, tuple) or sorted(order) != list(range(len(x.shapes[0]))):
        raise ValueError(f"{order!r:.60} is not an order of the axes")
    return [tuple(x.shapes[0][k] for k in order)]


def _reduce(x: Operands) -> list[Shape]:
    """The axes are an attribute up to opset 17, an input from 18 on."""
    _count(x, 1, 2)
    axes = x.constant(1) if len(x.shapes) == 2 else x.attributes.get("axes", tuple(range(len(x.shapes[0]))))
    if isinstance(axes, int | float):
        raise ValueError("axes should be a list")
    places = {_axis(n, x.shapes[0]) for n in axes}
    keep = x.integer("keepdims", 1)
    return [tuple(1 if k in places else n for k, n in enumerate(x.shapes[0]) if keep or k not in places)]


def _normalize(x: Operands) -> list[Shape]:
    """Layer normalization: scale and offset must not widen the input."""
    _count(x, 2, 3)
    _axis(x.integer("axis", -1), x.shapes[0])
    if np.broadcast_shapes(*x.shapes) != x.shapes[0]:
        raise ValueError("scale and offset should fit the normalized axes")
    return [x.shapes[0]]


def _count(x: Operands, least: int, most: int) -> None:
    if not least <= len(x.shapes) <= most:
        raise ValueError(f"{len(x.shapes)} inputs")


def _axis(axis: int, shape: Shape) -> int:
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"there is no axis {axis}")
    return axis % len(shape)


def _short(shapes: Sequence[Shape]) -> str:
    return f"{', '.join(map(str, shapes)):.120}"


OPERATORS: dict[str, Callable[[Operands], list[Shape]]] = {
    "Add": _broadcast,
    "Concat": _concat,
    "Div": _broadcast,
    "Erf": _same,
    "Exp": _same,
    "Gather": _gather,
    "Identity": _same,
    "LayerNormalization": _normalize,
    "Log": _same,
    "MatMul": _matmul,
    "Min": _broadcast,
    "Mul": _broadcast,
    "ReduceMax": _reduce,
    "Relu": _same,
    "Reshape": _reshape,
    "Sigmoid": _same,
    "Slice": _slice,
    "Softplus": _same,
    "Split": _split,
    "Sqrt": _same,
    "Sub": _broadcast,
    "Tanh": _same,
    "Transpose": _transpose,
}
