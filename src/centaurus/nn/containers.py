"""Layers made of layers: in series, residual, hourglass, and normalised to the level of the signal.

Each derives its own hop, ratio and delay, so that skips are aligned by construction and any composition streams.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from fractions import Fraction
from math import exp, lcm, log
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from centaurus.layer import Layer, State

FLOOR = 1e-5  # -100 dBFS: the lowest level; quieter signals are not amplified further
FEW_HOPS = 16  # up to here the level is a chain of maxima, beyond it one cumulative maximum


class Counts(NamedTuple):
    """Parameters, and FLOPs per input frame, as the paper counts them: no biases, norms or activations."""

    parameters: int = 0
    flops: int | Fraction = 0


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

    @abstractmethod
    def parts(self) -> list[Part]:
        """Return the layers inside, in the order they run."""


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
        if not isinstance(layer, Layer):
            raise TypeError(f"layer {name!r} should be a centaurus layer, got {type(layer).__name__}{_advice(layer)}")
        if not isinstance(name, str) or (not name.isidentifier() and not name.isdecimal()) or hasattr(Layer, name):
            raise ValueError(f"{name!r} cannot be the name of a layer: use letters, digits and underscores")
    return by_name


def _advice(layer: object) -> str:
    """Return what to use instead of a torch module."""
    if isinstance(layer, nn.Sequential | nn.ModuleList):
        return ": pass its layers to Serial"
    if isinstance(layer, nn.Linear):
        return f": use Pointwise({layer.in_features}, {layer.out_features}), which acts on the channels of every frame"
    return ": a torch module without memory goes into Lift(module)" if isinstance(layer, nn.Module) else ""


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

    def init_state(self, batch: int) -> State:
        return tuple(layer.init_state(batch) for layer in self.layers())

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
        self.body = body
        self.skip = Serial() if skip is None else skip
        if self.body.ratio != self.skip.ratio:
            raise ValueError(f"body and skip should have the same ratio, got {self.body.ratio} and {self.skip.ratio}")
        if self.body.delay != self.skip.delay:
            raise ValueError(
                f"body and skip should have the same delay, got {self.body.delay} and {self.skip.delay} samples: "
                f"add a Delay of the difference to the shorter one"
            )
        self.hop, self.ratio = lcm(self.body.hop, self.skip.hop), self.body.ratio
        self.delay = self.body.delay

    def arguments(self) -> dict[str, Any]:
        return {"body": self.body, "skip": self.skip}

    def parts(self) -> list[Part]:
        return [Part("body", self.body, Fraction(1)), Part("skip", self.skip, Fraction(1))]

    def init_state(self, batch: int) -> State:
        return self.body.init_state(batch), self.skip.init_state(batch)

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

    def arguments(self) -> dict[str, Any]:
        return {
            "encode": self.encode,
            "down": self.down,
            "inside": self.inside,
            "up": self.up,
            "decode": self.decode,
        }

    def parts(self) -> list[Part]:
        names = ("encode", "down", "inside", "up", "decode")
        layers = (self.encode, self.down, self.inside, self.up, self.decode)
        low = self.down.ratio
        ratios = (Fraction(1), Fraction(1), low, low * self.inside.ratio, Fraction(1))
        return [Part(*row) for row in zip(names, layers, ratios, strict=True)]

    def init_state(self, batch: int) -> State:
        return tuple(part.layer.init_state(batch) for part in self.parts())

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
        levels = [start]
        for k in range(x.shape[-1]):
            levels.append(torch.maximum(x[..., k : k + 1], decay * levels[-1]))
        return torch.cat(levels[1:], dim=-1)
    first = torch.maximum(x[..., :1], decay * start)
    x = torch.cat([first, x[..., 1:]], dim=-1)
    age = torch.arange(x.shape[-1], device=x.device, dtype=torch.float64) * log(decay)
    return ((x.double().log() - age).cummax(-1).values + age).exp().to(x.dtype)
