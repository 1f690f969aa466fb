"""Another start than the paper's: the modes of a layer spread over the band it should hear."""

from __future__ import annotations

import math

import torch

from centaurus.ssm.layer import SSM

STEP = 0.05  # Δ of every mode; frequencies and decays are in A alone
CORNER = 300.0  # below it frequencies are spaced evenly, above it by equal ratios


@torch.no_grad()
def tune(layer: SSM, rate: float, low: float, high: float, sharpness: float = 3.0) -> None:
    """Set the modes to resonate from ``low`` to ``high`` Hz at a sample rate, in random order, a third as wide as high.

    The paper's start gives every output channel the same few modes, which a raw waveform takes long to pull apart.
    """
    if not 0 < low < high <= rate / 2:
        raise ValueError(f"the band should lie between 0 and {rate / 2:g} Hz, got {low:g} to {high:g}")
    count = layer.A_imag.numel()
    ends = [math.log1p(f / CORNER) for f in (low, high)]
    hertz = CORNER * torch.expm1(torch.linspace(ends[0], ends[1], count))
    hertz = hertz[torch.randperm(count)].reshape(layer.A_imag.shape)
    layer.log_dt.fill_(math.log(STEP))
    layer.A_imag.copy_(2 * math.pi * hertz / (rate * STEP))
    decay = math.pi * (hertz / sharpness + low) / (rate * STEP)
    layer.A_real.copy_(torch.log(torch.expm1(decay)))  # A's real part is minus the softplus of this
