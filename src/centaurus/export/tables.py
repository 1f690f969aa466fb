"""The tables of one SSM layer for pieces of a fixed length: everything that depends on parameters, as constants.

Whatever its equation, a layer is a projection, a convolution and a projection. Indices of the convolved signal are
shared with its result (g), summed (i) or new in the result (j); the states behind them are its modes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from centaurus.kernels.modes import chunk_tables
from centaurus.kernels.pair import pair
from centaurus.ssm import SSM
from centaurus.ssm.layer import _phases, _unfold
from centaurus.ssm.streaming import Route, route

Array = NDArray[np.float64]


def contract(*terms: tuple[Tensor, str], out: str) -> Tensor:
    """Return torch.einsum of terms whose indices may be of any alphabet."""
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
        """Indices shared, summed and new, and the modes that are not shared."""
        link = self._route(1).link
        signal, out = link.signal.strip("bt"), link.out.strip("bt")
        shared = "".join(i for i in link.modes if i in signal and i in out)
        rest = "".join(i for i in link.modes if i not in shared)
        return shared, _less(signal, shared), _less(out, shared), rest

    def count(self, indices: str) -> int:
        """Return the product of the sizes of indices; a phase has two values."""
        return int(np.prod([self.layer.topology.size.get(i, 2) for i in indices], dtype=int))

    @property
    def crossed(self) -> bool:
        """Whether every summed and every new index is one of the modes': then a state has one of each."""
        _, summed, new, rest = self.roles
        return set(summed + new) <= set(rest)

    def before(self) -> Array | None:
        """Return the projection (in_channels, shared · summed), or None where it is the identity."""
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
        """Return the projection (shared · new, out_channels), or None where it is the identity."""
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
    """Inside a chunk, into the states, out of them and from one chunk to the next, with their index strings."""

    local: Local
    chunk: int
    toeplitz: Tensor
    into: Tensor
    out_of: Tensor
    power: Tensor
    indices: tuple[str, str, str, str]

    def inside(self) -> Array:
        """Return (shared, frame · summed, frame · new): the result of a chunk by itself."""
        shared, summed, new, _ = self.local.roles
        x = contract((self.toeplitz, self.indices[0]), out=shared + "π" + summed + "κ" + new)
        return self._shaped(x, shared, self.chunk * self.local.count(summed), -1)

    def drive(self) -> Array:
        """Return (shared, frame · summed, modes · 2): what a chunk leaves in the states."""
        shared, summed, _, rest = self.local.roles
        terms, names = self._diagonal(self.into, self.indices[1], summed)
        x = contract(*terms, out=shared + "π" + names + rest + "η")
        return self._shaped(x, shared, self.chunk * self.local.count(summed), -1)

    def read(self) -> Array:
        """Return (shared, modes · 2, frame · new): what the states before a chunk add to it."""
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
        """Return the real and imaginary part of the decay over a chunk, in the order (new, others, shared, summed).

        A layer without summed and new indices has them in the order (shared, others).
        """
        shared, summed, new, rest = self.local.roles
        others = _less(rest, summed + new)
        order = new + others + shared + summed if summed + new else shared + others
        real, imaginary = contract((self.power, self.indices[3]), out="η" + order).reshape(2, *shape).numpy()
        return real, imaginary

    def rotation(self) -> Array:
        """Return (shared, modes, 2, 2): a state (re, im) times this is the state one chunk later without any input."""
        shared, _, _, rest = self.local.roles
        x = contract((self.power, self.indices[3]), out=shared + rest + "η")
        a = x.reshape(self.local.count(shared), self.local.count(rest), 2).numpy()
        return np.stack([a, np.stack([-a[..., 1], a[..., 0]], -1)], -2)

    def _diagonal(self, x: Tensor, indices: str, role: str) -> tuple[list[tuple[Tensor, str]], str]:
        """Return terms that spread a table over indices of a role that are modes too, and the names they have then."""
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
    """Return (modes, 2 + 2 · chunks, 2 · chunks + 2): from a state and what chunks add to the states before and after.

    Row vectors: [x, z_0 … z_{K-1}] times this is [s_0 … s_{K-1}, s_K], where s_0 = x and s_{k+1} = s_k R + z_k.
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
