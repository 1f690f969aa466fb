"""Describe a network's step layer by layer, in the operations that every export format implements (``Target``).

A layer made of these operations is written once for all formats. A signal is (frames, channels), so projections and
resampling are matrix products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from centaurus.layer import Layer
from centaurus.models.build import Dense
from centaurus.models.network import Network
from centaurus.nn.containers import Activation, Block, Hourglass, Residual, Serial
from centaurus.nn.layers import Down, Dropout1d, Lift, Pointwise, SiLU, Up

Array = NDArray[np.float64]
FUNCTIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.Sigmoid: "sigmoid",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
}
"""Element-wise torch modules that may be inside a ``Lift``, and their names in ``Target.map``."""


class Signal(NamedTuple):
    """A value (frames, channels) of a step, by its name in the exported code."""

    name: str
    frames: int
    channels: int

    @property
    def size(self) -> int:
        """Return how many numbers it has."""
        return self.frames * self.channels


def array(x: Any) -> Array:
    """Return a tensor as a numpy array in double precision."""
    return np.asarray(x.detach().cpu().double().numpy())


class Target(ABC):
    """An export format: the operations that layers have in common, and ``leaf`` for all other layers."""

    format: ClassVar[str]

    @abstractmethod
    def product(self, u: Signal, table: Array, bias: Array | None = None) -> Signal:
        """Return every frame times a matrix (in, out), plus a bias (out,)."""

    @abstractmethod
    def reshape(self, u: Signal, frames: int, channels: int) -> Signal:
        """Return the same numbers with another number of frames and channels."""

    @abstractmethod
    def add(self, x: Signal, y: Signal) -> Signal:
        """Return the sum of two signals of one shape."""

    @abstractmethod
    def map(self, u: Signal, function: str) -> Signal:
        """Apply a function to every number: silu, relu, tanh, sigmoid, gelu or gelu_tanh."""

    @abstractmethod
    def leaf(self, layer: Layer, u: Signal, name: str) -> Signal:
        """Return the output of a layer that each format implements itself; ``name`` is the prefix of its states."""

    def fuse(self, layers: list[Layer], u: Signal, name: str) -> Signal | None:
        """Return the output of layers in series if the format has a cheaper form for them, else None."""
        return None

    def activate(self, y: Signal, skip: Signal | None, activation: Activation) -> Signal:
        """Add the skip connection and apply SiLU at the end of a block, in the order of ``activation``."""
        early = activation is Activation.BEFORE_SKIP
        y = y if skip is None or early else self.add(y, skip)
        y = y if activation is Activation.NONE else self.map(y, "silu")
        return self.add(y, skip) if early and skip is not None else y

    def refusal(self, what: str, name: str) -> TypeError:
        """Return the error for a layer that this format does not support."""
        return TypeError(f"{name or 'this model'} {what}, which cannot be exported to {self.format}")


@singledispatch
def lower(layer: Layer, to: Target, u: Signal, name: str) -> Signal:
    """Add a layer (in double precision) to the export and return its output. ``name`` is the path of the layer."""
    return to.leaf(layer, u, name)


@lower.register
def _(layer: Serial, to: Target, u: Signal, name: str) -> Signal:
    parts = layer.parts()
    if parts and (fused := to.fuse(layer.layers(), u, inside(name, parts[0].name))):
        return fused
    for part in parts:
        u = lower(part.layer, to, u, inside(name, part.name))
    return u


@lower.register
def _(layer: Network, to: Target, u: Signal, name: str) -> Signal:
    return lower(layer.body, to, u, name)


@lower.register
def _(layer: Dense, to: Target, u: Signal, name: str) -> Signal:
    return lower(layer.layers, to, u, name)


@lower.register
def _(layer: Residual, to: Target, u: Signal, name: str) -> Signal:
    y = lower(layer.body, to, u, inside(name, "body"))
    return to.add(y, lower(layer.skip, to, u, inside(name, "skip")))


@lower.register
def _(layer: Hourglass, to: Target, u: Signal, name: str) -> Signal:
    high = lower(layer.encode, to, u, inside(name, "encode"))
    low = lower(layer.down, to, high, inside(name, "down"))
    low = lower(layer.inside, to, low, inside(name, "inside"))
    back = lower(layer.up, to, low, inside(name, "up"))
    return lower(layer.decode, to, to.add(back, high), inside(name, "decode"))


@lower.register
def _(layer: Block, to: Target, u: Signal, name: str) -> Signal:
    y = lower(layer.norm, to, lower(layer.body, to, u, inside(name, "body")), name)
    skip = None if layer.skip is None else lower(layer.skip, to, u, inside(name, "skip"))
    return lower(layer.resample, to, to.activate(y, skip, layer.activation), inside(name, "resample"))


@lower.register
def _(layer: Pointwise, to: Target, u: Signal, name: str) -> Signal:
    return to.product(u, array(layer.weight).T, _bias(layer))


@lower.register
def _(layer: Down, to: Target, u: Signal, name: str) -> Signal:
    o, i, r = layer.weight.shape
    table = array(layer.weight).transpose(2, 1, 0).reshape(r * i, o)
    return to.product(to.reshape(u, u.frames // r, r * i), table, _bias(layer))


@lower.register
def _(layer: Up, to: Target, u: Signal, name: str) -> Signal:
    i, o, r = layer.weight.shape
    table = array(layer.weight).transpose(0, 2, 1).reshape(i, r * o)
    return to.reshape(to.product(u, table), u.frames * r, o)


@lower.register
def _(layer: SiLU, to: Target, u: Signal, name: str) -> Signal:
    return to.map(u, "silu")


@lower.register
def _(layer: Dropout1d, to: Target, u: Signal, name: str) -> Signal:
    return u


@lower.register
def _(layer: Lift, to: Target, u: Signal, name: str) -> Signal:
    module = layer.module
    if isinstance(module, nn.Conv1d) and module.groups == 1:
        return to.product(u, array(module.weight)[..., 0].T, None if module.bias is None else array(module.bias))
    if isinstance(module, nn.Identity | nn.Dropout1d):
        return u
    if type(module) not in FUNCTIONS:
        raise to.refusal(f"lifts a {type(module).__name__}", name)
    tangent = isinstance(module, nn.GELU) and module.approximate == "tanh"
    return to.map(u, "gelu_tanh" if tangent else FUNCTIONS[type(module)])


def _bias(layer: Pointwise | Down) -> Array | None:
    return None if layer.bias is None else np.asarray(array(layer.bias)[:, 0])


def inside(name: str, part: str) -> str:
    """Return the path of a layer inside another."""
    return f"{name}.{part}".lstrip(".")
