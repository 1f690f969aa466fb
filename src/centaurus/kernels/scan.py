"""Recurrences with hand-written backwards: the linear one between chunks, and the selective one in bounded memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SEGMENT = 1 << 20  # states of a segment of the selective recurrence: samples times rows, channels and states
SMALL = 4096  # below this many numbers a step of the loop costs more to start than to compute


def scan_forward(z: Tensor, decay: Tensor, initial: Tensor | None, axis: int) -> Tensor:
    """s[0] = initial, s[c+1] = decay · s[c] + z[c] along ``axis``; returns all of s, one longer than z."""
    z, decay = z.movedim(axis, 0), decay.movedim(axis, 0)[0]
    first = torch.zeros_like(z[0]) if initial is None else initial
    return _recur(z, decay, first).movedim(0, axis)


def scan_backward(grad: Tensor, states: Tensor, decay: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, of decay (for every row) and of initial, from the gradient of all states."""
    grad, states = grad.movedim(axis, 0), states.movedim(axis, 0)
    conjugate = decay.movedim(axis, 0)[0].conj().resolve_conj()
    adjoint = _recur(grad[:-1], conjugate, grad[-1], backwards=True)
    lost = torch.linalg.vecdot(states[:-1], adjoint[1:], dim=0)
    return adjoint[1:].movedim(0, axis), lost.unsqueeze(0).movedim(0, axis), adjoint[0]


def _recur(z: Tensor, decay: Tensor, first: Tensor, backwards: bool = False) -> Tensor:
    """s[0] = first, s[c+1] = z[c] + decay · s[c] along axis 0, or the same from the last to the first."""
    if z.shape[0] >= 32 and z[0].numel() <= SMALL:
        if backwards:
            return _in_blocks(z.flip(0), decay, first).flip(0)
        return _in_blocks(z, decay, first)
    states = z.new_empty(z.shape[0] + 1, *z.shape[1:])
    states[-1 if backwards else 0] = first
    inputs, outputs = z.unbind(0), states.unbind(0)
    if backwards:
        inputs, outputs = inputs[::-1], outputs[::-1]
    for c, chunk in enumerate(inputs):
        torch.addcmul(chunk, decay, outputs[c], out=outputs[c + 1])
    return states


def _in_blocks(z: Tensor, decay: Tensor, first: Tensor) -> Tensor:
    """The recurrence inside all blocks at once, then over the blocks: about 2 √count steps instead of count."""
    count = z.shape[0]
    span = math.isqrt(count - 1) + 1
    blocks = -(-count // span)
    if blocks * span != count:
        z = torch.cat((z, z.new_zeros(blocks * span - count, *z.shape[1:])))
    z = z.reshape(blocks, span, *z.shape[1:])
    inside = z.new_zeros(blocks, span + 1, *z.shape[2:])
    powers = [torch.ones_like(decay)]
    for c in range(span):
        torch.addcmul(z[:, c], decay, inside[:, c], out=inside[:, c + 1])
        powers.append(powers[-1] * decay)
    carried = [first]
    for b in range(blocks):
        carried.append(torch.addcmul(inside[b, span], powers[span], carried[-1]))
    heads = torch.stack(carried[:-1])[:, None]  # blocks 1 …
    states = torch.addcmul(inside[:, :span], torch.stack(powers[:span]), heads).flatten(0, 1)
    states = torch.cat((states, carried[-1][None]))
    return states[: count + 1]


class Scan(torch.autograd.Function):
    """The scan as one node of autograd, for use outside a planned contraction."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, decay: Tensor, initial: Tensor, axis: int) -> Tensor:
        states = scan_forward(z, decay, initial, axis)
        ctx.save_for_backward(states, decay)
        ctx.axis = axis
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, decay = ctx.saved_tensors
        z, lost, initial = scan_backward(grad.resolve_conj(), states, decay, ctx.axis)
        return z, lost.sum_to_size(decay.shape), initial, None


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
