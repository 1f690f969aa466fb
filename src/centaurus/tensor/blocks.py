"""Convolution in time, block by block: with a short kernel directly, with exponential modes in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from centaurus.tensor.links import Backward, Link, Tensors, padded
from centaurus.tensor.pairs import align, laid_out, pair
from centaurus.tensor.scan import scan_backward, scan_forward


def split(x: Tensor, chunk: int) -> Tensor:
    """Time into (chunks, samples), zero-padded to whole chunks."""
    chunks = math.ceil(x.shape[-1] / chunk)
    if chunks * chunk != x.shape[-1]:
        x = padded(x, chunks * chunk)
    return x.reshape(*x.shape[:-1], chunks, chunk)


def joined(x: Tensor, samples: int) -> Tensor:
    """(chunks, samples) back into time."""
    return x.reshape(*x.shape[:-2], -1)[..., :samples]


@dataclass(frozen=True)
class Direct(Link):
    """Convolve with a short kernel as a Toeplitz GEMM over blocks, each with the block before it.

    Tensors: toeplitz (kernel p q) and, where there are several blocks, the part that reaches back one block.
    """

    signal: str
    kernel: str
    out: str
    block: int

    def _blocks(self, x: Tensor) -> list[Tensor]:
        blocks = split(x, self.block)
        return [blocks] if blocks.shape[-2] == 1 else [blocks, pad(blocks, (0, 0, 1, -1))]

    def _indices(self) -> tuple[str, str, str]:
        return self.signal[:-1] + "γπ", self.kernel + "πκ", self.out[:-1] + "γκ"

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        signal, kernel, out = self._indices()
        parts = [pair(v, signal, t, kernel, out) for v, t in zip(self._blocks(x), tensors, strict=True)]
        return joined(sum(parts[1:], parts[0]), x.shape[-1]), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        signal, kernel, out = self._indices()
        blocks = split(grad, self.block)
        own = [pair(v, signal, blocks, out, kernel) for v in self._blocks(x)]
        if not want_x:
            return None, own
        parts = [pair(blocks, out, t, kernel, signal) for t in tensors]
        if len(parts) == 2:
            parts[1] = pad(parts[1], (0, 0, -1, 1))
        return joined(sum(parts[1:], parts[0]), grad.shape[-1]), own


@dataclass(frozen=True)
class Chunked(Link):
    """Convolve with Σ Re(w a^τ) in chunks: a Toeplitz GEMM inside a chunk, states s ← a^Q s + z between chunks.

    Tensors, from ``modes.chunk_tables``: toeplitz (kernel p q), into (modes phase p h), out_of (weight q h), a^Q.
    """

    signal: str
    modes: str
    weight: str
    phase: str  # index of the signal over the real and imaginary part of what drives a state, or ""
    out: str
    chunk: int

    @property
    def kernel(self) -> str:
        """Indices of the kernel inside a chunk."""
        return "".join(i for i in self.weight if i in self.signal or i in self.out)

    @property
    def states(self) -> str:
        """Indices of the states: the modes, and what only the signal has, with the chunks γ."""
        shared = "".join(i for i in self.modes if i in self.signal)
        own = "".join(i for i in self.signal[:-1] if i not in self.modes and i != self.phase)
        return shared + own + "γ" + "".join(i for i in self.modes if i not in shared)

    def indices(self) -> tuple[str, str, str, str]:
        """Signal, output, tables into the states and out of them."""
        weight = self.weight.replace(self.phase, "") if self.phase else self.weight
        return self.signal[:-1] + "γπ", self.out[:-1] + "γκ", self.modes + self.phase + "πη", weight + "κη"

    def prepare(self, tensors: Tensors) -> Tensors:
        """The tables as the GEMMs of the forward pass want them in memory."""
        signal, out, into, out_of = self.indices()
        states = self.states + "η"
        local = (
            tensors[0].contiguous() if self._lone(tensors[0]) else laid_out(tensors[0], self.kernel + "πκ", signal, out)
        )
        return [
            local,
            laid_out(tensors[1], into, signal, states),
            laid_out(tensors[2], out_of, states, out),
            tensors[3],
        ]

    def _lone(self, local: Tensor) -> str:
        """Channels of the signal that are summed but of size one, where new ones come from the kernel.

        The signal is then repeated for each new channel (a view) rather than summed: one GEMM a channel, whose
        results lie as the states' do.
        """
        summed = "".join(i for i in self.kernel if i in self.signal and i not in self.out)
        if all(local.shape[self.kernel.index(i)] == 1 for i in summed) and any(
            i not in self.signal for i in self.kernel
        ):
            return summed
        return ""

    def _repeated(self, blocks: Tensor, local: Tensor, lone: str) -> tuple[Tensor, str]:
        """The signal's blocks without its lone channels, once for every new channel."""
        signal = self.indices()[0]
        fresh = "".join(i for i in self.kernel if i not in self.signal)
        sizes = [local.shape[self.kernel.index(i)] for i in fresh]
        x = blocks.squeeze([signal.index(i) for i in lone])
        return x.expand(*sizes, *x.shape), fresh + "".join(i for i in signal if i not in lone)

    def _inside(self, blocks: Tensor, local: Tensor) -> Tensor:
        """What a chunk's own samples add to its output."""
        signal, out, _, _ = self.indices()
        lone = self._lone(local)
        if not lone:
            return pair(blocks, signal, local, self.kernel + "πκ", out)
        x, indices = self._repeated(blocks, local, lone)
        kernel = "".join(i for i in self.kernel if i not in lone)
        return pair(x, indices, local.squeeze([self.kernel.index(i) for i in lone]), kernel + "πκ", out)

    def _inside_gradient(self, blocks: Tensor, grad: Tensor, local: Tensor) -> Tensor:
        """Gradient of the Toeplitz table."""
        signal, out, _, _ = self.indices()
        lone = self._lone(local)
        if not lone:
            return pair(blocks, signal, grad, out, self.kernel + "πκ")
        x, indices = self._repeated(blocks, local, lone)
        kernel = "".join(i for i in self.kernel if i not in lone)
        return pair(x, indices, grad, out, kernel + "πκ").reshape(local.shape)

    def _decay(self, tensors: Tensors) -> Tensor:
        """a^Q as a complex tensor that lines up with the states."""
        return torch.view_as_complex(align(tensors[3], self.modes + "η", self.states + "η").contiguous())

    def advance(self, blocks: Tensor, tensors: Tensors, scan: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
        """States before every chunk and after the last, from the signal in chunks."""
        signal, _, into, _ = self.indices()
        z = pair(blocks, signal, tensors[1], into, self.states + "η")
        return scan(torch.view_as_complex(z.contiguous()), self._decay(tensors), self.states.index("γ"))

    def read(self, blocks: Tensor, states: Tensor, tensors: Tensors) -> Tensor:
        """Output in chunks, from the signal inside each and the state before it."""
        _, out, _, out_of = self.indices()
        y = self._inside(blocks, tensors[0])
        return pair(self._before(states), self.states + "η", tensors[2], out_of, out, onto=y)

    def _before(self, states: Tensor) -> Tensor:
        axis = self.states.index("γ")
        return torch.view_as_real(states.narrow(axis, 0, states.shape[axis] - 1))

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        blocks = split(x, self.chunk)
        states = self._states(blocks, tensors)
        return joined(self.read(blocks, states, tensors), x.shape[-1]), states

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        return self._states(split(x, self.chunk), tensors)

    def _states(self, blocks: Tensor, tensors: Tensors) -> Tensor:
        return self.advance(blocks, tensors, lambda z, decay, axis: scan_forward(z, decay, None, axis))

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        signal, out, into, out_of = self.indices()
        states, axis = self.states + "η", self.states.index("γ")
        blocks, inputs, before = split(grad, self.chunk), split(x, self.chunk), self._before(kept)
        d_before = torch.view_as_complex(pair(blocks, out, tensors[2], out_of, states).contiguous())
        d_states = torch.cat((d_before, torch.zeros_like(d_before.narrow(axis, 0, 1))), axis)
        dz, lost, _ = scan_backward(d_states, kept, self._decay(tensors), axis)
        dz = torch.view_as_real(dz.resolve_conj())
        lost = torch.view_as_real(lost.resolve_conj())
        own = [
            self._inside_gradient(inputs, blocks, tensors[0]),
            pair(inputs, signal, dz, states, into),
            pair(before, states, blocks, out, out_of),
            lost.sum([a for a, i in enumerate(states) if i not in self.modes and i != "η"]),
        ]
        order = "".join(i for i in states if i in self.modes + "η")
        own[3] = own[3].permute([order.index(i) for i in self.modes + "η"])
        if not want_x:
            return None, own
        back = pair(blocks, out, tensors[0], self.kernel + "πκ", signal)
        return joined(pair(dz, states, tensors[1], into, signal, onto=back), grad.shape[-1]), own
