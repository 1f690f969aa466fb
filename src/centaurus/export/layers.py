"""The operations of a step as nodes of an ONNX graph, in single precision, batch left open."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, singledispatchmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from centaurus.export.graph import Graph
from centaurus.export.spectral import (
    lower_analysis,
    lower_compress,
    lower_delay,
    lower_mel,
    lower_mel_of,
    lower_synthesis,
)
from centaurus.export.ssm import lower_s6, lower_ssm
from centaurus.export.step import Array, Signal, Target, array, inside, lower
from centaurus.layer import Layer
from centaurus.nn.containers import FLOOR, Gated, Leveled
from centaurus.nn.fused import EPS
from centaurus.nn.layers import AvgPool, CausalConv, DCBlock, Delay, LayerNorm, RunningMean, WindowedMean
from centaurus.nn.spectral import Analysis, Compress, Mask, Mel, Synthesis
from centaurus.ssm import S6, SSM

NARROW, MANY = 8, 256  # up to this many channels and from this many frames on, products are faster than the operator
FEW = 8  # up to this many frames, the taps of a convolution are one product and one sum
WIDTH = 32  # channels of several frames that go through one matrix
LONGEST = 64  # frames of a DC blocker's leaky sum in one matrix
OPERATORS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
LEAVES: dict[type[Layer], Callable[[Any, Graph, Signal, str], Signal]] = {
    SSM: lower_ssm,
    S6: lower_s6,
    Analysis: lower_analysis,
    Synthesis: lower_synthesis,
    Compress: lower_compress,
    Mel: lower_mel,
    Delay: lower_delay,
}


class Nodes(Target):
    """Adds the layers of a step to a graph."""

    format: ClassVar[str] = "ONNX"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def product(self, u: Signal, table: Array, bias: Array | None = None) -> Signal:
        g = self.graph
        y = g.matmul(u.name, g.constant(table))
        return Signal(y if bias is None else g.add(y, g.constant(bias)), u.frames, table.shape[1])

    def reshape(self, u: Signal, frames: int, channels: int) -> Signal:
        return Signal(self.graph.reshape(u.name, 1, frames, channels), frames, channels)

    def add(self, x: Signal, y: Signal) -> Signal:
        return x._replace(name=self.graph.add(x.name, y.name))

    def map(self, u: Signal, function: str) -> Signal:
        if function in OPERATORS:
            return u._replace(name=self.graph.node(OPERATORS[function], u.name))
        return u._replace(name=self.graph.silu(u.name) if function == "silu" else self._gelu(u.name, function))

    def _gelu(self, x: str, function: str) -> str:
        """Return x · Φ(x), with Φ by the error function or by its approximation with a hyperbolic tangent."""
        g = self.graph
        if function == "gelu_tanh":
            cube = g.multiply(x, g.add(g.multiply(g.multiply(x, x), g.constant(0.044715)), g.constant(1.0)))
            bent = g.node("Tanh", g.multiply(cube, g.constant(np.sqrt(2 / np.pi))))
        else:
            bent = g.node("Erf", g.multiply(x, g.constant(np.sqrt(0.5))))
        return g.multiply(g.multiply(x, g.constant(0.5)), g.add(bent, g.constant(1.0)))

    def fuse(self, layers: list[Layer], u: Signal, name: str) -> Signal | None:
        match layers:
            case [Analysis() as analysis, Mel() as mel] if not mel.release:
                return lower_mel_of(self.graph, analysis, mel, u, name)
        return None

    @singledispatchmethod
    def leaf(self, layer: Layer, u: Signal, name: str) -> Signal:
        if type(layer) not in LEAVES:
            raise self.refusal(f"is a {type(layer).__name__}", name)
        return LEAVES[type(layer)](layer, self.graph, u, name)

    @leaf.register
    def _(self, layer: AvgPool, u: Signal, name: str) -> Signal:
        r, c = layer.hop, u.channels
        if r == 1:
            return u
        return self.product(self.reshape(u, u.frames // r, r * c), np.tile(np.eye(c), (r, 1)) / r)

    @leaf.register
    def _(self, layer: LayerNorm, u: Signal, name: str) -> Signal:
        g = self.graph
        if layer.weight is not None and layer.bias is not None:
            scale, bias = array(layer.weight), array(layer.bias)
            if u.channels <= NARROW and u.frames >= MANY:
                u = self._narrow_norm(u, scale, bias)
            else:
                y = g.node("LayerNormalization", u.name, g.constant(scale), g.constant(bias), axis=-1, epsilon=EPS)
                u = u._replace(name=y)
        return self.map(u, "silu") if layer.activate else u

    def _narrow_norm(self, u: Signal, scale: Array, bias: Array) -> Signal:
        """Return the norm of few channels by matrix products over several frames; the operator would pay for each."""
        g, c = self.graph, u.channels
        frames = max(m for m in range(1, WIDTH // c + 1) if u.frames % m == 0)
        every = np.eye(frames)
        x = g.reshape(u.name, 1, u.frames // frames, frames * c)
        x = g.matmul(x, g.constant(np.kron(every, np.eye(c) - 1 / c)))
        power = g.matmul(g.multiply(x, x), g.constant(np.kron(every, np.full((c, c), 1 / c))))
        x = g.node("Div", x, g.node("Sqrt", g.add(power, g.constant(EPS))))
        x = g.add(g.multiply(x, g.constant(np.tile(scale, frames))), g.constant(np.tile(bias, frames)))
        return u._replace(name=g.reshape(x, 1, u.frames, c))

    @leaf.register
    def _(self, layer: Gated, u: Signal, name: str) -> Signal:
        g = self.graph
        wide = lower(layer.into, self, lower(layer.norm, self, u, name), name)
        first, gate = g.split(wide.name, [layer.width, layer.width])
        x = lower(layer.conv, self, Signal(first, u.frames, layer.width), inside(name, "conv"))
        y = lower(layer.ssm, self, x, inside(name, "ssm"))
        passed = g.add(y.name, g.multiply(x.name, g.constant(array(layer.D)[:, 0])))
        gated = x._replace(name=g.multiply(passed, g.silu(gate)))
        return self.add(u, lower(layer.out, self, gated, name))

    @leaf.register
    def _(self, layer: Mask, u: Signal, name: str) -> Signal:
        g, bins, low, earlier = self.graph, layer.bins, layer.low, layer.taps - 1
        mask = lower(layer.body, self, u, inside(name, "body"))
        late = lower(layer.wait, self, u, inside(name, "wait"))
        real, imaginary, *factors = g.split(mask.name, [bins] * 2 + [low] * 2 * earlier)
        re, im = g.split(late.name, [bins, bins])
        y_re, y_im = _complex_product(g, g.add(real, g.constant(1.0)), imaginary, re, im)
        if not earlier:
            return u._replace(name=g.concat(y_re, y_im))
        lowest = Signal(g.concat(*(g.part(part, 0, low, 3) for part in (re, im))), u.frames, 2 * low)
        x = self._with_past(lowest, f"{name}.past", earlier)
        for age in range(1, earlier + 1):
            frames = g.part(x, earlier - age, earlier - age + u.frames, 2)
            more = _complex_product(g, *factors[2 * age - 2 : 2 * age], *g.split(frames, [low, low]))
            y_re, y_im = (_add_low(g, y, z, low, bins) for y, z in zip((y_re, y_im), more, strict=True))
        return u._replace(name=g.concat(y_re, y_im))

    @leaf.register
    def _(self, layer: CausalConv, u: Signal, name: str) -> Signal:
        g, (channels, kernel), weight = self.graph, layer.weight.shape, array(layer.weight)
        x = self._with_past(u, name, kernel - 1)
        if u.frames <= FEW:
            table = np.zeros((u.frames, u.frames + kernel - 1, channels))  # frame out, frame in
            for t in range(u.frames):
                table[t, t : t + kernel] = weight.T
            y = g.matmul(g.constant(np.ones((1, table.shape[1]))), g.multiply(x, g.constant(table)))
            y = g.reshape(y, 1, u.frames, channels) if u.frames > 1 else y
        else:
            taps = [g.multiply(g.part(x, k, k + u.frames, 2), g.constant(weight[:, k])) for k in range(kernel)]
            y = reduce(g.add, taps)
        return u._replace(name=y if layer.bias is None else g.add(y, g.constant(array(layer.bias))))

    def _with_past(self, u: Signal, name: str, frames: int) -> str:
        """Return a signal with ``frames`` frames before it, which are a state."""
        if frames == 0:
            return u.name
        g = self.graph
        state = g.state(name, 1, frames, u.channels)
        x = g.concat(state, u.name, axis=2)
        g.keep(state, g.part(x, u.frames, u.frames + frames, 2))
        return x

    @leaf.register
    def _(self, layer: RunningMean, u: Signal, name: str) -> Signal:
        g = self.graph
        mean = g.state(f"{name}.mean", 1, 1, u.channels)
        count = g.state(f"{name}.count", 1, 1, 1)
        counts = g.add(count, g.constant(np.arange(1.0, u.frames + 1)[:, None]))
        sums = g.matmul(g.constant(np.tri(u.frames)), g.node("Sub", u.name, mean))
        y = g.add(g.node("Div", sums, counts), mean)
        g.keep(mean, g.part(y, u.frames - 1, u.frames, 2))
        g.keep(count, g.part(counts, u.frames - 1, u.frames, 2))
        return u._replace(name=y)

    @leaf.register
    def _(self, layer: WindowedMean, u: Signal, name: str) -> Signal:
        g, frames, window = self.graph, u.frames, layer.window
        count = g.state(f"{name}.count", 1, 1, 1)
        x = self._with_past(u, f"{name}.past", window - 1)
        counts = g.add(count, g.constant(np.arange(1.0, frames + 1)[:, None]))
        counts = g.node("Min", counts, g.constant(float(window)))
        age = np.arange(frames)[:, None] + window - 1 - np.arange(frames + window - 1)
        band = ((age >= 0) & (age < window)).astype(float)
        y = g.node("Div", g.matmul(g.constant(band), x), counts)
        g.keep(count, g.part(counts, frames - 1, frames, 2))
        return u._replace(name=y)

    @leaf.register
    def _(self, layer: DCBlock, u: Signal, name: str) -> Signal:
        """Add nodes in blocks: a matrix inside each, and one that carries the leaky sum from block to block."""
        g, pole = self.graph, layer.pole
        q = max(k for k in range(1, min(LONGEST, u.frames) + 1) if u.frames % k == 0)
        blocks = u.frames // q
        age = np.arange(q) - np.arange(q)[:, None]
        sums = _fall(pole, age)  # frame in, frame out
        inside = np.eye(q) - (1 - pole) * np.concatenate([np.zeros((q, 1)), sums[:, :-1]], 1)
        x = u.name if u.channels == 1 else g.transpose(u.name, 0, 3, 1, 2)
        x = g.reshape(x, u.channels, blocks, q)
        y, ends = g.split(g.matmul(x, g.constant(np.concatenate([inside, sums[:, -1:]], 1))), [q, 1])
        state = g.state(name, u.channels, 1, 1)
        steps = np.arange(blocks + 1) - np.arange(blocks + 1)[:, None]
        carry = _fall(pole**q, steps)  # state or a block's end, start of a block
        both = g.matmul(g.constant(carry.T), g.concat(state, ends, axis=2))
        starts, after = g.split(both, [blocks, 1], axis=2)
        g.keep(state, after)
        y = g.add(y, g.matmul(starts, g.constant(-(1 - pole) * pole ** np.arange(q)[None])))
        y = g.reshape(y, u.channels, 1, u.frames)
        y = g.reshape(y, 1, u.frames, 1) if u.channels == 1 else g.transpose(y, 0, 2, 3, 1)
        return u._replace(name=y)

    @leaf.register
    def _(self, layer: Leveled, u: Signal, name: str) -> Signal:
        """Divide by the largest level of all hops so far, each decayed by its age, and multiply by it again."""
        g, hops, width = self.graph, u.frames // layer.hop, layer.hop * u.channels
        x = g.reshape(u.name, 1, hops, width)
        power = g.matmul(g.multiply(x, x), g.constant(np.full((width, 1), 1 / width)))
        loud = g.node("Sqrt", g.add(power, g.constant(FLOOR**2)))
        past = g.state(f"{name}.level", 1, 1, 1)
        age = np.arange(1, hops + 1)[:, None] - np.arange(hops + 1)  # of the state, then of every hop
        both = g.reshape(g.concat(past, loud, axis=2), 1, 1, hops + 1)
        levels = g.node("ReduceMax", g.multiply(both, g.constant(_fall(layer.decay, age))), axes=[3], keepdims=1)
        g.keep(past, g.part(levels, hops - 1, hops, 2))
        scaled = Signal(g.node("Div", x, levels), hops, width)
        y = lower(layer.body, self, self.reshape(scaled, u.frames, u.channels), inside(name, "body"))
        y_hops = g.multiply(g.reshape(y.name, 1, hops, width), levels)
        if layer.kept:
            y_hops = g.add(g.multiply(y_hops, g.constant(1 - layer.kept)), g.multiply(x, g.constant(layer.kept)))
        return self.reshape(Signal(y_hops, hops, width), y.frames, y.channels)


def _fall(decay: float, age: NDArray[np.int64]) -> Array:
    """Return decay^age, and zero for what is in the future."""
    return np.where(age >= 0, decay ** np.maximum(age, 0.0), 0.0)


def _complex_product(g: Graph, a: str, b: str, re: str, im: str) -> tuple[str, str]:
    """Return the real and imaginary part of (a + ib)(re + i im)."""
    return (
        g.node("Sub", g.multiply(a, re), g.multiply(b, im)),
        g.add(g.multiply(a, im), g.multiply(b, re)),
    )


def _add_low(g: Graph, x: str, y: str, low: int, bins: int) -> str:
    """Return x with y added to the first ``low`` of its bins."""
    if low == bins:
        return g.add(x, y)
    first, rest = g.split(x, [low, bins - low])
    return g.concat(g.add(first, y), rest)
