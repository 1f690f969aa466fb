"""The recurrence between chunks, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from centaurus.kernels.scan import Scan, scan_forward


def case(axis: int, chunks: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """z, decay and initial state: three axes, chunks on one of them, decay shared along another."""
    shape = [2, 3, 2]
    shape[axis] = chunks
    shared = [1 if a in (axis, 0) else s for a, s in enumerate(shape)]
    generator = torch.Generator().manual_seed(axis)

    def normal(size: list[int]) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.complex128).requires_grad_()

    return normal(shape), normal(shared), normal([s for a, s in enumerate(shape) if a != axis])


def by_hand(z: Tensor, decay: Tensor, initial: Tensor, axis: int) -> Tensor:
    states = [initial]
    for chunk in z.unbind(axis):
        states.append(decay.squeeze(axis) * states[-1] + chunk)
    return torch.stack(states, axis)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_values_and_gradients(axis: int) -> None:
    z, decay, initial = case(axis)
    expected = by_hand(z, decay, initial, axis)
    got = Scan.apply(z, decay, initial, axis)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(expected)
    right = torch.autograd.grad((expected * weights).real.sum(), [z, decay, initial])
    actual = torch.autograd.grad((got * weights).real.sum(), [z, decay, initial])
    torch.testing.assert_close(actual, right, rtol=1e-12, atol=1e-12)


def test_by_finite_differences() -> None:
    z, decay, initial = case(1, chunks=3)
    assert torch.autograd.gradcheck(lambda *inputs: Scan.apply(*inputs, 1), (z, decay, initial))


def test_no_history_is_zero_history() -> None:
    z, decay, initial = (x.detach() for x in case(1))
    assert torch.equal(scan_forward(z, decay, None, 1), scan_forward(z, decay, torch.zeros_like(initial), 1))
