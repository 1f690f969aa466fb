"""The laws catch what they are for: each broken layer breaks the law it should, and the others hold."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from centaurus.laws import measure, splits
from centaurus.layer import Layer, State


class Broken(Layer):
    """A leaky sum of two channels, which tests break in different ways."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.full((2, 1), 0.5))

    def init_state(self, batch: int) -> State:
        return self.decay.new_zeros(batch, 2, 1)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        x = self.init_state(u.shape[0]) if state is None else state
        frames = []
        for t in range(u.shape[-1]):
            x = self.decay * x + u[..., t : t + 1]
            frames.append(x)
        return torch.cat(frames, dim=-1), x


class Forgetful(Broken):
    def run(self, u, state, keep):
        return super().run(u, None, keep)


class Detached(Broken):
    def run(self, u, state, keep):
        return super().run(u, None if state is None else state.detach(), keep)


class Writing(Broken):
    def run(self, u, state, keep):
        y, new = super().run(u, None if state is None else state.clone(), keep)
        if state is not None:
            state.copy_(new)
        return y, new


class Mixing(Broken):
    def run(self, u, state, keep):
        y, new = super().run(u, state, keep)
        return y + u.mean(0, keepdim=True), new


class Peeking(Broken):
    def run(self, u, state, keep):
        y, new = super().run(u, state, keep)
        return y + u.mean(-1, keepdim=True), new


class Growing(Broken):
    def run(self, u, state, keep):
        y, new = super().run(u, state, keep)
        return y, torch.cat([new, new], dim=-1) if keep and state is None else new.to(torch.float32)


class Idle(Broken):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


class Overlong(Broken):
    ratio = Fraction(1, 2)


class Single(Broken):
    def run(self, u, state, keep):
        y, new = super().run(u, state, keep)
        return y.float(), new


class Caching(Broken):
    kept = None

    def run(self, u, state, keep):
        if self.kept is None:
            self.kept = self.decay.detach().clone()
        y, new = super().run(u, state, keep)
        return y + self.kept.to(y), new


CASES = {
    Forgetful: "pieces equal the whole: values",
    Detached: "pieces equal the whole: gradients",
    Writing: "no input, state or parameter is modified",
    Mixing: "rows are independent",
    Peeking: "causal, hop by hop",
    Idle: "every parameter gets a gradient",
    Overlong: "output has frames(t) frames",
    Single: "dtype moves keep results",
    Caching: "deepcopy and state_dict keep results",
}


def broken(layer: Layer) -> set[str]:
    return {law.name for law in measure(layer, 2, hops=7) if not law.holds}


def test_a_correct_layer_breaks_no_law() -> None:
    assert broken(Broken()) == set()


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_a_broken_layer_is_caught(kind: type[Layer]) -> None:
    assert CASES[kind] in broken(kind())


def test_a_state_that_changes_shape_is_caught() -> None:
    with pytest.raises((ValueError, TypeError), match="state"):
        measure(Growing(), 2)


@pytest.mark.parametrize("hops", [1, 2, 3, 7, 30])
def test_splits_cover_the_signal(hops: int) -> None:
    partitions = splits(hops)
    assert all(sum(partition) == hops and min(partition) > 0 for partition in partitions)
    assert hops == 1 or [1] * min(hops, 8) == partitions[0][: min(hops, 8)]
