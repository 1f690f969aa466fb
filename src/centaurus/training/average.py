"""The exponential moving average of a network's weights: what is validated and shipped."""

from __future__ import annotations

import copy

import torch
from torch import nn

from centaurus.models.network import Network


class Average:
    """A copy of a network that follows it. ``decay`` 0 is the network itself, a step late in nothing.

    Early on the average would remember the random start: after n steps the decay is at most (1 + n) / (10 + n).
    """

    def __init__(self, net: Network, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of an average is at least 0 and below 1: got {decay}")
        self.decay = decay
        self.net = copy.deepcopy(net).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module, step: int) -> None:
        """Move towards the network after its ``step``-th step (from 1)."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        mine, theirs = self.net.state_dict(), net.state_dict()
        real = [name for name, x in mine.items() if x.is_floating_point()]
        if real:
            torch._foreach_lerp_([mine[name] for name in real], [theirs[name] for name in real], weight)
        for name in mine.keys() - real:
            mine[name].copy_(theirs[name])
