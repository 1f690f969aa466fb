"""A state-space layer as C: a projection, a recurrence sample by sample with its states in vector lanes, a projection.

Whatever the equation, a state stands between one of ``summed`` inputs and one of ``new`` outputs in one of ``shared``
groups, with ``others`` beside it. Its lanes go over the channels that keep to themselves, over the outputs, or, where
there are few of those, over the states that one output sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from centaurus.export.c.program import GROUP, Array, Program, Signal, rounded
from centaurus.export.graph import array
from centaurus.export.tables import Local
from centaurus.ssm import S6, SSM
from centaurus.ssm.layer import _phases

Complex = NDArray[np.complex128]
MULTIPLICATIONS = 6  # of a state in a frame: by a complex pole, and by its weight
SELECTIVE = 15  # of one of a selective scan, whose pole is an exponential
SUM_COST = 1.0  # adding up the lanes of a vector, against advancing one vector of states


class Modes(NamedTuple):
    """Poles and weights (shared, summed, new, others) in double precision."""

    poles: Complex
    weights: Complex


def emit_ssm(program: Program, layer: SSM, u: Signal) -> Signal:
    """The calls of a layer; the result has as many frames."""
    local = Local(layer)
    modes = modes_of(local)
    driven, read = (bool(phase) for phase in _phases(layer.topology))
    before, after = projections(local)
    v = u if before is None else program.product(u, before)
    shared, summed, new, others = modes.poles.shape
    y = program.buffer(u.frames, shared * new * (2 if read else 1))
    few = shared * (rounded(others) // GROUP + SUM_COST) < rounded(shared) // GROUP * others  # lanes over states
    if summed == new == 1 and (driven or read or not few):
        _channels(program, modes, v, y, driven, read)
    else:
        _crossed(program, modes, v, y, driven, read)
    return y if after is None else program.product(y, after)


def emit_s6(program: Program, layer: S6, u: Signal) -> Signal:
    """The calls of a selective scan, whose step ``lower_s6`` of the ONNX export states in equations."""
    channels, rank, width = layer.in_channels, rounded(layer.rank), rounded(layer.states)

    def rows(x: torch.Tensor, count: int) -> Array:
        """(rows, columns) with zeros below."""
        return np.pad(array(x), ((0, count - x.shape[0]), (0, 0)))

    def columns(x: Array) -> Array:
        return np.pad(x, ((0, 0), (0, width - layer.states)))

    wide = program.product(u, np.concatenate([rows(layer.dt_down, rank), rows(layer.B, width), rows(layer.C, width)]).T)
    low = program.buffer(u.frames, rank)
    program.call("part", wide.at, low.at, u.frames, wide.channels, 0, rank)
    raw = program.product(low, rows(layer.dt_up.T, rank), array(layer.dt_bias))
    y = program.buffer(u.frames, channels)
    rates = program.constant(columns(-np.exp(array(layer.A_log))))
    weights = np.ones((channels, layer.states)) if layer.E is None else array(layer.E)
    program.call(
        *("selective", u.at, raw.at, wide.at, y.at, u.frames, channels, width, rank, wide.channels, rates),
        *(program.constant(columns(weights)), program.state(channels * width)),
        work=SELECTIVE * u.frames * channels * width,
    )
    return y if layer.M is None else program.product(y, array(layer.M).T)


def modes_of(local: Local) -> Modes:
    """The discretised poles and the weights that read their states."""
    layer, (shared, summed, new, rest) = local.layer, local.roles
    phases = "".join(_phases(layer.topology))
    log_a, scale = layer._modes(torch.float64)
    weight = layer._weight(scale, torch.float64, fold=True)
    for _ in phases:
        weight = weight.select(-2, 0)  # the other phase is the same weight a quarter turn on
    sides = ["".join(i for i in side if i not in phases) for side in (summed, new)]
    others = "".join(i for i in rest if i not in sides[0] + sides[1])
    order = [layer.topology.modes.index(i) for i in shared + sides[0] + sides[1] + others]
    shape = [local.count(side) for side in (shared, *sides, others)]

    def arranged(x: torch.Tensor) -> Complex:
        return np.asarray(torch.view_as_complex(x.contiguous()).permute(order).reshape(shape).numpy())

    return Modes(np.exp(arranged(log_a)), arranged(weight))


def projections(local: Local) -> tuple[Array | None, Array | None]:
    """The tables before and after the states, or none for an identity; complex signals as real, then imaginary part."""
    (shared, summed, new, _), (driven, read) = local.roles, _phases(local.layer.topology)
    before, after = local.before(), local.after()
    if before is not None and driven:
        before = _phase_first(local, before, shared + summed, driven)
    if after is not None and read:
        after = _phase_first(local, after.T, shared + new, read).T
    return before, after


def _phase_first(local: Local, table: Array, indices: str, phase: str) -> Array:
    """(channels, indices) with the phase as the first of the indices."""
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
        program.call("complex_channels", v.at, y.at, *sizes, table_at, state, int(driven), int(read), work=work)
    else:
        program.call("channels", v.at, y.at, *sizes, table_at, state, work=work)


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
    program.call(kernel, v.at, y.at, *sizes, table_at, state, *flags, work=work)


def _numbers(poles: Complex, weights: Complex) -> Array:
    return np.stack([poles.real, poles.imag, weights.real, weights.imag])


def _padded(x: Complex, size: int, axis: int) -> Complex:
    """Zeros behind an axis, up to this size."""
    return np.pad(x, [(0, size - x.shape[k]) if k == axis else (0, 0) for k in range(x.ndim)])
