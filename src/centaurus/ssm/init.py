"""The paper's initialisations: A = -1/2 + iπn, Δ geometric in [1e-3, 1e-1], Kaiming-uniform projections."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from centaurus.ssm.topology import Topology

DT_RANGE = (1e-3, 1e-1)
GROUP = 4  # pointwise: A runs within groups of this many states, Δ over the groups


def _along(values: Tensor, index: str, indices: str, size: dict[str, int]) -> Tensor:
    """Values that vary along one index only."""
    shape = [size[i] if i == index else 1 for i in indices]
    return values.reshape(shape).expand([size[i] for i in indices]).clone()


def grouped_states(t: Topology) -> bool:
    """Whether one index of K must carry both the spread of Δ and that of A (pointwise, or one sub-state)."""
    wide = [i for i in t.modes if t.size[i] > 1]
    return len(t.modes) == 1 or (t.size[t.modes[-1]] == 1 and t.step_indices() != t.modes and len(wide) <= 1)


def frequencies(t: Topology) -> Tensor:
    """Im(A): π n over the last index of K; within groups of four states where K has a single index."""
    if grouped_states(t):
        index = next((i for i in t.modes if t.size[i] > 1), t.modes[0])
        return _along(math.pi * (torch.arange(t.size[index]) % GROUP), index, t.modes, t.size)
    index = t.modes[-1]
    return _along(math.pi * torch.arange(t.size[index]), index, t.modes, t.size)


def log_steps(t: Topology) -> Tensor:
    """log Δ: geometric over the input channels or states, whichever of i, j, n is first and has more than one."""
    indices = t.step_indices()
    order = [i for i in "ijn" if i in indices] + [i for i in indices if i not in "ijn"]
    index = next((i for i in order if t.size[i] > 1), order[0])
    size = t.size[index]
    together = GROUP if grouped_states(t) and size > GROUP else 1
    position, last = torch.arange(size) // together, max(1, (size - 1) // together)
    low, high = (math.log(x) for x in DT_RANGE)
    return _along(low + (high - low) * position / last, index, indices, t.size)


def projection(t: Topology, letter: str) -> Tensor:
    """Kaiming uniform with a = √5: bound 1/√fan_in."""
    bound = 1 / math.sqrt(t.fan_in(letter))
    return torch.empty(t.shape(letter)).uniform_(-bound, bound)


REAL_PART = math.log(math.expm1(0.5))  # softplus of this is 1/2
