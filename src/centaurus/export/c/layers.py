"""A step in C under construction: its layers as calls of the kernels in kernels.c.

A signal is (frames, channels), time first, so resampling is a matrix product without copies. Buffers get their
addresses at the end, when their lifetimes are known: those that are not in use together share memory. Spectra use a
small real FFT.

A state-space layer is a projection, a recurrence sample by sample with its states in vector lanes, and a projection.
For every equation, the states are (shared, summed, new, others): ``others`` states for each pair of an input and an
output in each of the shared groups. Lanes are channels that are not mixed, outputs, or, if there are few outputs, the
states that one output sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import singledispatchmethod
from importlib.resources import files
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from centaurus.export.ssm import Local
from centaurus.export.step import Array, Signal, Target, array, inside, lower
from centaurus.layer import Layer
from centaurus.nn.containers import FLOOR, Activation, Gated, Leveled
from centaurus.nn.layers import AvgPool, BandConv, CausalConv, DCBlock, Delay, LayerNorm, RunningMean, WindowedMean
from centaurus.nn.spectral import (
    Analysis,
    Compress,
    Leveling,
    Mask,
    Mel,
    Synthesis,
    analysis_window,
    mel_filters,
    synthesis_window,
)
from centaurus.ssm import S6, SSM
from centaurus.ssm.layer import _phases

GROUP = 8  # CT_GROUP of kernels.c: states and buffers are padded to multiples of this many floats
PANEL = 16  # columns in a panel of a packed table
SLACK = 16  # floats past the end that a vector load may read
HALF_LEAST = 2.0**-14  # the smallest normal number of half precision
LARGEST = {"int16": 32767, "int8": 127}  # integer of the largest weight of a column
WEIGHTS = ("fp32", "fp16", "int16", "int8")


class Program:
    """The calls, constants, tables, states and buffers of a C file. ``weights`` is the format of the tables."""

    def __init__(self, weights: str = "fp32") -> None:
        if weights not in WEIGHTS:
            raise ValueError(f"weights should be one of {', '.join(WEIGHTS)}, got {weights!r}")
        self.weights = weights
        self.state_floats = 0
        self.lines: list[str] = []
        self._work: list[int] = []  # multiplications of every call that has many
        self._kernels: set[str] = set()
        self._constants: dict[bytes, int] = {}
        self._constant_values: list[NDArray[np.float32]] = []
        self._constant_floats = 0
        self._tables: list[NDArray[Any]] = []
        self._table_numbers = 0
        self._buffers: list[int] = []

    def call(self, kernel: str, *arguments: object, work: int = 0) -> None:
        """Add a call of a kernel of kernels.c; ``work`` is its number of multiplications, if there are many."""
        self._kernels.add(kernel)
        self._work.append(work)
        self.lines.append(f"ct_{kernel}({', '.join(map(_text, arguments))});")

    def constant(self, x: Any) -> str:
        """Add an array of constants in single precision and return its address; equal ones are stored once."""
        flat = np.ascontiguousarray(x, np.float32).ravel()
        flat = np.pad(flat, (0, -len(flat) % GROUP))
        key = flat.tobytes()
        if key not in self._constants:
            self._constants[key] = self._constant_floats
            self._constant_values.append(flat)
            self._constant_floats += len(flat)
        return f"constants + {self._constants[key]}"

    def state(self, floats: int) -> str:
        """Add floats that are kept from one step to the next, zero at the start, and return their address."""
        at = self.state_floats
        self.state_floats += rounded(floats)
        return f"s + {at}"

    def buffer(self, frames: int, channels: int) -> Signal:
        """Add a signal that is used within a step only."""
        self._buffers.append(rounded(frames * channels))
        return Signal(f"@{len(self._buffers) - 1}@", frames, channels)

    def part(self, u: Signal, first: int, count: int) -> Signal:
        """Return ``count`` channels of a signal, starting with channel ``first``."""
        y = self.buffer(u.frames, count)
        self.call("part", u.name, y.name, u.frames, u.channels, first, count)
        return y

    def product(self, x: Signal, table: Array, bias: Array | None = None) -> Signal:
        """Return every frame times a matrix (in, out), plus a bias (out,)."""
        k, n = table.shape
        if k != x.channels:
            raise ValueError(f"a table of {k} rows cannot take {x.channels} channels")
        y = self.buffer(x.frames, n)
        wide = rounded(n)
        scale, packed = self._packed(np.pad(table, ((0, 0), (0, wide - n))))
        at, self._table_numbers = self._table_numbers, self._table_numbers + len(packed)
        self._tables.append(packed)
        bias_at = 0 if bias is None else self.constant(np.pad(bias, (0, wide - n)))
        scale_at = 0 if scale is None else self.constant(scale)
        self.call(
            "product", x.name, f"weights + {at}", scale_at, bias_at, y.name, x.frames, k, n, work=x.frames * k * n
        )
        return y

    def _packed(self, table: Array) -> tuple[Array | None, NDArray[Any]]:
        """Return a scale for every column (None unless weights are integers), and the table panel by panel."""
        scale = None
        numbers: NDArray[Any]
        if self.weights in LARGEST:
            scale = np.abs(table).max(0) / LARGEST[self.weights]
            numbers = np.round(table / np.where(scale > 0, scale, 1.0)).astype(self.weights)
        elif self.weights == "fp16":
            largest = np.abs(table).max(initial=0.0)
            if largest > 6e4:
                raise ValueError(f"a weight of {largest:.3g} overflows half precision: export fp32 weights")
            numbers = np.where(np.abs(table) < HALF_LEAST, 0.0, table).astype(np.float16).view(np.uint16)
        else:
            numbers = table.astype(np.float32)
        return scale, _panels(numbers)

    def kernels(self) -> str:
        """Return the C code of the kernels that are called, and of what they depend on."""
        return kernel_text(self._kernels)

    def tables(self) -> NDArray[Any]:
        """Return all tables of matrix products concatenated, padded for vector loads past the end."""
        kind: np.dtype[Any] = self._tables[0].dtype if self._tables else np.dtype(np.int32)
        return np.concatenate([*self._tables, np.zeros(GROUP, kind)])

    def constants(self) -> NDArray[np.float32]:
        """Return all constants, padded for vector loads past the end."""
        return np.concatenate([*self._constant_values, np.zeros(SLACK, np.float32)])

    def half(self) -> int:
        """Return the number of calls, from the first on, that take about half of the work."""
        return 1 + int(np.abs(2 * np.cumsum(self._work[:-1]) - sum(self._work)).argmin())

    def placed(self) -> tuple[list[str], int]:
        """Return the calls with the offset of every buffer, and the floats that all buffers take."""
        lives: dict[int, tuple[int, int]] = {}
        for when, line in enumerate(self.lines):
            for buffer in map(int, re.findall(r"@(\d+)@", line)):
                lives[buffer] = (lives.get(buffer, (when, when))[0], when)
        offsets = place([(*lives[k], self._buffers[k]) for k in sorted(lives)])
        at = dict(zip(sorted(lives), offsets, strict=True))
        floats = max((at[k] + self._buffers[k] for k in lives), default=0)
        return [re.sub(r"@(\d+)@", lambda m: f"t + {at[int(m[1])]}", line) for line in self.lines], floats + SLACK


def place(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return offsets of buffers (first use, last use, size) such that those in use together do not overlap.

    Greedy: the largest buffer first, each at the lowest offset that is free.
    """
    offsets = [0] * len(lives)
    placed: list[int] = []
    for k in sorted(range(len(lives)), key=lambda k: -lives[k][2]):
        first, last, size = lives[k]
        beside = [j for j in placed if lives[j][0] <= last and first <= lives[j][1]]
        at = 0
        for j in sorted(beside, key=lambda j: offsets[j]):
            if offsets[j] - at >= size:
                break
            at = max(at, offsets[j] + lives[j][2])
        offsets[k] = at
        placed.append(k)
    return offsets


def rounded(floats: int) -> int:
    """Return this many floats rounded up to whole groups."""
    return -(-floats // GROUP) * GROUP


def kernel_text(names: Iterable[str]) -> str:
    """Return the sections of kernels.c with these names and those they depend on, in the file's order."""
    text = (files("centaurus.export.c") / "kernels.c").read_text(encoding="utf-8")
    parts = re.split(r"^/\*@ (.*?) \*/\n", text, flags=re.MULTILINE)
    sections: dict[str, tuple[list[str], str]] = {}
    for head, body in zip(parts[1::2], parts[2::2], strict=True):
        name, _, needs = head.partition(":")
        sections[name] = (needs.split(), body)
    used: set[str] = set()
    waiting = ["base", *names]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += sections[name][0]
    return "".join(body for name, (_, body) in sections.items() if name in used)


def _panels(table: NDArray[Any]) -> NDArray[Any]:
    """Return a table (k, n) column panel by column panel; the last has 8 columns if at most 8 are left."""
    k, n = table.shape
    return np.concatenate([table[:, j : j + PANEL].ravel() for j in range(0, n, PANEL)]) if k * n else table.ravel()


def _text(argument: object) -> str:
    """Return an argument as C code; floats as literals with a decimal point and the suffix f."""
    if not isinstance(argument, float):
        return str(argument)
    digits = f"{argument:.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"


Complex = NDArray[np.complex128]
MULTIPLICATIONS = 6  # per state and frame: with a complex pole, and with its weight
SELECTIVE = 15  # the same for a selective scan, whose pole is an exponential
SUM_COST = 1.0  # cost of summing the lanes of a vector, relative to advancing one vector of states
KERNELS = {"sigmoid": "logistic"}  # functions whose kernel has another name


class Calls(Target):
    """The export to C: adds the operations of a step to a program."""

    format: ClassVar[str] = "C"

    def __init__(self, program: Program) -> None:
        self.program = program

    def product(self, u: Signal, table: Array, bias: Array | None = None) -> Signal:
        return self.program.product(u, table, bias)

    def reshape(self, u: Signal, frames: int, channels: int) -> Signal:
        return Signal(u.name, frames, channels)

    def add(self, x: Signal, y: Signal) -> Signal:
        return self._pairwise("add", x, y)

    def _pairwise(self, kernel: str, x: Signal, y: Signal) -> Signal:
        out = self.program.buffer(x.frames, x.channels)
        self.program.call(kernel, x.name, y.name, out.name, x.size)
        return out

    def map(self, u: Signal, function: str) -> Signal:
        y = self.program.buffer(u.frames, u.channels)
        self.program.call(KERNELS.get(function, function), u.name, y.name, u.size)
        return y

    def activate(self, y: Signal, skip: Signal | None, activation: Activation) -> Signal:
        if skip is None or activation is Activation.NONE:
            return super().activate(y, skip, activation)
        return self._pairwise("silu_add" if activation is Activation.BEFORE_SKIP else "add_silu", y, skip)

    @singledispatchmethod
    def leaf(self, layer: Layer, u: Signal, name: str) -> Signal:
        raise self.refusal(f"is a {type(layer).__name__}", name)

    @leaf.register
    def _(self, layer: SSM, u: Signal, name: str) -> Signal:
        return emit_ssm(self.program, layer, u)

    @leaf.register
    def _(self, layer: S6, u: Signal, name: str) -> Signal:
        return emit_s6(self.program, layer, u)

    @leaf.register
    def _(self, layer: AvgPool, u: Signal, name: str) -> Signal:
        if layer.hop == 1:
            return u
        y = self.program.buffer(u.frames // layer.hop, u.channels)
        self.program.call("pool", u.name, y.name, y.frames, layer.hop, u.channels)
        return y

    @leaf.register
    def _(self, layer: LayerNorm, u: Signal, name: str) -> Signal:
        if layer.weight is not None and layer.bias is not None:
            p, x = self.program, u
            u = p.buffer(x.frames, x.channels)
            scale, bias = p.constant(array(layer.weight)), p.constant(array(layer.bias))
            p.call("norm", x.name, u.name, x.frames, x.channels, scale, bias)
        return self.map(u, "silu") if layer.activate else u

    @leaf.register
    def _(self, layer: Gated, u: Signal, name: str) -> Signal:
        p, width = self.program, layer.width
        wide = lower(layer.into, self, lower(layer.norm, self, u, name), name)
        x, gate = p.part(wide, 0, width), p.part(wide, width, width)
        x = lower(layer.conv, self, x, inside(name, "conv"))
        y = lower(layer.ssm, self, x, inside(name, "ssm"))
        gated = p.buffer(u.frames, width)
        feedthrough = p.constant(array(layer.D)[:, 0])
        p.call("gate", y.name, x.name, feedthrough, gate.name, gated.name, u.frames, width)
        return self.add(u, lower(layer.out, self, gated, name))

    @leaf.register
    def _(self, layer: Mask, u: Signal, name: str) -> Signal:
        p, bins, low, taps = self.program, layer.bins, layer.low, layer.taps
        mask = lower(layer.body, self, u, inside(name, "body"))
        x = lower(layer.wait, self, u, inside(name, "wait"))
        y = p.buffer(u.frames, u.channels)
        p.call("mask", x.name, mask.name, y.name, u.frames, bins, mask.channels)
        if taps > 1:
            re, im = (self._with_past(p.part(x, first, low), taps - 1) for first in (0, bins))
            p.call("filter", re.name, im.name, mask.name, y.name, u.frames, bins, low, taps)
        return y

    @leaf.register
    def _(self, layer: CausalConv, u: Signal, name: str) -> Signal:
        p, (channels, taps) = self.program, layer.weight.shape
        x = self._with_past(u, taps - 1)
        y = p.buffer(u.frames, channels)
        bias = 0 if layer.bias is None else p.constant(array(layer.bias))
        p.call("taps", x.name, y.name, u.frames, channels, taps, p.constant(array(layer.weight).T), bias)
        return y

    @leaf.register
    def _(self, layer: BandConv, u: Signal, name: str) -> Signal:
        p, frames, features = self.program, u.frames // layer.hop, layer.in_features
        (across, taps), apart = layer.kernel, layer.stride[0]
        x = self._with_past(u, taps - layer.hop)
        patches = p.buffer(frames * layer.out_bands, taps * across * features)
        sizes = frames, layer.hop, taps, layer.bands, layer.out_bands, apart, across, features
        p.call("patches", x.name, patches.name, *sizes)
        table = array(layer.weight).transpose(2, 3, 1, 0).reshape(-1, layer.out_features)
        y = p.product(patches, table, None if layer.bias is None else array(layer.bias))
        return Signal(y.name, frames, layer.out_bands * layer.out_features)

    @leaf.register
    def _(self, layer: Delay, u: Signal, name: str) -> Signal:
        return self._with_past(u, int(layer.delay))._replace(frames=u.frames)

    def _with_past(self, u: Signal, frames: int) -> Signal:
        """Return a signal with the ``frames`` frames before it, which are kept in a state."""
        if frames == 0:
            return u
        p = self.program
        x = p.buffer(frames + u.frames, u.channels)
        p.call("past", u.name, x.name, p.state(frames * u.channels), u.frames, frames, u.channels)
        return x

    @leaf.register
    def _(self, layer: RunningMean, u: Signal, name: str) -> Signal:
        p = self.program
        y = p.buffer(u.frames, u.channels)
        p.call("mean", u.name, y.name, u.frames, u.channels, p.state(1 + u.channels))
        return y

    @leaf.register
    def _(self, layer: WindowedMean, u: Signal, name: str) -> Signal:
        p, x = self.program, self._with_past(u, layer.window - 1)
        y = p.buffer(u.frames, u.channels)
        p.call("window", x.name, y.name, u.frames, u.channels, layer.window, p.state(1))
        return y

    @leaf.register
    def _(self, layer: DCBlock, u: Signal, name: str) -> Signal:
        p = self.program
        y = p.buffer(u.frames, u.channels)
        state = p.state(u.channels)
        p.call("dc_block", u.name, y.name, u.frames, u.channels, float(layer.pole), float(1 - layer.pole), state)
        return y

    @leaf.register
    def _(self, layer: Leveled, u: Signal, name: str) -> Signal:
        p, hops, width = self.program, u.frames // layer.hop, layer.hop * u.channels
        x, levels, state = p.buffer(u.frames, u.channels), p.buffer(hops, 1), p.state(1)
        p.call("level", u.name, x.name, levels.name, hops, width, FLOOR, float(layer.decay), state)
        y = lower(layer.body, self, x, inside(name, "body"))
        out = p.buffer(y.frames, y.channels)
        p.call("unlevel", y.name, u.name, levels.name, out.name, hops, y.size // hops, float(layer.kept))
        return out

    @leaf.register
    def _(self, layer: Analysis, u: Signal, name: str) -> Signal:
        p, size, hop = self.program, layer.window, layer.hop
        x = self._with_past(u, size - hop)
        work = p.buffer(2, size)
        y = p.buffer(u.frames // hop, 2 * layer.bins)
        window = p.constant(array(analysis_window(size, hop)))
        p.call("analysis", x.name, y.name, work.name, y.frames, size, hop, window, *self._circle(size))
        return y

    @leaf.register
    def _(self, layer: Synthesis, u: Signal, name: str) -> Signal:
        p, hop, kept = self.program, layer.step_samples, layer.synthesis
        work, y = p.buffer(2, layer.window), p.buffer(u.frames * hop, 1)
        window = p.constant(array(synthesis_window(layer.window, hop, kept)) / (layer.window // 2))
        circle, state = self._circle(layer.window), p.state(kept - hop)
        p.call("synthesis", u.name, y.name, work.name, u.frames, layer.window, kept, hop, window, *circle, state)
        return y

    @leaf.register
    def _(self, layer: Compress, u: Signal, name: str) -> Signal:
        relative, levels = self._power(layer, u)
        y = self.program.buffer(u.frames, 3 * layer.bins)
        names = u.name, relative.name, levels.name, y.name
        self.program.call("compress", *names, u.frames, layer.bins, layer.power / 2)
        return y

    @leaf.register
    def _(self, layer: Mel, u: Signal, name: str) -> Signal:
        relative, _ = self._power(layer, u)
        bands = self.product(relative, array(mel_filters(layer.bins, layer.bands, *layer.band)).T)
        y = self.program.buffer(u.frames, layer.bands)
        self.program.call("bands", bands.name, y.name, y.size, layer.power / 2)
        return y

    def _power(self, layer: Leveling, u: Signal) -> tuple[Signal, Signal]:
        """Return the power divided by the level, and the level of every frame."""
        p = self.program
        relative, levels = p.buffer(u.frames, layer.bins), p.buffer(u.frames, 1)
        sizes = u.frames, layer.bins, layer.lowest
        p.call("power", u.name, relative.name, levels.name, *sizes, float(layer.decay), p.state(2))
        return relative, levels

    def _circle(self, window: int) -> tuple[str, str]:
        """Return the cosine and the sine of 2π k / window for every k."""
        turns = 2 * np.pi * np.arange(window) / window
        return self.program.constant(np.cos(turns)), self.program.constant(np.sin(turns))


class Modes(NamedTuple):
    """Discretised poles and weights of the states, (shared, summed, new, others), in double precision."""

    poles: Complex
    weights: Complex


def emit_ssm(program: Program, layer: SSM, u: Signal) -> Signal:
    """Add the calls of a layer and return its output, which has as many frames as u."""
    local = Local(layer)
    modes = modes_of(local)
    driven, read = (bool(phase) for phase in _phases(layer.topology))
    before, after = projections(local)
    v = u if before is None else program.product(u, before)
    shared, summed, new, others = modes.poles.shape
    y = program.buffer(u.frames, shared * new * (2 if read else 1))
    # Few channels: lanes that are the states of a channel cost less than lanes that are channels.
    few = shared * (rounded(others) // GROUP + SUM_COST) < rounded(shared) // GROUP * others
    if summed == new == 1 and (driven or read or not few):
        _channels(program, modes, v, y, driven, read)
    else:
        _crossed(program, modes, v, y, driven, read)
    return y if after is None else program.product(y, after)


def emit_s6(program: Program, layer: S6, u: Signal) -> Signal:
    """Add the calls of a selective scan; ``lower_s6`` of the ONNX export has its equations."""
    channels, rank, width = layer.in_channels, rounded(layer.rank), rounded(layer.states)

    def rows(x: torch.Tensor, count: int) -> Array:
        """Return a matrix padded with rows of zeros."""
        return np.pad(array(x), ((0, count - x.shape[0]), (0, 0)))

    def columns(x: Array) -> Array:
        return np.pad(x, ((0, 0), (0, width - layer.states)))

    wide = program.product(u, np.concatenate([rows(layer.dt_down, rank), rows(layer.B, width), rows(layer.C, width)]).T)
    raw = program.product(program.part(wide, 0, rank), rows(layer.dt_up.T, rank), array(layer.dt_bias))
    y = program.buffer(u.frames, channels)
    rates = program.constant(columns(-np.exp(array(layer.A_log))))
    weights = np.ones((channels, layer.states)) if layer.E is None else array(layer.E)
    program.call(
        *("selective", u.name, raw.name, wide.name, y.name, u.frames, channels, width, rank, wide.channels, rates),
        *(program.constant(columns(weights)), program.state(channels * width)),
        work=SELECTIVE * u.frames * channels * width,
    )
    return y if layer.M is None else program.product(y, array(layer.M).T)


def modes_of(local: Local) -> Modes:
    """Return the discretised poles and the weights of their states."""
    layer, (shared, summed, new, rest) = local.layer, local.roles
    phases = "".join(_phases(layer.topology))
    log_a, scale = layer._modes(torch.float64)
    weight = layer._weight(scale, torch.float64, fold=True)
    for _ in phases:
        weight = weight.select(-2, 0)  # the other phase is the same weight times i
    sides = ["".join(i for i in side if i not in phases) for side in (summed, new)]
    others = "".join(i for i in rest if i not in sides[0] + sides[1])
    order = [layer.topology.modes.index(i) for i in shared + sides[0] + sides[1] + others]
    shape = [local.count(side) for side in (shared, *sides, others)]

    def arranged(x: torch.Tensor) -> Complex:
        return np.asarray(torch.view_as_complex(x.contiguous()).permute(order).reshape(shape).numpy())

    return Modes(np.exp(arranged(log_a)), arranged(weight))


def projections(local: Local) -> tuple[Array | None, Array | None]:
    """Return the tables before and after the states (None: identity); complex signals have all real parts first."""
    (shared, summed, new, _), (driven, read) = local.roles, _phases(local.layer.topology)
    before, after = local.before(), local.after()
    if before is not None and driven:
        before = _phase_first(local, before, shared + summed, driven)
    if after is not None and read:
        after = _phase_first(local, after.T, shared + new, read).T
    return before, after


def _phase_first(local: Local, table: Array, indices: str, phase: str) -> Array:
    """Return a table (channels, indices) with the phase moved to the front of the indices."""
    axis = 1 + indices.index(phase)
    sizes = [local.count(i) for i in indices]
    return np.moveaxis(table.reshape(-1, *sizes), axis, 1).reshape(table.shape)


def _channels(program: Program, modes: Modes, v: Signal, y: Signal, driven: bool, read: bool) -> None:
    shared, _, _, others = modes.poles.shape
    lanes = rounded(shared)
    poles, weights = (_padded(x.reshape(shared, others), lanes, 0) for x in modes)
    table = _numbers(poles, weights).reshape(4, lanes // GROUP, GROUP, others).transpose(1, 3, 0, 2)
    table_at, state = program.constant(table), program.state(2 * lanes * others)
    sizes, work = (v.frames, shared, others), MULTIPLICATIONS * v.frames * modes.poles.size
    if driven or read:
        program.call("complex_channels", v.name, y.name, *sizes, table_at, state, int(driven), int(read), work=work)
    else:
        program.call("channels", v.name, y.name, *sizes, table_at, state, work=work)


def _crossed(program: Program, modes: Modes, v: Signal, y: Signal, driven: bool, read: bool) -> None:
    shared, summed, new, others = modes.poles.shape
    by_output = rounded(new) // GROUP * others
    by_state = new * (rounded(others) // GROUP + SUM_COST)
    if driven or read or by_output <= by_state:
        lanes = rounded(new)
        poles, weights = (_padded(x, lanes, 2) for x in modes)
        table = _numbers(poles, weights).reshape(4, shared, summed, lanes // GROUP, GROUP, others)
        table, chains = table.transpose(1, 3, 2, 5, 0, 4), others
        kernel = "complex_crossed" if driven or read else "crossed"
    else:
        lanes = rounded(others)
        poles, weights = (_padded(x, lanes, 3) for x in modes)
        table = _numbers(poles, weights).reshape(4, shared, summed, new, lanes // GROUP, GROUP)
        table, chains = table.transpose(1, 3, 2, 4, 0, 5), lanes // GROUP
        kernel = "summed"
    table_at, state = program.constant(table), program.state(table.size // 2)
    flags = (int(driven), int(read)) if driven or read else ()
    sizes, work = (v.frames, shared, summed, new, chains), MULTIPLICATIONS * v.frames * modes.poles.size
    program.call(kernel, v.name, y.name, *sizes, table_at, state, *flags, work=work)


def _numbers(poles: Complex, weights: Complex) -> Array:
    return np.stack([poles.real, poles.imag, weights.real, weights.imag])


def _padded(x: Complex, size: int, axis: int) -> Complex:
    """Return an array padded with zeros along an axis, up to this size."""
    return np.pad(x, [(0, size - x.shape[k]) if k == axis else (0, 0) for k in range(x.ndim)])
