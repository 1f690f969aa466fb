"""Every layer that is not an SSM, as nodes, against torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from centaurus.export.layers import Nodes
from centaurus.export.step import lower
from centaurus.layer import Layer
from centaurus.nn import (
    Analysis,
    AvgPool,
    BandConv,
    Block,
    CausalConv,
    Compress,
    DCBlock,
    Delay,
    Down,
    Dropout1d,
    Gated,
    Hourglass,
    LayerNorm,
    Leveled,
    Lift,
    Mask,
    Mel,
    Pointwise,
    Residual,
    RunningMean,
    Serial,
    SiLU,
    Synthesis,
    Up,
    WindowedMean,
    conv_module,
    feed_forward,
    with_conv,
)
from centaurus.nn.containers import Activation
from centaurus.ssm import S6, SSM
from tests.export.graphs import error, run_pieces

LAYERS: dict[str, tuple[Layer, int]] = {
    "analysis": (Analysis(32, 8), 1),
    "window that is not whole hops": (Analysis(36, 12), 1),
    "synthesis": (Synthesis(32, 16, 8), 34),
    "long synthesis": (Synthesis(24, 24, 8), 26),
    "compress": (Compress(17, release=5.0), 34),
    "compress without level": (Compress(17, release=0.0), 34),
    "mel": (Mel(17, 4), 34),
    "mel over its level": (Mel(17, 4, power=0.3, release=5.0), 34),
    "delay": (Delay(3, 5), 3),
    "mask": (Mask(Serial([Compress(17), Pointwise(51, 34)]), 17), 34),
    "late mask": (Mask(Serial([Pointwise(34, 34), Delay(34, 2)]), 17), 34),
    "filter": (Mask(Pointwise(10, 22), 5, taps=3, low=3), 10),
    "late filter of all bins": (Mask(Serial([Delay(10, 2), Pointwise(10, 20)]), 5, taps=2, low=5), 10),
    "spectral": (Serial([Analysis(96, 24), Mask(Pointwise(98, 98), 49), Synthesis(96, 48, 24)]), 1),
    "pointwise": (Pointwise(3, 4), 3),
    "without bias": (Pointwise(3, 4, bias=False), 3),
    "down": (Down(2, 5, 4, bias=True), 2),
    "up": (Up(3, 2, 3), 3),
    "pool": (AvgPool(4), 3),
    "no pool": (AvgPool(1), 3),
    "silu": (SiLU(), 2),
    "dropout": (Dropout1d(0.5), 2),
    "norm": (LayerNorm(12, activate=True), 12),
    "narrow norm": (LayerNorm(2), 2),
    "norm of one": (LayerNorm(1), 1),
    "conv": (CausalConv(3, 4), 3),
    "few frames": (Serial([AvgPool(6), CausalConv(3, 4)]), 3),
    "conv of one": (CausalConv(3, 1, bias=False), 3),
    "bands": (BandConv(1, 3, 5), 5),
    "bands, resampled": (BandConv(2, 3, 5, (5, 4), (2, 3)), 10),
    "bands without a past or a bias": (BandConv(2, 1, 3, (1, 2), (3, 2), bias=False), 6),
    "running mean": (RunningMean(3), 3),
    "windowed mean": (WindowedMean(3, 5), 3),
    "long window": (WindowedMean(3, 700), 3),
    "window of one": (WindowedMean(3, 1), 3),
    "dc block": (DCBlock(), 1),
    "dc blocks": (DCBlock(3), 3),
    "leveled": (Leveled(Serial([Down(2, 4, 12), CausalConv(4), Up(4, 2, 12)]), 5.0), 2),
    "leveled, some kept": (Leveled(Serial([Down(2, 4, 12), CausalConv(4), Up(4, 2, 12)]), 5.0, 0.2), 2),
    "residual": (Residual(CausalConv(4), Pointwise(4, 4)), 4),
    "hourglass": (Hourglass(CausalConv(2), Down(2, 4, 2), CausalConv(4), Up(4, 2, 2), SiLU()), 2),
    "block": (Block(SSM("full", 2, 4), 4, Pointwise(2, 4), resample=AvgPool(2)), 2),
    "block without skip": (Block(SSM("full", 2, 4), 4), 2),
    "silent block": (Block(SSM("full", 2, 2), 2, Serial(), activation=Activation.NONE), 2),
    "early block": (Block(SSM("full", 2, 2), 2, Serial(), activation=Activation.BEFORE_SKIP), 2),
    "with conv": (with_conv(SSM("pointwise", 3, 3, states=4), 3), 3),
    "feed forward": (feed_forward(3), 3),
    "conv module": (conv_module(3), 3),
    "lifted convolution": (Lift(nn.Conv1d(3, 5, 1)), 3),
    "lifted functions": (Serial([Lift(nn.GELU()), Lift(nn.Tanh()), Lift(nn.Identity()), Lift(nn.Sigmoid())]), 11),
    "lifted gates": (Serial([Lift(nn.GELU("tanh")), Lift(nn.ReLU()), Lift(nn.SiLU()), Lift(nn.Dropout1d())]), 11),
    "selective scan": (S6(3, states=4), 3),
    "selective scan without weights": (S6(3, 2, states=4, rank=2, weighted=False), 3),
    "selective scan of one frame": (Serial([AvgPool(24), S6(3, 2, states=4)]), 3),
    "mamba": (Gated(2, 4, S6(4, states=3, weighted=False)), 2),
    "gated": (Gated(3, 4, SSM("pointwise", 4, 4, states=4)), 3),
}
TOLERANCE = 1e-5  # single precision against double, of the largest value


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("frames", [24, 288])
@torch.no_grad()
def test_a_layer_as_nodes_equals_the_layer(name: str, frames: int) -> None:
    made, channels = LAYERS[name]
    torch.manual_seed(5)
    for parameter in made.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms that are not the identity
    net = made.double().eval()
    u = torch.randn(2, channels, 3 * frames, dtype=torch.float64)
    result = run_pieces(lambda g, s: lower(net, Nodes(g), s, "layer"), u.numpy(), frames)
    assert error(result, net(u).numpy()) < TOLERANCE


def test_what_cannot_be_exported_says_so() -> None:
    class Other(SiLU.__mro__[1]):  # type: ignore[misc]
        def run(self, u, state, keep):  # type: ignore[no-untyped-def]
            return u, ()

    with pytest.raises(TypeError, match="mine is a Other, which cannot be exported"):
        run_pieces(lambda g, s: lower(Other(), Nodes(g), s, "mine"), torch.zeros(1, 2, 4).numpy(), 4)
