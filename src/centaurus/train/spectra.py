"""Short-time spectra of signals for losses, with backwards in closed form.

torch's own transform goes back through a complex transform of twice the size and through a scattered addition; here
the way back is one inverse real transform and a few shifted sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.native import functions as native


def constant(make: Callable[..., Tensor], x: Tensor, *arguments: object) -> Tensor:
    """Return a table, ``make(*arguments)``, with the dtype and on the device of ``x``: there it is made once.

    A copy to a GPU in every step would make the host wait for all that was asked of it before.
    """
    return _constant(make, x.dtype, x.device, *arguments)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@lru_cache(maxsize=64)
def _constant(make: Callable[..., Tensor], dtype: torch.dtype, device: torch.device, *arguments: object) -> Tensor:
    with torch.inference_mode(False):
        return make(*arguments).to(device, dtype)


def _window(size: int) -> Tensor:
    return torch.hann_window(size, dtype=torch.float64)


def frames_of(x: Tensor, size: int, hop: int) -> Tensor:
    """Return spectra (rows, frames, bins) of Hann windows of (rows, time) signals, without padding."""
    return torch.fft.rfft(x.unfold(-1, size, hop) * constant(_window, x, size))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return Σ x y over a last axis of 2: a sum over so short an axis takes three times as long."""
    (a, b), (c, d) = x.unbind(-1), y.unbind(-1)
    return torch.addcmul(a * c, b, d)


def _back(grad: Tensor, size: int, hop: int, samples: int) -> Tensor:
    """Return the gradient of the signal from that of its spectra (rows, frames, bins); overwrites ``grad``."""
    grad[..., 1:-1] *= 0.5  # the inverse transform counts these bins twice
    pieces = torch.fft.irfft(grad, n=size, norm="forward") * constant(_window, grad.real, size)
    rows, frames = pieces.shape[:2]
    overlaps = size // hop
    pieces = pieces.unflatten(-1, (overlaps, hop))
    whole = pieces.new_zeros(rows, frames + overlaps - 1, hop)
    for age in range(overlaps):
        whole[:, age : age + frames] += pieces[:, :, age]
    whole = whole.flatten(1)[:, :samples]
    return torch.nn.functional.pad(whole, (0, samples - whole.shape[1]))


class Power(torch.autograd.Function):
    """Power spectra (rows, frames, bins) of Hann windows of (rows, time) signals; ``hop`` divides ``size``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, hop: int) -> Tensor:
        spectrum = frames_of(x, size, hop)
        ctx.save_for_backward(spectrum)
        ctx.form = size, hop, x.shape[-1]
        parts = torch.view_as_real(spectrum)
        return dot(parts, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (spectrum,) = ctx.saved_tensors
        return _back(spectrum * (2 * grad), *ctx.form), None, None


class CompressedDifference(torch.autograd.Function):
    """The weighted sum of differences of compressed spectra of (rows, time) signals, a number.

    Magnitudes to the power ``power`` count for ``share`` of it, spectra of those magnitudes with their phases for the
    rest; ``floor`` is added to powers, ``weights`` are of the bins. The second signal is a target without gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        estimate: Tensor,
        clean: Tensor,
        weights: Tensor,
        size: int,
        hop: int,
        floor: float,
        power: float,
        share: float,
    ) -> Tensor:
        ours, theirs = (torch.view_as_real(frames_of(x, size, hop)) for x in (estimate, clean))
        run = native.compressed_differences if native.usable(ours, theirs, weights) else differences
        total, grad = run(ours.flatten(0, 1), theirs.flatten(0, 1), weights.contiguous(), floor, power, share)
        ctx.save_for_backward(_back(torch.view_as_complex(grad.view_as(ours)), size, hop, estimate.shape[-1]))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (own,) = ctx.saved_tensors
        return own * grad, *[None] * 7


def differences(
    ours: Tensor, theirs: Tensor, weights: Tensor, floor: float, power: float, share: float
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of differences of compressed spectra (frames, bins, 2), and the gradient of ``ours``."""
    p, p2 = (dot(x, x).add_(floor) for x in (ours, theirs))
    small, small2 = p ** (power / 2), p2 ** (power / 2)
    scale, scale2 = small * p.rsqrt(), small2 * p2.rsqrt()
    magnitudes = small - small2
    parts = (ours * scale[..., None]).sub_(theirs * scale2[..., None])
    each = dot(parts, parts).mul_(1 - share).addcmul_(magnitudes, magnitudes, value=share)
    total = (each.sum(0) * weights).sum()
    # d |X|^c = c |X|^c / p X·dX, and dZ = scale dX + (c - 1) scale / p X (X·dX)
    along = dot(parts, ours).mul_(scale).mul_(2 * (1 - share) * (power - 1))
    along = along.addcmul_(magnitudes, small, value=2 * share * power).div_(p).mul_(weights)
    grad = parts.mul_((scale * weights).mul_(2 * (1 - share))[..., None])
    return total, grad.addcmul_(ours, along[..., None])
