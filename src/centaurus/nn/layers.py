"""The small layers between the state-space blocks: projections, resampling, norms, means, short convolutions.

A signal is (batch, channels, time) and may be stored channel first: then a 1×1 or a resampling convolution is one
matrix product for the whole batch and nothing is transposed. All of them keep that layout.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, final

import torch
from torch import Tensor, nn

from centaurus.kernels.precision import projected
from centaurus.layer import Counts, Layer, State, check_channels, state_tensors
from centaurus.nn.fused import finish, pooled, taps
from centaurus.ssm.kernel import kaiming_uniform

MEMORY = "use SSM, CausalConv or LayerNorm, which keep their state in a stream"


class Counted(Layer):
    """A layer whose cost is known when it is constructed."""

    cost: Counts = Counts()

    @final
    def counts(self, convention: str = "table") -> Counts:
        """Return parameters and FLOPs as the paper counts them; both conventions agree."""
        return self.cost


class Stateless(Counted):
    """A layer without state."""

    @final
    def init_state(self, batch: int) -> State:
        return ()


def flat(u: Tensor) -> Tensor:
    """Return (b, c, t) as a matrix (c, b·t): a view where the signal is channel-major in memory."""
    return u.transpose(0, 1).reshape(u.shape[1], -1)


def unflat(x: Tensor, batch: int) -> Tensor:
    """Return the signal (b, c, t) of a matrix (c, b·t)."""
    return x.view(x.shape[0], batch, -1).transpose(0, 1)


def uniform(*shape: int, fan_in: int) -> nn.Parameter:
    """Return a weight drawn from ±1/√fan_in, as ``nn.Linear`` initialises its own."""
    return nn.Parameter(kaiming_uniform(*shape, fan_in=fan_in))


def at_least_one(**sizes: int) -> None:
    """Raise ValueError for a size below one."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} should be at least 1, got {size}")


class Pointwise(Stateless):
    """A 1×1 convolution: one matrix applied to every frame."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        at_least_one(in_channels=in_channels, out_channels=out_channels)
        self.weight = uniform(out_channels, in_channels, fan_in=in_channels)
        self.bias = nn.Parameter(torch.zeros(out_channels, 1)) if bias else None
        self.cost = Counts(in_channels * out_channels, 2 * in_channels * out_channels)

    def arguments(self) -> dict[str, Any]:
        out_channels, in_channels = self.weight.shape
        return {"in_channels": in_channels, "out_channels": out_channels, "bias": self.bias is not None}

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("Pointwise", u, self.weight.shape[1])
        x = flat(u)
        return unflat(projected(self.weight, x, self.bias), u.shape[0]), ()


class Down(Stateless):
    """A convolution whose kernel is its stride: every ``factor`` frames become one."""

    def __init__(self, in_channels: int, out_channels: int, factor: int, bias: bool = False) -> None:
        super().__init__()
        at_least_one(in_channels=in_channels, out_channels=out_channels, factor=factor)
        self.hop, self.ratio = factor, Fraction(1, factor)
        self.weight = uniform(out_channels, in_channels, factor, fan_in=in_channels * factor)
        self.bias = nn.Parameter(torch.zeros(out_channels, 1)) if bias else None
        self.cost = Counts(self.weight.numel(), 2 * in_channels * out_channels)

    def arguments(self) -> dict[str, Any]:
        out_channels, in_channels, factor = self.weight.shape
        sizes = {"in_channels": in_channels, "out_channels": out_channels, "factor": factor}
        return sizes | {"bias": self.bias is not None}

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        _, i, r = self.weight.shape
        check_channels("Down", u, i)
        x = flat(u).view(i, -1, r).transpose(1, 2).reshape(i * r, -1)  # i r, b t
        weight = self.weight.flatten(1)
        return unflat(projected(weight, x, self.bias), u.shape[0]), ()


class Up(Stateless):
    """A transposed convolution whose kernel is its stride: every frame becomes ``factor``.

    ``gain`` scales the initial weights: below one, the output starts quieter than a skip it is added to.
    """

    def __init__(self, in_channels: int, out_channels: int, factor: int, gain: float = 1.0) -> None:
        super().__init__()
        at_least_one(in_channels=in_channels, out_channels=out_channels, factor=factor)
        self.ratio = Fraction(factor)
        self.weight = uniform(in_channels, out_channels, factor, fan_in=in_channels)
        self.weight.data *= gain
        self.cost = Counts(self.weight.numel(), 2 * self.weight.numel())

    def arguments(self) -> dict[str, Any]:
        return dict(zip(("in_channels", "out_channels", "factor"), self.weight.shape, strict=True))

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        i, o, r = self.weight.shape
        check_channels("Up", u, i)
        y = projected(self.weight.flatten(1).t(), flat(u))  # o r, b t
        return unflat(y.view(o, r, -1).transpose(1, 2).reshape(o, -1), u.shape[0]), ()


class AvgPool(Stateless):
    """The mean of every ``factor`` frames."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        at_least_one(factor=factor)
        self.factor = self.hop = factor
        self.ratio = Fraction(1, factor)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return unflat(pooled(flat(u), self.hop), u.shape[0]), ()


class SiLU(Stateless):
    """SiLU, x · sigmoid(x)."""

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return nn.functional.silu(u), ()


class Dropout1d(Stateless):
    """Drops whole channels of a row while training."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"the dropout probability should be from 0 to below 1, got {probability}")
        self.probability = probability

    def mask(self, u: Tensor) -> Tensor | None:
        """Return the factor (b, c, 1) of each channel, or None when nothing is dropped."""
        if not self.training or self.probability == 0:
            return None
        kept = 1 - self.probability
        return torch.empty(*u.shape[:2], 1, dtype=u.dtype, device=u.device).bernoulli_(kept).div_(kept)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        mask = self.mask(u)
        return u if mask is None else u * mask, ()


class LayerNorm(Stateless):
    """Normalise each frame over its channels, then apply SiLU if ``activate``; with one channel there is no norm."""

    def __init__(self, channels: int, activate: bool = False) -> None:
        super().__init__()
        at_least_one(channels=channels)
        self.channels, self.activate = channels, activate
        self.weight = nn.Parameter(torch.ones(channels)) if channels > 1 else None
        self.bias = nn.Parameter(torch.zeros(channels)) if channels > 1 else None

    def join(
        self, u: Tensor, scale: Tensor | None, before: Tensor | None, after: Tensor | None, activate: bool
    ) -> Tensor:
        """Return ``silu(scale · norm(u) + before) + after``; each of the three may be None."""
        check_channels("LayerNorm", u, self.channels)
        if self.weight is not None and self.bias is not None:
            return finish(u, self.weight, self.bias, scale, before, after, activate)
        u = u if scale is None else u * scale
        u = u if before is None else u + before
        u = nn.functional.silu(u) if activate else u
        return u if after is None else u + after

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return self.join(u, None, None, None, self.activate), ()


class Lift(Stateless):
    """A stateless torch module as a layer: an activation, or a ``Conv1d`` of size 1.

    ``Serial(Lift(nn.Conv1d(1, 16, 1)), Lift(nn.GELU()), SSM(...))``. Modules of your own are allowed too if
    every output frame depends only on the input frame at its place, which ``verify`` checks. Saving and exporting
    work for the modules that ``docs/networks.md`` lists.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if isinstance(module, Layer):
            raise TypeError(f"{type(module).__name__} is a centaurus layer already: put it into Serial as it is")
        if not isinstance(module, nn.Module):
            raise TypeError(f"Lift takes a torch module, got {type(module).__name__}")
        for name, inside in module.named_modules():
            if instead := _instead(inside):
                what = f"{name}, a {type(inside).__name__}," if name else f"a {type(inside).__name__}"
                raise ValueError(f"{what} mixes frames and cannot be lifted: {instead}")
        self.module = module
        if isinstance(module, nn.Conv1d):
            products = module.in_channels * module.out_channels
            self.cost = Counts(products, 2 * products)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        y = self.module(u)
        if y.shape[0] != u.shape[0] or y.shape[2:] != u.shape[2:]:
            raise ValueError(
                f"a lifted module should keep the batch and time axes of {tuple(u.shape)}, got {tuple(y.shape)}"
            )
        return y, ()


def _instead(module: nn.Module) -> str:
    """Return what to use instead of a torch module that is known to mix frames or rows; "" for others."""
    if isinstance(module, nn.Linear):
        return (
            f"it acts on the last axis, which is time in (batch, channels, time): "
            f"use Pointwise({module.in_features}, {module.out_features}), which acts on the channels of every frame"
        )
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return "it normalises the last axes, which include time in (batch, channels, time): use ct.nn.LayerNorm"
    fine = isinstance(module, nn.Conv1d) and module.kernel_size == (1,) and module.stride == (1,)
    if isinstance(module, nn.Conv1d) and not (fine and module.padding in ((0,), "valid", "same")):
        return MEMORY
    others = nn.RNNBase, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.ConvTranspose1d, nn.MultiheadAttention
    return MEMORY if isinstance(module, others) else ""


def history(layer: Layer, state: State | None, batch: int) -> list[Tensor]:
    """Return the tensors of a state, or of the initial state if there is none."""
    return state_tensors(layer.init_state(batch) if state is None else state)


class CausalConv(Counted):
    """A causal depthwise convolution over this frame and the ``kernel - 1`` before it."""

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
        y = taps(x, self.weight, self.bias).transpose(0, 1)
        return y, x[..., u.shape[-1] :].transpose(0, 1).clone() if keep else ()


class BandConv(Counted):
    """A causal convolution over bands and time with the same weights in every band: (b, bands · features, t).

    A channel is a feature of a band; the features of a band are adjacent, so mel bands alone have ``in_features=1``. A
    kernel spans ``kernel`` (bands, frames), in time up to the newest frame. Outputs are ``stride`` (bands, frames)
    apart: ``(bands - 1) // stride[0] + 1`` bands of ``out_features``. Bands beyond the ends are zero.

    ``Serial(Mel(257, 40), BandConv(1, 16, 40, kernel=(5, 3), stride=(2, 1)), SiLU(), Pointwise(20 * 16, 80))``
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bands: int,
        kernel: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        bias: bool = True,
    ) -> None:
        super().__init__()
        (across, taps), (apart, hop) = kernel, stride
        at_least_one(in_features=in_features, out_features=out_features, bands=bands, stride=min(stride))
        if across % 2 == 0 or across < 1:
            raise ValueError(f"a kernel should span an odd number of bands, got {across} in kernel={tuple(kernel)}")
        if taps < hop:
            raise ValueError(f"a kernel should span at least its stride of {hop} frames, got kernel={tuple(kernel)}")
        self.in_features, self.out_features, self.bands = in_features, out_features, bands
        self.kernel, self.stride = (across, taps), (apart, hop)
        self.hop, self.ratio = hop, Fraction(1, hop)
        self.out_bands = (bands - 1) // apart + 1
        self.weight = uniform(out_features, in_features, taps, across, fan_in=in_features * taps * across)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.cost = Counts(self.weight.numel(), Fraction(2 * self.weight.numel() * self.out_bands, hop))

    def arguments(self) -> dict[str, Any]:
        names = "in_features", "out_features", "bands", "kernel", "stride"
        return {name: getattr(self, name) for name in names} | {"bias": self.bias is not None}

    def init_state(self, batch: int) -> State:
        return self.weight.new_zeros(batch, self.bands * self.in_features, self.kernel[1] - self.hop)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("BandConv", u, self.bands * self.in_features)
        (past,) = history(self, state, u.shape[0])
        x = torch.cat([past.mT.to(u.dtype), u.mT], dim=1)  # b t c, in memory too
        images = x.unflatten(-1, (self.bands, self.in_features)).permute(0, 3, 1, 2)  # b i t f
        apart, across = self.stride[0], self.kernel[0]
        y = nn.functional.conv2d(images, self.weight, self.bias, (self.hop, apart), (0, across // 2))  # b o t f
        kept = x[:, u.shape[-1] :].mT.to(past.dtype, memory_format=torch.contiguous_format, copy=True) if keep else ()
        return y.permute(0, 2, 3, 1).flatten(2).mT, kept


class Remembering(Counted):
    """A layer with state but without weights: an empty buffer holds its dtype and device."""

    like: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        at_least_one(channels=channels)
        self.channels = channels
        self.register_buffer("like", torch.empty(0), persistent=False)


class Delay(Remembering):
    """Delay the signal by ``frames`` frames; zeros come first."""

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
        return x[..., : u.shape[-1]], x[..., u.shape[-1] :].to(past.dtype, copy=True) if keep else ()


class RunningMean(Remembering):
    """The mean of all frames so far, at every frame; the state is that mean and the number of frames."""

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
    """The mean of the last ``window`` frames, at every frame, or of all frames while there are fewer."""

    def __init__(self, channels: int, window: int) -> None:
        super().__init__(channels)
        at_least_one(window=window)
        self.window = window

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
    """Remove a constant offset: y[t] = u[t] - u[t-1] + pole · y[t-1], with a fixed pole (13 Hz at 16 kHz)."""

    def __init__(self, channels: int = 1, pole: float = 0.995) -> None:
        super().__init__(channels)
        if not 0 < pole < 1:
            raise ValueError(f"the pole of a DC blocker should be between 0 and 1, got {pole}")
        self.pole = pole

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, self.channels, 1)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("DCBlock", u, self.channels)
        (past,) = history(self, state, u.shape[0])
        sums = leaky_sum(u, self.pole, past)
        before = torch.cat([past, sums[..., :-1]], dim=-1)
        return u - (1 - self.pole) * before, sums[..., -1:].clone()


def leaky_sum(u: Tensor, decay: float, start: Tensor, block: int = 64) -> Tensor:
    """Return s[t] = decay · s[t-1] + u[t] along the last axis: a matrix inside a block, a scan over the blocks."""
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
