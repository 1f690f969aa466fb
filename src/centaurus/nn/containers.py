"""Layers made of layers: in series, residual, hourglass, normalised to a level, and the blocks of the networks.

Each derives its own hop, ratio and delay, so that skips are aligned by construction and any composition streams.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from fractions import Fraction
from math import exp, lcm, log
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from centaurus.layer import Counts, Layer, State, check_layer
from centaurus.nn.layers import CausalConv, Dropout1d, LayerNorm, Pointwise, SiLU

FLOOR = 1e-5  # -100 dBFS: the lowest level; quieter signals are not amplified further
FEW_HOPS = 16  # hops up to which the level is a chain of maxima; beyond, one cumulative maximum


class Part(NamedTuple):
    """A layer inside another, and its rate: ``ratio`` frames per input frame, or ``hertz`` if that is fixed."""

    name: str
    layer: Layer
    ratio: Fraction
    hertz: Fraction | None = None
    counted: bool = True


class Composite(Layer):
    """A layer made of layers, which ``parts`` lists with their rates; ``cost`` is that of its own operations."""

    cost: Counts = Counts()

    def parts(self) -> list[Part]:
        """Return the layers inside, in the order they run: by default every layer that is an attribute, at one rate."""
        return [Part(name, x, Fraction(1)) for name, x in self.named_children() if isinstance(x, Layer)]

    def init_state(self, batch: int) -> State:
        return tuple(part.layer.init_state(batch) for part in self.parts())


def chain(layers: Iterable[Layer]) -> tuple[int, Fraction]:
    """Return hop and ratio of layers in series; the hop is the shortest input that is whole hops for each of them."""
    ratio, hop = Fraction(1), 1
    for layer in layers:
        hop = lcm(hop, (ratio / layer.hop).denominator)
        ratio *= layer.ratio
    return lcm(hop, ratio.denominator), ratio


def total_delay(layers: Iterable[Layer]) -> Fraction:
    """Return the delay of layers in series, in input samples of the first."""
    delay, ratio = Fraction(0), Fraction(1)
    for layer in layers:
        delay += layer.delay / ratio
        ratio *= layer.ratio
    return delay


def named(layers: tuple[Layer | Mapping[str, Layer] | Iterable[Layer], ...]) -> dict[str, Layer]:
    """Return layers by name, from one mapping, one list or single layers; without names they are numbered."""
    members: Mapping[str, Layer] | Iterable[Any] = layers
    if len(layers) == 1 and isinstance(layers[0], Mapping | Iterable) and not isinstance(layers[0], nn.Module):
        members = layers[0]
    by_name = dict(members) if isinstance(members, Mapping) else {str(k): layer for k, layer in enumerate(members)}
    for name, layer in by_name.items():
        check_layer(layer, f"layer {name!r} should be a centaurus layer")
        if not isinstance(name, str) or (not name.isidentifier() and not name.isdecimal()) or hasattr(Layer, name):
            raise ValueError(f"{name!r} cannot be the name of a layer: use letters, digits and underscores")
    return by_name


def inner(state: State | None, count: int) -> tuple[State | None, ...]:
    """Return the states of the layers inside; None for each if there is no state."""
    return (None,) * count if state is None else tuple(state)


class Serial(Composite):
    """Layers in series; without any it is the identity.

    ``Serial(a, b)``, ``Serial([a, b])``, or with names ``Serial({"first": a, "last": b})``.
    """

    def __init__(self, *layers: Layer | Mapping[str, Layer] | Iterable[Layer]) -> None:
        super().__init__()
        by_name = named(layers)
        for name, layer in by_name.items():
            self.add_module(name, layer)
        self._names = tuple(by_name)
        self.hop, self.ratio = chain(by_name.values())
        self.delay = total_delay(by_name.values())

    def arguments(self) -> dict[str, Any]:
        return {"layers": dict(zip(self._names, self.layers(), strict=True))}

    def layers(self) -> list[Layer]:
        """Return the layers in order."""
        return cast(list[Layer], list(self._modules.values()))

    def parts(self) -> list[Part]:
        parts, ratio = [], Fraction(1)
        for name, layer in zip(self._names, self.layers(), strict=True):
            parts.append(Part(name, layer, ratio))
            ratio *= layer.ratio
        return parts

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        after = []
        for layer, before in zip(self.layers(), inner(state, len(self._names)), strict=True):
            u, new = layer.run(u, before, keep)
            after.append(new)
        return u, tuple(after)


class Residual(Composite):
    """The sum of a body and a skip on the same input; by default the skip is the identity."""

    def __init__(self, body: Layer, skip: Layer | None = None) -> None:
        super().__init__()
        skip = Serial() if skip is None else skip
        check_layer(body, "the body of Residual should be a centaurus layer")
        check_layer(skip, "the skip of Residual should be a centaurus layer")
        self.body, self.skip = body, skip
        if self.body.ratio != self.skip.ratio:
            raise ValueError(f"body and skip should have the same ratio, got {self.body.ratio} and {self.skip.ratio}")
        if self.body.delay != self.skip.delay:
            raise ValueError(
                f"body and skip should have the same delay, got {self.body.delay} and {self.skip.delay} samples: "
                f"add a Delay of the difference to the shorter one"
            )
        self.hop, self.ratio = lcm(self.body.hop, self.skip.hop), self.body.ratio
        self.delay = self.body.delay

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        first, second = inner(state, 2)
        y, first = self.body.run(u, first, keep)
        x, second = self.skip.run(u, second, keep)
        return y + x, (first, second)


class Hourglass(Composite):
    """Encode, downsample, ``inside``, upsample, add the encoded signal, decode: one level of a U-Net.

    Nested hourglasses make the whole network; each skip joins two signals of one rate.
    """

    def __init__(self, encode: Layer, down: Layer, inside: Layer, up: Layer, decode: Layer) -> None:
        super().__init__()
        self.encode, self.down, self.inside, self.up, self.decode = encode, down, inside, up, decode
        _, loop = chain((down, inside, up))
        if loop != 1 or encode.ratio != 1:
            raise ValueError(
                f"an hourglass should keep its rate: encode has ratio {encode.ratio} (should be 1), "
                f"down · inside · up = {down.ratio} · {inside.ratio} · {up.ratio} = {loop} (should be 1)"
            )
        if total_delay((down, inside, up)):
            raise ValueError(
                f"down, inside and up should have no delay, since the skip has none: "
                f"got {total_delay((down, inside, up))} samples"
            )
        self.delay = total_delay((encode, decode))
        hop, self.ratio = chain((encode, down, inside, up, decode))
        self.hop = lcm(hop, chain((encode, decode))[0])

    def parts(self) -> list[Part]:
        ratios = {"inside": self.down.ratio, "up": self.down.ratio * self.inside.ratio}
        return [part._replace(ratio=ratios.get(part.name, part.ratio)) for part in super().parts()]

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        encode, down, inside, up, decode = inner(state, 5)
        high, encode = self.encode.run(u, encode, keep)
        low, down = self.down.run(high, down, keep)
        low, inside = self.inside.run(low, inside, keep)
        back, up = self.up.run(low, up, keep)
        y, decode = self.decode.run(back + high, decode, keep)
        return y, (encode, down, inside, up, decode)


class Leveled(Composite):
    """Divide by the level of the signal, run ``body``, and multiply by that level again.

    Norms inside a network discard the level of its input; with this the output scales exactly with the input, and
    silence stays silent. The level is the RMS of a hop; it rises at once and falls to 1/e in ``release`` hops. The
    share ``kept`` of the input is mixed into the output.
    """

    like: Tensor

    def __init__(self, body: Layer, release: float, kept: float = 0.0) -> None:
        super().__init__()
        if not release > 0:
            raise ValueError(f"release should be above 0 hops, got {release}")
        if body.ratio != 1:
            raise ValueError(f"the body of Leveled should have ratio 1, got {body.ratio}")
        if not 0 <= kept < 1:
            raise ValueError(f"kept should be a share of the input from 0 to below 1, got {kept}")
        self.body, self.kept = body, kept
        if body.delay:
            raise ValueError(f"the body of Leveled should have no delay, got {body.delay} samples")
        self.hop = body.hop
        self.release, self.decay = release, exp(-1 / release)
        self.register_buffer("like", torch.empty(0), persistent=False)

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, 1), self.body.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        past, body = inner(state, 2)
        hops = u.unflatten(-1, (-1, self.hop)).to(torch.promote_types(u.dtype, torch.float32)).square().mean((1, 3))
        levels = follow((hops + FLOOR**2).sqrt(), self.decay, past if isinstance(past, Tensor) else None)
        scale = levels[:, None].repeat_interleave(self.hop, -1)
        y, body = self.body.run(u / scale, body, keep)
        y = y * scale
        y = torch.lerp(y, u.to(y.dtype), self.kept) if self.kept else y
        return y, (levels[:, -1:].clone(), body) if keep else ()


def follow(x: Tensor, decay: float, past: Tensor | None) -> Tensor:
    """Return y[t] = max(x[t], decay · y[t-1]) along the last axis, for positive x."""
    start = torch.zeros_like(x[..., :1]) if past is None else past
    if x.shape[-1] <= FEW_HOPS:
        levels = [start]
        for k in range(x.shape[-1]):
            levels.append(torch.maximum(x[..., k : k + 1], decay * levels[-1]))
        return torch.cat(levels[1:], dim=-1)
    first = torch.maximum(x[..., :1], decay * start)
    x = torch.cat([first, x[..., 1:]], dim=-1)
    age = torch.arange(x.shape[-1], device=x.device, dtype=torch.float64) * log(decay)
    return ((x.double().log() - age).cummax(-1).values + age).exp().to(x.dtype)


class Activation(Enum):
    """The place of a block's SiLU: after the skip is added, before it, or none."""

    AFTER_SKIP = "after skip"
    BEFORE_SKIP = "before skip"
    NONE = "none"


class Block(Composite):
    """The Centaurus block: [causal conv →] SSM → LayerNorm → dropout → + skip → SiLU → [resampling].

    ``skip`` is ``Serial()`` for the identity, a ``Pointwise`` for a projection, ``None`` for no skip at all.
    """

    def __init__(
        self,
        body: Layer,
        channels: int,
        skip: Layer | None = None,
        dropout: float = 0.0,
        activation: Activation = Activation.AFTER_SKIP,
        resample: Layer | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.norm = LayerNorm(channels)
        self.dropout = Dropout1d(dropout)
        self.skip = skip
        self.activation = activation
        self.resample = Serial() if resample is None else resample
        inside = body if skip is None else Residual(body, skip)
        if inside.hop != 1 or inside.ratio != 1:
            raise ValueError(
                f"body and skip of a block should have hop 1 and ratio 1, got hop {inside.hop}, ratio {inside.ratio}"
            )
        self.hop, self.ratio = self.resample.hop, self.resample.ratio
        self.delay = inside.delay + self.resample.delay

    def arguments(self) -> dict[str, Any]:
        return {
            "body": self.body,
            "channels": self.norm.channels,
            "skip": self.skip,
            "dropout": self.dropout.probability,
            "activation": self.activation,
            "resample": self.resample,
        }

    def init_state(self, batch: int) -> State:
        skip = () if self.skip is None else self.skip.init_state(batch)
        return self.body.init_state(batch), skip, self.resample.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        body, skip, resample = inner(state, 3)
        y, body = self.body.run(u, body, keep)
        x, skip = (None, ()) if self.skip is None else self.skip.run(u, skip, keep)
        early = self.activation is Activation.BEFORE_SKIP
        before, after = (None, x) if early else (x, None)
        y = self.norm.join(y, self.dropout.mask(y), before, after, self.activation is not Activation.NONE)
        y, resample = self.resample.run(y, resample, keep)
        return y, (body, skip, resample)


def with_conv(ssm: Layer, channels: int, kernel: int = 4) -> Serial:
    """Return a causal depthwise convolution followed by a state-space layer."""
    return Serial({"conv": CausalConv(channels, kernel), "ssm": ssm})


def feed_forward(channels: int) -> Residual:
    """Return the residual FFN module: two 1×1 layers and a SiLU between them, without expansion."""
    first, second = Pointwise(channels, channels), Pointwise(channels, channels)
    return Residual(Serial({"first": first, "silu": SiLU(), "second": second}))


def conv_module(channels: int, kernel: int = 4, expansion: int = 2) -> Residual:
    """Return the residual Conformer-like module: 1×1 up, norm, causal depthwise convolution, 1×1 down."""
    wide = channels * expansion
    first, norm = Pointwise(channels, wide), LayerNorm(wide, activate=True)
    conv, second = CausalConv(wide, kernel), Pointwise(wide, channels)
    return Residual(Serial({"first": first, "norm": norm, "conv": conv, "silu": SiLU(), "second": second}))


class Gated(Composite):
    """The Mamba macro-block around any state-space layer of ``width`` channels.

    Two projections of the normalised input: one goes through a causal convolution, SiLU and the layer, with ``D`` as
    its feedthrough; the other is the gate. The result is projected back and added to the input.
    """

    def __init__(self, channels: int, width: int, ssm: Layer, kernel: int = 4) -> None:
        super().__init__()
        if ssm.hop != 1 or ssm.ratio != 1 or ssm.delay:
            raise ValueError(
                f"the layer of a gated block should have hop 1, ratio 1 and delay 0, "
                f"got hop {ssm.hop}, ratio {ssm.ratio} and delay {ssm.delay}"
            )
        self.channels, self.width, self.kernel = channels, width, kernel
        self.norm = LayerNorm(channels)
        self.into = Pointwise(channels, 2 * width, bias=False)
        self.conv = Serial({"taps": CausalConv(width, kernel), "silu": SiLU()})
        self.ssm = ssm
        self.D = nn.Parameter(torch.ones(width, 1))
        self.out = Pointwise(width, channels, bias=False)
        self.cost = Counts(flops=width)  # the gate's product

    def init_state(self, batch: int) -> State:
        return self.conv.init_state(batch), self.ssm.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        conv, ssm = inner(state, 2)
        wide, _ = self.into.run(self.norm.run(u, None, keep)[0], None, keep)
        x, gate = wide.split(self.width, dim=1)
        x, conv = self.conv.run(x, conv, keep)
        y, ssm = self.ssm.run(x, ssm, keep)
        y, _ = self.out.run((y + self.D * x) * nn.functional.silu(gate), None, keep)
        return u + y, (conv, ssm)
