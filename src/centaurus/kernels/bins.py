"""Convolution by spectra in the memory layout of a batched GEMM over their bins: bins outermost, real arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from centaurus.kernels.ops import Backward, Link, Tensors, bin_weights
from centaurus.kernels.precision import multiplied
from centaurus.native import functions as native


@lru_cache(maxsize=32)
def _table(samples: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the real DFT as a matrix (bins · 2, samples)."""
    bins, time = torch.arange(length // 2 + 1), torch.arange(samples)
    angles = (bins[:, None] * time % length).double() * (2 * math.pi / length)
    return torch.stack((angles.cos(), -angles.sin()), 1).flatten(0, 1).to(device, dtype)


@lru_cache(maxsize=8)
def _weights(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return Parseval's weights of the bins, (bins, 1, 1, 1), for tensors (bins, 2, new, summed)."""
    spectrum = torch.empty(length // 2 + 1, dtype=dtype, device=device)
    return bin_weights(spectrum, length)[:, None, None, None]


def _products(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of two matrices for every bin: (f, m, k) and (f, k, n) to (f, m, n)."""
    return native.products(x, y) if native.usable(x, y) else torch.bmm(x, y)


@dataclass(frozen=True)
class Bins(Link):
    """Convolve with a kernel, summing channels: transform, one real GEMM for every bin, transform back.

    With F from (rows, t) to (bins, 2, rows) the convolution is Fᵀ W F, where W is the kernel's spectrum as real
    matrices (bins, 2 new, 2 summed) times Parseval's weights. F and Fᵀ include the transpositions. They run in native
    code (or in torch, for tensors that native code does not take), or as products with a table, which is faster for
    short signals. The link's tensor is the kernel in time.
    """

    signal: str
    other: str
    out: str
    length: int
    sizes: tuple[tuple[str, int], ...]  # of the kernel's indices
    native: bool

    wants_input = False
    own_copies = True

    @cached_property
    def _channels(self) -> tuple[str, str, str]:
        """Indices that are summed, that only the signal has, and that only the kernel has."""
        signal, other = self.signal[:-1], self.other[:-1]
        return (
            "".join(i for i in signal if i in other),
            "".join(i for i in signal if i not in other),
            "".join(i for i in other if i not in signal),
        )

    def _spectra(self, x: Tensor, indices: str, channels: str, own: str) -> Tensor:
        """Transform (…, t), indices in any order, to (bins, 2 · channels, own)."""
        x = x.permute([indices.index(i) for i in channels + own + indices[-1]])
        columns = math.prod(x.shape[len(channels) : -1])
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        if not self.native:
            spectra = multiplied(_table(rows.shape[1], self.length, x.dtype, x.device), rows.mT)
        elif native.usable(rows):
            spectra = native.spectrum(rows, self.length)
        else:
            spectra = torch.view_as_real(torch.fft.rfft(rows, n=self.length)).permute(1, 2, 0).contiguous()
        return spectra.view(self.length // 2 + 1, -1, columns)

    def _signals(self, spectra: Tensor, samples: int) -> Tensor:
        """Apply the adjoint of ``_spectra``: (bins, 2 · channels, own) to (channels · own, t)."""
        if not self.native:
            table = _table(samples, self.length, spectra.dtype, spectra.device)
            return multiplied(spectra.reshape(len(table), -1).mT, table)
        parts = spectra.unflatten(1, (2, -1)).flatten(2)
        if native.usable(parts):
            return native.signal(parts, samples, self.length)
        bins = torch.view_as_complex(parts.permute(2, 0, 1).contiguous())
        return torch.fft.irfft(bins / bin_weights(bins, self.length), n=self.length)[:, :samples].contiguous()

    def _ordered(self, rows: Tensor, channels: str, sizes: dict[str, int], out: str) -> Tensor:
        """Return rows (channels · own, t) with the indices of ``out``, in its order."""
        order = channels + "".join(i for i in out[:-1] if i not in channels) + out[-1]
        return rows.view([*(sizes[i] for i in order[:-1]), -1]).permute([order.index(i) for i in out])

    def prepare(self, tensors: Tensors) -> Tensors:
        """Return the matrices W, whose rows are (re, -im) and (im, re)."""
        summed, _, new = self._channels
        k = tensors[0]
        spectra = self._spectra(k, self.other, new, summed)
        f, rows, columns = spectra.shape
        re, im = (spectra.view(f, 2, rows // 2, columns) * _weights(self.length, k.dtype, k.device)).unbind(1)
        w = k.new_empty(f, 2, rows // 2, 2, columns)
        w[:, 0, :, 0], w[:, 1, :, 1], w[:, 1, :, 0] = re, re, im
        torch.neg(im, out=w[:, 0, :, 1])
        return [w.view(f, rows, 2 * columns)]

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        """Return the gradient of the kernel in time from that of W."""
        summed, _, new = self._channels
        f, rows, columns = totals[0].shape
        total = totals[0].view(f, 2, rows // 2, 2, columns // 2)
        re, im = total[:, 0, :, 0] + total[:, 1, :, 1], total[:, 1, :, 0] - total[:, 0, :, 1]
        k = tensors[0]
        sizes = dict(zip(self.other, k.shape, strict=True))
        spectra = torch.stack((re, im), 1) * _weights(self.length, k.dtype, k.device)
        return [self._ordered(self._signals(spectra.flatten(1, 2), k.shape[-1]), new + summed, sizes, self.other)]

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        new = self._channels[2]
        spectra = self.recall(x, tensors)
        y = self._signals(_products(tensors[0], spectra), x.shape[-1])
        sizes = dict(zip(self.signal, x.shape, strict=True)) | dict(self.sizes)
        return self._ordered(y, new, sizes, self.out), spectra

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        summed, own, _ = self._channels
        return self._spectra(x, self.signal, summed, own)

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        summed, _, new = self._channels
        own = "".join(i for i in self.out[:-1] if i not in new)
        spectra = self._spectra(grad, self.out, new, own)
        kernel = _products(spectra, kept.mT)
        if not want_x:
            return None, [kernel]
        sizes = dict(zip(self.out, grad.shape, strict=True)) | dict(self.sizes)
        back = self._signals(_products(tensors[0].mT, spectra), grad.shape[-1])
        return self._ordered(back, summed, sizes, self.signal), [kernel]
