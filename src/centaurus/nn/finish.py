"""The end of a block in one pass over memory: normalise over channels, drop, add, activate, add.

The whole of it is ``y = silu(scale · norm(u) + before) + after``. Done op by op it would read and write the signal a
dozen times; here it is worked off in pieces that stay in cache, and backward recomputes instead of remembering.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

EPS = 1e-5
PIECE = 1 << 19


def finish(
    u: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None = None,
    before: Tensor | None = None,
    after: Tensor | None = None,
    activate: bool = True,
) -> Tensor:
    """LayerNorm of (b, c, t) over c, times ``scale`` (b, c, 1), plus ``before``, through SiLU, plus ``after``."""
    if u.dtype in (torch.bfloat16, torch.float16):
        u = u.float()
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
    """The same, op by op: what the fast form is compared with, and what is exported."""
    y = torch.nn.functional.layer_norm(u.transpose(1, 2), weight.shape, weight, bias, EPS).transpose(1, 2)
    y = y if scale is None else y * scale
    y = y if before is None else y + before
    y = torch.nn.functional.silu(y) if activate else y
    return y if after is None else y + after


def _rows(u: Tensor | None) -> Tensor | None:
    """Channel-major memory, (c, b, t): a view where the signal already lies so."""
    return None if u is None else u.transpose(0, 1).contiguous()


def _pieces(u: Tensor) -> Iterator[tuple[slice, slice]]:
    """Slices of (b, t) that keep about ``PIECE`` numbers of (c, b, t): some whole rows, or a part of one row."""
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
        ctx: Any,
        u: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        before: Tensor | None,
        activate: bool,
    ) -> Tensor:
        y = torch.empty_like(u)
        mean, rstd = u.new_empty(u.shape[1:]), u.new_empty(u.shape[1:])
        for at in _pieces(u):
            x, m, r = u[:, *at], mean[at], rstd[at]
            torch.mean(x, 0, out=m)
            x = x - m
            torch.mean(x * x, 0, out=r)
            r.add_(EPS).rsqrt_()
            z = _affine(x.mul_(r), weight, bias, scale, before, at, x)
            torch.ops.aten.silu.out(z, out=y[:, *at]) if activate else y[:, *at].copy_(z)
        ctx.save_for_backward(u, weight, bias, scale, before, mean, rstd)
        ctx.activate = activate
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, bias, scale, before, mean, rstd = ctx.saved_tensors
        du = torch.empty_like(u)
        added = None if before is None else torch.empty_like(u)
        dw, db = torch.zeros_like(weight), torch.zeros_like(bias)
        for at in _pieces(u):
            x = (u[:, *at] - mean[at]).mul_(rstd[at])
            gz = g[:, *at]
            if ctx.activate:
                gz = torch.ops.aten.silu_backward(gz, _affine(x, weight, bias, scale, before, at, torch.empty_like(x)))
            if added is not None:
                added[:, *at] = gz
            gy = gz * (weight[:, None, None] if scale is None else scale[:, at[0]] * weight[:, None, None])
            sums = gz if scale is None else gz * scale[:, at[0]]
            db += sums.sum((1, 2))
            dw += (sums * x).sum((1, 2))
            gx = (gy * x).mean(0)
            gy.sub_(gy.mean(0)).sub_(x.mul_(gx))
            torch.mul(gy, rstd[at], out=du[:, *at])
        return du, dw, db, None, added, None


def _affine(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    before: Tensor | None,
    at: tuple[slice, slice],
    out: Tensor,
) -> Tensor:
    """The signal just before the activation, from the normalised one."""
    z = torch.mul(x, weight[:, None, None], out=out).add_(bias[:, None, None])
    z = z if scale is None else z.mul_(scale[:, at[0]])
    return z if before is None else z.add_(before[:, *at])
