"""Every layer as C calls: one function a class, as in the ONNX export, but spectra by a small real FFT."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
from torch import nn

from centaurus.export.c.program import Array, Program, Signal
from centaurus.export.c.ssm import emit_s6, emit_ssm
from centaurus.export.graph import array
from centaurus.layer import Layer
from centaurus.models.build import Dense
from centaurus.models.network import Network
from centaurus.nn import Block, Gated, Hourglass, Residual, Serial
from centaurus.nn.blocks import Activation
from centaurus.nn.containers import FLOOR, Leveled
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

LIFTED = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "logistic", nn.SiLU: "silu", nn.GELU: "gelu"}


@singledispatch
def emit(layer: Layer, program: Program, u: Signal, name: str) -> Signal:
    """The calls of a layer (in double precision, for its tables) behind a signal; ``name`` says which it is."""
    raise TypeError(f"{name or 'this model'} is a {type(layer).__name__}, which cannot be exported to C")


@emit.register
def _(layer: SSM, program: Program, u: Signal, name: str) -> Signal:
    return emit_ssm(program, layer, u)


@emit.register
def _(layer: S6, program: Program, u: Signal, name: str) -> Signal:
    return emit_s6(program, layer, u)


@emit.register
def _(layer: Serial, program: Program, u: Signal, name: str) -> Signal:
    for part in layer.parts():
        u = emit(part.layer, program, u, _inner(name, part.name))
    return u


@emit.register
def _(layer: Network, program: Program, u: Signal, name: str) -> Signal:
    return emit(layer.body, program, u, name)


@emit.register
def _(layer: Dense, program: Program, u: Signal, name: str) -> Signal:
    return emit(layer.layers, program, u, name)


@emit.register
def _(layer: Residual, program: Program, u: Signal, name: str) -> Signal:
    y = emit(layer.body, program, u, _inner(name, "body"))
    return _added(program, y, emit(layer.skip, program, u, _inner(name, "skip")))


@emit.register
def _(layer: Hourglass, program: Program, u: Signal, name: str) -> Signal:
    high = emit(layer.encode, program, u, _inner(name, "encode"))
    low = emit(layer.down, program, high, _inner(name, "down"))
    low = emit(layer.inside, program, low, _inner(name, "inside"))
    back = emit(layer.up, program, low, _inner(name, "up"))
    return emit(layer.decode, program, _added(program, back, high), _inner(name, "decode"))


@emit.register
def _(layer: Block, program: Program, u: Signal, name: str) -> Signal:
    y = emit(layer.norm, program, emit(layer.body, program, u, _inner(name, "body")), name)
    x = None if layer.skip is None else emit(layer.skip, program, u, _inner(name, "skip"))
    if layer.activation is Activation.NONE:
        y = y if x is None else _added(program, y, x)
    elif x is None:
        y = _silu(program, y)
    else:
        kernel = "silu_add" if layer.activation is Activation.BEFORE_SKIP else "add_silu"
        out = program.buffer(y.frames, y.channels)
        program.call(kernel, y.at, x.at, out.at, y.size)
        y = out
    return emit(layer.resample, program, y, _inner(name, "resample"))


@emit.register
def _(layer: Gated, program: Program, u: Signal, name: str) -> Signal:
    wide = emit(layer.into, program, emit(layer.norm, program, u, name), name)
    halves = []
    for k in range(2):
        half = program.buffer(u.frames, layer.width)
        program.call("part", wide.at, half.at, u.frames, wide.channels, k * layer.width, layer.width)
        halves.append(half)
    x = emit(layer.conv, program, halves[0], _inner(name, "conv"))
    y = emit(layer.ssm, program, x, _inner(name, "ssm"))
    gated = program.buffer(u.frames, layer.width)
    d = program.constant(array(layer.D)[:, 0])
    program.call("gate", y.at, x.at, d, halves[1].at, gated.at, u.frames, layer.width)
    return _added(program, u, emit(layer.out, program, gated, name))


@emit.register
def _(layer: Pointwise, program: Program, u: Signal, name: str) -> Signal:
    return program.product(u, array(layer.weight).T, _bias(layer))


@emit.register
def _(layer: Down, program: Program, u: Signal, name: str) -> Signal:
    o, i, r = layer.weight.shape
    table = array(layer.weight).transpose(2, 1, 0).reshape(r * i, o)
    return program.product(Signal(u.at, u.frames // r, r * i), table, _bias(layer))


@emit.register
def _(layer: Up, program: Program, u: Signal, name: str) -> Signal:
    i, o, r = layer.weight.shape
    y = program.product(u, array(layer.weight).transpose(0, 2, 1).reshape(i, r * o))
    return Signal(y.at, u.frames * r, o)


@emit.register
def _(layer: AvgPool, program: Program, u: Signal, name: str) -> Signal:
    if layer.hop == 1:
        return u
    y = program.buffer(u.frames // layer.hop, u.channels)
    program.call("pool", u.at, y.at, y.frames, layer.hop, u.channels)
    return y


@emit.register
def _(layer: SiLU, program: Program, u: Signal, name: str) -> Signal:
    return _silu(program, u)


@emit.register
def _(layer: Lift, program: Program, u: Signal, name: str) -> Signal:
    module = layer.module
    if isinstance(module, nn.Conv1d) and module.groups == 1:
        bias = None if module.bias is None else array(module.bias)
        return program.product(u, array(module.weight)[..., 0].T, bias)
    if isinstance(module, nn.Identity | nn.Dropout1d):
        return u
    kernel = LIFTED.get(type(module))
    if kernel is None:
        raise TypeError(f"{name or 'this model'} lifts a {type(module).__name__}, which cannot be exported to C")
    if isinstance(module, nn.GELU) and module.approximate == "tanh":
        kernel = "gelu_tanh"
    return _mapped(program, kernel, u)


@emit.register
def _(layer: Dropout1d, program: Program, u: Signal, name: str) -> Signal:
    return u


@emit.register
def _(layer: LayerNorm, program: Program, u: Signal, name: str) -> Signal:
    y = u
    if layer.weight is not None and layer.bias is not None:
        y = program.buffer(u.frames, u.channels)
        scale, bias = program.constant(array(layer.weight)), program.constant(array(layer.bias))
        program.call("norm", u.at, y.at, u.frames, u.channels, scale, bias)
    return _silu(program, y) if layer.activate else y


@emit.register
def _(layer: CausalConv, program: Program, u: Signal, name: str) -> Signal:
    channels, taps = layer.weight.shape
    x = with_past(program, u, taps - 1)
    y = program.buffer(u.frames, channels)
    bias = 0 if layer.bias is None else program.constant(array(layer.bias))
    program.call("taps", x.at, y.at, u.frames, channels, taps, program.constant(array(layer.weight).T), bias)
    return y


@emit.register
def _(layer: RunningMean, program: Program, u: Signal, name: str) -> Signal:
    y = program.buffer(u.frames, u.channels)
    program.call("mean", u.at, y.at, u.frames, u.channels, program.state(1 + u.channels))
    return y


@emit.register
def _(layer: WindowedMean, program: Program, u: Signal, name: str) -> Signal:
    x = with_past(program, u, layer.window - 1)
    y = program.buffer(u.frames, u.channels)
    program.call("window", x.at, y.at, u.frames, u.channels, layer.window, program.state(1))
    return y


@emit.register
def _(layer: DCBlock, program: Program, u: Signal, name: str) -> Signal:
    y = program.buffer(u.frames, u.channels)
    state = program.state(u.channels)
    program.call("dc_block", u.at, y.at, u.frames, u.channels, float(layer.pole), float(1 - layer.pole), state)
    return y


@emit.register
def _(layer: Leveled, program: Program, u: Signal, name: str) -> Signal:
    hops, width = u.frames // layer.hop, layer.hop * u.channels
    x, levels, state = program.buffer(u.frames, u.channels), program.buffer(hops, 1), program.state(1)
    program.call("level", u.at, x.at, levels.at, hops, width, FLOOR, float(layer.decay), state)
    y = emit(layer.body, program, x, _inner(name, "body"))
    out = program.buffer(y.frames, y.channels)
    program.call("unlevel", y.at, u.at, levels.at, out.at, hops, y.size // hops, float(layer.kept))
    return out


def _added(program: Program, x: Signal, z: Signal) -> Signal:
    y = program.buffer(x.frames, x.channels)
    program.call("add", x.at, z.at, y.at, x.size)
    return y


def _silu(program: Program, x: Signal) -> Signal:
    return _mapped(program, "silu", x)


def _mapped(program: Program, kernel: str, x: Signal) -> Signal:
    """Every number through a function."""
    y = program.buffer(x.frames, x.channels)
    program.call(kernel, x.at, y.at, x.size)
    return y


def with_past(program: Program, u: Signal, frames: int) -> Signal:
    """Return a signal with ``frames`` frames before it, which are a state."""
    if frames == 0:
        return u
    x = program.buffer(frames + u.frames, u.channels)
    program.call("past", u.at, x.at, program.state(frames * u.channels), u.frames, frames, u.channels)
    return x


def _bias(layer: Pointwise | Down) -> Array | None:
    return None if layer.bias is None else np.asarray(array(layer.bias)[:, 0])


def _inner(name: str, part: str) -> str:
    return f"{name}.{part}".lstrip(".")


@emit.register
def _(layer: Analysis, program: Program, u: Signal, name: str) -> Signal:
    x = with_past(program, u, layer.window - layer.hop)
    work = program.buffer(2, layer.window)
    y = program.buffer(u.frames // layer.hop, 2 * layer.bins)
    window = program.constant(array(analysis_window(layer.window, layer.hop)))
    program.call(
        "analysis", x.at, y.at, work.at, y.frames, layer.window, layer.hop, window, *_circle(program, layer.window)
    )
    return y


@emit.register
def _(layer: Synthesis, program: Program, u: Signal, name: str) -> Signal:
    hop, kept = layer.step_samples, layer.synthesis
    work, y = program.buffer(2, layer.window), program.buffer(u.frames * hop, 1)
    window = program.constant(array(synthesis_window(layer.window, hop, kept)) / (layer.window // 2))
    circle, state = _circle(program, layer.window), program.state(kept - hop)
    program.call("synthesis", u.at, y.at, work.at, u.frames, layer.window, kept, hop, window, *circle, state)
    return y


@emit.register
def _(layer: Compress, program: Program, u: Signal, name: str) -> Signal:
    relative, levels = _power(program, layer, u)
    y = program.buffer(u.frames, 3 * layer.bins)
    program.call("compress", u.at, relative.at, levels.at, y.at, u.frames, layer.bins, layer.power / 2)
    return y


@emit.register
def _(layer: Mel, program: Program, u: Signal, name: str) -> Signal:
    relative, _ = _power(program, layer, u)
    bands = program.product(relative, array(mel_filters(layer.bins, layer.bands, *layer.band)).T)
    y = program.buffer(u.frames, layer.bands)
    program.call("bands", bands.at, y.at, y.size, layer.power / 2)
    return y


@emit.register
def _(layer: Mask, program: Program, u: Signal, name: str) -> Signal:
    mask = emit(layer.body, program, u, f"{name}.body".lstrip("."))
    x = emit(layer.wait, program, u, f"{name}.wait".lstrip("."))
    y = program.buffer(u.frames, u.channels)
    program.call("mask", x.at, mask.at, y.at, u.frames, layer.bins)
    return y


@emit.register
def _(layer: Delay, program: Program, u: Signal, name: str) -> Signal:
    return with_past(program, u, int(layer.delay))._replace(frames=u.frames)


def _power(program: Program, layer: Leveling, u: Signal) -> tuple[Signal, Signal]:
    """Power over level, and the level of every frame."""
    relative, levels = program.buffer(u.frames, layer.bins), program.buffer(u.frames, 1)
    sizes = (u.frames, layer.bins, layer.lowest)
    program.call("power", u.at, relative.at, levels.at, *sizes, float(layer.decay), program.state(2))
    return relative, levels


def _circle(program: Program, window: int) -> tuple[str, str]:
    """Cosine and sine of every window-th part of a circle."""
    turns = 2 * np.pi * np.arange(window) / window
    return program.constant(np.cos(turns)), program.constant(np.sin(turns))
