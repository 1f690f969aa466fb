"""Every layer as nodes of a graph: one function a class, in single precision, batch left open."""

from __future__ import annotations

from functools import reduce, singledispatch

import numpy as np
from numpy.typing import NDArray
from torch import nn

from centaurus.export.graph import Graph, Signal, array
from centaurus.export.spectral import (
    lower_analysis,
    lower_compress,
    lower_delay,
    lower_mel,
    lower_mel_of,
    lower_synthesis,
)
from centaurus.export.ssm import lower_s6, lower_ssm
from centaurus.layer import Layer
from centaurus.models.build import Dense
from centaurus.models.network import Network
from centaurus.nn import Block, Gated, Hourglass, Residual, Serial
from centaurus.nn.blocks import Activation
from centaurus.nn.containers import FLOOR, Leveled
from centaurus.nn.fused import EPS
from centaurus.nn.layers import (
    AvgPool,
    CausalConv,
    DCBlock,
    Delay,
    Down,
    Dropout1d,
    LayerNorm,
    Lift,
    Pointwise,
    RunningMean,
    SiLU,
    Up,
    WindowedMean,
)
from centaurus.nn.spectral import Analysis, Compress, Mask, Mel, Synthesis
from centaurus.ssm import S6, SSM

NARROW, MANY = 8, 256  # up to so many channels and from so many frames on, the norm operator is the slower way
FEW = 8  # up to so many frames, the taps of a convolution are one product and one sum
WIDTH = 32  # channels of several frames that go through one matrix


@singledispatch
def lower(layer: Layer, g: Graph, u: Signal, name: str) -> Signal:
    """The nodes of a layer (in double precision, for its tables) behind a signal; ``name`` names its states."""
    raise TypeError(f"{name or 'this model'} is a {type(layer).__name__}, which cannot be exported to ONNX")


lower.register(S6, lower_s6)
lower.register(SSM, lower_ssm)
lower.register(Analysis, lower_analysis)
lower.register(Synthesis, lower_synthesis)
lower.register(Compress, lower_compress)
lower.register(Mel, lower_mel)
lower.register(Delay, lower_delay)


@lower.register
def _(layer: Serial, g: Graph, u: Signal, name: str) -> Signal:
    match [part.layer for part in layer.parts()]:
        case [Analysis() as analysis, Mel() as mel] if not mel.release:
            return lower_mel_of(g, analysis, mel, u, _inner(name, layer.parts()[0].name))
    for part in layer.parts():
        u = lower(part.layer, g, u, _inner(name, part.name))
    return u


@lower.register
def _(layer: Network, g: Graph, u: Signal, name: str) -> Signal:
    return lower(layer.body, g, u, name)


@lower.register
def _(layer: Dense, g: Graph, u: Signal, name: str) -> Signal:
    return lower(layer.layers, g, u, name)


@lower.register
def _(layer: Residual, g: Graph, u: Signal, name: str) -> Signal:
    y = lower(layer.body, g, u, _inner(name, "body"))
    x = lower(layer.skip, g, u, _inner(name, "skip"))
    return y._replace(name=g.add(y.name, x.name))


@lower.register
def _(layer: Hourglass, g: Graph, u: Signal, name: str) -> Signal:
    high = lower(layer.encode, g, u, _inner(name, "encode"))
    low = lower(layer.down, g, high, _inner(name, "down"))
    low = lower(layer.inside, g, low, _inner(name, "inside"))
    back = lower(layer.up, g, low, _inner(name, "up"))
    return lower(layer.decode, g, back._replace(name=g.add(back.name, high.name)), _inner(name, "decode"))


@lower.register
def _(layer: Block, g: Graph, u: Signal, name: str) -> Signal:
    y = lower(layer.norm, g, lower(layer.body, g, u, _inner(name, "body")), name)
    x = None if layer.skip is None else lower(layer.skip, g, u, _inner(name, "skip")).name
    value = y.name
    if x is not None and layer.activation is not Activation.BEFORE_SKIP:
        value = g.add(value, x)
    if layer.activation is not Activation.NONE:
        value = g.silu(value)
    if x is not None and layer.activation is Activation.BEFORE_SKIP:
        value = g.add(value, x)
    return lower(layer.resample, g, y._replace(name=value), _inner(name, "resample"))


@lower.register
def _(layer: Gated, g: Graph, u: Signal, name: str) -> Signal:
    wide = lower(layer.into, g, lower(layer.norm, g, u, name), name)
    inner, gate = g.split(wide.name, [layer.width, layer.width])
    x = lower(layer.conv, g, Signal(inner, u.frames, layer.width), _inner(name, "conv"))
    y = lower(layer.ssm, g, x, _inner(name, "ssm"))
    passed = g.add(y.name, g.multiply(x.name, g.constant(array(layer.D)[:, 0])))
    out = lower(layer.out, g, Signal(g.multiply(passed, g.silu(gate)), u.frames, layer.width), name)
    return u._replace(name=g.add(u.name, out.name))


@lower.register
def _(layer: Pointwise, g: Graph, u: Signal, name: str) -> Signal:
    y = g.matmul(u.name, g.constant(array(layer.weight).T))
    if layer.bias is not None:
        y = g.add(y, g.constant(array(layer.bias)[:, 0]))
    return Signal(y, u.frames, layer.weight.shape[0])


@lower.register
def _(layer: Down, g: Graph, u: Signal, name: str) -> Signal:
    o, i, r = layer.weight.shape
    frames = u.frames // r
    table = array(layer.weight).transpose(2, 1, 0).reshape(r * i, o)
    y = g.matmul(g.reshape(u.name, 1, frames, r * i), g.constant(table))
    if layer.bias is not None:
        y = g.add(y, g.constant(array(layer.bias)[:, 0]))
    return Signal(y, frames, o)


@lower.register
def _(layer: Up, g: Graph, u: Signal, name: str) -> Signal:
    i, o, r = layer.weight.shape
    table = array(layer.weight).transpose(0, 2, 1).reshape(i, r * o)
    return Signal(g.reshape(g.matmul(u.name, g.constant(table)), 1, u.frames * r, o), u.frames * r, o)


@lower.register
def _(layer: AvgPool, g: Graph, u: Signal, name: str) -> Signal:
    r, c = layer.hop, u.channels
    if r == 1:
        return u
    frames = u.frames // r
    table = np.tile(np.eye(c), (r, 1)) / r
    return Signal(g.matmul(g.reshape(u.name, 1, frames, r * c), g.constant(table)), frames, c)


@lower.register
def _(layer: SiLU, g: Graph, u: Signal, name: str) -> Signal:
    return u._replace(name=g.silu(u.name))


@lower.register
def _(layer: Dropout1d, g: Graph, u: Signal, name: str) -> Signal:
    return u


@lower.register
def _(layer: LayerNorm, g: Graph, u: Signal, name: str) -> Signal:
    y = u.name
    if layer.weight is not None and layer.bias is not None:
        scale, bias = array(layer.weight), array(layer.bias)
        if u.channels <= NARROW and u.frames >= MANY:
            y = _narrow_norm(g, u, scale, bias)
        else:
            y = g.node("LayerNormalization", y, g.constant(scale), g.constant(bias), axis=-1, epsilon=EPS)
    return u._replace(name=g.silu(y) if layer.activate else y)


def _narrow_norm(g: Graph, u: Signal, scale: NDArray[np.float64], bias: NDArray[np.float64]) -> str:
    """The norm of few channels by matrix products over several frames at once; the operator would pay for each."""
    c = u.channels
    frames = max(m for m in range(1, WIDTH // c + 1) if u.frames % m == 0)
    every = np.eye(frames)
    x = g.reshape(u.name, 1, u.frames // frames, frames * c)
    x = g.matmul(x, g.constant(np.kron(every, np.eye(c) - 1 / c)))
    power = g.matmul(g.multiply(x, x), g.constant(np.kron(every, np.full((c, c), 1 / c))))
    x = g.node("Div", x, g.node("Sqrt", g.add(power, g.constant(EPS))))
    x = g.add(g.multiply(x, g.constant(np.tile(scale, frames))), g.constant(np.tile(bias, frames)))
    return g.reshape(x, 1, u.frames, c)


@lower.register
def _(layer: CausalConv, g: Graph, u: Signal, name: str) -> Signal:
    channels, kernel = layer.weight.shape
    x, weight = _with_past(g, u, name, kernel - 1), array(layer.weight)
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


def _with_past(g: Graph, u: Signal, name: str, frames: int) -> str:
    """Return a signal with ``frames`` frames before it, which are a state."""
    if frames == 0:
        return u.name
    state = g.state(name, 1, frames, u.channels)
    x = g.concat(state, u.name, axis=2)
    g.keep(state, g.part(x, u.frames, u.frames + frames, 2))
    return x


@lower.register
def _(layer: Lift, g: Graph, u: Signal, name: str) -> Signal:
    module, x = layer.module, u.name
    if isinstance(module, nn.Conv1d) and module.groups == 1:
        y = g.matmul(x, g.constant(array(module.weight)[..., 0].T))
        y = y if module.bias is None else g.add(y, g.constant(array(module.bias)))
        return Signal(y, u.frames, module.out_channels)
    simple = {nn.ReLU: "Relu", nn.Tanh: "Tanh", nn.Sigmoid: "Sigmoid"}
    if type(module) in simple:
        return u._replace(name=g.node(simple[type(module)], x))
    if isinstance(module, nn.Identity | nn.Dropout1d):
        return u
    if isinstance(module, nn.SiLU):
        return u._replace(name=g.silu(x))
    if isinstance(module, nn.GELU):
        return u._replace(name=_gelu(g, x, module.approximate))
    raise TypeError(f"{name or 'this model'} lifts a {type(module).__name__}, which cannot be exported to ONNX")


def _gelu(g: Graph, x: str, approximate: str) -> str:
    """x · Φ(x), Φ by the error function or by its approximation with a hyperbolic tangent."""
    if approximate == "tanh":
        cube = g.multiply(x, g.add(g.multiply(g.multiply(x, x), g.constant(0.044715)), g.constant(1.0)))
        bent = g.node("Tanh", g.multiply(cube, g.constant(np.sqrt(2 / np.pi))))
    else:
        bent = g.node("Erf", g.multiply(x, g.constant(np.sqrt(0.5))))
    return g.multiply(g.multiply(x, g.constant(0.5)), g.add(bent, g.constant(1.0)))


@lower.register
def _(layer: Mask, g: Graph, u: Signal, name: str) -> Signal:
    mask = lower(layer.body, g, u, _inner(name, "body"))
    late = lower(layer.wait, g, u, _inner(name, "wait"))
    real, imaginary = g.split(mask.name, [layer.bins, layer.bins])
    re, im = g.split(late.name, [layer.bins, layer.bins])
    real = g.add(real, g.constant(1.0))
    y_re = g.node("Sub", g.multiply(real, re), g.multiply(imaginary, im))
    y_im = g.add(g.multiply(real, im), g.multiply(imaginary, re))
    return u._replace(name=g.concat(y_re, y_im))


@lower.register
def _(layer: RunningMean, g: Graph, u: Signal, name: str) -> Signal:
    mean = g.state(f"{name}.mean", 1, 1, u.channels)
    count = g.state(f"{name}.count", 1, 1, 1)
    counts = g.add(count, g.constant(np.arange(1.0, u.frames + 1)[:, None]))
    sums = g.matmul(g.constant(np.tri(u.frames)), g.node("Sub", u.name, mean))
    y = g.add(g.node("Div", sums, counts), mean)
    g.keep(mean, g.part(y, u.frames - 1, u.frames, 2))
    g.keep(count, g.part(counts, u.frames - 1, u.frames, 2))
    return u._replace(name=y)


@lower.register
def _(layer: WindowedMean, g: Graph, u: Signal, name: str) -> Signal:
    window, frames = layer.window, u.frames
    count = g.state(f"{name}.count", 1, 1, 1)
    x = _with_past(g, u, f"{name}.past", window - 1)
    counts = g.add(count, g.constant(np.arange(1.0, frames + 1)[:, None]))
    counts = g.node("Min", counts, g.constant(float(window)))
    age = np.arange(frames)[:, None] + window - 1 - np.arange(frames + window - 1)
    band = ((age >= 0) & (age < window)).astype(float)
    y = g.node("Div", g.matmul(g.constant(band), x), counts)
    g.keep(count, g.part(counts, frames - 1, frames, 2))
    return u._replace(name=y)


@lower.register
def _(layer: DCBlock, g: Graph, u: Signal, name: str) -> Signal:
    """Add nodes in blocks: a matrix inside each, and one that carries the leaky sum from block to block."""
    q = max(k for k in range(1, min(64, u.frames) + 1) if u.frames % k == 0)
    blocks, pole = u.frames // q, layer.pole
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


@lower.register
def _(layer: Leveled, g: Graph, u: Signal, name: str) -> Signal:
    """The level of a hop is the largest of all hops so far, each fallen by its age."""
    hops, width = u.frames // layer.hop, layer.hop * u.channels
    x = g.reshape(u.name, 1, hops, width)
    power = g.matmul(g.multiply(x, x), g.constant(np.full((width, 1), 1 / width)))
    loud = g.node("Sqrt", g.add(power, g.constant(FLOOR**2)))
    past = g.state(f"{name}.level", 1, 1, 1)
    age = np.arange(1, hops + 1)[:, None] - np.arange(hops + 1)  # of the state, then of every hop
    fallen = g.multiply(g.reshape(g.concat(past, loud, axis=2), 1, 1, hops + 1), g.constant(_fall(layer.decay, age)))
    levels = g.node("ReduceMax", fallen, axes=[3], keepdims=1)
    g.keep(past, g.part(levels, hops - 1, hops, 2))
    y = lower(layer.body, g, u._replace(name=g.reshape(g.node("Div", x, levels), 1, *u[1:])), _inner(name, "body"))
    y_hops = g.multiply(g.reshape(y.name, 1, hops, width), levels)
    if layer.kept:
        y_hops = g.add(g.multiply(y_hops, g.constant(1 - layer.kept)), g.multiply(x, g.constant(layer.kept)))
    return y._replace(name=g.reshape(y_hops, 1, *y[1:]))


def _fall(decay: float, age: NDArray[np.int64]) -> NDArray[np.float64]:
    """decay^age, and nothing from the future."""
    return np.where(age >= 0, decay ** np.maximum(age, 0.0), 0.0)


def _inner(name: str, part: str) -> str:
    return f"{name}.{part}".lstrip(".")
