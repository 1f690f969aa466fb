"""The linear operations a signal goes through in a plan, each with its hand-written backward.

Signals are held channel-major: indices (channels…, batch, time or frequency), as their index strings say.
Gradients of spectra are held as spectra of gradients, so that rfft and irfft are each other's adjoint; what
leaves the chain for tensors outside gets Parseval's weights.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.tensor.pairs import align, pair

Tensors = Sequence[Tensor]
Backward = tuple[Tensor | None, list[Tensor]]


class Link(ABC):
    """One linear operation on the signal, with tensors that do not depend on it."""

    def prepare(self, tensors: Tensors) -> Tensors:
        """What is worth computing once for all tiles."""
        return tensors

    @abstractmethod
    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        """The result, and whatever backward wants besides x."""

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        """What backward wants, without the result."""
        return None

    @abstractmethod
    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        """Gradient of x (when wanted), and of the prepared tensors for this tile."""

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        """Bring gradients summed over tiles to the form of the original tensors."""
        return totals


@dataclass(frozen=True)
class Mix(Link):
    """Contract the signal with a real tensor that has no time: a projection, in either domain."""

    signal: str
    other: str
    out: str
    length: int = 0  # transform length, when the signal is a spectrum

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return pair(tensors[0], self.other, x, self.signal, self.out), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        back = pair(tensors[0], self.other, grad, self.out, self.signal) if want_x else None
        if not self.length:
            return back, [pair(grad, self.out, x, self.signal, self.other)]
        scaled = torch.view_as_real(grad * bin_weights(grad, self.length))
        return back, [pair(scaled, self.out + "~", torch.view_as_real(x), self.signal + "~", self.other)]


def bin_weights(spectrum: Tensor, length: int) -> Tensor:
    """Parseval's weights of a half spectrum (f last): sums over time as sums over its bins."""
    weights = torch.full((spectrum.shape[-1],), 2 / length, device=spectrum.device, dtype=spectrum.real.dtype)
    weights[0] = 1 / length
    if length % 2 == 0:
        weights[-1] = 1 / length
    return weights


def padded(x: Tensor, length: int) -> Tensor:
    """Zeros after the last sample, up to ``length``."""
    out = x.new_zeros(*x.shape[:-1], length)
    out[..., : x.shape[-1]] = x
    return out


@dataclass(frozen=True)
class ToFrequency(Link):
    """rfft over time, zero-padded."""

    samples: int
    length: int

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return torch.fft.rfft(padded(x, self.length)), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        return torch.fft.irfft(grad, n=self.length)[..., : self.samples] if want_x else None, []


@dataclass(frozen=True)
class ToTime(Link):
    """irfft over frequency, cut to the signal."""

    samples: int
    length: int

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return torch.fft.irfft(x, n=self.length)[..., : self.samples], None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        return torch.fft.rfft(padded(grad, self.length)) if want_x else None, []


class Spectrum(torch.autograd.Function):
    """rfft of a kernel. Its backward is one irfft (torch's own takes a full complex transform)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: int) -> Tensor:
        ctx.samples, ctx.length = x.shape[-1], length
        return torch.fft.rfft(padded(x, length))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        spectrum = grad / bin_weights(grad, ctx.length)
        return torch.fft.irfft(spectrum, n=ctx.length)[..., : ctx.samples], None


@dataclass(frozen=True)
class Scale(Link):
    """Signal spectrum times kernel spectrum where no index is summed."""

    signal: str
    other: str
    out: str
    length: int

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return pair(tensors[0], self.other, x, self.signal, self.out), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        conjugate = tensors[0].conj().resolve_conj()
        back = pair(conjugate, self.other, grad, self.out, self.signal) if want_x else None
        return back, [pair(grad, self.out, x.conj().resolve_conj(), self.signal, self.other)]

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        weights = bin_weights(tensors[0].movedim(self.other.index(self.signal[-1]), -1), self.length)
        return [totals[0] * align(weights, self.signal[-1], self.other)]


@dataclass(frozen=True)
class Multiply(Link):
    """Signal spectrum times kernel spectrum, summing channels: one complex GEMM for every bin.

    With the spectrum as matrices X (channels, batch) and G the conjugate of the gradient's:
    Y = K X, conj(dX) = Kᵀ G, conj(dK) = G Xᵀ, so that no GEMM meets a conjugated operand.
    """

    signal: str
    other: str
    out: str
    length: int
    sizes: tuple[tuple[str, int], ...]  # of the kernel's indices

    def _groups(self) -> tuple[str, str, str, str]:
        """Indices that are shared, summed, the signal's own, and new from the kernel."""
        signal, other, out = self.signal[:-1], self.other, self.out
        return (
            "".join(i for i in signal if i in other and i in out),
            "".join(i for i in signal if i in other and i not in out),
            "".join(i for i in signal if i not in other),
            "".join(i for i in other if i not in self.signal),
        )

    def prepare(self, tensors: Tensors) -> Tensors:
        shared, summed, _, fresh = self._groups()
        order = self.signal[-1] + shared + fresh + summed
        kernel = tensors[0].permute([self.other.index(i) for i in order]).contiguous()
        s = 1 + len(shared)
        return [kernel.view(math.prod(kernel.shape[:s]), math.prod(kernel.shape[s : s + len(fresh)]), -1)]

    def _bins(self, x: Tensor, indices: str, group: str) -> Tensor:
        """(…, f) to matrices (f·shared, group, own)."""
        shared, _, own, _ = self._groups()
        x = x.permute([indices.index(i) for i in indices[-1] + shared + group + own]).contiguous()
        s = 1 + len(shared)
        return x.view(math.prod(x.shape[:s]), math.prod(x.shape[s : s + len(group)]), -1)

    def _product(self, kernel: Tensor, bins: Tensor, rows: str, like: Tensor, indices: str, out: str) -> Tensor:
        """kernel @ bins, laid out as ``out``."""
        shared, _, own, _ = self._groups()
        sizes = dict(self.sizes) | dict(zip(indices, like.shape, strict=True))
        order, f = shared + rows + own, like.shape[-1]
        turned = torch.bmm(kernel, bins).view(f, -1).t().contiguous().view(*(sizes[i] for i in order), f)
        return turned.permute([(order + out[-1]).index(i) for i in out])

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        bins = self.recall(x, tensors)
        return self._product(tensors[0], bins, self._groups()[3], x, self.signal, self.out), bins

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        return self._bins(x, self.signal, self._groups()[1])

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        _, summed, _, fresh = self._groups()
        bins = self._bins(grad.conj(), self.out, fresh)
        own = [torch.bmm(bins, kept.mT)]
        if not want_x:
            return None, own
        return self._product(tensors[0].mT, bins, summed, grad, self.out, self.signal).conj_physical_(), own

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        shared, summed, _, fresh = self._groups()
        order = self.signal[-1] + shared + fresh + summed
        sizes = dict(zip(self.other, tensors[0].shape, strict=True))
        total = totals[0].view([sizes[i] for i in order]).conj_physical()
        total = total.permute([order.index(i) for i in self.other])
        weights = bin_weights(total.movedim(self.other.index(self.signal[-1]), -1), self.length)
        return [total * align(weights, self.signal[-1], self.other)]
