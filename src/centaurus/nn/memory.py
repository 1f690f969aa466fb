"""Small layers with memory: a causal convolution, means over the past, a DC blocker."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from centaurus.layer import Layer, State, check_channels, state_tensors
from centaurus.nn.containers import Counts
from centaurus.nn.layers import Counted, at_least_one, uniform


def history(layer: Layer, state: State | None, batch: int) -> list[Tensor]:
    """The tensors of a state, or of zero history where there is none."""
    return state_tensors(layer.init_state(batch) if state is None else state)


class CausalConv(Counted):
    """A depthwise convolution over this frame and the ``kernel - 1`` before it."""

    def __init__(self, channels: int, kernel: int = 4, bias: bool = True) -> None:
        super().__init__()
        at_least_one(channels=channels, kernel=kernel)
        self.weight = uniform(channels, kernel, fan_in=kernel)
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        self.cost = Counts(channels * kernel, 2 * channels * kernel)

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.weight.shape[0], "kernel": self.weight.shape[1], "bias": self.bias is not None}

    def init_state(self, batch: int) -> State:
        channels, kernel = self.weight.shape
        return self.weight.new_zeros(batch, channels, kernel - 1)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("CausalConv", u, self.weight.shape[0])
        (past,) = history(self, state, u.shape[0])
        x = torch.cat([past.transpose(0, 1), u.transpose(0, 1)], dim=-1)  # c b t+k-1
        y = _taps(x, self.weight, self.bias).transpose(0, 1)
        return y, x[..., u.shape[-1] :].transpose(0, 1).clone() if keep else ()


def _taps(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution of (c, b, t + k - 1) with taps (c, k), as sums of shifted copies."""
    learning = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if torch.compiler.is_compiling() or not learning:
        x = nn.functional.conv1d(x.transpose(0, 1), weight[:, None], bias, groups=weight.shape[0])
        return x.transpose(0, 1)
    y = _Taps.apply(x, weight)
    return y if bias is None else y + bias[:, None, None]


class _Taps(torch.autograd.Function):
    """Few taps need no transform: a handful of multiply-adds over the signal, both ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        frames = x.shape[-1] - weight.shape[1] + 1
        y = x[..., :frames] * weight[:, :1, None]
        for k in range(1, weight.shape[1]):
            y.addcmul_(x[..., k : k + frames], weight[:, k, None, None])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        dx, frames, taps = torch.zeros_like(x), g.shape[-1], []
        for k in range(weight.shape[1]):
            dx[..., k : k + frames].addcmul_(g, weight[:, k, None, None])
            taps.append((g * x[..., k : k + frames]).sum((1, 2)))
        return dx, torch.stack(taps, dim=1)


class Remembering(Counted):
    """A layer without weights but with memory: it keeps an empty buffer to know dtype and device."""

    like: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        at_least_one(channels=channels)
        self.channels = channels
        self.register_buffer("like", torch.empty(0), persistent=False)


class Delay(Remembering):
    """The signal of ``channels`` channels, ``frames`` frames later; silence at the start."""

    def __init__(self, channels: int, frames: int) -> None:
        super().__init__(channels)
        at_least_one(frames=frames)
        self.delay = Fraction(frames)

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.channels, "frames": int(self.delay)}

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, self.channels, int(self.delay))

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("Delay", u, self.channels)
        (past,) = history(self, state, u.shape[0])
        x = torch.cat([past.to(u.dtype), u], dim=-1)
        return x[..., : u.shape[-1]], x[..., u.shape[-1] :].clone() if keep else ()


class RunningMean(Remembering):
    """At every frame the mean of all frames so far; the memory is that mean and how many frames it is of."""

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.channels}

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, self.channels, 1), self.like.new_zeros(batch, 1, 1)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("RunningMean", u, self.channels)
        mean, count = history(self, state, u.shape[0])
        steps = torch.arange(1, u.shape[-1] + 1, device=u.device, dtype=u.dtype)
        counts = count + steps
        y = (u - mean).cumsum(-1) / counts + mean
        return y, (y[..., -1:].clone(), counts[..., -1:].clone())


class WindowedMean(Remembering):
    """At every frame the mean of the last ``window`` frames, or of all of them while there are fewer."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__(channels)
        at_least_one(window=window)
        self.window = window

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.channels, "window": self.window}

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, self.channels, self.window - 1), self.like.new_zeros(batch, 1, 1)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("WindowedMean", u, self.channels)
        past, count = history(self, state, u.shape[0])
        x = torch.cat([past, u], dim=-1)
        steps = torch.arange(1, u.shape[-1] + 1, device=u.device, dtype=u.dtype)
        counts = (count + steps).clamp_max(self.window)
        y = nn.functional.avg_pool1d(x, self.window, stride=1) * (self.window / counts)
        return y, (x[..., u.shape[-1] :].clone(), counts[..., -1:].clone())


class DCBlock(Remembering):
    """Takes away a constant offset: y[t] = u[t] - u[t-1] + pole · y[t-1], with a fixed pole (13 Hz at 16 kHz)."""

    def __init__(self, channels: int = 1, pole: float = 0.995) -> None:
        super().__init__(channels)
        if not 0 < pole < 1:
            raise ValueError(f"the pole of a DC blocker should be between 0 and 1, got {pole}")
        self.pole = pole

    def arguments(self) -> dict[str, Any]:
        return {"channels": self.channels, "pole": self.pole}

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, self.channels, 1)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("DCBlock", u, self.channels)
        (past,) = history(self, state, u.shape[0])
        sums = leaky_sum(u, self.pole, past)
        before = torch.cat([past, sums[..., :-1]], dim=-1)
        return u - (1 - self.pole) * before, sums[..., -1:].clone()


def leaky_sum(u: Tensor, decay: float, start: Tensor, block: int = 64) -> Tensor:
    """s[t] = decay · s[t-1] + u[t] along the last axis: a matrix inside a block, the same sum over the blocks' ends."""
    span = min(block, u.shape[-1])
    age = torch.arange(span, device=u.device, dtype=torch.float64)
    within = (decay ** (age - age[:, None]).clamp_min(0)).triu().to(u.dtype)
    since = (decay ** (age + 1)).to(u.dtype)
    if u.shape[-1] <= block:
        return u @ within + start * since
    padded = nn.functional.pad(u, (0, -u.shape[-1] % block)).unflatten(-1, (-1, block)) @ within
    ends = leaky_sum(padded[..., -1], decay**block, start, block)
    starts = torch.cat([start, ends[..., :-1]], dim=-1)
    return (padded + starts[..., None] * since).flatten(-2)[..., : u.shape[-1]]
