"""Expressions: einsums in which one index, time, is convolved; parsing and checks of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache


class ExpressionError(ValueError):
    """An expression that cannot be parsed, or operands that do not fit it."""


@dataclass(frozen=True)
class Expression:
    """An expression by the index strings of its operands, e.g. ``("bit", "ni", "nt", "jn") -> "bjt"``.

    Two operands have the index ``time``: the signal, which comes first, and the kernel. ``names`` are the operands'
    letters, if they have any.
    """

    operands: tuple[str, ...]
    output: str
    time: str = "t"
    names: tuple[str, ...] = ()

    @property
    def signal(self) -> int:
        """Position of the signal: the first operand with the time index. The output has its length."""
        return next(p for p, op in enumerate(self.operands) if self.time in op)

    @property
    def kernel(self) -> int:
        """Position of the kernel: the second operand with the time index."""
        return [p for p, op in enumerate(self.operands) if self.time in op][1]

    @property
    def frequency(self) -> str:
        """The index that takes the place of time in a spectrum."""
        return "ω" if any("f" in op for op in self.operands) else "f"

    def name(self, position: int) -> str:
        """Return the operand's letter, or "operand N" if the expression has no letters."""
        return self.names[position] if self.names else f"operand {position}"

    def __str__(self) -> str:
        return ",".join(self.operands) + "->" + self.output


@lru_cache(maxsize=4096)
def parse(text: str, time: str = "t") -> Expression:
    """Parse ``"bit,ni,nt,jn->bjt"`` or, with letters, ``"u_bit B_ni K_nt C_jn -> y_bjt"``."""
    if not isinstance(text, str) or text.count("->") != 1:
        raise ExpressionError(f"an expression needs exactly one '->': got {text!r}")
    left, right = (side.strip() for side in text.split("->"))
    named = "_" in left
    terms = left.split() if named else left.replace(" ", "").split(",")
    if named:
        terms = [term.strip(",") for term in terms]
    names, operands = [], []
    for term in [*terms, right]:
        name, _, indices = term.rpartition("_")
        if named and not name:
            raise ExpressionError(f"term {term!r} of {text!r} has no letter: write it as X_{term or 'ij'}")
        names.append(name)
        operands.append(indices)
    expression = Expression(tuple(operands[:-1]), operands[-1], time, tuple(names[:-1]) if named else ())
    _check(expression, text)
    return expression


def _check(expression: Expression, text: str) -> None:
    if len(expression.time) != 1:
        raise ExpressionError(f"the time index is one letter, got {expression.time!r}")
    for position, indices in enumerate([*expression.operands, expression.output]):
        where = "the output" if position == len(expression.operands) else expression.name(position)
        if not (indices.isalpha() and indices.isascii()):
            raise ExpressionError(f"{where} of {text!r} has indices {indices!r}: expected one or more letters a-z")
        repeated = sorted({index for index in indices if indices.count(index) > 1})
        if repeated:
            raise ExpressionError(f"index {repeated[0]!r} is repeated in {where} ({indices!r}) of {text!r}")
    for index in expression.output:
        if not any(index in op for op in expression.operands):
            raise ExpressionError(f"output index {index!r} of {text!r} is in no operand")
    carriers = [expression.name(p) for p, op in enumerate(expression.operands) if expression.time in op]
    if len(carriers) != 2:
        raise ExpressionError(
            f"exactly two operands may carry the time index {expression.time!r} (signal and kernel); "
            f"in {text!r} {len(carriers)} do: {', '.join(carriers) or 'none'}"
        )
    if expression.time not in expression.output:
        raise ExpressionError(f"the output {expression.output!r} of {text!r} does not carry the time index")


def sizes_of(expression: Expression, shapes: Sequence[Sequence[int]]) -> tuple[dict[str, int], int]:
    """Return the sizes of the indices from the operands' shapes, and the kernel's length, which may differ in time."""
    if len(shapes) != len(expression.operands):
        raise ExpressionError(f"{expression} has {len(expression.operands)} operands, {len(shapes)} tensors were given")
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    kernel_length = 0
    for position, (indices, shape) in enumerate(zip(expression.operands, shapes, strict=True)):
        name = expression.name(position)
        if len(shape) != len(indices):
            raise ExpressionError(
                f"{name} of {expression} has indices {indices!r} ({len(indices)} axes), "
                f"the tensor has shape {tuple(shape)} ({len(shape)} axes)"
            )
        for index, size in zip(indices, shape, strict=True):
            check_size(index, size, name)
            if index == expression.time and position == expression.kernel:
                kernel_length = size
            elif sizes.setdefault(index, size) != size:
                raise ExpressionError(
                    f"index {index!r} of {expression} is {sizes[index]} in {owner[index]} and {size} in {name}"
                )
            owner.setdefault(index, name)
    return sizes, kernel_length


def check_size(index: str, size: object, name: str = "sizes") -> int:
    """Return a size; raise ExpressionError unless it is an integer of at least 1."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ExpressionError(f"index {index!r} of {name} has size {size!r}: expected a whole number of at least 1")
    return size


def check_sizes(expression: Expression, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every index of the expression; raise ExpressionError if one is missing, unknown or invalid."""
    indices = sorted({index for op in expression.operands for index in op})
    missing = [index for index in indices if index not in sizes]
    if missing:
        raise ExpressionError(f"no size given for index {missing[0]!r} of {expression}")
    unknown = sorted(set(sizes) - set(indices))
    if unknown:
        raise ExpressionError(f"size given for index {unknown[0]!r}, which {expression} does not have")
    return {index: check_size(index, sizes[index]) for index in indices}
