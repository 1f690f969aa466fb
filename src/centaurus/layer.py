"""``Layer``: the contract that makes training and streaming one function.

A layer implements ``run`` and ``init_state``; ``forward`` and ``step`` are the same computation with
and without history. State is explicit, differentiable, batched on axis 0, and belongs to the caller.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Union, final

import torch
from torch import Tensor, nn

State = Union[Tensor, tuple["State", ...]]  # noqa: UP007 - the name is not yet bound


class Counts(NamedTuple):
    """Parameters, and FLOPs per input frame, as the paper counts them: no biases, norms or activations."""

    parameters: int = 0
    flops: int | Fraction = 0


class Layer(nn.Module, ABC):
    """A causal map of (batch, channels, time) signals that can be run whole or piece by piece."""

    hop: int = 1  # a step takes a multiple of this many samples
    ratio: Fraction = Fraction(1)  # output frames for every input sample
    delay: Fraction = Fraction(0)  # input samples between a sample and the output that belongs to it

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Return the state before the first sample of ``batch`` rows: real tensors, batch first, or ``()``."""

    @abstractmethod
    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        """Return the frames of whole hops and the state after them; ``state=None`` is the initial state.

        The new state may be ``()`` unless ``keep``, which lets training skip it.
        """

    def arguments(self) -> dict[str, Any]:
        """Return the constructor arguments of an equal layer: the attributes that are named like the arguments."""
        known = inspect.signature(type(self)).parameters.values()
        return {p.name: getattr(self, p.name) for p in known if p.kind is p.POSITIONAL_OR_KEYWORD}

    def extra_repr(self) -> str:
        """Return the sizes and options that ``repr`` shows."""
        try:
            arguments = self.arguments()
        except AttributeError:  # a layer that keeps an argument under another name and does not say so
            return ""
        return ", ".join(f"{name}={x}" for name, x in arguments.items() if not isinstance(x, nn.Module | Mapping))

    def frames(self, samples: int) -> int:
        """Return the number of output frames for ``samples`` input samples."""
        return samples * self.ratio.numerator // self.ratio.denominator

    @final
    def step(self, u: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the output of the next piece of a stream, a whole number of hops, and the state after it."""
        _check_signal(self, u)
        if u.shape[-1] % self.hop:
            raise ValueError(
                f"step takes whole hops: got {u.shape[-1]} samples, which is not a multiple of the hop {self.hop}; "
                f"centaurus.Stream takes pieces of any length"
            )
        if state is not None:
            check_state(state, self.init_state(u.shape[0]), u)
        return self.run(u, state, True)

    @final  # type: ignore[misc]
    def forward(self, u: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the output of whole signals (batch, channels, t): ``frames(t)`` frames, padded with zeros to a hop.

        ``lengths`` are the valid samples of each row of a padded batch: every row gives the output it has alone and
        then zeros, and the content of the padding has no effect.
        """
        _check_signal(self, u)
        samples = u.shape[-1]
        if lengths is not None:
            sizes = _lengths(lengths, u)
            inside = torch.arange(samples, device=u.device) < sizes[:, None]
            y = self(u.masked_fill(~inside[:, None], 0))
            last = sizes * self.ratio.numerator // self.ratio.denominator
            return y.masked_fill((torch.arange(y.shape[-1], device=y.device) >= last[:, None])[:, None], 0)
        if samples % self.hop:
            u = nn.functional.pad(u, (0, -samples % self.hop))
        y, _ = self.run(u, None, False)
        frames = self.frames(samples)
        return y if y.shape[-1] == frames else y[..., :frames]

    @final
    def aligned(self, u: Tensor) -> Tensor:
        """Return ``forward`` with the delay compensated: frame k belongs to the input at its place."""
        if not self.delay:
            return self(u)
        late = self.delay * self.ratio
        if late.denominator != 1 or self.delay.denominator != 1:
            raise ValueError(f"{type(self).__name__} has a delay of {late} frames, which is not a whole number")
        return self(nn.functional.pad(u, (0, int(self.delay))))[..., int(late) :]


def _lengths(lengths: Tensor | Sequence[int], u: Tensor) -> Tensor:
    sizes = torch.as_tensor(lengths, device=u.device)
    fits = sizes.shape == u.shape[:1] and not sizes.is_floating_point()
    if not fits or bool(((sizes < 0) | (sizes > u.shape[-1])).any()):
        raise ValueError(
            f"lengths should be {u.shape[0]} integers from 0 to {u.shape[-1]}, one for each row, got {sizes.tolist()}"
        )
    return sizes


def check_layer(value: object, start: str) -> None:
    """Raise TypeError unless a value is a layer. ``start`` begins the message, which says what to use instead."""
    if isinstance(value, Layer):
        return
    instead = ""
    if isinstance(value, nn.Sequential | nn.ModuleList):
        instead = ": pass its layers to Serial"
    elif isinstance(value, nn.Linear):
        size = f"{value.in_features}, {value.out_features}"
        instead = f": use Pointwise({size}), which acts on the channels of every frame"
    elif isinstance(value, nn.Module):
        instead = ": a torch module without memory goes into Lift(module)"
    raise TypeError(f"{start}, got {type(value).__name__}{instead}")


def check_tensor(name: str, u: object) -> None:
    """Raise TypeError for a signal that is not a torch tensor."""
    if not isinstance(u, Tensor):
        raise TypeError(f"{name} takes a torch tensor, got {type(u).__name__}: use torch.from_numpy(x) or torch.tensor")


def _check_signal(layer: Layer, u: Tensor) -> None:
    check_tensor(type(layer).__name__, u)
    if u.dim() != 3:
        raise ValueError(f"{type(layer).__name__} takes (batch, channels, time), got shape {tuple(u.shape)}")
    if u.shape[-1] < 1 or u.shape[0] < 1:
        raise ValueError(f"{type(layer).__name__} needs at least one sample and one row, got shape {tuple(u.shape)}")
    if not u.is_floating_point():
        raise TypeError(f"{type(layer).__name__} takes floating-point samples, got {u.dtype}")


def check_channels(name: str, u: Tensor, channels: int) -> None:
    """Raise ValueError unless the channel axis is as the layer was built."""
    if u.shape[1] != channels:
        raise ValueError(f"{name} was built for {channels} input channels, got {u.shape[1]} in shape {tuple(u.shape)}")


def check_state(state: State, like: State, u: Tensor, path: str = "state") -> None:
    """Raise unless a state has the structure, shapes and dtype of ``like``."""
    if isinstance(like, tuple):
        if not isinstance(state, tuple) or len(state) != len(like):
            got = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise ValueError(f"{path} should be a tuple of {len(like)} as init_state gives it, got {got}")
        for position, (inner, expected) in enumerate(zip(state, like, strict=True)):
            check_state(inner, expected, u, f"{path}[{position}]")
        return
    if not isinstance(state, Tensor):
        raise ValueError(f"{path} should be a tensor of shape {tuple(like.shape)}, got {type(state).__name__}")
    if state.shape != like.shape:
        raise ValueError(
            f"{path} has shape {tuple(state.shape)}, this layer needs {tuple(like.shape)} for a batch of {u.shape[0]}"
        )
    if state.dtype != like.dtype:
        raise TypeError(f"{path} is {state.dtype}, this layer needs {like.dtype}: use init_state or convert it")


def map_state(function: Callable[..., Tensor], *states: State) -> State:
    """Return a state of the same structure with a function applied to its tensors."""
    first = states[0]
    if isinstance(first, tuple):
        return tuple(map_state(function, *inner) for inner in zip(*states, strict=True))
    return function(*states)


def reset(state: State, rows: Sequence[int] | Tensor) -> State:
    """Return a copy of the state in which these rows of the batch are as before their first sample."""

    def clear(x: Tensor) -> Tensor:
        index = torch.as_tensor(rows, device=x.device, dtype=torch.long)
        return x.index_fill(0, index, 0)

    return map_state(clear, state)


def state_tensors(state: State) -> list[Tensor]:
    """Return the tensors of a state in order."""
    return [state] if isinstance(state, Tensor) else [t for inner in state for t in state_tensors(inner)]
