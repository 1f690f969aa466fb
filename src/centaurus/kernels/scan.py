"""Recurrences with hand-written backward passes: the linear one between chunks and the selective one of S6."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.kernels.precision import full_products

SEGMENT = 1 << 18  # numbers in a segment of the selective recurrence: samples × rows × channels × states
FEWEST = 16  # least samples of a segment: the states between segments are kept for backward
STEP = 1 << 14  # numbers in one operation on a segment: with fewer, the call takes longer than the arithmetic
SMALL = 4096  # numbers in a step of the linear recurrence up to which the call takes longer than the arithmetic


def scan_forward(z: Tensor, decay: Tensor, initial: Tensor | None, axis: int) -> Tensor:
    """Return all states of s[0] = initial, s[c+1] = decay · s[c] + z[c] along ``axis``: one more than z has."""
    z, decay = z.movedim(axis, 0), decay.movedim(axis, 0)[0]
    first = torch.zeros_like(z[0]) if initial is None else initial
    return _recur(z, decay, first).movedim(0, axis)


def scan_backward(
    grad: Tensor, last: Tensor | None, states: Tensor, decay: Tensor, axis: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of z, of decay (not summed over rows) and of initial.

    ``grad`` is the gradient of all states but the last, ``last`` that of the last one (None: zero).
    """
    grad, states = grad.movedim(axis, 0), states.movedim(axis, 0)
    conjugate = decay.movedim(axis, 0)[0].conj().resolve_conj()
    adjoint = _recur(grad, conjugate, torch.zeros_like(grad[0]) if last is None else last, backwards=True)
    lost = torch.linalg.vecdot(states[:-1], adjoint[1:], dim=0)
    return adjoint[1:].movedim(0, axis), lost.unsqueeze(0).movedim(0, axis), adjoint[0]


def _recur(z: Tensor, decay: Tensor, first: Tensor, backwards: bool = False) -> Tensor:
    """Return s[0] = first, s[c+1] = z[c] + decay · s[c] along axis 0, or the same from the end to the beginning."""
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
    """Return the same by running all blocks at once, then the blocks in order: about 2 √count steps, not count."""
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
    heads = torch.stack(carried[:-1])[:, None]  # the state before each block: blocks 1 …
    states = torch.addcmul(inside[:, :span], torch.stack(powers[:span]), heads).flatten(0, 1)
    states = torch.cat((states, carried[-1][None]))
    return states[: count + 1]


class Scan(torch.autograd.Function):
    """``scan_forward`` as an autograd node, for use outside a planned contraction."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, decay: Tensor, initial: Tensor, axis: int) -> Tensor:
        states = scan_forward(z, decay, initial, axis)
        ctx.save_for_backward(states, decay)
        ctx.axis = axis
        return states

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        states, decay = ctx.saved_tensors
        *_, last = (grad := grad.resolve_conj()).unbind(ctx.axis)
        before = grad.narrow(ctx.axis, 0, grad.shape[ctx.axis] - 1)
        z, lost, initial = scan_backward(before, last, states, decay, ctx.axis)
        return z, lost.sum_to_size(decay.shape), initial, None


class SelectiveScan(torch.autograd.Function):
    """The recurrence of S6: x[t] = exp(-Δ A) x[t-1] + Δ u B, y[t] = Σ_n E C x[t], where A is positive.

    Takes u, Δ (b, i, t), B, C (b, t, n), A, E (i, n) and the state x[-1] (b, i, n); returns y (b, i, t) and the last
    state. A signal is processed in segments whose states fit the cache. The chunks of a segment run in parallel, twice:
    from zero, which gives the states between chunks, and from those states. Only they are kept for backward, which
    computes the others again.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dt: Tensor, into: Tensor, out_of: Tensor, A: Tensor, E: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        layout = _Layout(u.shape[-1], state.numel())
        signals = [layout.split(x) for x in (u, dt, into.mT, out_of.mT)]
        segment = _Segment(signals[0][0], A)
        y, starts = torch.empty_like(signals[0]), []
        for k, (v, d, B, C) in enumerate(zip(*signals, strict=True)):
            segment.drive(v, d, B)
            starts.append(segment.between(d, state))
            segment.advance(starts[-1])
            state = segment.x[-1, -1].clone()
            torch.sum(segment.x.mul_(E).mul_(C[..., None, :]), -1, out=y[k])
        ctx.save_for_backward(*signals, A, E, *starts)
        ctx.layout = layout
        return layout.join(y), state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        signals, (A, E), starts = ctx.saved_tensors[:4], ctx.saved_tensors[4:6], ctx.saved_tensors[6:]
        layout: _Layout = ctx.layout
        grads, outputs = [torch.empty_like(x) for x in signals], layout.split(grad)
        segment, adjoint = _Segment(outputs[0], A), _Segment(outputs[0], A)
        decay, x, p, work = segment.decay, segment.x, adjoint.x, adjoint.decay
        dA, dE = torch.zeros_like(x), torch.zeros_like(x)
        for k in reversed(range(len(starts))):
            v, d, B, C, g, start = *(s[k] for s in signals), outputs[k], starts[k]
            dv, dd, dB, dC = (s[k] for s in grads)
            segment.drive(v, d, B)
            segment.advance(start)
            torch.mul(g[..., None], C[..., None, :], out=p)
            dE.addcmul_(p, x)
            _sum_channels(g, torch.mul(x, E, out=work), dC)
            p.mul_(E)
            last = segment.advance_back(adjoint.samples, d, last)
            _sum_channels(d * v, p, dB)
            driven = torch.mul(p, B[..., None, :], out=work).sum(-1)  # of Δ u
            lost = p.mul_(decay)
            lost[1:].mul_(x[:-1])
            lost[0].mul_(start)  # of log decay
            dA.addcmul_(lost, d[..., None], value=-1)
            torch.mul(driven, d, out=dv)
            torch.sub(driven.mul_(v), lost.mul_(A).sum(-1), out=dd)
        du, ddt, dinto, dout_of = (layout.join(x) for x in grads)
        return du, ddt, dinto.mT, dout_of.mT, dA.sum((0, 1, 2)), dE.sum((0, 1, 2)), last


class _Layout:
    """How a signal is cut into segments and a segment into chunks; ``states`` are the numbers of one sample."""

    def __init__(self, samples: int, states: int) -> None:
        self.samples = samples
        self.chunks = 1 if 2 * states > STEP else min(STEP // states, math.isqrt(samples))
        self.segments = max(1, min(samples * states // SEGMENT, samples // FEWEST))
        self.span = -(-samples // (self.segments * self.chunks))  # samples of a chunk

    def split(self, x: Tensor) -> Tensor:
        """Reshape (b, c, t) to (segment, q, k, b, c), sample q of chunk k; padding with Δ = 0 keeps the last state."""
        x = torch.nn.functional.pad(x, (0, self.segments * self.chunks * self.span - self.samples))
        return x.unflatten(-1, (self.segments, self.chunks, self.span)).permute(2, 4, 3, 0, 1).contiguous()

    def join(self, x: Tensor) -> Tensor:
        """Invert ``split``."""
        return x.permute(3, 4, 0, 2, 1).flatten(2)[..., : self.samples]


class _Segment:
    """Decays and states of a segment (q, k, b, i, n); the memory is reused for every segment."""

    def __init__(self, like: Tensor, A: Tensor) -> None:
        self.negative = -A
        self.decay, self.x = (like.new_empty(*like.shape, A.shape[1]) for _ in range(2))
        self.factors, self.samples = self.decay.unbind(), self.x.unbind()

    def drive(self, v: Tensor, d: Tensor, B: Tensor) -> None:
        """Set decay to exp(-Δ A) and x to Δ u B."""
        torch.mul(d[..., None], self.negative, out=self.decay).exp_()
        torch.mul((d * v)[..., None], B[..., None, :], out=self.x)

    def between(self, d: Tensor, first: Tensor) -> Tensor:
        """Return the states before each chunk: (k, b, i, n)."""
        ends = self._ends(self.samples, self.factors[1:])
        return torch.stack(self._carry(ends, d, first, range(len(ends) - 1)))

    def advance(self, start: Tensor) -> None:
        """Compute x[q] = decay[q] x[q-1] + x[q] in place, for all chunks at once."""
        for x, factor in zip(self.samples, self.factors, strict=True):
            start = x.addcmul_(factor, start)

    def advance_back(self, samples: tuple[Tensor, ...], d: Tensor, last: Tensor) -> Tensor:
        """Compute p[t] = decay[t+1] p[t+1] + p[t] in place and return the gradient of the state before the segment.

        ``last`` is the gradient of the state after it.
        """
        samples, factors = samples[::-1], self.factors[:0:-1]
        ends = self._ends(samples, factors).mul_(self.factors[0])
        carried = self._carry(ends, d, last, range(len(ends) - 1, 0, -1))
        p = samples[0].add_(torch.stack(carried[::-1]))
        for x, factor in zip(samples[1:], factors, strict=True):
            p = x.addcmul_(factor, p)
        return p[0] * self.decay[0, 0]

    def _ends(self, samples: tuple[Tensor, ...], factors: tuple[Tensor, ...]) -> Tensor:
        """Return the last state of every chunk, run from zero; a single chunk does not need it."""
        end = samples[0].clone()
        if len(end) > 1:
            for x, factor in zip(samples[1:], factors, strict=True):
                torch.addcmul(x, factor, end, out=end)
        return end

    def _carry(self, ends: Tensor, d: Tensor, first: Tensor, order: range) -> list[Tensor]:
        """Return s[0] = first, then s ← ends[k] + exp(-A Σ Δ) s, chunk by chunk in this order."""
        totals = torch.exp(d.sum(0)[..., None] * self.negative)
        carried = [first]
        for k in order:
            carried.append(torch.addcmul(ends[k], totals[k], carried[-1]))
        return carried


def _sum_channels(weights: Tensor, x: Tensor, out: Tensor) -> None:
    """Write out[…, n] = Σ_i weights[…, i] x[…, i, n]."""
    with full_products():
        torch.bmm(weights.flatten(0, 2)[:, None], x.flatten(0, 2), out=out.view(-1, 1, out.shape[-1]))
