"""The selective recurrence over whole signals in torch, with a backward of its own and bounded memory.

    x[t] = exp(-Δ[t] A) x[t-1] + Δ[t] u[t] B[t]          y[t] = Σ_n E C[t] x[t]

A signal goes in segments that fit the cache. In a segment all chunks advance side by side, one sample of each in a
call, and then take over the states that come from the chunks before them. Between segments only states are kept:
backward computes those inside again.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SEGMENT = 1 << 20  # states of a segment: samples times rows, channels and states


class SelectiveScan(torch.autograd.Function):
    """u, Δ (b, i, t), B, C (b, t, n), A, E (i, n) to y (b, i, t); A is positive."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, dt: Tensor, into: Tensor, out_of: Tensor, A: Tensor, E: Tensor) -> Tensor:
        signals = [x.permute(2, 0, 1).contiguous() for x in (u, dt)]  # t b i
        signals += [x.transpose(0, 1).contiguous() for x in (into, out_of)]  # t b n
        state = u.new_zeros(u.shape[0], *A.shape)
        starts, pieces = [], []
        for part in _segments(signals, A):
            starts.append(state)
            states = _States(part[0], part[1], part[2], A, state)
            pieces.append(torch.einsum("tbin,tbn->tbi", states.after * E, part[3]))
            state = states.after[-1].clone()
        ctx.save_for_backward(*signals, A, E, *starts)
        return torch.cat(pieces).permute(1, 2, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        *signals, A, E = ctx.saved_tensors[:6]
        starts = list(ctx.saved_tensors[6:])
        grads = [torch.empty_like(x) for x in signals]
        dA, dE = torch.zeros_like(A), torch.zeros_like(E)
        parts = zip(
            _segments([*signals, grad.permute(2, 0, 1).contiguous()], A), _segments(grads, A), starts, strict=True
        )
        adjoint = torch.zeros_like(starts[0])  # of the state after the segment
        for (v, d, into, out_of, g), (dv, dd, dinto, dout_of), start in reversed(list(parts)):
            states = _States(v, d, into, A, start)
            x = states.after
            gx = g[..., None] * x
            dE += torch.einsum("tbin,tbn->in", gx, out_of)
            dout_of.copy_(torch.einsum("tbin,in->tbn", gx, E))
            adjoints = states.reverse(torch.mul(g[..., None] * E, out_of[:, :, None], out=gx), adjoint)
            dinto.copy_(torch.einsum("tbin,tbi->tbn", adjoints, d * v))
            driven = torch.einsum("tbin,tbn->tbi", adjoints, into)  # of Δ u
            lost = adjoints.mul_(states.decay)
            adjoint = lost[0].clone()
            lost[1:].mul_(x[:-1])
            lost[0].mul_(start)  # of log decay
            dA -= torch.einsum("tbin,tbi->in", lost, d)
            torch.mul(driven, d, out=dv)
            torch.sub(driven * v, torch.einsum("tbin,in->tbi", lost, A), out=dd)
        du, ddt = (x.permute(1, 2, 0) for x in grads[:2])
        return du, ddt, grads[2].transpose(0, 1), grads[3].transpose(0, 1), dA, dE


def _segments(signals: list[Tensor], A: Tensor) -> list[list[Tensor]]:
    """The signals in parts along time whose states fit the cache."""
    span = max(16, SEGMENT // (signals[0].shape[1] * A.numel()))
    return [list(part) for part in zip(*(x.split(span) for x in signals), strict=True)]


class _States:
    """The states after every sample of a segment: (t, b, i, n)."""

    def __init__(self, v: Tensor, d: Tensor, into: Tensor, A: Tensor, start: Tensor) -> None:
        self.span = math.isqrt(len(v) - 1) + 1  # samples of a chunk
        self.decay = torch.exp(d[..., None] * -A)
        self.after = self._scan(self.decay, (d * v)[..., None] * into[:, :, None], start)

    def reverse(self, z: Tensor, last: Tensor) -> Tensor:
        """Adjoints p[t] = z[t] + decay[t+1] p[t+1], where ``last`` is decay · p of the sample after the segment."""
        decay = torch.cat((self.decay[1:], torch.ones_like(self.decay[:1]))).flip(0)
        return self._scan(decay, z.flip(0), last).flip(0)

    def _scan(self, decay: Tensor, z: Tensor, start: Tensor) -> Tensor:
        """x[t] = decay[t] x[t-1] + z[t] with x[-1] = start; inside all chunks at once, then over the chunks."""
        count, span = len(z), self.span
        chunks = -(-count // span)
        if chunks * span != count:
            more = z.new_zeros(chunks * span - count, *z.shape[1:])
            decay, z = torch.cat((decay, more)), torch.cat((z, more))
        decay, x = (y.view(chunks, span, *z.shape[1:]) for y in (decay, z))
        total = decay.clone()  # products of the decays from the start of a chunk
        for k in range(1, span):
            x[:, k].addcmul_(decay[:, k], x[:, k - 1])
            total[:, k].mul_(total[:, k - 1])
        before = [start]
        for k in range(chunks - 1):
            before.append(torch.addcmul(x[k, -1], total[k, -1], before[-1]))
        x.addcmul_(total, torch.stack(before)[:, None])
        return x.flatten(0, 1)[:count]
