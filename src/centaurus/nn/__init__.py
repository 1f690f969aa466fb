"""Layers that train whole and stream piece by piece, and the containers and blocks that compose them."""

from centaurus.layer import Counts, Layer, State, reset
from centaurus.nn.containers import (
    Activation,
    Block,
    Composite,
    Gated,
    Hourglass,
    Leveled,
    Part,
    Residual,
    Serial,
    conv_module,
    feed_forward,
    with_conv,
)
from centaurus.nn.layers import (
    AvgPool,
    BandConv,
    CausalConv,
    DCBlock,
    Delay,
    Down,
    Dropout1d,
    LayerNorm,
    Lift,
    Pointwise,
    RunningMean,
    SiLU,
    Up,
    WindowedMean,
)
from centaurus.nn.spectral import Analysis, Compress, Mask, Mel, Synthesis
from centaurus.nn.stream import Stream

__all__ = [
    "Activation", "Analysis", "AvgPool", "BandConv", "Block", "CausalConv", "Composite", "Compress", "Counts",
    "DCBlock", "Delay", "Down", "Dropout1d", "Gated", "Hourglass", "Layer", "LayerNorm", "Leveled", "Lift", "Mask",
    "Mel", "Part", "Pointwise", "Residual", "RunningMean", "Serial", "SiLU", "State", "Stream", "Synthesis", "Up",
    "WindowedMean", "conv_module", "feed_forward", "reset", "with_conv",
]  # fmt: skip
