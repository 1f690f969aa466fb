"""One input channel and several outputs: the signal is repeated for each output instead of summed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from centaurus.kernels.modes import generate
from centaurus.kernels.program import Modes, Program
from centaurus.planner import enumerate_plans
from tests.reference import convolve


@pytest.mark.parametrize("tile_bytes", [1 << 24, 400])
def test_every_plan_of_a_single_channel_is_the_convolution(tile_bytes: int) -> None:
    torch.manual_seed(0)
    sizes = {"b": 3, "i": 1, "j": 4, "n": 2, "t": 37}
    u, e = torch.randn(3, 1, 37, dtype=torch.float64), torch.randn(4, 1, 2, dtype=torch.float64)
    log_a = torch.stack((-torch.rand(4, 1, 2), torch.randn(4, 1, 2)), -1).double()
    weight = torch.randn(4, 1, 2, 2, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (u, e, log_a, weight)]
    k = generate(weight * e[..., None], "jin", log_a, "jin", "ji", 37)
    reference = convolve("bit,jit->bjt", u, k)
    grad = torch.randn_like(reference)
    expected = torch.autograd.grad(reference, inputs, grad)
    plans = enumerate_plans("bit,jin,jint->bjt", sizes, modes="jin")
    assert any(step.kind == "chunked" for plan in plans for step in plan.steps)
    for plan in plans:
        got = Program(replace(plan, tile_bytes=tile_bytes))([u, e, Modes(weight, log_a)])
        torch.testing.assert_close(got, reference, rtol=1e-9, atol=1e-9)
        for a, b in zip(torch.autograd.grad(got, inputs, grad), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
