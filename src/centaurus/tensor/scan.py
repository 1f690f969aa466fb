"""The linear recurrence between chunks, on complex tensors, with its backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def scan_forward(z: Tensor, decay: Tensor, initial: Tensor | None, axis: int) -> Tensor:
    """s[0] = initial, s[c+1] = decay · s[c] + z[c] along ``axis``; returns all of s, one longer than z."""
    z, decay = z.movedim(axis, 0), decay.movedim(axis, 0)[0]
    states = z.new_empty(z.shape[0] + 1, *z.shape[1:])
    states[0] = 0 if initial is None else initial
    _recur(z.unbind(0), decay, states.unbind(0))
    return states.movedim(0, axis)


def scan_backward(grad: Tensor, states: Tensor, decay: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z, of decay (for every row) and of initial, from the gradient of all states."""
    grad, states = grad.movedim(axis, 0), states.movedim(axis, 0)
    adjoint = torch.empty_like(states)
    adjoint[-1] = grad[-1]
    _recur(grad[:-1].unbind(0)[::-1], decay.movedim(axis, 0)[0].conj().resolve_conj(), adjoint.unbind(0)[::-1])
    lost = torch.linalg.vecdot(states[:-1], adjoint[1:], dim=0)
    return adjoint[1:].movedim(0, axis), lost.unsqueeze(0).movedim(0, axis), adjoint[0]


def _recur(inputs: Sequence[Tensor], decay: Tensor, outputs: Sequence[Tensor]) -> None:
    """outputs[c+1] = inputs[c] + decay · outputs[c], in place."""
    for c, chunk in enumerate(inputs):
        torch.addcmul(chunk, decay, outputs[c], out=outputs[c + 1])


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
