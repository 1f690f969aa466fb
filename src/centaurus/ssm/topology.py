"""Topologies as equations, from which the shapes of the operands, their roles and the counts are derived."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from centaurus.planner.expression import Expression, ExpressionError, check_size, parse

EQUATIONS = {
    "depthwise": "u_bit E_in K_int -> y_bit",
    "separable": "u_bit E_in K_int M_ji -> y_bjt",
    "grouped": "u_bgit E_gjin K_gjint -> y_bgjt",
    "pointwise": "u_bit B_ni K_nt C_jn -> y_bjt",
    "bottleneck": "u_bit B_ni E_nm K_nmt C_jn -> y_bjt",
    "full": "u_bit E_jin K_jint -> y_bjt",
}

RESERVED = {"u", "K", "y", "A"}
REAL_ONLY = {"M"}  # a mixer stays real when the rest is complex


@dataclass(frozen=True)
class BlockCounts:
    """Parameters and FLOPs per recurrent step as the paper counts them, and the floats of the state."""

    parameters: int
    flops: int
    state_floats: int


@dataclass(frozen=True)
class Topology:
    """An equation with sizes. Operands act before the state, weight its modes, or act after it."""

    expression: Expression
    sizes: tuple[tuple[str, int], ...]
    complex: bool = False

    @cached_property
    def size(self) -> dict[str, int]:
        """Sizes by index."""
        return dict(self.sizes)

    @cached_property
    def modes(self) -> str:
        """K's indices other than time: the recurrent state."""
        return self.expression.operands[self.expression.kernel].replace(self.expression.time, "")

    @cached_property
    def channels_in(self) -> str:
        """Indices that the input's channel axis unfolds into."""
        return self.expression.operands[self.expression.signal].strip("bt")

    @cached_property
    def channels_out(self) -> str:
        """Indices that the output's channel axis unfolds into."""
        return self.expression.output.strip("bt")

    @lru_cache  # noqa: B019 - topologies are few and small
    def letters(self) -> list[str]:
        """Return the operands that are parameters, in the equation's order."""
        return [name for name in self.expression.names if name not in ("u", "K")]

    def indices(self, letter: str) -> str:
        """Return an operand's indices."""
        return self.expression.operands[self.expression.names.index(letter)]

    @lru_cache  # noqa: B019 - topologies are few and small
    def weights(self) -> list[str]:
        """Return the operands that have only K's indices: they weight the modes."""
        return [name for name in self.letters() if set(self.indices(name)) <= set(self.modes)]

    @lru_cache  # noqa: B019 - topologies are few and small
    def before(self) -> list[str]:
        """Return the operands that act before the state: they have an index of u that neither K nor the output has.

        An operand that shares such an index with one of these is among them too (D_np after B_pi).
        """
        kept, reached = set(self.modes + self.channels_out), set(self.channels_in)
        names: list[str] = []
        for _ in self.letters():
            names = [name for name in self.letters() if (reached - kept) & set(self.indices(name))]
            reached.update(*(self.indices(name) for name in names))
        return names

    @lru_cache  # noqa: B019 - topologies are few and small
    def after(self) -> list[str]:
        """Return the operands that act after the state."""
        return [name for name in self.letters() if name not in self.before() and name not in self.weights()]

    def is_complex(self, letter: str) -> bool:
        """Return whether an operand has real and imaginary parts."""
        return self.complex and letter not in REAL_ONLY

    def shape(self, letter: str) -> tuple[int, ...]:
        """Return the shape of an operand's parameter; complex ones have a last axis of 2."""
        return (*(self.size[i] for i in self.indices(letter)), *((2,) if self.is_complex(letter) else ()))

    def count(self, indices: str) -> int:
        """Return the product of the sizes of indices."""
        return math.prod(self.size[i] for i in indices)

    def fan_in(self, letter: str) -> int:
        """Return the product of the sizes that an operand sums: those of indices that nothing after it has."""
        order = [*self.before(), *self.weights(), *self.after()]
        later = set(self.expression.output).union(*(self.indices(n) for n in order[order.index(letter) + 1 :]))
        if letter in self.before():
            later |= set(self.modes)
        return self.count("".join(i for i in self.indices(letter) if i not in later))

    def step_indices(self) -> str:
        """Return the indices of Δ, a part of K's.

        They are those of u and those that the output does not have; without one of u, those that a projection has.
        """
        inner = "".join(i for i in self.modes if i in self.channels_in or i not in self.channels_out)
        if set(inner) & set(self.channels_in):
            return inner
        reached = set().union(*(self.indices(n) for n in [*self.before(), *self.after()]))
        return "".join(i for i in inner if i in reached) or inner

    def counts(self, convention: str = "table") -> BlockCounts:
        """Return the paper's counts, without biases, norms and Δ.

        The convention ``"table"`` counts the addition of the input to a state, ``"results"`` does not.
        """
        if convention not in ("table", "results"):
            raise ValueError(f"convention is 'table' or 'results', got {convention!r}")
        if convention == "results" and self.complex:
            raise ValueError("the convention 'results' is defined for real layers only; use 'table'")
        size = {name: self.count(self.indices(name)) for name in self.letters()}
        modes = self.count(self.modes)
        parameters = 2 * modes + sum(size[n] * (2 if self.is_complex(n) else 1) for n in self.letters())
        outer = [*self.before(), *self.after()]
        flops = sum(size[n] * (4 if self.is_complex(n) else 2) for n in outer)
        driven = any(self.is_complex(n) for n in self.before())
        flops += modes * (6 + (0 if convention == "results" else 2 if driven else 1))
        read = any(self.is_complex(n) for n in self.after())
        flops += sum(size[n] * ((8 if read else 4) if self.is_complex(n) else 2) for n in self.weights())
        return BlockCounts(parameters, flops, 2 * modes)


def _named(text: str) -> Expression:
    expression = parse(text)
    if expression.names[:1] != ("u",) or "K" not in expression.names:
        raise ExpressionError(f"a layer's equation starts with u_… and has basis kernels K_…: got {text!r}")
    repeated = {name for name in expression.names if expression.names.count(name) > 1}
    long = {name for name in expression.names if len(name) != 1}
    if long:
        raise ExpressionError(f"operand {sorted(long)[0]!r} of {text!r} should be one letter, like B_ni")
    bad = repeated | (set(expression.names) & RESERVED - {"u", "K"})
    if bad:
        raise ExpressionError(f"letter {sorted(bad)[0]!r} of {text!r} is taken: each operand needs its own")
    u, out = expression.operands[0], expression.output
    for indices in (u, out):
        if not (indices.startswith("b") and indices.endswith("t") and len(indices) > 2):
            raise ExpressionError(f"signals are (batch, channels, time): {indices!r} of {text!r} should be b…t")
    kernel = expression.operands[expression.kernel]
    if expression.names[expression.kernel] != "K" or not kernel.endswith("t") or len(kernel) < 2:
        raise ExpressionError(f"the second operand with t should be the kernel K_…t in {text!r}")
    batched = [name for name, op in zip(expression.names[1:], expression.operands[1:], strict=True) if "b" in op]
    if batched:
        raise ExpressionError(f"{batched[0]} of {text!r} has the batch index b, which belongs to u and y alone")
    return expression


@lru_cache(maxsize=1024)
def topology(text: str, sizes: tuple[tuple[str, int], ...], complex: bool) -> Topology:
    """Return the topology of an equation with these sizes (of every index but b and t)."""
    expression = _named(text)
    needed = {i for op in expression.operands for i in op} - {"b", "t"}
    size_of = dict(sizes)
    for index in sorted(needed ^ set(size_of)):
        what = "has no size" if index in needed else "is not in the equation"
        raise ExpressionError(f"index {index!r} {what}: {text!r} with sizes {size_of}")
    for index, size in sizes:
        check_size(index, size)
    built = Topology(expression, sizes, complex)
    reached = set(built.channels_in).union(*map(built.indices, built.before()))
    carried = reached & set(built.channels_out) - set(built.modes)
    if carried:
        raise ExpressionError(
            f"index {sorted(carried)[0]!r} of {text!r} goes from u to y past K: give it to K too, or fold it into b"
        )
    if complex and max(len(built.before()), sum(built.is_complex(n) for n in built.after())) > 1:
        raise ExpressionError(f"complex=True allows one complex operand before and one after the state: {text!r}")
    return built


def named_sizes(
    name: str, in_channels: int, out_channels: int, states: int, substates: int, groups: int
) -> tuple[tuple[str, int], ...]:
    """Return the sizes of a named topology's indices from a layer's arguments."""
    if name not in EQUATIONS:
        raise ValueError(
            f"unknown topology {name!r}: choose one of {', '.join(EQUATIONS)}, or write an equation 'u_bit … -> y_bjt'"
        )
    expression = parse(EQUATIONS[name])
    used = {index for op in expression.operands for index in op}
    check_arguments(
        name, in_channels=in_channels, out_channels=out_channels, states=states, substates=substates, groups=groups
    )
    _refuse(name, used, in_channels, out_channels, substates, groups)
    offered: Mapping[str, int] = {
        "g": groups,
        "i": in_channels // groups,
        "j": out_channels // groups,
        "n": states,
        "m": substates,
    }
    return tuple((index, offered[index]) for index in "gijnm" if index in used)


def check_arguments(owner: str, **sizes: object) -> None:
    """Raise ValueError unless every size is a whole number of at least one."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} of {owner} should be a whole number of at least 1, got {size!r}")


def _refuse(name: str, used: set[str], in_channels: int, out_channels: int, substates: int, groups: int) -> None:
    if "m" not in used and substates != 1:
        raise ValueError(f"{name} has no sub-states: substates should be 1, got {substates}")
    if "g" not in used and groups != 1:
        raise ValueError(f"{name} has no groups: groups should be 1, got {groups}")
    if "j" not in used and out_channels != in_channels:
        raise ValueError(f"{name} keeps its channels: out_channels should be {in_channels}, got {out_channels}")
    for label, value in (("in_channels", in_channels), ("out_channels", out_channels)):
        if value % groups:
            raise ValueError(f"{label}={value} does not divide into groups={groups}")
