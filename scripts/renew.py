"""Modes that remember longer than anything lasts, exchanged for modes of short memory.

At first the modes of a pointwise layer forget after 20 to 2,000 frames, as the paper has it for samples. At 31 or 62
frames a second most of that is longer than any row of a training, and such modes hardly move.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from centaurus.ssm import SSM

SHORTEST, LONGEST = 1.5, 60.0  # frames of memory of the new modes


def memories(layer: SSM) -> Tensor:
    """Frames after which each mode has fallen to 1/e."""
    return 1 / (nn.functional.softplus(layer.A_real) * layer.log_dt.exp())


def importance(layer: SSM) -> Tensor:
    """Share of each mode in the layer's response to white noise, before modes interfere."""
    gain = layer.log_dt.exp() * memories(layer).sqrt()
    each = layer.C.norm(dim=0) * layer.B.norm(dim=1) * gain
    return each / each.sum()


@torch.no_grad()
def shorten(net: nn.Module, seed: int = 0) -> None:
    """Give all modes of a network's pointwise layers memories from ``SHORTEST`` to ``LONGEST``, before training."""
    rng = torch.Generator().manual_seed(seed)
    for layer in net.modules():
        if isinstance(layer, SSM) and layer.B.ndim == 2:
            set_memories(layer, torch.arange(len(layer.log_dt)), rng)


def set_memories(layer: SSM, modes: Tensor, rng: torch.Generator) -> None:
    """Spread the memories of some modes from ``SHORTEST`` to ``LONGEST``, with random frequencies."""
    memory = torch.exp(torch.linspace(math.log(SHORTEST), math.log(LONGEST), len(modes)))
    step = (0.2 / memory).sqrt()  # states of unit input as large as those of the fastest modes at first
    layer.log_dt[modes] = step.log()
    layer.A_real[modes] = torch.log(torch.expm1(1 / (memory * step)))
    angles = torch.rand(len(modes), generator=rng) * (0.2 + 5 / memory).clamp(max=2.2)
    layer.A_imag[modes] = angles / step


@torch.no_grad()
def renew(net: nn.Module, longer: float = 100.0, share: float = 0.75, seed: int = 0) -> float:
    """Exchange the least important ``share`` of the modes with a memory above ``longer`` frames, in every layer.

    New modes start with C = 0, so only what the old ones did is lost; the mean share of that is returned.
    """
    rng, lost = torch.Generator().manual_seed(seed), []
    for layer in net.modules():
        if not isinstance(layer, SSM) or layer.B.ndim != 2:
            continue
        slow = torch.nonzero(memories(layer) > longer)[:, 0]
        weight = importance(layer)
        modes = slow[weight[slow].argsort()[: round(share * len(slow))]]
        lost.append(float(weight[modes].sum()))
        set_memories(layer, modes, rng)
        size = layer.B.norm(dim=1).median() / math.sqrt(layer.B.shape[1])
        layer.B[modes] = torch.randn(len(modes), layer.B.shape[1], generator=rng) * size
        layer.C[:, modes] = 0
    return sum(lost) / max(1, len(lost))
