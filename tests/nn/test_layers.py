"""Every layer keeps every law, and computes what its name says."""

from __future__ import annotations

import pytest
import torch

from centaurus.kernels.precision import why_no_bf16
from centaurus.layer import Layer
from centaurus.nn import (
    Activation,
    AvgPool,
    BandConv,
    Block,
    CausalConv,
    DCBlock,
    Down,
    Dropout1d,
    Gated,
    Hourglass,
    LayerNorm,
    Leveled,
    Pointwise,
    Residual,
    RunningMean,
    Serial,
    SiLU,
    Up,
    WindowedMean,
    conv_module,
    feed_forward,
    with_conv,
)
from tests.check_layer import check_layer

LAYERS: dict[str, tuple[Layer, int]] = {
    "pointwise": (Pointwise(3, 5), 3),
    "pointwise without bias": (Pointwise(3, 5, bias=False), 3),
    "down": (Down(3, 4, 4), 3),
    "down with bias": (Down(1, 4, 5, bias=True), 1),
    "up": (Up(4, 3, 4), 4),
    "up to one": (Up(4, 1, 2), 4),
    "pool": (AvgPool(4), 3),
    "silu": (SiLU(), 2),
    "dropout": (Dropout1d(0.5), 3),
    "norm": (LayerNorm(6), 6),
    "norm and silu": (LayerNorm(6, activate=True), 6),
    "norm of one": (LayerNorm(1), 1),
    "causal conv": (CausalConv(3), 3),
    "causal conv of one tap": (CausalConv(3, 1), 3),
    "causal conv without bias": (CausalConv(3, 4, bias=False), 3),
    "bands": (BandConv(1, 3, 5), 5),
    "bands, resampled": (BandConv(2, 3, 5, (5, 4), (2, 3)), 10),
    "bands without a past or a bias": (BandConv(2, 1, 3, (1, 2), (3, 2), bias=False), 6),
    "running mean": (RunningMean(3), 3),
    "windowed mean": (WindowedMean(3, 5), 3),
    "window of one": (WindowedMean(3, 1), 3),
    "dc block": (DCBlock(2), 2),
    "leveled": (Leveled(Serial([Down(2, 4, 3), CausalConv(4), Up(4, 2, 3)]), 5.0), 2),
    "leveled, some kept": (Leveled(Serial([Down(2, 4, 3), CausalConv(4), Up(4, 2, 3)]), 5.0, 0.2), 2),
    "nothing": (Serial(), 3),
    "serial": (Serial([Down(2, 4, 3), CausalConv(4), Up(4, 2, 2), AvgPool(4)]), 2),
    "residual": (Residual(CausalConv(4), Pointwise(4, 4)), 4),
    "residual at another rate": (Residual(Down(3, 4, 2), Serial([AvgPool(2), Pointwise(3, 4)])), 3),
    "hourglass": (
        Hourglass(
            CausalConv(2),
            Down(2, 4, 4),
            Hourglass(SiLU(), Down(4, 5, 2), Serial(), Up(5, 4, 2), CausalConv(4)),
            Up(4, 2, 4),
            Pointwise(2, 2),
        ),
        2,
    ),
    "block": (Block(Pointwise(3, 5), 5, Pointwise(3, 5), 0.1, resample=AvgPool(2)), 3),
    "block without skip": (Block(CausalConv(3), 3), 3),
    "block, early activation": (
        Block(with_conv(Pointwise(3, 3), 3), 3, Serial(), activation=Activation.BEFORE_SKIP),
        3,
    ),
    "block of one, no activation": (Block(CausalConv(1), 1, Serial(), activation=Activation.NONE), 1),
    "feed forward": (feed_forward(4), 4),
    "conv module": (conv_module(3), 3),
    "gated": (Gated(3, 6, CausalConv(6)), 3),
}


@pytest.mark.parametrize("name", LAYERS)
def test_laws(name: str) -> None:
    torch.manual_seed(0)
    layer, channels = LAYERS[name]
    check_layer(layer, channels)


@pytest.mark.skipif(bool(why_no_bf16()), reason=why_no_bf16() or "bfloat16 works here")
@pytest.mark.parametrize("name", LAYERS)
def test_a_state_goes_on_under_autocast(name: str) -> None:
    torch.manual_seed(0)
    layer, channels = LAYERS[name]
    u = torch.randn(2, channels, 4 * layer.hop)
    layer = layer.float()
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        for x in (u, u.bfloat16()):
            _, state = layer.step(x)
            layer.step(x, state)  # raises if the state has another dtype than that of the first frame
