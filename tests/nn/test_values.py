"""Layers against the plain formula or torch's own operation, in either memory layout."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from centaurus.nn import (
    AvgPool,
    BandConv,
    CausalConv,
    DCBlock,
    Down,
    Dropout1d,
    Gated,
    LayerNorm,
    Leveled,
    Pointwise,
    RunningMean,
    Serial,
    SiLU,
    Up,
    WindowedMean,
    fused,
)
from centaurus.nn.containers import follow

DOUBLE = {"dtype": torch.float64}


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **DOUBLE)


def channel_first(u: Tensor) -> Tensor:
    return u.transpose(0, 1).contiguous().transpose(0, 1)


@pytest.fixture(params=[lambda u: u, channel_first], ids=["batch first", "channel first"])
def signal(request: pytest.FixtureRequest) -> Tensor:
    return request.param(noise(3, 4, 24))


def test_pointwise_is_a_linear_map_of_each_frame(signal: Tensor) -> None:
    layer = Pointwise(4, 5).double()
    layer.bias.data += noise(5, 1)
    expected = F.linear(signal.transpose(1, 2), layer.weight, layer.bias[:, 0]).transpose(1, 2)
    torch.testing.assert_close(layer(signal), expected)


def test_down_is_a_strided_convolution(signal: Tensor) -> None:
    layer = Down(4, 6, 3, bias=True).double()
    layer.bias.data += noise(6, 1)
    torch.testing.assert_close(layer(signal), F.conv1d(signal, layer.weight, layer.bias[:, 0], stride=3))


def test_up_is_a_strided_transposed_convolution(signal: Tensor) -> None:
    layer = Up(4, 2, 3).double()
    torch.testing.assert_close(layer(signal), F.conv_transpose1d(signal, layer.weight, stride=3))


def test_the_gain_of_up_scales_its_first_weights() -> None:
    assert Up(4, 2, 3, gain=0.1).weight.abs().max() <= 0.1 * 4**-0.5


def test_pool_is_the_mean_of_a_hop(signal: Tensor) -> None:
    torch.testing.assert_close(AvgPool(4)(signal), F.avg_pool1d(signal, 4))


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 6, 8])
def test_pool_gives_every_frame_its_share_of_the_gradient(factor: int) -> None:
    u = torch.randn(2, 3, 24, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(2, 3, 24 // factor, dtype=torch.float64)
    (found,) = torch.autograd.grad(AvgPool(factor)(u), u, grad)
    torch.testing.assert_close(found, grad.repeat_interleave(factor, -1) / factor)


def test_causal_conv_looks_back_only(signal: Tensor) -> None:
    layer = CausalConv(4).double()
    layer.bias.data += noise(4)
    expected = F.conv1d(F.pad(signal, (3, 0)), layer.weight[:, None], layer.bias, groups=4)
    torch.testing.assert_close(layer(signal), expected)
    with torch.no_grad():
        torch.testing.assert_close(layer(signal), expected)


def test_causal_conv_gradients_are_torchs() -> None:
    layer, u = CausalConv(3, 4, bias=False).double(), noise(2, 3, 9).requires_grad_()
    assert torch.autograd.gradcheck(lambda u, w: F.conv1d(F.pad(u, (3, 0)), w[:, None], groups=3), (u, layer.weight))
    expected = torch.autograd.grad(
        F.conv1d(F.pad(u, (3, 0)), layer.weight[:, None], groups=3).pow(2).sum(), [u, layer.weight]
    )
    torch.testing.assert_close(torch.autograd.grad(layer(u).pow(2).sum(), [u, layer.weight]), expected)


def test_a_convolution_over_bands_sums_neighbouring_bands_and_earlier_frames() -> None:
    layer, u = BandConv(2, 3, 4, (3, 2), (2, 1)).double(), noise(1, 8, 5)
    layer.bias.data += noise(3)
    expected = layer.bias.data[None, :, None].repeat(2, 1, 5)  # out band, feature, frame
    for band, frame, k, age in itertools.product(range(2), range(5), range(3), range(2)):
        at = 2 * band + k - 1
        if 0 <= at < 4 and frame >= age:
            expected[band, :, frame] += layer.weight[:, :, 1 - age, k] @ u[0, 2 * at : 2 * at + 2, frame - age]
    torch.testing.assert_close(layer(u)[0], expected.flatten(0, 1))


def test_norm_is_torchs_over_channels(signal: Tensor) -> None:
    layer = LayerNorm(4).double()
    expected = F.layer_norm(signal.transpose(1, 2), (4,)).transpose(1, 2)
    torch.testing.assert_close(layer(signal), expected)
    torch.testing.assert_close(LayerNorm(4, activate=True).double()(signal), F.silu(expected))


def test_norm_of_one_channel_has_no_parameters_and_changes_nothing() -> None:
    layer = LayerNorm(1)
    assert not list(layer.parameters())
    torch.testing.assert_close(layer(noise(2, 1, 5)), noise(2, 1, 5))


GIVEN = list(itertools.product([False, True], repeat=4))


@pytest.mark.parametrize(("scale", "before", "after", "activate"), GIVEN)
@pytest.mark.parametrize("piece", [7, 40, 10_000])
def test_the_fast_end_of_a_block_is_the_plain_one(
    piece: int, scale: bool, before: bool, after: bool, activate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "PIECE", piece)
    u, weight, bias = noise(3, 4, 11), noise(4, seed=1), noise(4, seed=2)
    extra = [noise(3, 4, 1, seed=3).abs() if scale else None]
    extra += [noise(3, 4, 11, seed=4) if before else None, noise(3, 4, 11, seed=5) if after else None]
    learned = [x.requires_grad_() for x in (u, weight, bias, extra[1], extra[2]) if x is not None]
    fast = fused.finish(u, weight, bias, *extra, activate=activate)
    plain = fused._plain(u, weight, bias, *extra, activate=activate)
    torch.testing.assert_close(fast, plain)
    actual, expected = (torch.autograd.grad((y * noise(3, 4, 11, seed=6)).sum(), learned) for y in (fast, plain))
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("layer", [Pointwise(4, 6), Down(4, 6, 3), Up(4, 6, 2), AvgPool(3), LayerNorm(4), SiLU()])
def test_a_channel_first_signal_stays_so(layer: torch.nn.Module) -> None:
    y = layer(channel_first(torch.randn(3, 4, 12)))
    assert y.transpose(0, 1).is_contiguous()


def test_running_mean_is_the_mean_so_far() -> None:
    u = noise(2, 3, 10)
    expected = torch.stack([u[..., : t + 1].mean(-1) for t in range(10)], dim=-1)
    torch.testing.assert_close(RunningMean(3).double()(u), expected)


def test_running_mean_stays_exact_for_long_streams() -> None:
    layer, state = RunningMean(1), None
    for _ in range(100):
        y, state = layer.step(torch.full((1, 1, 10_000), 0.1), state)
    assert abs(float(y[..., -1]) - 0.1) < 1e-6


def test_windowed_mean_forgets() -> None:
    u = noise(2, 3, 10)
    expected = torch.stack([u[..., max(0, t - 3) : t + 1].mean(-1) for t in range(10)], dim=-1)
    torch.testing.assert_close(WindowedMean(3, 4).double()(u), expected)


@pytest.mark.parametrize("samples", [1, 63, 64, 65, 5000])
def test_dc_block_is_its_recurrence(samples: int) -> None:
    u, layer = noise(1, 2, samples), DCBlock(2).double()
    y, past, last = [], torch.zeros(1, 2, **DOUBLE), torch.zeros(1, 2, **DOUBLE)
    for t in range(samples):
        past, last = u[..., t] - last + layer.pole * past, u[..., t]
        y.append(past)
    torch.testing.assert_close(layer(u), torch.stack(y, dim=-1))


def test_dc_block_removes_an_offset_and_keeps_speech() -> None:
    t = torch.arange(16_000) / 16_000
    tone = torch.sin(2 * torch.pi * 200 * t)
    y = DCBlock()((tone + 0.5).view(1, 1, -1))[0, 0, 8000:]
    assert abs(float(y.mean())) < 1e-3
    assert abs(float(y.std() / tone[8000:].std()) - 1) < 0.01


@pytest.mark.parametrize("hops", [1, 15, 16, 17, 40])
def test_a_level_rises_immediately_and_decays(hops: int) -> None:
    x, past = noise(2, hops).abs(), torch.tensor([[0.0], [3.0]], **DOUBLE)
    expected, y = [], past[:, 0]
    for t in range(hops):
        y = torch.maximum(x[:, t], 0.9 * y)
        expected.append(y)
    torch.testing.assert_close(follow(x, 0.9, past), torch.stack(expected, dim=-1))


def test_a_leveled_body_is_as_loud_as_its_input() -> None:
    body = Serial([Down(1, 6, 4), LayerNorm(6), SiLU(), Up(6, 1, 4)])
    layer, u = Leveled(body, 8.0).double(), noise(1, 1, 400)
    torch.testing.assert_close(layer(100 * u), 100 * layer(u), rtol=1e-6, atol=1e-9)
    assert layer(torch.zeros_like(u)).abs().max().item() < 1e-4
    torch.testing.assert_close(Leveled(Serial(), 8.0).double()(u), u)
    torch.testing.assert_close(Leveled(body, 8.0, 0.2).double()(u), 0.8 * layer(u) + 0.2 * u)


def test_dropout_drops_whole_channels_while_training_only() -> None:
    layer, u = Dropout1d(0.5), torch.ones(50, 20, 7)
    y = layer(u)
    assert set(y.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(y.amin(-1), y.amax(-1))
    assert 0.4 < float((y == 0).float().mean()) < 0.6
    assert layer.eval()(u) is u


def test_a_gated_block_is_its_formula() -> None:
    layer, u = Gated(3, 5, Pointwise(5, 5)).double(), noise(2, 3, 8)
    wide = layer.into(layer.norm(u))
    x = F.silu(layer.conv.taps(wide[:, :5]))
    y = (layer.ssm(x) + layer.D * x) * F.silu(wide[:, 5:])
    torch.testing.assert_close(layer(u), u + layer.out(y))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Pointwise(0, 3), "in_channels should be at least 1, got 0"),
        (lambda: Down(1, 2, 0), "factor should be at least 1, got 0"),
        (lambda: WindowedMean(3, 0), "window should be at least 1, got 0"),
        (lambda: BandConv(1, 2, 5, (2, 3)), "odd number of bands, got 2"),
        (lambda: BandConv(1, 2, 5, (3, 1), (1, 2)), "at least its stride of 2 frames"),
        (lambda: BandConv(1, 2, 0), "bands should be at least 1, got 0"),
        (lambda: BandConv(2, 2, 3)(torch.zeros(1, 5, 4)), "6 input channels, got 5"),
        (lambda: Dropout1d(1.0), "got 1.0"),
        (lambda: DCBlock(pole=1.5), "got 1.5"),
        (lambda: Leveled(Serial(), 0.0), "above 0 hops, got 0.0"),
        (lambda: Leveled(AvgPool(2), 1.0), "ratio 1, got 1/2"),
        (lambda: Leveled(Serial(), 1.0, kept=1.0), "below 1, got 1.0"),
        (lambda: Gated(3, 4, AvgPool(2)), "hop 2"),
        (lambda: Pointwise(3, 4)(torch.zeros(1, 2, 5)), "3 input channels, got 2"),
        (lambda: LayerNorm(3)(torch.zeros(1, 2, 5)), "3 input channels, got 2"),
    ],
)
def test_an_error_names_the_wrong_argument(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
