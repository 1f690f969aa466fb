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

from centaurus.tensor.pairs import pair

NARROW = 160  # spectra of up to this many rows are transposed by threads rather than in blocks

Tensors = Sequence[Tensor]
Backward = tuple[Tensor | None, list[Tensor]]


class Link(ABC):
    """One linear operation on the signal, with tensors that do not depend on it."""

    wants_input = True  # whether backward needs x itself

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
    out = x.new_empty(*x.shape[:-1], length)
    out[..., : x.shape[-1]] = x
    out[..., x.shape[-1] :] = 0
    return out


@dataclass(frozen=True)
class ToFrequency(Link):
    """rfft over time, zero-padded."""

    wants_input = False

    samples: int
    length: int

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return torch.fft.rfft(padded(x, self.length)), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        return torch.fft.irfft(grad, n=self.length)[..., : self.samples] if want_x else None, []


@dataclass(frozen=True)
class ToTime(Link):
    """irfft over frequency, cut to the signal."""

    wants_input = False

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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        spectrum = grad / bin_weights(grad, ctx.length)
        return torch.fft.irfft(spectrum, n=ctx.length)[..., : ctx.samples], None


@dataclass(frozen=True)
class Scale(Link):
    """Signal spectrum times kernel spectrum where no index is summed.

    With ``samples`` the tensor is the kernel in time, and its transform happens here.
    """

    signal: str
    other: str
    out: str
    length: int
    samples: int = 0

    def prepare(self, tensors: Tensors) -> Tensors:
        return [torch.fft.rfft(padded(tensors[0], self.length))] if self.samples else tensors

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return pair(tensors[0], self.other, x, self.signal, self.out), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        conjugate = torch.conj_physical(tensors[0])
        back = pair(conjugate, self.other, grad, self.out, self.signal) if want_x else None
        return back, [pair(grad, self.out, torch.conj_physical(x), self.signal, self.other)]

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        return [_outside(totals[0], self.length, self.samples)]


def _outside(total: Tensor, length: int, samples: int) -> Tensor:
    """The gradient of a kernel spectrum as that of the kernel in time, or of the spectrum for autograd outside."""
    if samples:
        return torch.fft.irfft(total, n=length)[..., :samples]
    return total * bin_weights(total, length)


@dataclass(frozen=True)
class Multiply(Link):
    """Signal spectrum times kernel spectrum, summing channels: one complex GEMM for every bin.

    Either side becomes matrices (shared, rows, columns) with the bins outermost by one flat transposition.
    With ``samples`` the tensor is the kernel in time, and its transform happens here.
    """

    signal: str
    other: str
    out: str
    length: int
    sizes: tuple[tuple[str, int], ...]  # of the kernel's indices
    samples: int = 0

    wants_input = False

    def _groups(self) -> tuple[str, str, str, str]:
        """Indices that are shared, summed, the signal's own, and new from the kernel."""
        signal, other = self.signal[:-1], self.other[:-1]
        return (
            "".join(i for i in signal if i in other and i in self.out),
            "".join(i for i in signal if i in other and i not in self.out),
            "".join(i for i in signal if i not in other),
            "".join(i for i in other if i not in signal),
        )

    def _bins(self, x: Tensor, indices: str, rows: str, columns: str) -> Tensor:
        """(…, f) to matrices (f·shared, rows, columns)."""
        shared = self._groups()[0]
        x = x.permute([indices.index(i) for i in shared + rows + columns + indices[-1]])
        s, f, sizes = len(shared), x.shape[-1], x.shape[:-1]
        x = x.movedim(-1, 0).contiguous()
        return x.view(f * math.prod(sizes[:s]), math.prod(sizes[s : s + len(rows)]), -1)

    def _rows(self, bins: Tensor, order: str, sizes: dict[str, int], out: str) -> Tensor:
        """Matrices back to (…, f) in the order of ``out``."""
        f, shape = sizes[out[-1]], [sizes[i] for i in order]
        if math.prod(shape) > NARROW:  # a flat transposition goes in blocks, on one thread
            x = bins.view(f, -1).t().contiguous().view([*shape, f])
        else:
            x = bins.view([f, *shape]).movedim(0, -1).contiguous()
        return x.permute([(order + out[-1]).index(i) for i in out])

    def prepare(self, tensors: Tensors) -> Tensors:
        _, summed, _, fresh = self._groups()
        kernel = torch.fft.rfft(padded(tensors[0], self.length)) if self.samples else tensors[0]
        return [self._bins(kernel, self.other, fresh, summed)]

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        shared, _, own, fresh = self._groups()
        bins = self.recall(x, tensors)
        sizes = dict(self.sizes) | dict(zip(self.signal, x.shape, strict=True))
        return self._rows(torch.bmm(tensors[0], bins), shared + fresh + own, sizes, self.out), bins

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        _, summed, own, _ = self._groups()
        return self._bins(x, self.signal, summed, own)

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        """dX = conj(K)ᵀ G and dK = G conj(X)ᵀ; no GEMM meets a lazily conjugated operand, which torch would copy."""
        shared, summed, own, fresh = self._groups()
        bins = self._bins(grad, self.out, fresh, own)
        few = bins.shape[2] < tensors[0].shape[2]  # fewer rows than channels: cheaper to conjugate the signal's side
        if few:
            bins = bins.conj_physical_()
            kernel = torch.bmm(bins, kept.mT).conj_physical_()
        else:
            kernel = torch.bmm(bins, torch.conj_physical(kept).mT)
        if not want_x:
            return None, [kernel]
        sizes = dict(self.sizes) | dict(zip(self.out, grad.shape, strict=True))
        if few:
            back = torch.bmm(tensors[0].mT, bins).conj_physical_()
        else:
            back = torch.bmm(torch.conj_physical(tensors[0]).mT, bins)
        return self._rows(back, shared + summed + own, sizes, self.signal), [kernel]

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        shared, summed, _, fresh = self._groups()
        sizes = dict(self.sizes) | {self.other[-1]: self.length // 2 + 1}
        total = self._rows(totals[0], shared + fresh + summed, sizes, self.other)
        return [_outside(total, self.length, self.samples)]
