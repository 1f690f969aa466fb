"""Fused operations with hand-written backwards: the end of a block, and short depthwise convolutions.

The end of a block is ``y = silu(scale · norm(u) + before) + after``. Op by op it would read and write the signal a
dozen times; here it runs in pieces that stay in cache, and backward recomputes instead of storing:
in native code where that is compiled, else by torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.native import functions as native

EPS = 1e-5
PIECE = 1 << 18  # numbers of a piece: 1 MB in single precision, within a core's cache


def finish(
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None = None,
    before: Tensor | None = None,
    after: Tensor | None = None,
    activate: bool = True,
) -> Tensor:
    """Return LayerNorm over c of (b, c, t), times ``scale`` (b, c, 1), plus ``before``, SiLU, plus ``after``."""
    if u.dtype in (torch.bfloat16, torch.float16):
        u = u.float()
    if native.usable(u, weight, bias, scale, before, after):
        signals = _rows(u), weight, bias, _rows(scale), _rows(before), _rows(after)
        return native.Norm.apply(*signals, activate, EPS).transpose(0, 1)
    learning = torch.is_grad_enabled() and (u.requires_grad or weight.requires_grad)
    if torch.compiler.is_compiling() or not learning:
        return _plain(u, weight, bias, scale, before, after, activate)
    y = _Finish.apply(_rows(u), weight, bias, _rows(scale), _rows(before), activate).transpose(0, 1)
    return y if after is None else y + after


def _plain(
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    before: Tensor | None,
    after: Tensor | None,
    activate: bool,
) -> Tensor:
    """Return the same as ``finish``, op by op: the reference of the fused form."""
    y = torch.nn.functional.layer_norm(u.transpose(1, 2), weight.shape, weight, bias, EPS).transpose(1, 2)
    y = y if scale is None else y * scale
    y = y if before is None else y + before
    y = torch.nn.functional.silu(y) if activate else y
    return y if after is None else y + after


def _rows(u: Tensor | None) -> Tensor | None:
    """Return (c, b, t), contiguous: a view where the signal is channel-major already."""
    return None if u is None else u.transpose(0, 1).contiguous()


def _pieces(u: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield slices of (b, t) with about ``PIECE`` numbers of (c, b, t): several rows, or a part of one row."""
    c, b, t = u.shape
    rows, span = max(1, PIECE // max(1, c * t)), max(1, PIECE // c)
    if c * t <= PIECE:
        yield from ((slice(k, k + rows), slice(0, t)) for k in range(0, b, rows))
    else:
        yield from ((slice(k, k + 1), slice(s, s + span)) for k in range(b) for s in range(0, t, span))


class _Finish(torch.autograd.Function):
    """Piece by piece through (c, b, t), saving the input and two numbers per frame."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, weight: Tensor, bias: Tensor, scale: Tensor | None, before: Tensor | None, activate: bool
    ) -> Tensor:
        y = torch.empty_like(u)
        mean, rstd = u.new_empty(u.shape[1:]), u.new_empty(u.shape[1:])
        gain, shift = _gain_and_shift(weight, bias, scale)
        for at in _pieces(u):
            m, r = mean[at], rstd[at]
            torch.mean(u[:, *at], 0, out=m)
            x = u[:, *at] - m
            torch.mean(x * x, 0, out=r)
            r.add_(EPS).rsqrt_()
            z = _affine(x.mul_(r), gain, shift, before, at, x)
            torch.ops.aten.silu.out(z, out=y[:, *at]) if activate else y[:, *at].copy_(z)
        ctx.save_for_backward(u, weight, bias, scale, before, mean, rstd)
        ctx.activate = activate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, bias, scale, before, mean, rstd = ctx.saved_tensors
        channels = len(u)
        du = torch.empty_like(u)
        added = None if before is None else torch.empty_like(u)
        gain, shift = _gain_and_shift(weight, bias, scale)
        dgain, dshift = (u.new_zeros(channels, u.shape[1]) for _ in range(2))
        for at in _pieces(u):
            x = (u[:, *at] - mean[at]).mul_(rstd[at])
            gz = g[:, *at]
            if ctx.activate:
                out = torch.empty_like(x) if added is None else added[:, *at]
                z = _affine(x, gain, shift, before, at, torch.empty_like(x))
                gz = torch.ops.aten.silu_backward.grad_input(gz, z, grad_input=out)
            elif added is not None:
                added[:, *at] = gz
            dshift[:, at[0]] += gz.sum(2)
            gx = gz * x
            dgain[:, at[0]] += gx.sum(2)
            factor = gain.expand(-1, u.shape[1], -1)[:, at[0]]
            # torch.mean of both products with the factor, as one product of matrices each
            rows = factor.permute(1, 2, 0) / channels
            along, across = (torch.bmm(rows, v.transpose(0, 1))[:, 0] for v in (gx, gz))
            torch.mul(gz, factor, out=gx).sub_(across)
            gx.addcmul_(x, along, value=-1)
            torch.mul(gx, rstd[at], out=du[:, *at])
        each = dgain if scale is None else dgain * scale[..., 0]
        sums = dshift if scale is None else dshift * scale[..., 0]
        return du, each.sum(1), sums.sum(1), None, added, None


def _gain_and_shift(weight: Tensor, bias: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the factor and the offset of the normalised signal: (c, b, 1), or (c, 1, 1) without a scale."""
    gain, shift = weight[:, None, None], bias[:, None, None]
    return (gain, shift) if scale is None else (gain * scale, shift * scale)


def _affine(
    x: Tensor, gain: Tensor, shift: Tensor, before: Tensor | None, at: tuple[slice, slice], out: Tensor
) -> Tensor:
    """Return the input of the activation, from the normalised signal."""
    if gain.shape[1] > 1:
        gain, shift = gain[:, at[0]], shift[:, at[0]]
    if before is None:
        return torch.mul(x, gain, out=out).add_(shift)
    return torch.addcmul(before[:, *at], x, gain, out=out).add_(shift)


def pooled(x: Tensor, factor: int) -> Tensor:
    """Return the mean of every ``factor`` frames of (c, frames): (c, frames / factor)."""
    kind = x.device.type
    rounded = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    plain = x.dtype in (torch.float32, torch.float64) and not rounded and not torch.compiler.is_compiling()
    if plain and torch.is_grad_enabled() and x.requires_grad:
        made: Tensor = _Pooled.apply(x, factor)
        return made
    return _mean(x, factor)


def _mean(x: Tensor, factor: int) -> Tensor:
    return x.view(len(x), -1, factor) @ x.new_full((factor,), 1 / factor)


class _Pooled(torch.autograd.Function):
    """The mean of every few frames, whose gradient is repeated by pairs: four times as fast as a product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return _mean(x, factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        g, left = g / ctx.factor, ctx.factor
        while left % 2 == 0:
            g, left = torch.view_as_real(torch.complex(g, g)).flatten(-2), left // 2
        return g if left == 1 else g.repeat_interleave(left, dim=-1), None


def taps(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the convolution of (c, b, t + k - 1) with taps (c, k), as sums of shifted copies."""
    learning = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if torch.compiler.is_compiling() or not learning:
        x = torch.nn.functional.conv1d(x.transpose(0, 1), weight[:, None], bias, groups=weight.shape[0])
        return x.transpose(0, 1)
    y = _Taps.apply(x, weight)
    return y if bias is None else y + bias[:, None, None]


class _Taps(torch.autograd.Function):
    """Multiply-adds over shifted copies, forward and backward: for a few taps faster than an FFT or a GEMM."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        frames = x.shape[-1] - weight.shape[1] + 1
        y = x[..., :frames] * weight[:, :1, None]
        for k in range(1, weight.shape[1]):
            y.addcmul_(x[..., k : k + frames], weight[:, k, None, None])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        dx, frames, taps = torch.zeros_like(x), g.shape[-1], []
        for k in range(weight.shape[1]):
            dx[..., k : k + frames].addcmul_(g, weight[:, k, None, None])
            taps.append((g * x[..., k : k + frames]).sum((1, 2)))
        return dx, torch.stack(taps, dim=1)
