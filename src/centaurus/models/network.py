"""``Network``: a body that streams, its table and settings; ``count``, ``verify`` and ``plan_layers`` of any layer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import groupby
from math import ceil
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from centaurus.laws import measure
from centaurus.layer import Counts, Layer, State, check_layer, state_tensors
from centaurus.models.tables import Table
from centaurus.nn.containers import Composite, Part, Serial
from centaurus.planner import Plan
from centaurus.ssm import SSM
from centaurus.verification import Verification

NAME_WIDTH = 30
SAMPLE_RATE = 16_000


class Network(Composite):
    """A layer with a task. The table rebuilds it; ``body`` is what streams: all but heads for training only.

    ``settings`` is plain data saved with it: the sample rate, and class names, tokens or characters.
    """

    task: ClassVar[str]
    tables: ClassVar[tuple[type[Table], ...]]  # to build it from; a file's is the first that has all of its fields
    named: ClassVar[Mapping[str, Table]]

    def __init__(self, table: Table, body: Serial, settings: Mapping[str, Any] | None) -> None:
        super().__init__()
        self.table = table
        self.body = body
        self.hop, self.ratio, self.delay = body.hop, body.ratio, body.delay
        self.settings: dict[str, Any] = {"sample_rate": SAMPLE_RATE} | dict(settings or {})
        try:
            json.dumps(self.settings)
        except TypeError as error:
            raise TypeError(f"settings are saved as JSON and should be plain data, got {self.settings!r}") from error

    def parts(self) -> list[Part]:
        return self.body.parts()

    def init_state(self, batch: int) -> State:
        return self.body.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return self.body.run(u, state, keep)


def verify(model: Layer, channels: int = 1, batch: int = 2, hops: int | None = None, seed: int = 0) -> Verification:
    """Check on noise that a model streams exactly: pieces equal the whole, causal, rows independent, and so on.

    ``channels`` and ``batch`` are those of the noise, ``hops`` its length, ``seed`` that of its generator. Of a network
    the part that streams is checked, without heads for training. The model is not changed.
    ``print`` the result for a table; ``holds`` is true when every law holds.
    """
    check_layer(model, "verify takes a centaurus layer or network")
    layer = model.body if isinstance(model, Network) else model
    few = hops if hops is not None else max(4, -(-100 // layer.hop))
    return Verification(tuple(measure(layer, channels, batch, few, seed)))


class Cost(Protocol):
    """Parameters, and FLOPs per input frame."""

    @property
    def parameters(self) -> int: ...

    @property
    def flops(self) -> int | Fraction: ...


@runtime_checkable
class Countable(Protocol):
    """A layer that reports its cost."""

    def counts(self, convention: str = "table") -> Cost: ...


@dataclass(frozen=True)
class CountRow:
    """One layer: its path, kind, input rate and cost."""

    name: str
    kind: str
    rate: float
    parameters: int
    tensors: int
    flops_per_second: float
    state_floats: int
    counted: bool


@dataclass(frozen=True)
class Report:
    """The cost of a network. ``parameters`` follows the convention, ``tensors`` is every number in its file.

    ``latency`` is ``hop + delay``: a sample waits until its hop is full, and its output is ``delay`` samples later.
    """

    rate: int
    convention: str
    parameters: int
    tensors: int
    flops_per_second: float
    state_floats: int
    hop: int
    delay: int
    latency: int
    rows: tuple[CountRow, ...]

    def json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        head = f"{'layer':<{NAME_WIDTH}} {'kind':<10} {'rate Hz':>8} {'parameters':>10} {'MFLOPs/s':>9} {'state':>7}"
        shown = [row for row in self.rows if row.flops_per_second or row.state_floats]
        lines = [head, "-" * len(head), *map(_line, shown), "-" * len(head)]
        total = f"{self.parameters:>10,} {self.flops_per_second / 1e6:>9.3f} {self.state_floats:>7,}"
        lines.append(f"{'total':<{NAME_WIDTH}} {'':<10} {'':>8} {total}")
        milliseconds = 1000 * self.latency / self.rate
        lines.append(f"{self.tensors:,} numbers in the file; counted by the convention '{self.convention}'")
        what = "hop and latency" if not self.delay else f"hop {self.hop:,} + delay {self.delay:,} = latency"
        lines.append(f"{what} {self.latency:,} samples: {milliseconds:g} ms at {self.rate:,} Hz")
        return "\n".join(lines)


def _line(row: CountRow) -> str:
    name = row.name if len(row.name) <= NAME_WIDTH else "…" + row.name[1 - NAME_WIDTH :]
    cost = f"{row.parameters:>10,} {row.flops_per_second / 1e6:>9.3f}" if row.counted else f"{'not counted':>20}"
    return f"{name:<{NAME_WIDTH}} {row.kind[:10]:<10} {row.rate:>8g} {cost} {row.state_floats:>7,}"


def count(net: Layer, rate: int = 16_000, convention: str = "table") -> Report:
    """Count parameters and FLOPs of ``net``, a network or layer, at a sample rate.

    ``convention`` is "table" for the paper's table of formulas, "results" for the counts in its tables of results.
    ``print`` the report for a table; ``.parameters``, ``.tensors``, ``.flops_per_second``, ``.state_floats``,
    ``.hop``, ``.delay`` and ``.latency`` (in samples) are its totals.
    """
    check_layer(net, "count takes a centaurus layer or network")
    if convention not in ("table", "results"):
        raise ValueError(f"the convention is 'table' or 'results', got {convention!r}")
    rows = tuple(_rows("", net, Fraction(rate), True, convention))
    counted = [row for row in rows if row.counted]
    return Report(
        rate=rate,
        convention=convention,
        parameters=sum(row.parameters for row in counted),
        tensors=sum(x.numel() for x in net.state_dict().values()),
        flops_per_second=sum(row.flops_per_second for row in counted),
        state_floats=sum(x.numel() for x in state_tensors(net.init_state(1))),
        hop=net.hop,
        delay=ceil(net.delay),
        latency=net.hop + ceil(net.delay),
        rows=rows,
    )


def _rows(name: str, layer: Layer, hertz: Fraction, counted: bool, convention: str) -> Iterator[CountRow]:
    """Yield the leaves below a layer, each with the rate of its input."""
    if isinstance(layer, Composite):
        if layer.cost != Counts():
            yield _row(name, "", layer.cost, hertz, counted)
        for part in layer.parts():
            below = hertz * part.ratio if part.hertz is None else part.hertz
            path = f"{name}.{part.name}".lstrip(".")
            yield from _rows(path, part.layer, below, counted and part.counted, convention)
        return
    if not isinstance(layer, Countable):
        raise TypeError(f"{type(layer).__name__} at {name!r} cannot be counted: it should implement counts(convention)")
    kind = layer.topology_name if isinstance(layer, SSM) else type(layer).__name__.lower()
    tensors = sum(x.numel() for x in layer.state_dict().values())
    state = sum(x.numel() for x in state_tensors(layer.init_state(1)))
    yield _row(name, kind, layer.counts(convention), hertz, counted, tensors, state)


def _row(
    name: str, kind: str, cost: Cost, hertz: Fraction, counted: bool, tensors: int = 0, state: int = 0
) -> CountRow:
    flops = float(hertz * cost.flops)
    return CountRow(_short(name), kind, float(hertz), cost.parameters, tensors, flops, state, counted)


def _short(name: str) -> str:
    """Return a path with repetitions counted: inside.inside.inside is inside×3."""
    runs = [(word, len(list(same))) for word, same in groupby(name.split("."))]
    return ".".join(word if times == 1 else f"{word}×{times}" for word, times in runs)


def plan_layers(model: Layer, batch: int, length: int) -> list[tuple[str, Plan]]:
    """Return the path of every SSM layer with its plan, for signals of ``length`` samples, padded to whole hops."""
    return list(_plans("", model, batch, Fraction(ceil(length / model.hop) * model.hop)))


def _plans(name: str, layer: Layer, batch: int, length: Fraction) -> Iterator[tuple[str, Plan]]:
    if isinstance(layer, SSM):
        yield name, layer.plan(batch=batch, length=int(length))
    elif isinstance(layer, Composite):
        for part in layer.parts():
            yield from _plans(f"{name}.{part.name}".lstrip("."), part.layer, batch, length * part.ratio)
