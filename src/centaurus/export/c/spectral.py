"""The spectral layers as C: a small real FFT where the ONNX export multiplies by tables."""

from __future__ import annotations

import numpy as np

from centaurus.export.c.layers import emit, with_past
from centaurus.export.c.program import Program, Signal
from centaurus.export.graph import array
from centaurus.nn.layers import Delay
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

__all__ = ["emit"]  # with the spectral layers registered


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
