"""Plans from the search: the fastest within a byte limit, its runners-up, or every one there is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from centaurus.contract import cost
from centaurus.contract.device import Device
from centaurus.contract.expression import Expression, ExpressionError, check_size, check_sizes, parse
from centaurus.contract.plan import Plan, Step, Value
from centaurus.contract.search import Entry, Filter, Problem, Search, State

RUNNERS_UP = 4


class LimitError(ValueError):
    """No plan fits the byte limit."""


def steps_of(search: Search, state: State, entry: Entry) -> tuple[Step, ...]:
    """Steps in the order of execution, kernel before signal."""
    e = search.problem.expression
    numbers: dict[int, Value] = {}
    steps: list[Step] = []

    def visit(state: State, entry: Entry) -> Value:
        if id(entry) in numbers and entry.parents:
            return numbers[id(entry)]
        signal = bool(state.mask & search.u)
        indices = search.indices(state) + {"time": e.time, "frequency": e.frequency}.get(state.domain, "")
        if not entry.parents:
            position = state.mask.bit_length() - 1
            return Value(position, indices, state.domain, signal)
        inputs = tuple(visit(s, p) for s, p in sorted(entry.parents, key=lambda sp: bool(sp[0].mask & search.u)))
        inputs = tuple(sorted(inputs, key=lambda v: not v.signal))
        value = Value(len(e.operands) + len(steps), indices, state.domain, signal)
        price = entry.cost
        assert price is not None
        steps.append(
            Step(
                entry.kind,
                inputs,
                value,
                price.flops,
                price.seconds,
                price.backward,
                price.kept,
                price.transient,
                entry.chunk,
            )
        )
        numbers[id(entry)] = value
        return value

    visit(state, entry)
    return tuple(steps)


def _plan(search: Search, entry: Entry, name: str) -> Plan:
    p = search.problem
    numbers = [search.rates.count(op.replace(p.expression.time, "")) for op in p.expression.operands]
    lengths = [search.rates.samples if p.expression.time in op else 1 for op in p.expression.operands]
    if p.modes:
        lengths[p.expression.kernel] = 2
    out = search.rates.count(p.expression.output.replace(p.expression.time, "")) * search.rates.samples
    fixed = sum(n * t for n, t in zip(numbers, lengths, strict=True)) + out
    return Plan(
        p.expression,
        p.sizes,
        search.rates.kernel,
        search.fft,
        p.modes,
        p.phase,
        steps_of(search, State(search.full, "time"), entry),
        p.device.name,
        fixed * cost.REAL * (2 if p.backward else 1),
        p.device.tile_bytes,
        name,
    )


@lru_cache(maxsize=4096)
def _problem(
    expression: Expression | str,
    sizes: tuple[tuple[str, int], ...],
    kernel_length: int | None,
    modes: str,
    phase: str,
    device: Device,
    backward: bool,
    limit: int | None,
) -> Problem:
    e = parse(expression) if isinstance(expression, str) else expression
    checked = check_sizes(e, dict(sizes))
    length = checked[e.time] if kernel_length is None else check_size(e.time, kernel_length, "the kernel")
    kernel = e.operands[e.kernel]
    for what, indices in (("modes", modes), ("phase", phase)):
        if not set(indices) <= set(kernel) - {e.time}:
            raise ExpressionError(f"{what} {indices!r} should be indices of the kernel {kernel!r} of {e}")
    return Problem(e, tuple(checked.items()), length, modes, phase, device, backward, limit)


@lru_cache(maxsize=4096)
def _solve(problem: Problem, allowed: Filter | None = None) -> Plan:
    search = Search(problem, allowed)
    found = search.entries().get(State(search.full, "time"), [])
    if not found:
        if problem.limit is None:
            raise ExpressionError(f"no plan for {problem.expression}")
        search = Search(replace(problem, limit=sys.maxsize), allowed)
        least = min(search.entries()[State(search.full, "time")], key=lambda e: e.peak)
        raise LimitError(
            f"no plan of {problem.expression} fits {problem.limit:,} bytes: the closest needs {least.peak:,} "
            f"({_plan(search, least, 'closest').summary()})"
        )
    found = sorted(found, key=lambda e: e.seconds)
    plans = [_plan(search, entry, "planned") for entry in found[: RUNNERS_UP + 1]]
    return Plan(**{**plans[0].__dict__, "runners_up": tuple(plans[1:])})


def plan_expression(
    expression: Expression | str,
    sizes: Mapping[str, int],
    *,
    kernel_length: int | None = None,
    modes: str = "",
    phase: str = "",
    device: Device | str = "cpu",
    backward: bool = True,
    limit: int | None = None,
    allowed: Filter | None = None,
) -> Plan:
    """The fastest plan within the byte limit (of intermediates: operands and output come on top), cached."""
    profile = Device.load(device) if isinstance(device, str) else device
    key = (expression, tuple(sizes.items()), kernel_length, modes, phase, profile, backward, limit)
    return _solve(_problem(*key)) if allowed is None else _solve.__wrapped__(_problem(*key), allowed)


def enumerate_plans(
    expression: Expression | str,
    sizes: Mapping[str, int],
    *,
    kernel_length: int | None = None,
    modes: str = "",
    phase: str = "",
    device: Device | str = "cpu",
    backward: bool = True,
) -> list[Plan]:
    """Every plan of the search space, fastest first. Grows quickly with the number of operands."""
    profile = Device.load(device) if isinstance(device, str) else device
    key = (expression, tuple(sizes.items()), kernel_length, modes, phase, profile, backward, None)
    search = Search(_problem(*key))
    found = search.entries(every=True)[State(search.full, "time")]
    return [_plan(search, entry, "enumerated") for entry in sorted(found, key=lambda e: e.seconds)]
