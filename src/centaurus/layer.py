"""The layer contract: training and streaming are one function.

A layer implements ``run`` and ``init_state``; ``forward`` and ``step`` are the same computation with
and without history. State is explicit, differentiable, batched on axis 0, and belongs to the caller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Union, final

import torch
from torch import Tensor, nn

State = Union[Tensor, tuple["State", ...]]  # noqa: UP007 - the name is not yet bound


class Layer(nn.Module, ABC):
    """A causal map of (batch, channels, time) signals that can be run whole or piece by piece."""

    hop: int = 1  # samples that a step takes, or a multiple of them
    ratio: Fraction = Fraction(1)  # output frames for every input sample
    delay: Fraction = Fraction(0)  # input samples between a sample and the output that belongs to it

    @abstractmethod
    def init_state(self, batch: int) -> State:
        """Zero history for ``batch`` rows: real tensors with the batch first, or ``()`` when there is none."""

    @abstractmethod
    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        """Whole hops in, frames out. No state means zero history; the new state may be ``()`` unless ``keep``."""

    def arguments(self) -> dict[str, Any]:
        """The arguments that build this layer again: plain data, and the layers inside it."""
        raise TypeError(f"{type(self).__name__} does not say what it was built from: give it arguments()")

    def extra_repr(self) -> str:
        """The sizes and options that ``repr`` shows."""
        try:
            given = self.arguments()
        except TypeError:
            return ""
        return ", ".join(f"{name}={x}" for name, x in given.items() if not isinstance(x, nn.Module | Mapping))

    def frames(self, samples: int) -> int:
        """Output frames for ``samples`` input samples."""
        return samples * self.ratio.numerator // self.ratio.denominator

    @final
    def step(self, u: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """The next piece of a stream, a whole number of hops, and the state after it."""
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
        """A whole signal of any length: padded with zeros to a hop, cut to ``frames(t)`` frames.

        With ``lengths``, the samples of each row of a padded batch, every row gives what it gives alone, then zeros;
        what the padding holds does not matter.
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
        """Output of a whole signal without the delay: ``forward`` of the signal and ``delay`` zeros, less its start."""
        if not self.delay:
            return self(u)
        late = self.delay * self.ratio
        if late.denominator != 1 or self.delay.denominator != 1:
            raise ValueError(f"{type(self).__name__} is late by {late} frames, which is not a whole number")
        return self(nn.functional.pad(u, (0, int(self.delay))))[..., int(late) :]


def _lengths(lengths: Tensor | Sequence[int], u: Tensor) -> Tensor:
    sizes = torch.as_tensor(lengths, device=u.device)
    fits = sizes.shape == u.shape[:1] and not sizes.is_floating_point()
    if not fits or bool(((sizes < 0) | (sizes > u.shape[-1])).any()):
        raise ValueError(
            f"lengths should be {u.shape[0]} whole numbers from 0 to {u.shape[-1]}, one a row, got {sizes.tolist()}"
        )
    return sizes


def _check_signal(layer: Layer, u: Tensor) -> None:
    if not isinstance(u, Tensor):
        name = type(layer).__name__
        raise TypeError(f"{name} takes a torch tensor, got {type(u).__name__}: use torch.from_numpy(x) or torch.tensor")
    if u.dim() != 3:
        raise ValueError(f"{type(layer).__name__} takes (batch, channels, time), got shape {tuple(u.shape)}")
    if u.shape[-1] < 1 or u.shape[0] < 1:
        raise ValueError(f"{type(layer).__name__} needs at least one sample and one row, got shape {tuple(u.shape)}")
    if not u.is_floating_point():
        raise TypeError(f"{type(layer).__name__} takes floating-point samples, got {u.dtype}")


def check_channels(name: str, u: Tensor, channels: int) -> None:
    """The channel axis must be what the layer was built for."""
    if u.shape[1] != channels:
        raise ValueError(f"{name} was built for {channels} input channels, got {u.shape[1]} in shape {tuple(u.shape)}")


def check_state(state: State, like: State, u: Tensor, path: str = "state") -> None:
    """A state must have the structure, shapes and dtype that this layer and this signal need."""
    if isinstance(like, tuple):
        if not isinstance(state, tuple) or len(state) != len(like):
            given = f"a tuple of {len(state)}" if isinstance(state, tuple) else type(state).__name__
            raise ValueError(f"{path} should be a tuple of {len(like)} as init_state gives it, got {given}")
        for position, (inner, wanted) in enumerate(zip(state, like, strict=True)):
            check_state(inner, wanted, u, f"{path}[{position}]")
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
    """Apply a function to the tensors of states of one structure."""
    first = states[0]
    if isinstance(first, tuple):
        return tuple(map_state(function, *inner) for inner in zip(*states, strict=True))
    return function(*states)


def reset(state: State, rows: Sequence[int] | Tensor) -> State:
    """A copy of the state in which these rows of the batch have zero history."""

    def clear(x: Tensor) -> Tensor:
        index = torch.as_tensor(rows, device=x.device, dtype=torch.long)
        return x.index_fill(0, index, 0)

    return map_state(clear, state)


def state_tensors(state: State) -> list[Tensor]:
    """The tensors of a state in order."""
    return [state] if isinstance(state, Tensor) else [t for inner in state for t in state_tensors(inner)]
