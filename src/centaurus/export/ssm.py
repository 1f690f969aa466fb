"""SSM and S6 layers as nodes of an ONNX graph, and the tables of an SSM layer for pieces of a fixed length.

Every SSM layer is a projection, a convolution and a projection. Indices of the convolution are shared by its signal and
its result (g), summed (only in the signal, i) or new (only in the result, j); its states are the modes. A piece is run
by matrix products, in chunks, with the cheapest of these methods:

``serial``  chunk by chunk: [signal, state] times one table gives [result, state], one product for every shared index
``rows``    the same with shared indices as columns, by element-wise products and sums
``chunks``  all chunks in parallel; a small matrix for every mode gives the states between them
``linked``  all chunks in parallel; the states between them follow by element-wise recurrence
``crossed`` the same for layers that have states for every pair of input and output channel
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from centaurus.export.step import Signal, array
from centaurus.kernels.modes import chunk_tables
from centaurus.kernels.pair import pair
from centaurus.ssm import S6, SSM
from centaurus.ssm.layer import _phases, _unfold
from centaurus.ssm.streaming import Route, route

if TYPE_CHECKING:
    from centaurus.export.write import Graph

Array = NDArray[np.float64]


def contract(*terms: tuple[Tensor, str], out: str) -> Tensor:
    """Return torch.einsum of terms whose indices may be any characters."""
    number = {index: k for k, index in enumerate(dict.fromkeys("".join(i for _, i in terms) + out))}
    flat: list[object] = []
    for x, indices in terms:
        flat += [x, [number[i] for i in indices]]
    return torch.einsum(*flat, [number[i] for i in out])


@dataclass(frozen=True)
class Local:
    """The convolution of one layer: indices by role, and their sizes."""

    layer: SSM  # in double precision

    def _route(self, chunk: int) -> Route:
        return route(self.layer.topology, _phases(self.layer.topology), chunk)

    @cached_property
    def roles(self) -> tuple[str, str, str, str]:
        """Indices that are shared, summed and new, and the modes that are not shared."""
        link = self._route(1).link
        signal, out = link.signal.strip("bt"), link.out.strip("bt")
        shared = "".join(i for i in link.modes if i in signal and i in out)
        rest = "".join(i for i in link.modes if i not in shared)
        return shared, _less(signal, shared), _less(out, shared), rest

    def count(self, indices: str) -> int:
        """Return the product of the sizes of indices; a phase has size 2."""
        return int(np.prod([self.layer.topology.size.get(i, 2) for i in indices], dtype=int))

    @property
    def crossed(self) -> bool:
        """Whether all summed and new indices are modes: there are states for every pair of input and output."""
        _, summed, new, rest = self.roles
        return set(summed + new) <= set(rest)

    def before(self) -> Array | None:
        """Return the projection (in_channels, shared · summed), or None if it is the identity."""
        layer, w, (shared, summed, _, _) = self.layer, self._route(1), self.roles
        channels = torch.eye(layer.in_channels, dtype=torch.float64)[..., None]  # b c t
        u = _unfold(layer.topology, channels)
        u = u.sum(w.summed_axes) if w.summed_axes else u
        indices = w.before[0][2] if w.before else w.link.signal
        if not w.before:
            kept = [i for axis, i in enumerate(layer.topology.expression.operands[0]) if axis not in w.summed_axes]
            u = u.permute([kept.index(i) for i in indices])
        for letter, own, incoming, out in w.before:
            u = pair(layer.get_parameter(letter), own, u, incoming, out)
        return _unless_identity(contract((u, w.link.signal), out="b" + shared + summed + "t"))

    def after(self) -> Array | None:
        """Return the projection (shared · new, out_channels), or None if it is the identity."""
        layer, w, (shared, _, new, _) = self.layer, self._route(1), self.roles
        count = self.count(shared + new)
        sizes = [layer.topology.size.get(i, 2) for i in shared + new]
        y = torch.eye(count, dtype=torch.float64).reshape(count, *sizes, 1)
        indices = "b" + shared + new + "t"
        y = y.permute([indices.index(i) for i in w.link.out])
        for letter, own, incoming, out in w.after:
            y = pair(layer.get_parameter(letter), own, y, incoming, out)
        return _unless_identity(y.permute(w.order))

    def chunk(self, chunk: int) -> Tables:
        """Return the tables for chunks of this many frames."""
        layer, w = self.layer, self._route(chunk)
        link = w.link
        log_a, scale = layer._modes(torch.float64)
        weight = layer._weight(scale, torch.float64, fold=True)
        made = chunk_tables(weight, w.weighted, log_a, link.modes, link.kernel, link.phase, chunk)
        into = link.modes + link.phase + "πη"
        out_of = _less(w.weighted, link.phase) + "κη"
        inside, drive, read, decay = made
        return Tables(self, chunk, inside, drive, read, decay, (link.kernel + "πκ", into, out_of, link.modes + "η"))


@dataclass(frozen=True)
class Tables:
    """The tables of a chunk: inside it, into the states, out of them and from state to state; with index strings."""

    local: Local
    chunk: int
    toeplitz: Tensor
    into: Tensor
    out_of: Tensor
    power: Tensor
    indices: tuple[str, str, str, str]

    def inside(self) -> Array:
        """Return (shared, frame · summed, frame · new): from a chunk to its result, without states."""
        shared, summed, new, _ = self.local.roles
        x = contract((self.toeplitz, self.indices[0]), out=shared + "π" + summed + "κ" + new)
        return self._shaped(x, shared, self.chunk * self.local.count(summed), -1)

    def drive(self) -> Array:
        """Return (shared, frame · summed, modes · 2): from a chunk to its contribution to the states."""
        shared, summed, _, rest = self.local.roles
        terms, names = self._diagonal(self.into, self.indices[1], summed)
        x = contract(*terms, out=shared + "π" + names + rest + "η")
        return self._shaped(x, shared, self.chunk * self.local.count(summed), -1)

    def read(self) -> Array:
        """Return (shared, modes · 2, frame · new): from the states before a chunk to their part of its result."""
        shared, _, new, rest = self.local.roles
        terms, names = self._diagonal(self.out_of, self.indices[2], new)
        x = contract(*terms, out=shared + rest + "ηκ" + names)
        return self._shaped(x, shared, 2 * self.local.count(rest), -1)

    def drive_crossed(self) -> Array:
        """Return (shared · summed, frame, 2 · new · others): ``drive`` without its zeros."""
        shared, summed, new, rest = self.local.roles
        x = contract((self.into, self.indices[1]), out=shared + summed + "πη" + new + _less(rest, summed + new))
        return self._shaped(x, shared + summed, self.chunk, -1)

    def read_crossed(self) -> Array:
        """Return (shared · new, 2 · others · summed, frame): ``read`` without its zeros."""
        shared, summed, new, rest = self.local.roles
        x = contract((self.out_of, self.indices[2]), out=shared + new + "η" + _less(rest, summed + new) + summed + "κ")
        return self._shaped(x, shared + new, -1, self.chunk)

    def decay(self, *shape: int) -> tuple[Array, Array]:
        """Return the real and imaginary part of the decay over a chunk, in this shape.

        Its indices are (new, others, shared, summed), or (shared, others) without summed and new ones.
        """
        shared, summed, new, rest = self.local.roles
        others = _less(rest, summed + new)
        order = new + others + shared + summed if summed + new else shared + others
        real, imaginary = contract((self.power, self.indices[3]), out="η" + order).reshape(2, *shape).numpy()
        return real, imaginary

    def rotation(self) -> Array:
        """Return (shared, modes, 2, 2): a state (re, im) times this is the state one chunk later, without input."""
        shared, _, _, rest = self.local.roles
        x = contract((self.power, self.indices[3]), out=shared + rest + "η")
        a = x.reshape(self.local.count(shared), self.local.count(rest), 2).numpy()
        return np.stack([a, np.stack([-a[..., 1], a[..., 0]], -1)], -2)

    def _diagonal(self, x: Tensor, indices: str, role: str) -> tuple[list[tuple[Tensor, str]], str]:
        """Return einsum terms that make a table diagonal in the indices of a role that are modes, and the new names."""
        terms, names = [(x, indices)], ""
        for index in role:
            if index in self.local.roles[3]:
                names += index.upper()
                terms.append((torch.eye(self.local.count(index), dtype=x.dtype), index + index.upper()))
            else:
                names += index
        return terms, names

    def _shaped(self, x: Tensor, shared: str, *shape: int) -> Array:
        return np.asarray(x.reshape(self.local.count(shared), *shape).numpy())


def scan(rotation: Array, chunks: int) -> Array:
    """Return a matrix (modes, 2 + 2 · chunks, 2 · chunks + 2) that computes the states between chunks.

    The row vector [x, z_0 … z_{K-1}] times it is [s_0 … s_{K-1}, s_K], where s_0 = x and s_{k+1} = s_k R + z_k.
    """
    modes = rotation.shape[0]
    table = np.zeros((modes, chunks + 1, 2, chunks + 1, 2))
    power = np.broadcast_to(np.eye(2), rotation.shape)
    for age in range(chunks + 1):
        table[:, 0, :, age] = power
        for k in range(1, chunks + 1 - age):
            table[:, k, :, k + age] = power
        power = power @ rotation
    return table.reshape(modes, 2 * chunks + 2, 2 * chunks + 2)


def block_diagonal(rotation: Array) -> Array:
    """Return rotations (shared, modes, 2, 2) as block-diagonal matrices (shared, modes · 2, modes · 2)."""
    shared, modes = rotation.shape[:2]
    table = np.zeros((shared, modes, 2, modes, 2))
    table[:, np.arange(modes), :, np.arange(modes)] = rotation.swapaxes(0, 1)
    return table.reshape(shared, 2 * modes, 2 * modes)


def _less(indices: str, taken: Sequence[str]) -> str:
    return "".join(i for i in indices if i not in taken)


def _unless_identity(x: Tensor) -> Array | None:
    matrix = x.detach().reshape(x.shape[0], -1).numpy()
    same = matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(matrix.shape[0]))
    return None if same else np.asarray(matrix)


# Seconds on one core for an operator, for each matrix product of a batch, for each multiply-add in one, for each
# element-wise product that is summed, and for each number of a table, which has to be stored, loaded and cached.
OPERATOR, PRODUCT, MULTIPLY, ELEMENT, NUMBER = 8e-7, 1.7e-7, 2.5e-11, 4e-10, 3e-10

Method: TypeAlias = "Callable[[Graph, Local, str, str, int, int], str]"


@dataclass(frozen=True)
class Choice:
    """A method, the frames of its chunks, and its estimated time."""

    run: Method
    chunk: int
    seconds: float


def lower_ssm(layer: SSM, g: Graph, u: Signal, name: str) -> Signal:
    """Add the nodes of a layer and return its output, which has as many frames as u."""
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
    """Return the cheapest method for a piece of this many frames."""
    return min((c for q in divisors(frames) for c in methods(local, frames, q)), key=lambda c: c.seconds)


def divisors(n: int) -> list[int]:
    """Return every divisor of n."""
    return [q for q in range(1, n + 1) if n % q == 0]


def methods(local: Local, frames: int, q: int) -> list[Choice]:
    """Return every method for a piece in chunks of q frames, with its estimated cost."""
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    chunks = frames // q
    inside, drive, read = shared * q * q * summed * new, 2 * shared * q * summed * rest, 2 * shared * q * new * rest
    both, links = inside + drive + read, shared * rest * (2 * chunks + 2) ** 2
    step = both + 4 * shared * rest * rest
    choices = [_choice(_serial, q, 4 + 3 * chunks, chunks * shared, chunks * step, 0, step)]
    if summed == new == 1:
        choices.append(_choice(_rows, q, 1 + 5 * chunks, chunks * (q + 2 * rest), 0, chunks * step, step))
    if chunks > 1:
        choices.append(_choice(_chunks, q, 15, (2 + rest) * shared, chunks * both + links, 0, both + links))
    apart = inside + drive // summed + read // new
    if summed == new == 1:
        choices.append(_choice(_linked, q, 10 + 9 * chunks, 2 * shared, chunks * apart, 0, apart))
    elif local.crossed:
        products = shared * (1 + summed + new)
        choices.append(_choice(_crossed, q, 20 + 9 * chunks, products, chunks * apart, 0, apart))
    return choices


def _choice(run: Method, q: int, operators: int, products: int, multiplies: int, elements: int, numbers: int) -> Choice:
    seconds = operators * OPERATOR + products * PRODUCT + multiplies * MULTIPLY + elements * ELEMENT + numbers * NUMBER
    return Choice(run, q, seconds)


def _serial(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    table = g.constant(_without_one(_step_table(local, q)))
    state = entered = g.state(name, shared, 1, 2 * rest)
    results = []
    for piece in _pieces(g, _gathered(g, v, frames, q, shared, summed), frames // q, 1):
        y, state = g.split(g.matmul(g.concat(piece, state), table), [q * new, 2 * rest])
        results.append(y)
    g.keep(entered, state)
    return _spread(g, _joined(g, results), frames, q, shared, new)


def _rows(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, _, _, rest = (local.count(x) for x in local.roles)
    rows = q + 2 * rest
    table = g.constant(_step_table(local, q).transpose(2, 1, 0))
    ones = g.constant(np.ones((1, rows)))
    state = entered = g.state(name, 1, 2 * rest, shared)
    results = []
    for piece in _pieces(g, v, frames // q, q):
        summed = g.matmul(ones, g.multiply(g.concat(piece, state, axis=2), table))
        y, state = g.split(g.reshape(summed, 1, rows, shared), [q, 2 * rest], axis=2)
        results.append(y)
    g.keep(entered, state)
    return g.reshape(_joined(g, results), frames // q, q, shared) if q != frames else results[0]


def _step_table(local: Local, q: int) -> NDArray[np.float64]:
    """Return (shared, frame · summed + modes · 2, frame · new + modes · 2): signal and state to result and state."""
    tables = local.chunk(q)
    top = np.concatenate([tables.inside(), tables.drive()], -1)
    bottom = np.concatenate([tables.read(), block_diagonal(tables.rotation())], -1)
    return np.concatenate([top, bottom], -2)


def _chunks(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    chunks = frames // q
    tables = local.chunk(q)
    x = _gathered(g, v, frames, q, shared, summed)
    both = np.concatenate([tables.inside(), tables.drive()], -1)
    y, z = g.split(g.matmul(x, g.constant(_without_one(both))), [q * new, 2 * rest])
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
    y = g.add(y, g.matmul(starts, g.constant(_without_one(tables.read()))))
    return _spread(g, y, frames, q, shared, new)


def _linked(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, _, _, rest = (local.count(x) for x in local.roles)
    tables = local.chunk(q)
    x = _gathered(g, v, frames, q, shared, 1)
    both = np.concatenate([tables.inside(), tables.drive_crossed()], -1)
    y, z = g.split(g.matmul(x, g.constant(_without_one(both))), [q, 2 * rest])
    state = g.state(name, shared, 1, 2 * rest)
    real, imaginary = tables.decay(shared, 1, rest)
    starts = _recur(g, state, z, frames // q, (real, imaginary), chunk_axis=2, half_axis=3)
    y = g.add(y, g.matmul(starts, g.constant(_without_one(tables.read_crossed()))))
    return _spread(g, y, frames, q, shared, 1)


def _crossed(g: Graph, local: Local, v: str, name: str, frames: int, q: int) -> str:
    shared, summed, new, rest = (local.count(x) for x in local.roles)
    chunks, others = frames // q, rest // (summed * new)
    tables = local.chunk(q)
    y = g.matmul(_gathered(g, v, frames, q, shared, summed), g.constant(_without_one(tables.inside())))
    z = g.matmul(_gathered(g, v, frames, q, shared * summed, 1), g.constant(tables.drive_crossed()))
    z = g.transpose(g.reshape(z, shared * summed, chunks * 2 * new * others), 0, 2, 1)
    state = g.state(name, 1, 2, shared * rest)
    z = g.reshape(z, chunks, 2, shared * rest)
    starts = _recur(g, state, z, chunks, tables.decay(new * others * shared * summed), chunk_axis=1, half_axis=2)
    if shared == 1:
        starts = g.transpose(g.reshape(starts, chunks, 2, new, others * summed), 0, 3, 1, 2, 4)
    else:
        starts = g.transpose(g.reshape(starts, chunks, 2, new, others, shared, summed), 0, 5, 3, 1, 2, 4, 6)
    late = g.matmul(g.reshape(starts, shared * new, chunks, 2 * others * summed), g.constant(tables.read_crossed()))
    return g.add(_spread(g, y, frames, q, shared, new), g.transpose(late, 0, 2, 3, 1))


def _recur(
    g: Graph,
    state: str,
    z: str,
    chunks: int,
    decay: tuple[NDArray[np.float64], NDArray[np.float64]],
    chunk_axis: int,
    half_axis: int,
) -> str:
    """Return the states before every chunk, and keep the state after the last.

    ``half_axis`` is the axis whose halves are real and imaginary parts.
    """
    half = decay[0].shape[-1]
    sizes = [half, half] if half_axis == 3 else [1, 1]
    a, b = (g.constant(x) for x in decay)
    re, im = g.split(state, sizes, axis=half_axis)
    real, imaginary = [re], [im]
    parts = (_pieces(g, part, chunks, 1, chunk_axis) for part in g.split(z, sizes, axis=half_axis))
    for x, y in zip(*parts, strict=True):
        re, im = (
            g.add(g.node("Sub", g.multiply(re, a), g.multiply(im, b)), x),
            g.add(g.add(g.multiply(re, b), g.multiply(im, a)), y),
        )
        real.append(re)
        imaginary.append(im)
    g.keep(state, g.concat(re, im, axis=half_axis))
    if chunks == 1:
        return state
    return g.concat(*(g.concat(*halves[:-1], axis=chunk_axis) for halves in (real, imaginary)), axis=half_axis)


def _pieces(g: Graph, x: str, count: int, size: int, axis: int = 2) -> list[str]:
    """Return ``count`` pieces of one size along an axis."""
    return [x] if count == 1 else g.split(x, [size] * count, axis=axis)


def _joined(g: Graph, parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else g.concat(*parts, axis=2)


def _without_one(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a batch of one matrix as a matrix, other batches as they are."""
    return table[0] if table.shape[0] == 1 else table


def _gathered(g: Graph, v: str, frames: int, q: int, shared: int, summed: int) -> str:
    """Return a signal (b, 1, frames, shared · summed) as (b, shared, chunks, q · summed)."""
    chunks = frames // q
    if shared == 1:
        return g.reshape(v, 1, chunks, q * summed)
    if summed == 1:
        v = v if chunks == 1 else g.reshape(v, chunks, q, shared)
        return g.transpose(v, 0, 3, 1, 2)
    v = g.transpose(g.reshape(v, chunks, q, shared, summed), 0, 3, 1, 2, 4)
    return g.reshape(v, shared, chunks, q * summed)


def _spread(g: Graph, y: str, frames: int, q: int, shared: int, new: int) -> str:
    """Return (b, shared, chunks, q · new) as a signal (b, chunks, q, shared · new)."""
    chunks = frames // q
    if shared == 1:
        return g.reshape(y, chunks, q, new)
    if new == 1:
        return g.transpose(y, 0, 2, 3, 1)
    y = g.transpose(g.reshape(y, shared, chunks, q, new), 0, 2, 3, 1, 4)
    return g.reshape(y, chunks, q, shared * new)


def lower_s6(layer: S6, g: Graph, u: Signal, name: str) -> Signal:
    """Add the nodes of a selective scan; all frames of a piece are computed in parallel, the recurrence by doubling.

    A step in equations, with u one frame of ``in_channels`` values and x the state (in_channels, states):

        Δ = softplus(dt_up (dt_down u) + dt_bias)                  in_channels
        b = B u,  c = C u                                          states
        x = exp(-Δ exp(A_log)) x + (Δ u) b                         in_channels × states, element by element
        y = Σ_n c (E x), then M y if the layer has a mixer         E is one if the layer is not weighted
    """
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
    """Return x[t] + decay[t] x[t-1] + decay[t] decay[t-1] x[t-2] + … along axis 1, by doubling; factors are ≤ 1."""
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
