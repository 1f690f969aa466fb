"""Where layers start: A, Δ, projections, and what follows from them for stability and for other sample rates."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import softplus

from centaurus.ssm import S6, SSM
from centaurus.ssm.kernel import DISCRETIZATIONS
from centaurus.ssm.topology import topology as topology_of
from tests.reference import discretize, worst
from tests.ssm.layers import NAMED, OWN, random_ssm

LOW, HIGH = 1e-3, 1e-1
STEP_INDICES = {
    "depthwise": "in",
    "separable": "in",
    "grouped": "gin",
    "pointwise": "n",
    "bottleneck": "n",
    "full": "in",
}


def geometric(count: int) -> Tensor:
    return torch.logspace(math.log10(LOW), math.log10(HIGH), count)


def steps(layer: SSM) -> Tensor:
    return layer.log_dt.detach().exp()


@pytest.mark.parametrize("topology", NAMED)
def test_a_starts_at_minus_a_half_and_multiples_of_pi(topology: str) -> None:
    layer = SSM(topology, **NAMED[topology])
    assert layer.A_real.shape == layer.A_imag.shape == tuple(layer.topology.size[i] for i in layer.topology.modes)
    torch.testing.assert_close(-softplus(layer.A_real.detach()), torch.full_like(layer.A_real, -0.5))
    last = layer.A_imag.shape[-1]
    numbers = torch.arange(last) % 4 if topology == "pointwise" else torch.arange(last)
    torch.testing.assert_close(layer.A_imag.detach(), (math.pi * numbers).expand_as(layer.A_imag))


@pytest.mark.parametrize("topology", NAMED)
def test_steps_have_the_indices_of_the_conventions(topology: str) -> None:
    layer = SSM(topology, **NAMED[topology])
    assert layer.topology.step_indices() == STEP_INDICES[topology]
    assert layer.log_dt.shape == tuple(layer.topology.size[i] for i in STEP_INDICES[topology])


def test_steps_spread_over_the_channels() -> None:
    for topology in ("depthwise", "separable", "full"):
        torch.testing.assert_close(steps(SSM(topology, 5, states=3)), geometric(5)[:, None].expand(5, 3))
    grouped = SSM("grouped", 6, 6, groups=2, states=3)
    torch.testing.assert_close(steps(grouped), geometric(3)[None, :, None].expand(2, 3, 3))


def test_steps_spread_over_the_states_of_a_bottleneck() -> None:
    torch.testing.assert_close(steps(SSM("bottleneck", 2, 2, states=7, substates=3)), geometric(7))


@pytest.mark.parametrize("topology", ["pointwise", "bottleneck"])
def test_a_state_without_substates_goes_in_groups_of_four(topology: str) -> None:
    """One index has to carry both: A runs within a group, Δ from group to group."""
    layer = SSM(topology, 2, 2, states=12)
    torch.testing.assert_close(steps(layer), geometric(3).repeat_interleave(4))
    torch.testing.assert_close(layer.A_imag.detach().flatten(), math.pi * torch.arange(4).repeat(3))


def test_few_states_are_one_group_each() -> None:
    torch.testing.assert_close(steps(SSM("pointwise", 2, 2, states=3)), geometric(3))


@pytest.mark.parametrize("topology", ["full", "separable", "depthwise"])
def test_one_channel_spreads_over_the_states(topology: str) -> None:
    """Else a block of one channel would respond below 120 Hz only."""
    torch.testing.assert_close(steps(SSM(topology, 1, 1, states=16)), geometric(16)[None])


def test_a_single_mode_has_a_step_in_range() -> None:
    for topology in ("full", "pointwise"):
        assert LOW * 0.999 <= float(steps(SSM(topology, 1, 1, states=1)).squeeze()) <= HIGH * 1.001


@pytest.mark.parametrize(
    ("topology", "arguments", "bounds"),
    [
        ("depthwise", {"in_channels": 9, "states": 16}, {"E": 16}),
        ("separable", {"in_channels": 9, "out_channels": 20, "states": 16}, {"E": 16, "M": 9}),
        ("grouped", {"in_channels": 18, "out_channels": 20, "states": 16, "groups": 2}, {"E": 9 * 16}),
        ("pointwise", {"in_channels": 9, "out_channels": 20, "states": 64}, {"B": 9, "C": 64}),
        ("bottleneck", {"in_channels": 9, "out_channels": 20, "states": 64, "substates": 4}, {"B": 9, "E": 4, "C": 64}),
        ("full", {"in_channels": 9, "out_channels": 20, "states": 16}, {"E": 9 * 16}),
    ],
)
@pytest.mark.parametrize("complex", [False, True])
def test_projections_are_uniform_over_what_they_sum(
    topology: str, arguments: dict[str, int], bounds: dict[str, int], complex: bool
) -> None:
    """Kaiming uniform with a = √5: within ±1/√fan-in, and close to the bounds."""
    torch.manual_seed(0)
    layer = SSM(topology, **arguments, complex=complex)
    assert set(bounds) == {name for name, _ in layer.named_parameters()} - {"log_dt", "A_real", "A_imag"}
    for name, fan_in in bounds.items():
        largest = float(layer.get_parameter(name).detach().abs().max()) * math.sqrt(fan_in)
        assert 0.95 <= largest <= 1.0, name


@pytest.mark.parametrize(
    ("equation", "fan_in"),
    [
        ("u_bit B_pi D_np K_nt C_jn -> y_bjt", {"B": "i", "D": "p", "C": "n"}),
        ("u_bit B_ni K_nt D_kn C_jk -> y_bjt", {"B": "i", "D": "n", "C": "k"}),
        ("u_bit B_jni K_jnt -> y_bjt", {"B": "i"}),  # K's own indices are summed after the state
        ("u_bit B_ni E_nm K_nmt C_jnm -> y_bjt", {"B": "i", "E": "", "C": "nm"}),
    ],
)
def test_the_fan_in_of_an_equation_of_ones_own(equation: str, fan_in: dict[str, str]) -> None:
    size = {"i": 2, "j": 3, "n": 5, "m": 7, "p": 11, "k": 13}
    used = {i for term in equation.split() if "_" in term for i in term.partition("_")[2]} - {"b", "t"}
    built = topology_of(equation, tuple((i, size[i]) for i in sorted(used)), False)
    assert {letter: built.fan_in(letter) for letter in fan_in} == {
        letter: math.prod(size[i] for i in indices) for letter, indices in fan_in.items()
    }


def test_s6_starts_as_in_mamba() -> None:
    layer = S6(40, 3, states=5)
    torch.testing.assert_close(layer.A_log.detach().exp(), torch.arange(1.0, 6).expand(40, 5))
    torch.testing.assert_close(softplus(layer.dt_bias.detach()), geometric(40), rtol=1e-4, atol=1e-7)
    assert layer.rank == 3
    assert S6(40, rank=7).dt_down.shape == (7, 40)
    assert {id(p) for p in layer.undecayed()} == {id(layer.A_log), id(layer.dt_bias)}


def test_a_and_steps_are_not_decayed() -> None:
    layer = SSM("bottleneck", 3, 2, states=5, substates=2)
    assert {id(p) for p in layer.undecayed()} == {id(layer.log_dt), id(layer.A_real), id(layer.A_imag)}


@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    rule=st.sampled_from(list(DISCRETIZATIONS)),
    real=st.floats(-30, 30),
    imaginary=st.floats(-1e3, 1e3),
    log_dt=st.floats(-12, 3),
)
def test_every_parameter_value_is_stable(rule: str, real: float, imaginary: float, log_dt: float) -> None:
    """|Ā| < 1 whatever training does to A and Δ; and Ā and w are what complex arithmetic says."""
    layer = SSM("pointwise", 1, 1, states=1, discretization=rule).double()
    with torch.no_grad():
        layer.A_real.fill_(real)
        layer.A_imag.fill_(imaginary)
        layer.log_dt.fill_(log_dt)
        log_a, w = layer._modes(torch.float64)
        a = torch.complex(-softplus(layer.A_real), layer.A_imag)
        decay, weight = discretize(a, layer.log_dt.exp(), rule)
    assert float(log_a[..., 0]) < 0
    got = torch.exp(torch.view_as_complex(log_a))
    assert float(got.abs()) <= 1
    torch.testing.assert_close(got, decay, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(torch.view_as_complex(w), weight, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rule", DISCRETIZATIONS)
def test_single_precision_modes_never_grow(rule: str) -> None:
    """The same in fp32 over a grid of extremes, where rounding could reach one."""
    layer = SSM("pointwise", 1, 1, states=7 * 7 * 7, discretization=rule)
    grid = torch.cartesian_prod(*(torch.linspace(a, b, 7) for a, b in ((-20, 20), (-1000, 1000), (-12, 3))))
    with torch.no_grad():
        layer.A_real.copy_(grid[:, 0])
        layer.A_imag.copy_(grid[:, 1])
        layer.log_dt.copy_(grid[:, 2])
        log_a, w = layer._modes(torch.float32)
    assert bool(torch.isfinite(log_a).all())
    assert bool(torch.isfinite(w).all())
    assert float(log_a[:, 0].max()) <= 0


@pytest.mark.parametrize("rule", DISCRETIZATIONS)
@pytest.mark.parametrize("topology", ["full", "pointwise", "bottleneck"])
@torch.no_grad()
def test_a_long_stream_does_not_blow_up(topology: str, rule: str) -> None:
    """A slow mode after 100 steps of 1000 samples at full scale, and silence after it."""
    torch.manual_seed(0)
    layer = SSM(topology, **NAMED[topology], discretization=rule)
    layer.A_real.sub_(8)  # decays within seconds, not milliseconds
    state, largest = layer.init_state(1), 0.0
    for _ in range(100):
        y, state = layer.step(torch.rand(1, layer.in_channels, 1000) * 2 - 1, state)
        largest = max(largest, float(y.abs().max()))
    assert math.isfinite(largest)
    assert largest < 1e3
    layer.A_real.add_(16)
    for _ in range(3):
        y, state = layer.step(torch.zeros(1, layer.in_channels, 10000), state)
    assert float(y.abs().max()) < 1e-6 * max(1.0, largest)


@torch.no_grad()
def test_s6_does_not_blow_up() -> None:
    torch.manual_seed(0)
    layer = S6(4, states=4)
    state = layer.init_state(1)
    for _ in range(20):
        y, state = layer.step(torch.rand(1, 4, 500) * 20 - 10, state)
    assert bool(torch.isfinite(y).all())
    assert isinstance(state, Tensor)
    assert float(state.abs().max()) < 1e4


@pytest.mark.parametrize("rule", DISCRETIZATIONS)
@pytest.mark.parametrize("topology", ["separable", "pointwise", "bottleneck", "full"])
@torch.no_grad()
def test_a_layer_at_another_sample_rate(topology: str, rule: str) -> None:
    """A smooth signal sampled twice as fast gives the same output, read at every second sample."""
    torch.manual_seed(0)
    layer = SSM(topology, **NAMED[topology], discretization=rule).double()
    seconds = torch.arange(4000, dtype=torch.float64) / 4000
    tones = torch.sin(2 * math.pi * (seconds * torch.tensor([3.0, 7.0, 11.0])[:, None] + 0.3))[None]
    fade = torch.sin(math.pi * seconds) ** 2  # starts and ends at rest
    fast = tones * fade
    expected = layer(fast[..., ::2])
    assert worst([layer.at_rate(2.0)(fast)[..., ::2]], [expected]) <= 0.05
    assert worst([layer(fast)[..., ::2]], [expected]) > 0.1, "without at_rate it is another filter"


def test_the_same_rate_is_the_same_layer() -> None:
    layer = random_ssm("full")
    copy = layer.at_rate(1.0)
    assert copy is not layer
    for name, p in copy.named_parameters():
        assert torch.equal(p, layer.get_parameter(name))
        assert p is not layer.get_parameter(name)
    torch.testing.assert_close(layer.at_rate(4).at_rate(0.25).log_dt, layer.log_dt)
    before = layer.log_dt.clone()
    layer.at_rate(3.0)
    assert torch.equal(layer.log_dt, before)


@pytest.mark.parametrize("factor", [0, -1.0, math.nan, math.inf, "2", None])
def test_a_rate_that_is_none(factor: object) -> None:
    with pytest.raises(ValueError, match="positive number, got"):
        random_ssm("full").at_rate(factor)  # type: ignore[arg-type]


@pytest.mark.parametrize("topology", OWN)
def test_an_equation_of_ones_own_starts_in_range(topology: str) -> None:
    layer = SSM(topology, sizes=OWN[topology])
    dt = steps(layer)
    assert LOW * 0.999 <= float(dt.min()) <= float(dt.max()) <= HIGH * 1.001
    torch.testing.assert_close(-softplus(layer.A_real.detach()), torch.full_like(layer.A_real, -0.5))
