"""Search the orders and domains of a contraction for the fastest plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from centaurus.planner import cost
from centaurus.planner.cost import Cost, Rates
from centaurus.planner.device import Device
from centaurus.planner.expression import Expression, ExpressionError, check_size, check_sizes, parse
from centaurus.planner.plan import Plan, Step, Value

Filter = Callable[[int, int, str, str], bool]
"""Whether a step may be used, by its two sets of operands as bits (the second 0 for a transform), kind and domain."""
CHUNKS = (16, 32, 64, 128)  # samples of a chunk: the lengths that are tried
LONGEST_DIRECT = 512  # lags of a kernel above which a Toeplitz GEMM is never the fastest
LONGEST_DFT = 1024  # points of a transform above which a product with its table is never the fastest
FRONT = 4  # fastest entries of a state that the search keeps, so that there are runners-up
RUNNERS_UP = 4  # plans beside the best one


@dataclass(frozen=True)
class Problem:
    """Everything that a plan depends on: a contraction with its sizes, the device and the limit."""

    expression: Expression
    sizes: tuple[tuple[str, int], ...]
    kernel_length: int
    modes: str  # indices of the exponential modes if the kernel is generated from them, else ""
    phase: str  # index of the kernel over real and imaginary part of a complex input to the states, or ""
    device: Device
    backward: bool
    limit: int | None  # bytes of intermediates


class Entry(NamedTuple):
    """One sequence of steps that leads to a state: its last step, and the entries before that."""

    seconds: float
    kept: int
    peak: int
    cost: Cost | None
    kind: str
    parents: tuple[tuple[Node, Entry], ...]
    chunk: int = 0


class Node(NamedTuple):
    """A state of the search: the operands that are merged (bits) and the domain of the result."""

    mask: int
    domain: str


Table = dict[Node, list[Entry]]


def fast_length(least: int) -> int:
    """Return the smallest even length of the form 2^k, 3 · 2^k, 5 · 2^k or 9 · 2^k that is at least ``least``.

    Other smooth lengths take longer than the next one of these: a transform of 8,100 points twice as long as of 8,192.
    """
    power = 1 << max(1, (least - 1).bit_length())
    lengths = (power * part // 16 for part in (9, 10, 12, 16))
    return next(length for length in lengths if length >= least and length % 2 == 0)


class Search:
    """Dynamic programming over subsets of operands, each in one of the domains time, frequency, modes or none."""

    def __init__(self, problem: Problem, allowed: Filter | None = None) -> None:
        self.problem = problem
        self.allowed = allowed
        e = problem.expression
        self.size = dict(problem.sizes)
        samples = self.size[e.time]
        kernel = min(problem.kernel_length, samples)
        self.fft = fast_length(samples + kernel - 1)
        self.u, self.k = 1 << e.signal, 1 << e.kernel
        self.full = (1 << len(e.operands)) - 1
        others = [set(op) for p, op in enumerate(e.operands) if p != e.signal]
        owned = [i for i in e.operands[e.signal] if i in e.output and i != e.time and not any(i in o for o in others)]
        self.own = "".join(owned)
        self.batch = owned[0] if owned else ""
        self.rates = Rates(problem.device, self.size, samples, kernel, self.fft, self.batch, problem.backward)
        indices = dict.fromkeys(i for op in (*e.operands, e.output) for i in op if i != e.time)
        self.order = "".join(sorted(indices, key=self._rank))
        self._needed: dict[int, str] = {}

    def _rank(self, index: str) -> int:
        """Return the place of an index in memory: those of signal and output first, then new ones, then summed ones."""
        e = self.problem.expression
        if index not in e.output:
            return 2
        return 0 if index in e.operands[e.signal] else 1

    def needed(self, mask: int) -> str:
        """Return the indices of a merged set that the rest still needs, without time; the signal's own come last."""
        if mask not in self._needed:
            e = self.problem.expression
            inside: set[str] = set()
            outside = set(e.output)
            for p, op in enumerate(e.operands):
                (inside if mask >> p & 1 else outside).update(op)
            indices = [i for i in self.order if i in inside and i in outside]
            indices.sort(key=lambda i: i in self.own)
            self._needed[mask] = "".join(indices)
        return self._needed[mask]

    def indices(self, state: Node) -> str:
        """Return the indices of a state's tensor, without time. Modes are summed only when the kernel is generated."""
        needed = self.needed(state.mask)
        if state.domain == "modes":
            return self.problem.modes + "".join(i for i in needed if i not in self.problem.modes)
        return needed

    def start(self, position: int) -> Node:
        """Return the state of a single operand."""
        mask = 1 << position
        if mask == self.k:
            return Node(mask, "modes" if self.problem.modes else "time")
        return Node(mask, "time" if mask == self.u else "none")

    def transforms(self, state: Node) -> Iterator[tuple[Node, str, Cost]]:
        """Yield the steps that change only the domain: the next state, the kind of step and its cost."""
        mask, indices = state.mask, self.indices(state)
        signal = bool(mask & self.u)
        if state.domain == "modes":
            out = Node(mask, "time")
            yield out, "generate", cost.generate(self.rates, indices, self.problem.modes, self.indices(out))
        elif state.domain == "time" and not (signal and mask & self.k):
            yield Node(mask, "frequency"), "rfft", cost.transform(self.rates, indices, signal)
        elif state.domain == "frequency" and signal and mask & self.k:
            yield Node(mask, "time"), "irfft", cost.transform(self.rates, indices, True)

    def merges(self, a: Node, b: Node) -> Iterator[tuple[Node, str, Cost, int]]:
        """Yield the steps that merge two states: the next state, the kind, its cost and its chunk.

        ``a`` has the signal if either has it.
        """
        mask = a.mask | b.mask
        x, y = self.indices(a), self.indices(b)
        if a.mask & self.u and b.mask & self.k:
            yield from self._convolutions(a, b, mask, x, y)
            return
        if a.domain != "none" and b.domain != "none":
            return
        if a.domain == "none":
            a, b, x, y = b, a, y, x
        out = Node(mask, a.domain)
        signal = bool(mask & self.u)
        yield out, "contract", cost.contract(self.rates, x, y, self.indices(out), a.domain, signal), 0

    def _convolutions(self, a: Node, b: Node, mask: int, x: str, y: str) -> Iterator[tuple[Node, str, Cost, int]]:
        r, out = self.rates, Node(mask, a.domain)
        z = self.indices(out)
        if a.domain == b.domain == "frequency":
            yield out, "multiply", cost.multiply(r, x, y, z), 0
        elif a.domain == b.domain == "time":
            if r.kernel <= LONGEST_DIRECT:
                yield out, "direct", cost.direct(r, x, y, z), min(r.kernel, r.samples)
            if set(x) & set(y) and not set(x) & set(y) & set(z):  # channels are summed, and none is shared
                if self.fft <= LONGEST_DFT:
                    yield out, "dft", cost.bins(r, x, y, z, native=False), 0
                if r.device.spectra:
                    yield out, "fft", cost.bins(r, x, y, z, native=True), 0
        elif a.domain == "time" and b.domain == "modes":
            p = self.problem
            if p.phase and p.phase not in x:
                return
            if r.device.scan and not p.phase and set(y) == set(p.modes):
                yield out, "scan", cost.scan(r, x, p.modes, z), 0
            for chunk in CHUNKS:
                if chunk <= 2 * r.samples or chunk == CHUNKS[0]:
                    yield out, "chunked", cost.chunked(r, x, y, p.modes, p.phase, z, chunk), chunk

    def entries(self, every: bool = False) -> Table:
        """Return every state that can be reached with its entries: the best few, or all with ``every``."""
        table: Table = {}
        by_mask: dict[int, list[Node]] = {}
        for mask in sorted(range(1, self.full + 1), key=lambda m: (m.bit_count(), m)):
            reached: Table = {}
            if mask.bit_count() == 1:
                reached[self.start(mask.bit_length() - 1)] = [Entry(0.0, 0, 0, None, "operand", ())]
            self._merge(mask, table, by_mask, reached, every)
            self._transform(mask, reached, every)
            self._return_to_time(mask, reached, every)
            table.update(reached)
            by_mask[mask] = list(reached)
        return table

    def _merge(self, mask: int, table: Table, by_mask: dict[int, list[Node]], reached: Table, every: bool) -> None:
        """Add the states of a set that come from merging two parts of it."""
        for a_mask, b_mask in self._splits(mask):
            for a, b in product(by_mask.get(a_mask, ()), by_mask.get(b_mask, ())):
                for out, kind, price, chunk in self.merges(a, b):
                    if self.allowed and not self.allowed(a.mask, b.mask, kind, a.domain):
                        continue
                    ordered = (b, a) if a.mask & self.u else (a, b)  # the signal's own steps come last
                    added = self._edges(ordered, [table[s] for s in ordered], kind, price, chunk)
                    reached[out] = self._kept([*reached.get(out, ()), *added], every)

    def _transform(self, mask: int, reached: Table, every: bool) -> None:
        """Add the states of the same set in other domains. A transform is never followed by its inverse."""
        for domain in ("modes", "time", "frequency"):
            state = Node(mask, domain)
            for out, kind, price in self.transforms(state) if state in reached else ():
                if self.allowed and not self.allowed(mask, 0, kind, domain):
                    continue
                before = [e for e in reached[state] if e.kind not in ("rfft", "irfft")]
                added = self._edges((state,), [before], kind, price)
                reached[out] = self._kept([*reached.get(out, ()), *added], every)

    def _return_to_time(self, mask: int, reached: Table, every: bool) -> None:
        """Add the return to time after the convolution, which may follow any step."""
        state = Node(mask, "frequency")
        if not (mask & self.u and mask & self.k and state in reached):
            return
        for out, kind, price in self.transforms(state):
            added = self._edges((state,), [reached[state]], kind, price)
            others = [e for e in reached.get(out, ()) if e.kind != "irfft"]
            reached[out] = self._kept([*others, *added], every)

    def _splits(self, mask: int) -> Iterator[tuple[int, int]]:
        """Yield the ways to split a set in two, the signal (else the kernel, else the lowest operand) in the first.

        Parts share an index or are signal and kernel; if there is no such split, all are returned.
        """
        anchor = mask & self.u or mask & self.k or mask & -mask
        pairs = []
        part = (mask - 1) & mask
        while part:
            if part & anchor:
                pairs.append((part, mask ^ part))
            part = (part - 1) & mask
        joined = [(a, b) for a, b in pairs if set(self.needed(a)) & set(self.needed(b)) or (a & self.u and b & self.k)]
        yield from joined or pairs

    def _edges(
        self, states: tuple[Node, ...], parents: list[list[Entry]], kind: str, price: Cost, chunk: int = 0
    ) -> Iterator[Entry]:
        """Yield an entry for every combination of the parents' entries, which run in this order."""
        limit, seconds, own = self.problem.limit, price.seconds + price.backward, price.kept + price.transient
        for entries in product(*parents):
            kept = top = 0
            for entry in entries:
                top = max(top, kept + entry.peak)
                kept += entry.kept
            top = max(top, kept + own)
            if limit is None or top <= limit:
                total = seconds + sum([entry.seconds for entry in entries])
                yield Entry(total, kept + price.kept, top, price, kind, tuple(zip(states, entries, strict=True)), chunk)

    def _kept(self, entries: list[Entry], every: bool) -> list[Entry]:
        return entries if every else front(entries, self.problem.limit is not None)


def front(entries: list[Entry], limited: bool) -> list[Entry]:
    """Return the fastest few; under a byte limit also slower ones with a lower peak or fewer bytes kept."""
    entries = sorted(entries, key=lambda e: e.seconds)
    kept = entries[:FRONT]
    for entry in entries[FRONT:] if limited else ():
        if not any(e.peak <= entry.peak and e.kept <= entry.kept for e in kept):
            kept.append(entry)
    return kept


class LimitError(ValueError):
    """No plan fits the byte limit."""


def steps_of(search: Search, state: Node, entry: Entry) -> tuple[Step, ...]:
    """Return the steps that lead to an entry in the order of execution, kernel before signal."""
    e = search.problem.expression
    numbers: dict[int, Value] = {}
    steps: list[Step] = []

    def visit(state: Node, entry: Entry) -> Value:
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
        steps_of(search, Node(search.full, "time"), entry),
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
    entries = search.entries().get(Node(search.full, "time"), [])
    if not entries:
        if problem.limit is None:
            raise ExpressionError(f"no plan can contract {problem.expression}")
        search = Search(replace(problem, limit=sys.maxsize), allowed)
        least = min(search.entries()[Node(search.full, "time")], key=lambda e: e.peak)
        raise LimitError(
            f"no plan of {problem.expression} fits {problem.limit:,} bytes: the closest needs {least.peak:,} "
            f"({_plan(search, least, 'closest').summary()})"
        )
    entries = sorted(entries, key=lambda e: e.seconds)
    plans = [_plan(search, entry, "planned") for entry in entries[: RUNNERS_UP + 1]]
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
    """Return the fastest plan for an expression with these sizes, from a cache if it was asked for before.

    ``kernel_length`` is the kernel's length if it differs from the signal's. ``modes`` are the indices of exponential
    modes from which the kernel is generated, ``phase`` the index of their real and imaginary inputs. ``limit`` bounds
    the bytes of intermediates; operands and output come on top. ``allowed`` restricts the steps.
    """
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
    """Return every plan of the search space, fastest first; their number grows quickly with that of operands."""
    profile = Device.load(device) if isinstance(device, str) else device
    key = (expression, tuple(sizes.items()), kernel_length, modes, phase, profile, backward, None)
    search = Search(_problem(*key))
    entries = search.entries(every=True)[Node(search.full, "time")]
    return [_plan(search, entry, "enumerated") for entry in sorted(entries, key=lambda e: e.seconds)]
