"""AdamW with weight decay on the matrices that mix channels or states, and not on A, Δ, norms and biases."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn

SPARED = ("bias", "D")


@runtime_checkable
class Undecayed(Protocol):
    """A layer that names the parameters weight decay would harm."""

    def undecayed(self) -> list[nn.Parameter]: ...


def decayed_and_not(net: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters in two lists. Without decay: A and Δ of every layer, biases, D, and vectors (norms)."""
    spared = {id(p) for layer in net.modules() if isinstance(layer, Undecayed) for p in layer.undecayed()}
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, p in net.named_parameters():
        if p.requires_grad:
            spare = id(p) in spared or p.dim() < 2 or name.rpartition(".")[2] in SPARED
            (free if spare else decayed).append(p)
    return decayed, free


def adamw(net: nn.Module, lr: float, decay: float) -> torch.optim.AdamW:
    """torch's AdamW with its own defaults, in two groups."""
    with_decay, without = decayed_and_not(net)
    groups = [{"params": with_decay, "weight_decay": decay}, {"params": without, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=lr)


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr
