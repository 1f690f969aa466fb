"""The linear recurrence between chunks, on complex tensors, with its backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

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
