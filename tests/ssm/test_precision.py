"""How exact single precision is, that double stays double, and what autocast and TF32 may round."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from centaurus.kernels.modes import generate
from centaurus.kernels.precision import full_precision
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
    expected, last = recurrence(layer, u)
    assert worst([layer(u)], [expected]) <= VALUES
    for piece in (1000, 200):
        y, state = in_pieces(layer, u, piece)
        assert y.dtype == state.dtype == torch.float32
        assert worst([y], [expected]) <= VALUES
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
    expected, _ = recurrence(layer, u)
    y = layer(u)
    assert worst([y, layer.step(u)[0]], [expected, expected]) <= FAST_VALUES
    assert worst(gradients([y], inputs), gradients([expected], inputs)) <= FAST_GRADIENTS


@torch.no_grad()
def test_single_precision_of_s6() -> None:
    torch.manual_seed(0)
    layer = S6(3, 2, states=4)
    u = torch.randn(1, 3, LENGTH)
    expected, last = selective(layer, u)
    y, state = layer.step(u)
    assert worst([y], [expected]) <= VALUES
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


PROJECTIONS = 2**-7  # of the largest value: bf16 has eight bits, and two projections round four times


@by_kind
def test_autocast_rounds_projections_alone(build: Callable[[], Layer], channels: int, device: torch.device) -> None:
    """B and C of a whole signal may be products in bf16; kernels, states and everything in a stream are not."""
    if reason := device.type == "cpu" and bfloat16_matmul_crashes():
        pytest.skip(str(reason))
    torch.manual_seed(0)
    layer, u = build().float().to(device), torch.randn(2, channels, 60, device=device, requires_grad=True)
    inputs = [u, *layer.parameters()]
    y, (stepped, state) = layer(u), layer.step(u)
    grads = gradients([y], inputs)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        again, (stepped_again, state_again) = layer(u), layer.step(u)
    assert torch.equal(stepped_again, stepped)
    assert torch.equal(state_again, state)
    assert again.dtype == torch.float32
    projects = isinstance(layer, SSM) and bool([*layer.topology.before(), *layer.topology.after()])
    assert worst([again], [y]) <= (PROJECTIONS if projects else 0)
    assert worst(gradients([again], inputs), grads) <= (4 * PROJECTIONS if projects else 0)


def test_autocast_reaches_the_projections(device: torch.device) -> None:
    """Where the plan projects the signal, and only there, results are bf16's."""
    if reason := device.type == "cpu" and bfloat16_matmul_crashes():
        pytest.skip(str(reason))
    torch.manual_seed(0)
    layer, u = SSM("pointwise", 64, 64, states=8).to(device), torch.randn(1, 64, 4096, device=device)
    assert next(step.kind for step in layer.plan(1, 4096).steps if step.output.signal) == "contract"
    with torch.autocast(device.type, dtype=torch.bfloat16):
        rounded = layer(u)
    assert 1e-4 < worst([rounded], [layer(u)]) <= PROJECTIONS
    whole = layer(u)
    with torch.autocast(device.type, dtype=torch.float16):  # whose range is too small to rely on
        assert torch.equal(layer(u), whole)


class TF32(TorchDispatchMode):
    """Products of single precision as a GPU makes them where TF32 is allowed: operands have ten bits."""

    PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "baddbmm_")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.PRODUCTS and torch.get_float32_matmul_precision() != "highest":
            *first, x, y = args
            args = (*first, self.rounded(x), self.rounded(y))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def rounded(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        bits = x.contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


@pytest.fixture
def tf32() -> Iterator[None]:
    torch.set_float32_matmul_precision("high")
    with TF32():
        yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("tf32")
@pytest.mark.parametrize("topology", ["depthwise", "full", "grouped"])
def test_tf32_stays_out_of_kernels_and_states(topology: str) -> None:
    """Layers without projections are as exact as without TF32: values, gradients, and streams."""
    torch.manual_seed(0)
    layer = at_step(SSM(topology, **NAMED[topology]), 0.01)
    u = torch.randn(1, layer.in_channels, 4096, requires_grad=True)
    inputs = [u, *layer.parameters()]
    expected, last = recurrence(layer, u)
    y, (stepped, state) = layer(u), layer.step(u)
    assert isinstance(state, Tensor)
    assert worst([y, stepped], [expected, expected]) <= VALUES
    assert worst([state], [last]) <= STATES
    assert worst(gradients([y], inputs), gradients([expected], inputs)) <= GRADIENTS
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.usefixtures("tf32")
@torch.no_grad()
def test_tf32_may_round_projections() -> None:
    torch.manual_seed(0)
    layer = at_step(SSM("pointwise", 64, 64, states=8), 0.01)
    u = torch.randn(1, 64, 2048)
    expected, _ = recurrence(layer, u)
    assert VALUES < worst([layer(u)], [expected]) < 2e-3
    assert worst([layer.step(u)[0]], [expected]) <= VALUES


@pytest.mark.usefixtures("tf32")
@torch.no_grad()
def test_tf32_would_spoil_a_kernel() -> None:
    """What the layers must not do: generate a kernel by rounded products."""
    log_a = torch.tensor([[-0.01, 0.3], [-0.02, 1.1]])
    weight = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    exact = generate(weight.double(), "n", log_a.double(), "n", "", 4096)
    assert worst([generate(weight, "n", log_a, "n", "", 4096)], [exact]) > 1e-4
    with full_precision(weight):
        assert worst([generate(weight, "n", log_a, "n", "", 4096)], [exact]) < 1e-6


def test_autocast_leaves_an_einsum_alone(device: torch.device) -> None:
    u, B, k = torch.randn(2, 3, 90, device=device), torch.randn(4, 3, device=device), torch.randn(4, 90, device=device)
    expected = temporal_einsum("bit,ni,nt->bnt", u, B, k)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(temporal_einsum("bit,ni,nt->bnt", u, B, k), expected)


@cache
def bfloat16_matmul_crashes() -> str:
    """Some virtual machines advertise instructions that they do not support, and bf16 products stop the process."""
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert float((x @ x)[0, 0]) == 64"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"bf16 matmul ends with {done.returncode}"


def test_a_network_trains_under_autocast(device: torch.device) -> None:
    """A convolution before an SSM and an S6 runs in bf16, as do the projections of the SSM."""
    reason = bfloat16_matmul_crashes()
    if device.type == "cpu" and reason:
        pytest.skip(reason)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(3, 4, 1), SSM("bottleneck", 4, 4, states=6, substates=2), S6(4, 3, states=4)).to(
        device
    )
    u = torch.randn(2, 3, 80, device=device)
    expected = gradients([net(u)], list(net.parameters()))
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert net[0](u).dtype == torch.bfloat16
        y = net(u)
    assert y.dtype == torch.float32
    assert (
        worst(gradients([y], list(net.parameters())), expected) <= 0.15
    )  # the convolution, B, C and their gradients in bf16
