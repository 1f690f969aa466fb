"""Initial values of A and Δ (the paper's, or spread over a band), and discretisations in real arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.ssm.topology import Topology

Discretized = tuple[Tensor, Tensor]

TURN_HIGH = 6.28125  # the leading bits of 2π: products with integers up to a few hundred are exact in float32
TURN_LOW = 2 * math.pi - TURN_HIGH
SMALL = 1e-3  # |ΔA| below which (exp(ΔA) - 1) / ΔA is computed by its series: five terms leave an error of 1e-18


def wrapped(angle: Tensor) -> Tensor:
    """Return the angle per step reduced to -π … π: whole turns would cost precision in high powers of Ā."""
    turns = torch.round(angle.detach() / (2 * math.pi))
    return angle - turns * TURN_HIGH - turns * TURN_LOW


def simple(re: Tensor, im: Tensor, dt: Tensor) -> Discretized:
    """Return log Ā = ΔA as (log|Ā|, angle) and w = Δ."""
    return torch.stack((re * dt, wrapped(im * dt)), -1), torch.stack((dt, torch.zeros_like(dt)), -1)


class Simple(torch.autograd.Function):
    """``simple`` for A = -softplus(A_real) + i A_imag and Δ = exp(log_dt), as one autograd node.

    As separate operations it takes about forty calls for a few hundred numbers, longer than the arithmetic of many
    layers. ``log_dt`` has the axes of A, with size 1 where Δ is shared.
    """

    @staticmethod
    def forward(ctx: Any, log_dt: Tensor, A_real: Tensor, A_imag: Tensor) -> Discretized:
        dt = log_dt.exp()
        decay = torch.nn.functional.softplus(A_real)
        log_a, w = decay.new_empty(*decay.shape, 2), decay.new_zeros(*decay.shape, 2)
        torch.mul(decay, -dt, out=log_a[..., 0])
        log_a[..., 1] = wrapped(A_imag * dt)
        w[..., 0] = dt
        ctx.save_for_backward(dt, decay, A_real, A_imag)
        return log_a, w

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_log: Tensor, d_w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dt, decay, A_real, A_imag = ctx.saved_tensors
        growth, angle = d_log.unbind(-1)
        by_growth, by_angle = growth * dt, angle * dt
        d_log_dt = torch.addcmul(d_w[..., 0] * dt, by_growth, decay, value=-1).addcmul_(by_angle, A_imag)
        d_real = by_growth.mul_(torch.sigmoid(A_real)).neg_()
        return d_log_dt.sum_to_size(dt.shape), d_real, by_angle


def zoh(re: Tensor, im: Tensor, dt: Tensor) -> Discretized:
    """Return log Ā = ΔA and w = Δ (exp(ΔA) - 1) / (ΔA), without cancellation for small ΔA (w = Δ at zero)."""
    x, y = re * dt, im * dt
    angle = wrapped(y)
    small = torch.maximum(x.abs(), y.abs()) < SMALL
    # Both branches are computed; where a branch is not used, its input is replaced by one with a finite gradient.
    near_x, near_y = torch.where(small, x, 0.0), torch.where(small, y, 0.0)
    near_re, near_im = torch.ones_like(near_x), torch.zeros_like(near_x)
    for k in (5, 4, 3, 2):  # Horner: 1 + z/2 (1 + z/3 (1 + z/4 (1 + z/5)))
        near_re, near_im = (
            1 + (near_re * near_x - near_im * near_y) / k,
            (near_re * near_y + near_im * near_x) / k,
        )
    far_x, far_y = torch.where(small, -1.0, x), torch.where(small, 0.0, y)
    half = torch.sin(angle / 2)
    top_re = torch.expm1(far_x) * torch.cos(angle) - 2 * half * half
    top_im = torch.exp(far_x) * torch.sin(angle)
    size = torch.maximum(far_x.abs(), far_y.abs()).detach()  # divided out first: |ΔA|² may overflow
    unit_x, unit_y = far_x / size, far_y / size
    scale = 1 / (size * (unit_x * unit_x + unit_y * unit_y))
    far_re, far_im = (top_re * unit_x + top_im * unit_y) * scale, (top_im * unit_x - top_re * unit_y) * scale
    w = torch.stack((dt * torch.where(small, near_re, far_re), dt * torch.where(small, near_im, far_im)), -1)
    return torch.stack((x, angle), -1), w


def bilinear(re: Tensor, im: Tensor, dt: Tensor) -> Discretized:
    """Return log Ā of Ā = (1 + ΔA/2) / (1 - ΔA/2), and w = Δ / (1 - ΔA/2)."""
    x, y = re * dt / 2, im * dt / 2
    below = (1 - x) * (1 - x) + y * y
    growth = 0.5 * torch.log1p(4 * x / below)  # |1+z|² = |1-z|² + 4 Re z
    angle = torch.atan2(y, 1 + x) + torch.atan2(y, 1 - x)
    w = torch.stack((dt * (1 - x) / below, dt * y / below), -1)
    return torch.stack((growth, angle), -1), w


DISCRETIZATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Discretized]] = {
    "simple": simple,
    "zoh": zoh,
    "bilinear": bilinear,
}


def discretization(name: str) -> Callable[[Tensor, Tensor, Tensor], Discretized]:
    """Return a discretisation by its name: a function from (Re A, Im A, Δ) to log Ā and w."""
    if name not in DISCRETIZATIONS:
        raise ValueError(f"unknown discretization {name!r}: choose one of {', '.join(DISCRETIZATIONS)}")
    return DISCRETIZATIONS[name]


DT_RANGE = (1e-3, 1e-1)  # initial Δ, as in S4D
BAND_STEP = 0.05  # Δ of every mode that is spread over a band; frequencies and decays differ by A only
BAND_CORNER = 300.0  # Hz: the modes of a band are spaced evenly below it, and by equal ratios above
BAND_SHARPNESS = 3.0  # frequency over bandwidth of a band's resonances
GROUP = 4  # pointwise: A varies within groups of this many states, Δ over the groups


def _along(values: Tensor, index: str, indices: str, size: dict[str, int]) -> Tensor:
    """Return a tensor with the axes ``indices`` that has these values along one of them, repeated along the others."""
    shape = [size[i] if i == index else 1 for i in indices]
    return values.reshape(shape).expand([size[i] for i in indices]).clone()


def grouped_states(t: Topology) -> bool:
    """Return whether both Δ and A have to vary along one index of K (pointwise, or a single sub-state)."""
    wide = [i for i in t.modes if t.size[i] > 1]
    return len(t.modes) == 1 or (t.size[t.modes[-1]] == 1 and t.step_indices() != t.modes and len(wide) <= 1)


def frequencies(t: Topology) -> Tensor:
    """Return Im(A): π n over the last index of K, or within groups of four states if K has a single index."""
    if grouped_states(t):
        index = next((i for i in t.modes if t.size[i] > 1), t.modes[0])
        return _along(math.pi * (torch.arange(t.size[index]) % GROUP), index, t.modes, t.size)
    index = t.modes[-1]
    return _along(math.pi * torch.arange(t.size[index]), index, t.modes, t.size)


def log_steps(t: Topology) -> Tensor:
    """Return log Δ: evenly spaced over the first of i, j, n that is larger than 1, constant over the others."""
    indices = t.step_indices()
    order = [i for i in "ijn" if i in indices] + [i for i in indices if i not in "ijn"]
    index = next((i for i in order if t.size[i] > 1), order[0])
    size = t.size[index]
    together = GROUP if grouped_states(t) and size > GROUP else 1
    position, last = torch.arange(size) // together, max(1, (size - 1) // together)
    low, high = (math.log(x) for x in DT_RANGE)
    return _along(low + (high - low) * position / last, index, indices, t.size)


def kaiming_uniform(*shape: int, fan_in: int) -> Tensor:
    """Return a tensor drawn uniformly from ±1/√fan_in: Kaiming initialisation with a = √5, as in ``nn.Linear``."""
    bound = 1 / math.sqrt(fan_in)
    return torch.empty(shape).uniform_(-bound, bound)


def band_modes(shape: Sequence[int], low: float, high: float, rate: float) -> tuple[Tensor, Tensor]:
    """Return A_real and A_imag of modes that resonate from ``low`` to ``high`` Hz at a sample rate, in random order.

    Frequencies are spaced evenly below 300 Hz and by equal ratios above; the bandwidth of a resonance is a third of its
    frequency plus ``low``. Δ is ``BAND_STEP`` for every mode.
    """
    if not 0 < low < high <= rate / 2:
        raise ValueError(f"band=(low, high, rate) should lie between 0 and {rate / 2:g} Hz, got {low:g} to {high:g}")
    count = math.prod(shape)
    ends = [math.log1p(f / BAND_CORNER) for f in (low, high)]
    hertz = BAND_CORNER * torch.expm1(torch.linspace(ends[0], ends[1], count))
    hertz = hertz[torch.randperm(count)].reshape(tuple(shape))
    decay = math.pi * (hertz / BAND_SHARPNESS + low) / (rate * BAND_STEP)
    return torch.log(torch.expm1(decay)), 2 * math.pi * hertz / (rate * BAND_STEP)  # softplus of the first is the decay


REAL_PART = math.log(math.expm1(0.5))  # softplus of this is 1/2
