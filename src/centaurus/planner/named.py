"""Plans by name: the fastest one, and the paper's orders (natural, full kernel, Listing 1) for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from centaurus.planner.device import Device
from centaurus.planner.expression import Expression
from centaurus.planner.plan import Plan
from centaurus.planner.search import Filter, plan_expression

OTHERS = ("chunked", "direct", "scan", "dft", "fft")  # convolutions that the paper does not have
NAMES = ("planned", "natural", "paper", "full-kernel")


def _weights(e: Expression) -> int:
    """Return the set (bits) of K and of the operands that have only K's indices."""
    own = set(e.operands[e.kernel])
    return sum(1 << p for p, op in enumerate(e.operands) if p == e.kernel or set(op) <= own)


def full_kernel(e: Expression) -> Filter:
    """Allow one order: contract everything but the signal, then convolve once in frequency."""
    signal, everything = 1 << e.signal, (1 << len(e.operands)) - 1

    def allowed(a: int, b: int, kind: str, domain: str) -> bool:
        if kind in OTHERS:
            return False
        return not b or not a & signal or b == everything ^ signal

    return allowed


def natural(e: Expression) -> Filter:
    """Allow one order: project the input in time, convolve in frequency, project the output in time."""
    signal, kernel = 1 << e.signal, _weights(e)
    lost = set(e.operands[e.signal]) - set(e.operands[e.kernel]) - set(e.output)
    before = sum(1 << p for p, op in enumerate(e.operands) if p != e.signal and set(op) & lost)

    def allowed(a: int, b: int, kind: str, domain: str) -> bool:
        if kind == "rfft":
            return a in (signal | before, kernel)
        if kind == "contract":
            return domain != "frequency" if a & signal else not (a | b) & ~kernel
        return kind not in OTHERS and (not b or a == signal | before)

    return allowed


def paper(e: Expression, sizes: Mapping[str, int]) -> Filter:
    """Allow the order of Listing 1: by its if-statements if there are B and C, else the kernel first.

    Everything is then contracted between the transforms, as by its single einsum.
    """
    signal, kernel = 1 << e.signal, _weights(e)
    ends = [p for p in range(len(e.operands)) if not (kernel | signal) >> p & 1]
    inner = [i for i in e.operands[e.kernel] if any(i in e.operands[p] for p in ends)]
    if len(ends) == 2 and len(inner) == 1:
        b, h, n, k = (sizes[i] for i in (e.operands[e.signal][0], e.operands[e.signal][1], inner[0], e.output[1]))
        if 1 / h + 1 / k < 1 / b + 1 / n:
            if n <= h:
                return natural(e)
        elif h * k <= n:
            return full_kernel(e)

    def allowed(a: int, b: int, kind: str, domain: str) -> bool:
        if kind == "rfft":
            return a in (signal, kernel)
        if kind == "contract":
            return domain in ("frequency", "none") or not (a | b) & ~kernel
        return kind not in OTHERS

    return allowed


def named_plan(
    name: str,
    expression: Expression,
    sizes: Mapping[str, int],
    modes: str,
    phase: str,
    device: Device,
    backward: bool,
    limit: int | None,
) -> Plan:
    """Return the plan of that name, one of ``NAMES``, for these sizes."""
    if name not in NAMES:
        raise ValueError(f"unknown plan {name!r}: choose one of {', '.join(NAMES)}")
    filters = {
        "planned": lambda: None,
        "natural": lambda: natural(expression),
        "paper": lambda: paper(expression, sizes),
        "full-kernel": lambda: full_kernel(expression),
    }
    plan = plan_expression(
        expression,
        sizes,
        modes=modes,
        phase=phase,
        device=device,
        backward=backward,
        limit=limit,
        allowed=filters[name](),
    )
    return replace(plan, name=name)
