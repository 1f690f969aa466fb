"""Discretisation in real arithmetic: from A and Δ to the logarithm of Ā and the weight w of a mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Discretized = tuple[Tensor, Tensor]


def simple(re: Tensor, im: Tensor, dt: Tensor) -> Discretized:
    """Ā = exp(ΔA), w = Δ."""
    return torch.stack((re * dt, im * dt), -1), torch.stack((dt, torch.zeros_like(dt)), -1)


def zoh(re: Tensor, im: Tensor, dt: Tensor) -> Discretized:
    """Ā = exp(ΔA), w = Δ (exp(ΔA) - 1) / (ΔA), without cancellation for small ΔA."""
    x, y = re * dt, im * dt
    half = torch.sin(y / 2)
    top_re = torch.expm1(x) * torch.cos(y) - 2 * half * half
    top_im = torch.exp(x) * torch.sin(y)
    scale = dt / (x * x + y * y)
    w = torch.stack(((top_re * x + top_im * y) * scale, (top_im * x - top_re * y) * scale), -1)
    return torch.stack((x, y), -1), w


def bilinear(re: Tensor, im: Tensor, dt: Tensor) -> Discretized:
    """Ā = (1 + ΔA/2) / (1 - ΔA/2), w = Δ / (1 - ΔA/2)."""
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
    """By name; the rule is one function of (Re A, Im A, Δ)."""
    if name not in DISCRETIZATIONS:
        raise ValueError(f"unknown discretization {name!r}: choose one of {', '.join(DISCRETIZATIONS)}")
    return DISCRETIZATIONS[name]
