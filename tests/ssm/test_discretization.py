"""Discretisation where float32 is at its limits: no decay, enormous decay, and phases of hundreds of radians a step."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from centaurus.nn import Stream
from centaurus.ssm import SSM
from centaurus.ssm.kernel import Simple, simple, wrapped, zoh

EDGES = [0.0, -1e-40, -1e-30, -1e-12, -1e-4, -9.99e-4, -1.001e-3, -0.5, -80.0, -1e10, -1e25]


def exact(re: float, im: float) -> complex:
    """(exp(z) - 1) / z by its limit, its series or its definition, whichever is exact in float64."""
    z = complex(re, im)
    if abs(z) < 1e-3:
        return sum((z**k / math.factorial(k + 1) for k in range(1, 7)), 1 + 0j)
    return (complex(math.exp(re) * math.cos(im), math.exp(re) * math.sin(im)) - 1) / z


@pytest.mark.parametrize("im", [0.0, 1e-20, 1e-4, 1.0, 300.0, 1e20])
def test_zoh_has_its_limits(im: float) -> None:
    re = torch.tensor(EDGES, requires_grad=True)
    y = torch.full_like(re, im, requires_grad=True)
    _, w = zoh(re, y, torch.ones_like(re))
    if im <= 300.0:
        actual = torch.complex(w[:, 0], w[:, 1]).tolist()
        expected = [exact(x, float(y[0])) for x in re.tolist()]
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-30)
    assert bool(w.isfinite().all())
    w.sum().backward()
    for x in (re, y):
        assert x.grad is not None
        assert bool(x.grad.isfinite().all())


def test_the_gradients_of_zoh_are_those_of_its_value() -> None:
    points = torch.tensor([-1e-5, -9e-4, -2e-3, -1.0], dtype=torch.float64, requires_grad=True)
    angles = torch.tensor([1e-5, 3e-4, 0.0, 7.0], dtype=torch.float64, requires_grad=True)
    steps = torch.tensor([0.5, 1.0, 1.0, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(zoh, (points, angles, steps))


def test_whole_turns_are_taken_out_exactly() -> None:
    angles = torch.linspace(-1000, 1000, 4001)
    assert float(wrapped(angles).abs().max()) <= math.pi + 1e-6
    expected = torch.remainder(angles.double() + math.pi, 2 * math.pi) - math.pi
    error = torch.remainder(wrapped(angles).double() - expected + math.pi, 2 * math.pi) - math.pi
    assert float(error.abs().max()) < 5e-7


@pytest.mark.parametrize("rule", ["simple", "zoh"])
@pytest.mark.parametrize("topology", ["depthwise", "pointwise", "bottleneck"])
def test_streaming_equals_offline_for_phases_of_hundreds_of_radians(topology: str, rule: str) -> None:
    """Slow modes, so that their phase counts over thousands of steps: 1 % apart if whole turns stay in the angle."""
    torch.manual_seed(0)
    net = SSM(topology, 4, 4, states=4, discretization=rule)  # type: ignore[call-overload]
    with torch.no_grad():
        net.log_dt.fill_(math.log(1e-3))
        net.A_imag.mul_(1e5)
        assert float(net.A_imag.abs().max()) * 1e-3 > 900
        u: Tensor = 0.1 * torch.randn(1, 4, 8000)
        offline = net.eval()(u)
        live = Stream(net)(u)
    assert float((offline - live).abs().max()) < 5e-6 * float(offline.abs().max())


def test_one_node_is_the_simple_rule_op_by_op() -> None:
    """Values and gradients, with a Δ for each mode and with one that modes share."""
    torch.manual_seed(0)
    for shared in (False, True):
        log_dt = torch.randn(3, 1 if shared else 4, dtype=torch.float64, requires_grad=True)
        A_real, A_imag = (10 * torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        inputs = [log_dt, A_real, A_imag]
        op_by_op = simple(-torch.nn.functional.softplus(A_real), A_imag, log_dt.exp().expand(3, 4))
        grads = [torch.randn_like(x) for x in op_by_op]
        torch.testing.assert_close(Simple.apply(*inputs), op_by_op)
        expected = torch.autograd.grad(op_by_op, inputs, grads)
        torch.testing.assert_close(torch.autograd.grad(Simple.apply(*inputs), inputs, grads), expected)
