"""Bring a signal to a common level before a network, and back after it."""

from __future__ import annotations

from fractions import Fraction
from math import exp, log
from typing import Any

import torch
from torch import Tensor

from centaurus.layer import Layer, State
from centaurus.nn.containers import Composite, Part, inner

FLOOR = 1e-5  # -100 dBFS: what is quieter is not brought up any further
FEW_HOPS = 16  # up to here the follower is a chain of maxima, beyond it one cumulative maximum


class Leveled(Composite):
    """Divides by the level of the signal, runs ``body``, and multiplies by that level again.

    Norms inside a network forget how loud its input is; this makes the whole exactly as loud as what comes in, and
    silence silent. The level is the RMS of a hop; it rises at once and falls to 1/e in ``release`` hops. Of the input
    the share ``kept`` remains in the output.
    """

    like: Tensor

    def __init__(self, body: Layer, release: float, kept: float = 0.0) -> None:
        super().__init__()
        if not release > 0:
            raise ValueError(f"the release of a level should be above 0 hops, got {release}")
        if body.ratio != 1:
            raise ValueError(f"a body that keeps its level should keep its rate, got ratio {body.ratio}")
        if not 0 <= kept < 1:
            raise ValueError(f"the share of the input that is kept should be from 0 to below 1, got {kept}")
        self.body, self.kept = body, kept
        if body.delay:
            raise ValueError(f"a body that keeps its level should have no delay, got {body.delay} samples")
        self.hop = body.hop
        self.release, self.decay = release, exp(-1 / release)
        self.register_buffer("like", torch.empty(0), persistent=False)

    def arguments(self) -> dict[str, Any]:
        return {"body": self.body, "release": self.release, "kept": self.kept}

    def parts(self) -> list[Part]:
        return [Part("body", self.body, Fraction(1))]

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, 1), self.body.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        past, body = inner(state, 2)
        hops = u.unflatten(-1, (-1, self.hop)).square().mean((1, 3))
        levels = follow((hops + FLOOR**2).sqrt(), self.decay, past if isinstance(past, Tensor) else None)
        scale = levels[:, None].repeat_interleave(self.hop, -1)
        y, body = self.body.run(u / scale, body, keep)
        y = y * scale
        y = torch.lerp(y, u, self.kept) if self.kept else y
        return y, (levels[:, -1:].clone(), body) if keep else ()


def follow(x: Tensor, decay: float, past: Tensor | None) -> Tensor:
    """y[t] = max(x[t], decay · y[t-1]) along the last axis, for positive x."""
    start = torch.zeros_like(x[..., :1]) if past is None else past
    if x.shape[-1] <= FEW_HOPS:
        found = [start]
        for k in range(x.shape[-1]):
            found.append(torch.maximum(x[..., k : k + 1], decay * found[-1]))
        return torch.cat(found[1:], dim=-1)
    first = torch.maximum(x[..., :1], decay * start)
    x = torch.cat([first, x[..., 1:]], dim=-1)
    age = torch.arange(x.shape[-1], device=x.device, dtype=torch.float64) * log(decay)
    return ((x.double().log() - age).cummax(-1).values + age).exp().to(x.dtype)
