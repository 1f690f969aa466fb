"""How exact single precision is, that double stays double, and that autocast leaves the layers alone."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from centaurus.kernels.program import temporal_einsum
from centaurus.layer import Layer
from centaurus.ssm import S6, SSM
from centaurus.ssm.kernel import DT_RANGE
from tests.reference import gradients, recurrence, selective, worst
from tests.ssm.layers import NAMED, kinds

LENGTH = 16384

# What fp32 costs over 16384 samples of noise, with Δ at either end of its range: the largest error of a tensor against
# its largest value. Single precision has 6e-8; sums of thousands of terms and powers of Ā leave about ten times that.
VALUES = 3e-6
STATES = 5e-6
GRADIENTS = 1.5e-5
# With 64 states A = iπn turns by up to 20 rad a sample, and rounding an angle costs that many times more.
FAST_VALUES = 5e-5
FAST_GRADIENTS = 2e-4

KINDS = kinds()
by_kind = pytest.mark.parametrize(("build", "channels"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
both_ends = pytest.mark.parametrize("dt", DT_RANGE)


def at_step(layer: SSM, dt: float) -> SSM:
    with torch.no_grad():
        layer.log_dt.fill_(math.log(dt))
    return layer


def in_pieces(layer: Layer, u: Tensor, piece: int) -> tuple[Tensor, Tensor]:
    outputs, state = [], None
    for part in u.split(piece, -1):
        y, state = layer.step(part, state)
        outputs.append(y)
    assert isinstance(state, Tensor)
    return torch.cat(outputs, -1), state


@both_ends
@pytest.mark.parametrize("complex", [False, True])
@pytest.mark.parametrize("topology", NAMED)
@torch.no_grad()
def test_single_precision_over_a_second(topology: str, complex: bool, dt: float) -> None:
    """Whole, in pieces of 1000 samples (scanned) and in pieces of 200 (one chunk each)."""
    torch.manual_seed(0)
    layer = at_step(SSM(topology, **NAMED[topology], complex=complex), dt)
    u = torch.randn(1, layer.in_channels, LENGTH)
    wanted, last = recurrence(layer, u)
    assert worst([layer(u)], [wanted]) <= VALUES
    for piece in (1000, 200):
        y, state = in_pieces(layer, u, piece)
        assert y.dtype == state.dtype == torch.float32
        assert worst([y], [wanted]) <= VALUES
        assert worst([state], [last]) <= STATES


@both_ends
@pytest.mark.parametrize("topology", ["separable", "bottleneck", "full"])
def test_single_precision_gradients(topology: str, dt: float) -> None:
    torch.manual_seed(0)
    layer = at_step(SSM(topology, **NAMED[topology]), dt)
    u = torch.randn(1, layer.in_channels, LENGTH, requires_grad=True)
    inputs = [u, *layer.parameters()]
    assert worst(gradients([layer(u)], inputs), gradients([recurrence(layer, u)[0]], inputs)) <= GRADIENTS


@both_ends
def test_single_precision_of_fast_modes(dt: float) -> None:
    torch.manual_seed(0)
    layer = at_step(SSM("full", 1, 1, states=64), dt)
    u = torch.randn(1, 1, LENGTH, requires_grad=True)
    inputs = [u, *layer.parameters()]
    wanted, _ = recurrence(layer, u)
    y = layer(u)
    assert worst([y, layer.step(u)[0]], [wanted, wanted]) <= FAST_VALUES
    assert worst(gradients([y], inputs), gradients([wanted], inputs)) <= FAST_GRADIENTS


@torch.no_grad()
def test_single_precision_of_s6() -> None:
    torch.manual_seed(0)
    layer = S6(3, 2, states=4)
    u = torch.randn(1, 3, LENGTH)
    wanted, last = selective(layer, u)
    y, state = layer.step(u)
    assert worst([y], [wanted]) <= VALUES
    assert worst([state], [last]) <= STATES


@by_kind
def test_double_stays_double(build: Callable[[], Layer], channels: int) -> None:
    layer, u = build().double(), torch.randn(2, channels, 40, dtype=torch.float64, requires_grad=True)
    y, state = layer.step(u)
    assert isinstance(state, Tensor)
    grads = gradients([layer(u), y, state], [u, *layer.parameters()])
    assert {x.dtype for x in (layer(u), y, state, *grads)} == {torch.float64}


@by_kind
def test_a_double_signal_is_not_rounded_silently(build: Callable[[], Layer], channels: int) -> None:
    layer, u = build().float(), torch.randn(2, channels, 40, dtype=torch.float64)
    for run in (layer, layer.step):
        with pytest.raises(
            TypeError, match=r"layer is float32 and the signal float64: use layer.double\(\) or u.float"
        ):
            run(u)


@by_kind
def test_half_precision_parameters_compute_in_single(build: Callable[[], Layer], channels: int) -> None:
    """Parameters and signals may be stored narrow; kernels, transforms and states are not."""
    torch.manual_seed(0)
    layer = build().bfloat16()
    u = torch.randn(2, channels, 40).bfloat16()
    y, state = layer.step(u)
    assert isinstance(state, Tensor)
    assert (y.dtype, layer(u).dtype, state.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    wide = layer.float()
    torch.testing.assert_close(y.float(), wide(u.float()), rtol=2**-8, atol=1e-6)
    assert torch.equal(wide(u), wide(u.float()))


@by_kind
def test_autocast_leaves_a_layer_alone(build: Callable[[], Layer], channels: int, device: torch.device) -> None:
    torch.manual_seed(0)
    layer, u = build().float().to(device), torch.randn(2, channels, 60, device=device, requires_grad=True)
    inputs = [u, *layer.parameters()]
    y, (stepped, state) = layer(u), layer.step(u)
    grads = gradients([y], inputs)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        again, (stepped_again, state_again) = layer(u), layer.step(u)
    for got, wanted in ((again, y), (stepped_again, stepped), (state_again, state)):
        assert torch.equal(got, wanted)
    for got, wanted in zip(gradients([again], inputs), grads, strict=True):
        assert torch.equal(got, wanted)


def test_autocast_leaves_an_einsum_alone(device: torch.device) -> None:
    u, B, k = torch.randn(2, 3, 90, device=device), torch.randn(4, 3, device=device), torch.randn(4, 90, device=device)
    wanted = temporal_einsum("bit,ni,nt->bnt", u, B, k)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(temporal_einsum("bit,ni,nt->bnt", u, B, k), wanted)


@cache
def bfloat16_matmul_crashes() -> str:
    """Some virtual machines advertise instructions that they do not grant, and bf16 products stop the process."""
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert float((x @ x)[0, 0]) == 64"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"bf16 matmul ends with {done.returncode}"


def test_a_network_trains_under_autocast(device: torch.device) -> None:
    """A convolution before an SSM and an S6 runs in bf16, these in fp32."""
    reason = bfloat16_matmul_crashes()
    if device.type == "cpu" and reason:
        pytest.skip(reason)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(3, 4, 1), SSM("bottleneck", 4, 4, states=6, substates=2), S6(4, 3, states=4)).to(
        device
    )
    u = torch.randn(2, 3, 80, device=device)
    wanted = gradients([net(u)], list(net.parameters()))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert net[0](u).dtype == torch.bfloat16
        y = net(u)
    assert y.dtype == torch.float32
    assert worst(gradients([y], list(net.parameters())), wanted) <= 0.05
