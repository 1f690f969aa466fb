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
"""Whether a step of this kind from this domain may take these sets of operands (the second 0 for a transform)."""
CHUNKS = (16, 32, 64, 128)  # samples of a chunk that are tried
LONGEST_DIRECT = 512  # lags of a kernel above which a Toeplitz GEMM is never the fastest
LONGEST_DFT = 1024  # points of a transform above which a product with its table is never the fastest
FRONT = 4  # entries of a state that are kept for their speed: the best plan and as many runners-up need them
RUNNERS_UP = 4


@dataclass(frozen=True)
class Problem:
    """A contraction with its sizes, device and limit: everything that a plan depends on."""

    expression: Expression
    sizes: tuple[tuple[str, int], ...]
    kernel_length: int
    modes: str  # indices of the exponential modes when the kernel is generated, else ""
    phase: str
    device: Device
    backward: bool
    limit: int | None


class Entry(NamedTuple):
    """One sequence of steps that reaches a state, by its last step and its parents."""

    seconds: float
    kept: int
    peak: int
    cost: Cost | None
    kind: str
    parents: tuple[tuple[Node, Entry], ...]
    chunk: int = 0


class Node(NamedTuple):
    """Merged operands (bits) and domain."""

    mask: int
    domain: str


Table = dict[Node, list[Entry]]


def fast_length(least: int) -> int:
    """Smallest even length of the form 2^k, 3 · 2^k, 5 · 2^k or 9 · 2^k that is at least ``least``.

    Transforms of other smooth lengths take longer than those of the next of these: 8,100 points twice as long as 8,192.
    """
    power = 1 << max(1, (least - 1).bit_length())
    lengths = (power * part // 16 for part in (9, 10, 12, 16))
    return next(length for length in lengths if length >= least and length % 2 == 0)


class Search:
    """Dynamic programming over subsets of operands."""

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
        """Order of indices in memory: what signal, kernel and output share, then new channels, then summed ones."""
        e = self.problem.expression
        if index not in e.output:
            return 2
        return 0 if index in e.operands[e.signal] else 1

    def needed(self, mask: int) -> str:
        """Indices of a merged set that something outside still needs, without time; the signal's own go last."""
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
        """Indices of a state's tensor, without time. Modes cannot be summed before there is a kernel."""
        needed = self.needed(state.mask)
        if state.domain == "modes":
            return self.problem.modes + "".join(i for i in needed if i not in self.problem.modes)
        return needed

    def start(self, position: int) -> Node:
        """The state of an operand by itself."""
        mask = 1 << position
        if mask == self.k:
            return Node(mask, "modes" if self.problem.modes else "time")
        return Node(mask, "time" if mask == self.u else "none")

    def transforms(self, state: Node) -> Iterator[tuple[Node, str, Cost]]:
        """Edges that change the domain only."""
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
        """Edges that merge two states; ``a`` holds the signal if either does."""
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
        """Every state that can be reached, with the entries that may lead to the best plan, or with every entry."""
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
        """Reach a set by merging two parts of it."""
        for a_mask, b_mask in self._splits(mask):
            for a, b in product(by_mask.get(a_mask, ()), by_mask.get(b_mask, ())):
                for out, kind, price, chunk in self.merges(a, b):
                    if self.allowed and not self.allowed(a.mask, b.mask, kind, a.domain):
                        continue
                    ordered = (b, a) if a.mask & self.u else (a, b)  # the signal's own steps come last
                    added = self._edges(ordered, [table[s] for s in ordered], kind, price, chunk)
                    reached[out] = self._kept([*reached.get(out, ()), *added], every)

    def _transform(self, mask: int, reached: Table, every: bool) -> None:
        """Reach the same set in another domain. A transform is never followed by its inverse."""
        for domain in ("modes", "time", "frequency"):
            state = Node(mask, domain)
            for out, kind, price in self.transforms(state) if state in reached else ():
                if self.allowed and not self.allowed(mask, 0, kind, domain):
                    continue
                before = [e for e in reached[state] if e.kind not in ("rfft", "irfft")]
                added = self._edges((state,), [before], kind, price)
                reached[out] = self._kept([*reached.get(out, ()), *added], every)

    def _return_to_time(self, mask: int, reached: Table, every: bool) -> None:
        """After the convolution the inverse transform may follow whatever came before it."""
        state = Node(mask, "frequency")
        if not (mask & self.u and mask & self.k and state in reached):
            return
        for out, kind, price in self.transforms(state):
            added = self._edges((state,), [reached[state]], kind, price)
            others = [e for e in reached.get(out, ()) if e.kind != "irfft"]
            reached[out] = self._kept([*others, *added], every)

    def _splits(self, mask: int) -> Iterator[tuple[int, int]]:
        """Two parts of a set, the signal (or else the kernel, or the lowest operand) in the first; connected ones."""
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
        """An entry for every combination of the parents' entries, which run in the order given."""
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
    """Return the fastest few; under a byte limit also slower ones that need less memory, now or until backward."""
    entries = sorted(entries, key=lambda e: e.seconds)
    kept = entries[:FRONT]
    for entry in entries[FRONT:] if limited else ():
        if not any(e.peak <= entry.peak and e.kept <= entry.kept for e in kept):
            kept.append(entry)
    return kept


class LimitError(ValueError):
    """No plan fits the byte limit."""


def steps_of(search: Search, state: Node, entry: Entry) -> tuple[Step, ...]:
    """Steps in the order of execution, kernel before signal."""
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
            raise ExpressionError(f"no plan for {problem.expression}")
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
    entries = search.entries(every=True)[Node(search.full, "time")]
    return [_plan(search, entry, "enumerated") for entry in sorted(entries, key=lambda e: e.seconds)]
