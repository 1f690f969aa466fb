"""Plans as plain data for the plan explorer: one in full, a row of a map, and a grid for a site without a server."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from centaurus.planner import CPU, Device, Plan
from centaurus.planner.named import NAMES, named_plan
from centaurus.ssm.topology import EQUATIONS, Topology, topology

LARGEST_SIZE = 1 << 20
MOST_OPERANDS = 6  # the search grows as 3^operands: six take about a second
LONGEST_EQUATION = 120  # characters
MOST_CELLS = 16  # in a row of a map
DEFAULTS = {"b": 8, "t": 16_384, "i": 16, "j": 16, "n": 64, "m": 4, "g": 4}
OTHER = 16  # the size of an index that has no default
# The grid of a static site. i and j move together; m and g stay at their defaults.
GRID = {"b": (1, 8, 64), "t": (1_024, 16_384, 262_144), "i": (8, 32, 128), "n": (4, 32, 256)}


class QueryError(ValueError):
    """A query that cannot be answered; the message is shown to the user."""


def answer_plan(query: Mapping[str, str], device: Device | str = "cpu") -> dict[str, Any]:
    """Return the plan of ``equation`` (a topology's name or an equation) at the sizes given as ``b=8&t=16384&…``."""
    equation = _read(query)
    e = equation.expression
    plans = {name: _plan(equation, name, device) for name in NAMES}
    best = plans["planned"]
    return {
        "equation": _text(equation),
        "operands": [{"name": n, "indices": op} for n, op in zip(e.names, e.operands, strict=True)],
        "output": e.output,
        "sizes": dict(equation.sizes),
        "device": best.device,
        "plan": _full(best),
        "runners_up": [_total(plan) for plan in best.runners_up],
        "named": {name: _total(plans[name]) for name in NAMES if name != "planned"},
        "rule": _rule(plans),
    }


def answer_row(query: Mapping[str, str], device: Device | str = "cpu") -> dict[str, Any]:
    """Return a row of a map: the best plan and the paper's at every value of one size (``across=i&values=4,8,16``)."""
    index, values = query.get("across", ""), query.get("values", "").split(",")
    if not 0 < len(values) <= MOST_CELLS:
        raise QueryError(f"a row of a map has 1 to {MOST_CELLS} values, got {len(values)}")
    cells = []
    for value in values:
        equation = _read({**query, index: value})
        if index not in dict(equation.sizes):
            raise QueryError(f"the map goes across {index[:8]!r}, which {_text(equation)} does not have")
        cells.append(_cell({name: _plan(equation, name, device) for name in NAMES}))
    return {"cells": cells}


def grid() -> dict[str, Any]:
    """Return plans of every topology over a grid of sizes, for the default CPU, with equal summaries stored once."""
    summaries: dict[str, int] = {}
    answers: dict[str, Any] = {}
    for name in EQUATIONS:
        for values in product(*GRID.values()):
            sizes = dict(zip(GRID, values, strict=True))
            asked = {index: str(size) for index, size in (sizes | {"j": sizes["i"]}).items()}
            answer = answer_plan({"equation": name} | asked, CPU)
            for plan in (answer["plan"], *answer["runners_up"], *answer["named"].values()):
                _shorten(plan, summaries)
            answers["/".join([name, *map(str, values)])] = {
                "plan": answer["plan"],
                "runners_up": answer["runners_up"],
                "named": answer["named"],
                "rule": answer["rule"],
            }
    return {
        "device": CPU.name,
        "axes": {index: list(values) for index, values in GRID.items()},
        "defaults": DEFAULTS,
        "equations": EQUATIONS,
        "summaries": list(summaries),
        "plans": answers,
    }


def _shorten(plan: dict[str, Any], summaries: dict[str, int]) -> None:
    """Keep three digits of every estimate, and the summary by its number."""
    plan["summary"] = summaries.setdefault(plan["summary"], len(summaries))
    for data in (plan, *plan.get("steps", ())):
        for key, value in data.items():
            if isinstance(value, float):
                data[key] = float(f"{value:.3g}")


def _read(query: Mapping[str, str]) -> Topology:
    """Return the topology of a query, with every size checked; ``ValueError`` says what is wrong."""
    name = query.get("equation", "bottleneck").strip()
    if len(name) > LONGEST_EQUATION:
        raise QueryError(f"an equation has at most {LONGEST_EQUATION} characters, got {len(name)}")
    text = EQUATIONS.get(name, name)
    if "->" not in text:
        raise QueryError(f"{name!r} is not a topology ({', '.join(EQUATIONS)}) nor an equation 'u_bit … -> y_bjt'")
    indices = {index for term in text.split("->")[0].split() for index in term.partition("_")[2].strip(",")}
    if text.count("_") - 1 > MOST_OPERANDS:
        raise QueryError(f"an equation here has at most {MOST_OPERANDS} operands: the search grows with 3^operands")
    sizes = {index: _size(index, query.get(index, str(DEFAULTS.get(index, OTHER)))) for index in sorted(indices)}
    inner = tuple((index, size) for index, size in sizes.items() if index not in "bt")
    equation = topology(text, inner, False)
    return Topology(equation.expression, tuple(sizes.items()), False)


def _size(index: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:9]) <= LARGEST_SIZE or len(text) > 9:
        raise QueryError(f"the size of {index!r} is a whole number from 1 to {LARGEST_SIZE}, got {text[:20]!r}")
    return int(text)


def _plan(equation: Topology, name: str, device: Device | str) -> Plan:
    profile = Device.load(device) if isinstance(device, str) else device
    return named_plan(name, equation.expression, dict(equation.sizes), equation.modes, "", profile, True, None)


def _text(equation: Topology) -> str:
    e = equation.expression
    terms = " ".join(f"{name}_{op}" for name, op in zip(e.names, e.operands, strict=True))
    return f"{terms} -> y_{e.output}"


def _rule(plans: Mapping[str, Plan]) -> str:
    """Return which of its orders the paper's Listing 1 takes here."""
    paper = plans["paper"].summary()
    same = [name for name in ("natural", "full-kernel") if plans[name].summary() == paper]
    return same[0] if same else "frequency"


def _cell(plans: Mapping[str, Plan]) -> dict[str, Any]:
    best = plans["planned"]
    return {
        "plan": best.summary(),
        "seconds": best.seconds,
        "paper": plans["paper"].seconds / best.seconds,
        "rule": _rule(plans),
    }


def _total(plan: Plan) -> dict[str, Any]:
    """Return the summary and the estimates of a plan."""
    return {
        "name": plan.name,
        "summary": plan.summary(),
        "seconds": plan.seconds,
        "forward_seconds": plan.forward_seconds,
        "flops": plan.flops,
        "peak_bytes": plan.peak_bytes,
    }


def _full(plan: Plan) -> dict[str, Any]:
    """Return a plan with its steps."""
    return _total(plan) | {"steps": plan.json()["steps"]}
