"""One SSM layer as nodes: the cheapest of a few ways to run a piece of fixed length by matrix products.

``whole``   the piece is one chunk: [signal, state] times one table gives [result, state]
``chunks``  shorter chunks side by side, and one small matrix for every mode that links their states
``crossed`` the same for layers whose states stand between every input and every output channel
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from centaurus.export.graph import Graph, Signal
from centaurus.export.tables import Local, block_diagonal, scan
from centaurus.ssm import SSM

# Seconds, of the order measured on one core: an operator, a small matrix product, a multiply-add, a constant's number.
OPERATOR, PRODUCT, MULTIPLY, NUMBER = 1.5e-6, 5e-8, 5e-11, 4e-10


@dataclass(frozen=True)
class Choice:
    """A way, the frames of its chunks, and what it costs."""

    run: Callable[[Graph, Local, str, str, int, int], str]
    chunk: int
    seconds: float
    numbers: int


def lower_ssm(g: Graph, layer: SSM, u: Signal, name: str) -> Signal:
    """Nodes of a layer; the result is a signal of as many frames."""
    local = Local(layer)
    before, after = local.before(), local.after()
    v = u.name if before is None else g.matmul(u.name, g.constant(before))
    best = choose(local, u.frames)
    y = best.run(g, local, v, name, u.frames, best.chunk)  # b, chunks, frames, channels
    y = y if after is None else g.matmul(y, g.constant(after))
    if best.chunk != u.frames:
        y = g.reshape(y, 1, u.frames, layer.out_channels)
    return Signal(y, u.frames, layer.out_channels)


def choose(local: Local, frames: int) -> Choice:
    """The cheapest way through a piece of this many frames."""
    return min((c for q in divisors(frames) for c in _ways(local, frames, q)), key=lambda c: c.seconds)


def divisors(n: int) -> list[int]:
    """Every whole number that divides n."""
    return [q for q in range(1, n + 1) if n % q == 0]


def _ways(local: Local, frames: int, q: int) -> list[Choice]:
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    chunks = frames // q
    inside, drive, read = shared * q * q * summed * new, 2 * shared * q * summed * rest, 2 * shared * q * new * rest
    if chunks == 1:
        numbers = inside + drive + read + 4 * shared * rest * rest
        found = [_choice(_whole, q, 6, shared, numbers, numbers)]
    else:
        links = shared * rest * (2 * chunks + 2) ** 2
        products = chunks * (inside + drive + read) + links
        calls = 2 * shared + shared * rest
        found = [_choice(_chunks, q, 15, calls, products, inside + drive + read + links)]
    if local.crossed:
        drive, read = drive // summed, read // new
        products = chunks * (inside + drive + read)
        found.append(_choice(_crossed, q, 12 + 5 * chunks, 3 * shared * summed, products, inside + drive + read))
    return found


def _choice(
    run: Callable[[Graph, Local, str, str, int, int], str],
    q: int,
    operators: int,
    products: int,
    multiplies: int,
    numbers: int,
) -> Choice:
    seconds = operators * OPERATOR + products * PRODUCT + multiplies * MULTIPLY + numbers * NUMBER
    return Choice(run, q, seconds, numbers)


def _whole(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    tables = local.chunk(q)
    top = np.concatenate([tables.inside(), tables.drive()], -1)
    bottom = np.concatenate([tables.read(), block_diagonal(tables.rotation())], -1)
    state = g.state(name, shared, 1, 2 * rest)
    x = g.concat(_gathered(g, v, frames, q, shared, summed), state)
    table = np.concatenate([top, bottom], -2)
    both = g.matmul(x, g.constant(table[0] if shared == 1 else table))
    y, new_state = g.split(both, [q * new, 2 * rest])
    g.keep(state, new_state)
    return _spread(g, y, frames, q, shared, new)


def _chunks(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    chunks = frames // q
    tables = local.chunk(q)
    x = _gathered(g, v, frames, q, shared, summed)
    both = np.concatenate([tables.inside(), tables.drive()], -1)
    y, z = g.split(g.matmul(x, g.constant(both[0] if shared == 1 else both)), [q * new, 2 * rest])
    state = g.state(name, shared * rest, 1, 2)
    if rest > 1:
        z = g.transpose(g.reshape(z, shared, chunks, rest, 2), 0, 1, 3, 2, 4)
    z = g.concat(state, g.reshape(z, shared * rest, 1, 2 * chunks))
    rotation = tables.rotation().reshape(shared * rest, 2, 2)
    starts, new_state = g.split(g.matmul(z, g.constant(scan(rotation, chunks))), [2 * chunks, 2])
    g.keep(state, new_state)
    if rest > 1:
        starts = g.transpose(g.reshape(starts, shared, rest, chunks, 2), 0, 1, 3, 2, 4)
    starts = g.reshape(starts, shared, chunks, 2 * rest)
    read = tables.read()
    y = g.add(y, g.matmul(starts, g.constant(read[0] if shared == 1 else read)))
    return _spread(g, y, frames, q, shared, new)


def _crossed(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    chunks, others = frames // q, rest // (summed * new)
    tables = local.chunk(q)
    inside = tables.inside()
    y = g.matmul(_gathered(g, v, frames, q, shared, summed), g.constant(inside[0] if shared == 1 else inside))
    y = _spread(g, y, frames, q, shared, new)
    z = g.matmul(_gathered(g, v, frames, q, shared * summed, 1), g.constant(tables.drive_crossed()))
    state = g.state(name, shared * summed, 1, 2 * new * others)
    starts, new_state = _recur(g, state, z, chunks, *tables.decay_crossed())
    g.keep(state, new_state)
    s = g.reshape(starts, shared, summed, chunks, 2, new, others)
    s = g.reshape(g.transpose(s, 0, 1, 5, 3, 2, 4, 6), shared * new, chunks, summed * 2 * others)
    late = g.matmul(s, g.constant(tables.read_crossed()))
    return g.add(y, g.transpose(late, 0, 2, 3, 1))


def _recur(g: Graph, state: str, z: str, chunks: int, same: np.ndarray, swapped: np.ndarray) -> tuple[str, str]:
    """States before every chunk, joined along axis 2, and the state after the last."""
    half = same.shape[-1] // 2
    order = g.constant(np.concatenate([np.arange(half, 2 * half), np.arange(half)]))
    same_name, swapped_name = g.constant(same), g.constant(swapped)
    added = g.split(z, [1] * chunks, axis=2) if chunks > 1 else [z]
    states = [state]
    for piece in added:
        s = states[-1]
        turned = g.multiply(g.node("Gather", s, order, axis=3), swapped_name)
        states.append(g.add(g.add(g.multiply(s, same_name), piece), turned))
    starts = g.concat(*states[:-1], axis=2) if chunks > 1 else state
    return starts, states[-1]


def _gathered(g: Graph, v: str, frames: int, q: int, shared: int, summed: int) -> str:
    """A signal (b, 1, frames, shared · summed) as (b, shared, chunks, q · summed)."""
    chunks = frames // q
    if shared == 1:
        return g.reshape(v, 1, chunks, q * summed)
    if summed == 1:
        v = v if chunks == 1 else g.reshape(v, chunks, q, shared)
        return g.transpose(v, 0, 3, 1, 2)
    v = g.transpose(g.reshape(v, chunks, q, shared, summed), 0, 3, 1, 2, 4)
    return g.reshape(v, shared, chunks, q * summed)


def _spread(g: Graph, y: str, frames: int, q: int, shared: int, new: int) -> str:
    """(b, shared, chunks, q · new) as a signal (b, chunks, q, shared · new)."""
    chunks = frames // q
    if shared == 1:
        return g.reshape(y, chunks, q, new)
    if new == 1:
        return g.transpose(y, 0, 2, 3, 1)
    y = g.transpose(g.reshape(y, shared, chunks, q, new), 0, 2, 3, 1, 4)
    return g.reshape(y, chunks, q, shared * new)
