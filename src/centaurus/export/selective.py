"""S6 as nodes: Δ, B and C of every frame by matrix products, then the recurrence by doubling.

A step in equations, for any language: with u one frame of ``in_channels`` values and x the state (in_channels, states),

    Δ = softplus(dt_up (dt_down u) + dt_bias)                  in_channels
    b = B u,  c = C u                                          states
    x = exp(-Δ exp(A_log)) x + (Δ u) b                         in_channels × states, element by element
    y = Σ_n c (E x), then M y where the layer has a mixer      E is one where the layer is not weighted
"""

from __future__ import annotations

import numpy as np

from centaurus.export.graph import Graph, Signal, array
from centaurus.ssm import S6


def lower_s6(g: Graph, layer: S6, u: Signal, name: str) -> Signal:
    """Nodes of a selective scan; its state is (in_channels, states), all frames of a piece are computed together."""
    frames, channels, states = u.frames, layer.in_channels, layer.states

    def project(x: str, *matrices: np.ndarray) -> str:
        return g.matmul(x, g.constant(np.concatenate(matrices).T))

    low, into, out_of = g.split(
        project(u.name, array(layer.dt_down), array(layer.B), array(layer.C)), [layer.rank, states, states]
    )
    dt = g.node("Softplus", g.add(project(low, array(layer.dt_up)), g.constant(array(layer.dt_bias))))  # b 1 t i
    rate = g.constant(-np.exp(array(layer.A_log)))  # i n
    decay = g.node("Exp", g.multiply(g.reshape(dt, frames, channels, 1), rate))  # b t i n
    gated = g.reshape(g.multiply(dt, u.name), frames, channels, 1)
    x = g.multiply(gated, g.reshape(into, frames, 1, states))  # b t i n
    entered = g.state(name, 1, channels, states)
    x = _scan(g, x, decay, entered, frames)
    g.keep(entered, x if frames == 1 else g.part(x, frames - 1, frames, 1))
    weighted = x if layer.E is None else g.multiply(x, g.constant(array(layer.E)))
    y = g.reshape(g.matmul(weighted, g.reshape(out_of, frames, states, 1)), 1, frames, channels)
    y = y if layer.M is None else project(y, array(layer.M))
    return Signal(y, frames, layer.out_channels)


def _scan(g: Graph, x: str, decay: str, entered: str, frames: int) -> str:
    """x[t] + decay[t] x[t-1] + decay[t] decay[t-1] x[t-2] + … along axis 1, by doubling: factors are at most one."""
    if frames == 1:
        return g.add(x, g.multiply(decay, entered))
    first, rest = g.split(x, [1, frames - 1], axis=1)
    carried = g.add(first, g.multiply(g.part(decay, 0, 1, 1), entered))
    x = g.concat(carried, rest, axis=1)
    reach = 1
    while reach < frames:
        sizes = [reach, frames - reach]
        head, tail = g.split(x, sizes, axis=1)
        kept, factor = g.split(decay, sizes, axis=1)
        x = g.concat(head, g.add(tail, g.multiply(factor, g.part(x, 0, frames - reach, 1))), axis=1)
        reach *= 2
        if reach < frames:
            decay = g.concat(kept, g.multiply(factor, g.part(decay, 0, sizes[1], 1)), axis=1)
    return x
