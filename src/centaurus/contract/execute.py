"""Run a plan on tensors. The signal's way through a plan is a chain of linear operations; it runs in tiles
of the batch that stay in cache, and its backward is written by hand, so nothing large is ever kept."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from centaurus.tensor import pair, scan_backward, scan_forward

Grads = list[Tensor | None]


class Link(ABC):
    """One linear operation on the signal, with tensors that do not depend on it."""

    tensors: int = 0

    def prepare(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What is worth computing once for all tiles."""
        return list(tensors)

    @abstractmethod
    def forward(self, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Any]:
        """The result, and whatever backward wants besides x."""

    @abstractmethod
    def backward(self, grad: Tensor, x: Tensor, kept: Any, tensors: Sequence[Tensor], grads: Grads) -> Tensor:
        """Gradient of x; those of the tensors are added into ``grads``."""

    def finish(self, grads: Grads, tensors: Sequence[Tensor]) -> Grads:
        """Bring accumulated gradients to the form of the original tensors."""
        return grads


def add(grads: Grads, position: int, value: Tensor) -> None:
    """Accumulate over tiles."""
    total = grads[position]
    grads[position] = value if total is None else total.add_(value)


@dataclass(frozen=True)
class Mix(Link):
    """Contract the signal with a tensor that has no time: a projection, in either domain."""

    signal: str
    other: str
    out: str
    length: int = 0  # transform length when the signal is a spectrum
    tensors = 1

    def forward(self, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Any]:
        return pair(tensors[0], self.other, x, self.signal, self.out), None

    def backward(self, grad: Tensor, x: Tensor, kept: Any, tensors: Sequence[Tensor], grads: Grads) -> Tensor:
        if self.length:
            scaled = torch.view_as_real(grad * _bin_weights(grad, self.length))
            value = pair(scaled, self.out + "~", torch.view_as_real(x), self.signal + "~", self.other)
        else:
            value = pair(grad, self.out, x, self.signal, self.other)
        add(grads, 0, value)
        return pair(tensors[0], self.other, grad, self.out, self.signal)


def _bin_weights(spectrum: Tensor, length: int) -> Tensor:
    """Parseval's weights of the half spectrum: sums over time as sums over its bins."""
    weights = torch.full((spectrum.shape[-1],), 2 / length, device=spectrum.device, dtype=spectrum.real.dtype)
    weights[0] = 1 / length
    if length % 2 == 0:
        weights[-1] = 1 / length
    return weights


@dataclass(frozen=True)
class ToFrequency(Link):
    """rfft over the last axis, zero-padded. Its adjoint here is the irfft: see ``ToTime``."""

    samples: int
    length: int

    def forward(self, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Any]:
        return torch.fft.rfft(_padded(x, self.length)), None

    def backward(self, grad: Tensor, x: Tensor, kept: Any, tensors: Sequence[Tensor], grads: Grads) -> Tensor:
        return torch.fft.irfft(grad, n=self.length)[..., : self.samples]


@dataclass(frozen=True)
class ToTime(Link):
    """irfft over the last axis, cut to the signal. Gradients of spectra are spectra of gradients, so its adjoint
    is the rfft; only gradients of tensors outside the chain need Parseval's weights."""

    samples: int
    length: int

    def forward(self, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Any]:
        return torch.fft.irfft(x, n=self.length)[..., : self.samples], None

    def backward(self, grad: Tensor, x: Tensor, kept: Any, tensors: Sequence[Tensor], grads: Grads) -> Tensor:
        return torch.fft.rfft(_padded(grad, self.length))


def _padded(x: Tensor, length: int) -> Tensor:
    out = x.new_zeros(*x.shape[:-1], length)
    out[..., : x.shape[-1]] = x
    return out


@dataclass(frozen=True)
class Multiply(Link):
    """Signal spectrum times kernel spectrum, summing channels: a complex GEMM for every bin."""

    signal: str
    other: str
    out: str
    length: int
    tensors = 1

    def _groups(self) -> tuple[str, str, str, str]:
        time = self.signal[-1]
        shared = "".join(i for i in self.signal if i in self.other and i in self.out and i != time)
        summed = "".join(i for i in self.signal if i in self.other and i not in self.out)
        own = "".join(i for i in self.signal if i not in self.other)
        fresh = "".join(i for i in self.other if i not in self.signal)
        return shared, summed, own, fresh

    def prepare(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        shared, summed, _, fresh = self._groups()
        order = self.signal[-1] + shared + fresh + summed if summed else self.other
        kernel = tensors[0].permute([self.other.index(i) for i in order])
        return [kernel.contiguous()]

    def forward(self, x: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, Any]:
        shared, summed, own, fresh = self._groups()
        if not summed:
            return pair(tensors[0], self.other, x, self.signal, self.out), None
        bins = _to_bins(x, self.signal, shared + summed + own)
        return self._product(tensors[0], bins, fresh, self.out), bins

    def _product(self, kernel: Tensor, bins: Tensor, rows: str, out: str) -> Tensor:
        """Kernel (f, shared, rows, summed) @ bins (f, shared, summed, own), laid out as ``out``."""
        shared, _, own, _ = self._groups()
        s = len(shared)
        f, batch = kernel.shape[0], math.prod(kernel.shape[1 : 1 + s])
        r, k = math.prod(kernel.shape[1 + s : 1 + s + len(rows)]), math.prod(kernel.shape[1 + s + len(rows) :])
        c = bins.numel() // (f * batch * k)
        pitch = batch * r * c + 8  # padding keeps the transposition that follows off a single cache set
        flat = bins.new_empty(f, pitch)[:, : batch * r * c]
        left, right = kernel.reshape(f * batch, r, k), bins.reshape(f * batch, k, c)
        if batch == 1:
            torch.bmm(left, right, out=flat.view(f, r, c))
        else:
            flat.copy_(torch.bmm(left, right).view(f, -1))
        sizes = (*kernel.shape[1 : 1 + s + len(rows)], *bins.shape[bins.dim() - len(own) :])
        return _from_bins(flat, shared + rows + own, sizes, out)

    def backward(self, grad: Tensor, x: Tensor, kept: Any, tensors: Sequence[Tensor], grads: Grads) -> Tensor:
        shared, summed, own, fresh = self._groups()
        if not summed:
            add(grads, 0, pair(grad, self.out, x.conj().resolve_conj(), self.signal, self.other))
            return pair(tensors[0].conj().resolve_conj(), self.other, grad, self.out, self.signal)
        bins = _to_bins(grad.conj(), self.out, shared + fresh + own)
        f, s = bins.shape[0], len(shared)
        batch = math.prod(bins.shape[1 : 1 + s])
        c = math.prod(bins.shape[bins.dim() - len(own) :])
        flat = (f * batch, -1, c)
        add(grads, 0, torch.bmm(bins.reshape(flat), kept.reshape(flat).mT))
        kernel = tensors[0].reshape(f * batch, -1, math.prod(tensors[0].shape[1 + s + len(fresh) :]))
        turned = kernel.mT.reshape(f, *tensors[0].shape[1 : 1 + s], *tensors[0].shape[1 + s + len(fresh) :], -1)
        back = self._product(turned, bins, summed, self.signal)
        return back.conj_physical_() if back.is_complex() else back

    def finish(self, grads: Grads, tensors: Sequence[Tensor]) -> Grads:
        shared, summed, _, fresh = self._groups()
        total = grads[0]
        if total is None:
            return grads
        if summed:
            order = self.signal[-1] + shared + fresh + summed
            shape = [tensors[0].shape[self.other.index(i)] for i in order]
            total = total.reshape(shape).conj().permute([order.index(i) for i in self.other])
        time = self.other.index(self.signal[-1])
        weights = _bin_weights(total.movedim(time, -1), self.length)
        return [(total.movedim(time, -1) * weights).movedim(-1, time)]


def _to_bins(x: Tensor, indices: str, order: str) -> Tensor:
    """(…, f) to (f, order) with bins outermost, so that every bin is one GEMM."""
    return x.permute([indices.index(i) for i in indices[-1] + order]).contiguous()


def _from_bins(flat: Tensor, indices: str, sizes: tuple[int, ...], out: str) -> Tensor:
    """Bins (f, indices) back to (…, f)."""
    x = flat.new_empty(flat.shape[1], flat.shape[0])
    x.copy_(flat.t())
    return x.view(*sizes, flat.shape[0]).permute([(indices + out[-1]).index(i) for i in out])


@dataclass(frozen=True)
class Chunked(Link):
    """Convolve with Σ Re(w a^τ) in chunks: a Toeplitz GEMM inside a chunk, states a·x + z passed between chunks.

    Tensors: toeplitz (kernel p q), into (modes p h), out_of (weight q h), decay (modes h).
    """

    signal: str  # (…, t)
    modes: str
    weight: str
    phase: str  # index of the signal that is the real and imaginary part of what drives the state, or ""
    out: str
    chunk: int
    tensors = 4

    def _indices(self) -> tuple[str, str, str]:
        """Signal and output with t split into (c, p) and (c, q), and the states."""
        signal, out = self.signal[:-1] + "γπ", self.out[:-1] + "γκ"
        own = "".join(i for i in self.signal[:-1] if i not in self.weight)
        shared = "".join(i for i in self.modes if i in self.signal)
        return signal, out, shared + own + "γ" + "".join(i for i in self.modes if i not in shared) + "η"

    def kernel(self) -> str:
        """Indices of the kernel inside a chunk."""
        return "".join(i for i in self.weight if i in self.signal or i in self.out)

    def _split(self, x: Tensor) -> Tensor:
        chunks = math.ceil(x.shape[-1] / self.chunk)
        if chunks * self.chunk != x.shape[-1]:
            x = _padded(x, chunks * self.chunk)
        return x.reshape(*x.shape[:-1], chunks, self.chunk)

    def run(self, x: Tensor, tensors: Sequence[Tensor], scan: Any) -> tuple[Tensor, Tensor]:
        """Output, and the states around the chunks as ``scan`` gives them."""
        local, into, out_of, decay = tensors
        signal, out, states = self._indices()
        split = self._split(x)
        y = pair(split, signal, local, self.kernel() + "πκ", out)
        z = pair(split, signal, into, self.modes + self.phase + "πη", states)
        s = scan(z, decay)
        weight = self.weight.replace(self.phase, "") if self.phase else self.weight
        y = y + pair(s, states, out_of, weight + "κη", out)
        return y.reshape(*y.shape[:-2], -1)[..., : x.shape[-1]], s
