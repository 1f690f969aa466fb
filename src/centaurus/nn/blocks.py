"""The blocks of the networks: the Centaurus block, and the modules that may follow or replace it."""

from __future__ import annotations

from enum import Enum
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from centaurus.layer import Layer, State
from centaurus.nn.containers import Composite, Counts, Part, Residual, Serial, inner
from centaurus.nn.layers import CausalConv, Dropout1d, LayerNorm, Pointwise, SiLU


class Activation(Enum):
    """The place of a block's SiLU: after the skip is added, before it, or none."""

    AFTER_SKIP = "after skip"
    BEFORE_SKIP = "before skip"
    NONE = "none"


class Block(Composite):
    """The Centaurus block: [causal conv →] SSM → LayerNorm → dropout → + skip → SiLU → [resampling].

    ``skip`` is ``Serial()`` for the identity, a ``Pointwise`` for a projection, ``None`` for no skip at all.
    """

    def __init__(
        self,
        body: Layer,
        channels: int,
        skip: Layer | None = None,
        dropout: float = 0.0,
        activation: Activation = Activation.AFTER_SKIP,
        resample: Layer | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.norm = LayerNorm(channels)
        self.dropout = Dropout1d(dropout)
        self.skip = skip
        self.activation = activation
        self.resample = Serial() if resample is None else resample
        inside = body if skip is None else Residual(body, skip)
        if inside.hop != 1 or inside.ratio != 1:
            raise ValueError(
                f"body and skip of a block should have hop 1 and ratio 1, got hop {inside.hop}, ratio {inside.ratio}"
            )
        self.hop, self.ratio = self.resample.hop, self.resample.ratio
        self.delay = inside.delay + self.resample.delay

    def arguments(self) -> dict[str, Any]:
        return {
            "body": self.body,
            "channels": self.norm.channels,
            "skip": self.skip,
            "dropout": self.dropout.probability,
            "activation": self.activation,
            "resample": self.resample,
        }

    def parts(self) -> list[Part]:
        layers = {"body": self.body, "norm": self.norm, "dropout": self.dropout, "skip": self.skip}
        kept = {name: layer for name, layer in layers.items() if layer is not None} | {"resample": self.resample}
        return [Part(name, layer, Fraction(1)) for name, layer in kept.items()]

    def init_state(self, batch: int) -> State:
        skip = () if self.skip is None else self.skip.init_state(batch)
        return self.body.init_state(batch), skip, self.resample.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        body, skip, resample = inner(state, 3)
        y, body = self.body.run(u, body, keep)
        x, skip = (None, ()) if self.skip is None else self.skip.run(u, skip, keep)
        early = self.activation is Activation.BEFORE_SKIP
        before, after = (None, x) if early else (x, None)
        y = self.norm.join(y, self.dropout.mask(y), before, after, self.activation is not Activation.NONE)
        y, resample = self.resample.run(y, resample, keep)
        return y, (body, skip, resample)


def with_conv(ssm: Layer, channels: int, kernel: int = 4) -> Serial:
    """Return a causal depthwise convolution followed by a state-space layer."""
    return Serial({"conv": CausalConv(channels, kernel), "ssm": ssm})


def feed_forward(channels: int) -> Residual:
    """Return the residual FFN module: two 1×1 layers and a SiLU between them, without expansion."""
    return Residual(
        Serial({"first": Pointwise(channels, channels), "silu": SiLU(), "second": Pointwise(channels, channels)})
    )


def conv_module(channels: int, kernel: int = 4, expansion: int = 2) -> Residual:
    """Return the residual Conformer-like module: 1×1 up, norm, causal depthwise convolution, 1×1 down."""
    wide = channels * expansion
    return Residual(
        Serial(
            {
                "first": Pointwise(channels, wide),
                "norm": LayerNorm(wide, activate=True),
                "conv": CausalConv(wide, kernel),
                "silu": SiLU(),
                "second": Pointwise(wide, channels),
            }
        )
    )


class Gated(Composite):
    """The Mamba macro-block around any state-space layer of ``width`` channels.

    Two projections of the normalised input: one goes through a causal convolution, SiLU and the layer, with ``D`` as
    its feedthrough; the other is the gate. The result is projected back and added to the input.
    """

    def __init__(self, channels: int, width: int, ssm: Layer, kernel: int = 4) -> None:
        super().__init__()
        if ssm.hop != 1 or ssm.ratio != 1 or ssm.delay:
            raise ValueError(
                f"the layer of a gated block should have hop 1, ratio 1 and delay 0, "
                f"got hop {ssm.hop}, ratio {ssm.ratio} and delay {ssm.delay}"
            )
        self.width, self.kernel = width, kernel
        self.norm = LayerNorm(channels)
        self.into = Pointwise(channels, 2 * width, bias=False)
        self.conv = Serial({"taps": CausalConv(width, kernel), "silu": SiLU()})
        self.ssm = ssm
        self.D = nn.Parameter(torch.ones(width, 1))
        self.out = Pointwise(width, channels, bias=False)
        self.cost = Counts(flops=width)  # the gate's product

    def arguments(self) -> dict[str, Any]:
        return {
            "channels": self.norm.channels,
            "width": self.width,
            "ssm": self.ssm,
            "kernel": self.kernel,
        }

    def parts(self) -> list[Part]:
        layers = {"norm": self.norm, "into": self.into, "conv": self.conv, "ssm": self.ssm, "out": self.out}
        return [Part(name, layer, Fraction(1)) for name, layer in layers.items()]

    def init_state(self, batch: int) -> State:
        return self.conv.init_state(batch), self.ssm.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        conv, ssm = inner(state, 2)
        wide, _ = self.into.run(self.norm.run(u, None, keep)[0], None, keep)
        x, gate = wide.split(self.width, dim=1)
        x, conv = self.conv.run(x, conv, keep)
        y, ssm = self.ssm.run(x, ssm, keep)
        y, _ = self.out.run((y + self.D * x) * nn.functional.silu(gate), None, keep)
        return u + y, (conv, ssm)
