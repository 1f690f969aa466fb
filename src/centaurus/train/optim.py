"""Optimisers, the schedule of the learning rate, and the exponential moving average (EMA) of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import distributed, nn

from centaurus.kernels.precision import by_onednn, suits_onednn
from centaurus.models.network import Network

SPARED = ("bias", "D")
MOMENTUM = 0.95
SIZE = 0.2  # root mean square of an update at a learning rate of 1: about AdamW's, so that its learning rates hold
QUINTIC = (3.4445, -4.775, 2.0315)  # brings singular values between 0 and 1 close to 1 in five iterations


@runtime_checkable
class Undecayed(Protocol):
    """A layer that lists the parameters to exclude from weight decay."""

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


def parameter_groups(net: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return a network's trainable parameters as groups for any torch optimiser: with weight decay, and without.

    Decay would harm A and Δ of the state-space layers, biases, D and norms: they are in the second group.
    ``torch.optim.AdamW(ct.parameter_groups(net, weight_decay=0.02), lr=1e-3)``.
    """
    with_decay, without = decayed_and_not(net)
    groups: list[dict[str, Any]] = [
        {"params": with_decay, "weight_decay": weight_decay},
        {"params": without, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(net: nn.Module, lr: float, decay: float) -> torch.optim.AdamW:
    """Return torch's AdamW with its own defaults, in two groups."""
    return torch.optim.AdamW(parameter_groups(net, decay), lr=lr, fused=_fused(net))


def _fused(net: nn.Module) -> bool:
    """Whether AdamW runs as one kernel: on CPUs. On a GPU torch's default is as fast and knows loss scaling."""
    return not torch.cuda.is_available() and all(p.is_floating_point() for p in net.parameters())


class Muon(torch.optim.AdamW):
    """AdamW, but groups marked ``matrices`` are updated by the orthogonal matrix nearest to their momentum.

    All directions of a matrix then learn at the same rate (Jordan et al. 2024), scaled as by Liu et al. (2025). torch's
    own Muon does not take convolutions and needs seconds a step on a CPU without bfloat16 instructions. ``rounded``
    computes the orthogonal matrix in bfloat16: half the time where the CPU has such products.
    """

    rounded = False

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the matrices here, and all else by AdamW."""
        if closure is not None:
            raise ValueError("Muon does not take a closure: compute the gradients before step()")
        for group in self.param_groups:
            if group.get("matrices"):
                self._turn([p for p in group["params"] if p.grad is not None], group["lr"], group["weight_decay"])
        super().step()

    def _turn(self, matrices: list[nn.Parameter], lr: float, decay: float) -> None:
        if not matrices:
            return
        gradients, momenta = [], []
        for p in matrices:
            gradient, state = p.grad, self.state[p]
            assert gradient is not None
            state.setdefault("step", torch.zeros(()))  # AdamW expects it when it is restored
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(p)
            gradients.append(gradient)
            momenta.append(state["momentum"])
            p.grad = None  # AdamW has nothing left to do for it
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)
        updates = self._turned([x.flatten(1) for x in ahead])
        torch._foreach_mul_([*matrices], 1 - lr * decay)
        for p, update in zip(matrices, updates, strict=True):
            p.add_(update.reshape(p.shape), alpha=-lr * SIZE * max(update.shape) ** 0.5)

    def _turned(self, matrices: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the nearest orthogonal matrix of each; several processes share the work and exchange the results."""
        processes = distributed.get_world_size() if distributed.is_initialized() else 1
        parts = shared_out([x.shape for x in matrices], processes)
        own = parts[distributed.get_rank() if processes > 1 else 0]
        result: dict[int, torch.Tensor] = {}
        for shape in dict.fromkeys(matrices[k].shape for k in own):
            same = [k for k in own if matrices[k].shape == shape]
            stacked = torch.stack([matrices[k] for k in same])
            result |= zip(
                same, orthogonal(stacked.bfloat16() if self.rounded else stacked).to(stacked.dtype), strict=True
            )
        if processes == 1:
            return [result[k] for k in own]
        numbers = [sum(matrices[k].numel() for k in part) for part in parts]
        packed = matrices[0].new_zeros(max(numbers))
        if own:
            packed[: sum(result[k].numel() for k in own)] = torch.cat([result[k].flatten() for k in own])
        received = [torch.empty_like(packed) for _ in parts]
        distributed.all_gather(received, packed)
        for part, count, values in zip(parts, numbers, received, strict=True):
            each = values[:count].split([matrices[k].numel() for k in part])
            result |= {k: x.view(matrices[k].shape) for k, x in zip(part, each, strict=True)}
        return [result[k] for k in range(len(matrices))]


def shared_out(shapes: Sequence[Sequence[int]], processes: int) -> list[list[int]]:
    """Return the matrices of each process, in order: the largest first, each to the one with the least work so far."""
    work, parts = [0] * processes, [list[int]() for _ in range(processes)]
    costs = [min(shape) * rows * columns for shape in shapes for rows, columns in [shape]]
    for k in sorted(range(len(shapes)), key=lambda k: -costs[k]):
        least = work.index(min(work))
        work[least] += costs[k]
        parts[least].append(k)
    return [sorted(part) for part in parts]


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Matrices (count, rows, columns) with the same singular vectors, and singular values near 1: Newton and Schulz."""
    wide = x.mT if x.shape[1] > x.shape[2] else x
    wide = wide / (torch.linalg.matrix_norm(wide, keepdim=True) + 1e-12)
    if suits_onednn(wide[0], wide[0].mT):
        wide = torch.stack([_by_matrix(each) for each in wide])
    else:
        a, b, c = QUINTIC
        for _ in range(5):
            square = wide @ wide.mT
            polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
            wide = torch.baddbmm(wide, polynomial, wide, beta=a)
    return wide.mT if x.shape[1] > x.shape[2] else wide


def _by_matrix(x: torch.Tensor) -> torch.Tensor:
    """The iterations of ``orthogonal`` for one matrix, with the faster library's products."""
    a, b, c = QUINTIC
    x = x.contiguous()
    for _ in range(5):  # (a + b S + c S²) x with S = x xᵀ; the numbers go onto diagonals, which are short
        square = by_onednn(x, x.t())
        inner = square * c
        inner.diagonal().add_(b)
        outer = by_onednn(square, inner)
        outer.diagonal().add_(a)
        x = by_onednn(outer, x)
    return x


def muon(net: nn.Module, lr: float, decay: float, rounded: bool = False) -> Muon:
    """Muon on decayed parameters that are matrices when flattened after the first axis; AdamW on the rest."""
    with_decay, without = decayed_and_not(net)
    matrices = [p for p in with_decay if min(p.flatten(1).shape) > 1]
    others = [p for p in with_decay if min(p.flatten(1).shape) == 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": decay, "matrices": True}]
    groups += [{"params": others, "weight_decay": decay}, {"params": without, "weight_decay": 0.0}]
    optimizer = Muon([group for group in groups if group["params"]], lr=lr, fused=_fused(net))
    optimizer.rounded = rounded
    return optimizer


OPTIMIZERS = {"adamw": adamw, "muon": muon}


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def cosine(progress: float, warmup: float) -> float:
    """The factor on the learning rate: a line to 1 over the first ``warmup`` of training, then half a cosine to 0."""
    if not 0 <= warmup < 1:
        raise ValueError(f"the warm-up is a fraction of training, at least 0 and below 1: got {warmup}")
    if progress < warmup:
        return max(progress, 0.0) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - warmup) / (1 - warmup))))


@dataclass(frozen=True)
class Budget:
    """The length of training, in optimiser steps or by the clock; exactly one is not zero."""

    steps: int = 0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.minutes > 0):
            raise ValueError(f"a budget is a number of steps or of minutes, got {self.steps} and {self.minutes}")

    def progress(self, steps: int, seconds: float) -> float:
        """Return the fraction of the budget used after this many steps and seconds, from 0 to 1."""
        return steps / self.steps if self.steps else seconds / (60 * self.minutes)

    def coming(self, steps: int, seconds: float) -> float:
        """Return the fraction at the middle of the next step, so that neither the first nor the last rate is 0."""
        return (steps + 0.5) / self.steps if self.steps else min(1.0, self.progress(steps, seconds))


class Average:
    """The exponential moving average (EMA) of a network's weights. ``decay`` 0 is the network itself.

    So that the random initialisation does not linger, the decay after n steps is at most (1 + n) / (10 + n).
    """

    def __init__(self, net: Network, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"the decay of an EMA should be from 0 to below 1, got {decay}")
        self.decay = decay
        self.net = copy.deepcopy(net).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, net: nn.Module, step: int) -> None:
        """Update the average with the network after its ``step``-th step (from 1)."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        mine, theirs = self.net.state_dict(), net.state_dict()
        real = [name for name, x in mine.items() if x.is_floating_point()]
        if real:
            torch._foreach_lerp_([mine[name] for name in real], [theirs[name] for name in real], weight)
        for name in mine.keys() - real:
            mine[name].copy_(theirs[name])
