"""Every topology, real and complex, in every discretisation, is its recurrence: whole, in pieces, and in gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from centaurus.layer import Layer, State
from centaurus.ssm import S6
from tests.reference import gradients, recurrence, selective, worst
from tests.ssm.layers import RULES, TIGHT, TOPOLOGIES, few, noise, random_ssm


def pieces(data: st.DataObject, length: int) -> list[int]:
    """A split of a signal: some pieces of one sample, some long."""
    cuts = data.draw(st.sets(st.integers(1, length), max_size=5), label="cuts")
    ends = sorted({*cuts, *(c - 1 for c in cuts if c > 1), length})
    return [b - a for a, b in zip([0, *ends], ends, strict=False)]


def run(layer: Layer, u: Tensor, sizes: list[int], state: Tensor) -> tuple[Tensor, State]:
    outputs, carried = [], state
    for piece in u.split(sizes, -1):
        y, carried = layer.step(piece, carried)
        outputs.append(y)
    return torch.cat(outputs, -1), carried


@pytest.mark.parametrize(("topology", "complex", "discretization"), RULES)
@few
@given(data=st.data())
def test_ssm(topology: str, complex: bool, discretization: str, data: st.DataObject) -> None:
    layer = random_ssm(topology, complex, discretization, seed=data.draw(st.integers(0, 9), label="seed"))
    batch, length = data.draw(st.integers(1, 3), label="batch"), data.draw(st.integers(1, 150), label="length")
    u, state = noise(layer, layer.in_channels, batch, length, seed=1)
    inputs = [u, *layer.parameters()]

    expected, _ = recurrence(layer, u)
    y = layer(u)
    assert worst([y], [expected]) <= TIGHT
    assert worst(gradients([y], inputs), gradients([expected], inputs)) <= TIGHT

    expected, last = recurrence(layer, u, state)
    y, after = run(layer, u, pieces(data, length), state)
    assert worst([y, after], [expected, last]) <= TIGHT
    inputs.append(state)
    assert worst(gradients([y, after], inputs), gradients([expected, last], inputs)) <= TIGHT


@pytest.mark.parametrize("length", [257, 700])
@pytest.mark.parametrize(("topology", "complex"), TOPOLOGIES)
def test_a_long_piece_is_scanned(topology: str, complex: bool, length: int) -> None:
    """Beyond one chunk the state goes from chunk to chunk, the last of which is shorter."""
    layer = random_ssm(topology, complex)
    u, state = noise(layer, layer.in_channels, 2, length, seed=2)
    inputs = [u, state, *layer.parameters()]
    expected, got = recurrence(layer, u, state), layer.step(u, state)
    assert worst(got, expected) <= TIGHT
    assert worst(gradients(got, inputs), gradients(expected, inputs)) <= TIGHT


@pytest.mark.parametrize("mixed", [False, True])
@few
@given(data=st.data())
def test_s6(mixed: bool, data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 9), label="seed"))
    channels = data.draw(st.integers(2, 5), label="channels")
    rank = data.draw(st.sampled_from((None, 1, 3)), label="rank")
    layer = S6(channels, 3 if mixed else None, states=data.draw(st.integers(1, 4)), rank=rank).double()
    batch, length = data.draw(st.integers(1, 3), label="batch"), data.draw(st.integers(1, 100), label="length")
    u, state = noise(layer, channels, batch, length, seed=1)
    inputs = [u, *layer.parameters()]

    expected, _ = selective(layer, u)
    y = layer(u)
    assert worst([y], [expected]) <= TIGHT
    assert worst(gradients([y], inputs), gradients([expected], inputs)) <= TIGHT

    expected, last = selective(layer, u, state)
    y, after = run(layer, u, pieces(data, length), state)
    inputs.append(state)
    assert worst([y, after], [expected, last]) <= TIGHT
    assert worst(gradients([y, after], inputs), gradients([expected, last], inputs)) <= TIGHT


@pytest.mark.parametrize("topology", ["bottleneck", "full"])
def test_one_parameter_may_learn_alone(topology: str) -> None:
    """Whatever is frozen, the rest gets the gradient it gets together with everything."""
    layer = random_ssm(topology)
    u, _ = noise(layer, layer.in_channels, 2, 60, seed=5)
    u = u.detach()
    everything = dict(layer.named_parameters())
    expected = dict(zip(everything, gradients([recurrence(layer, u)[0]], list(everything.values())), strict=True))
    for name, chosen in everything.items():
        for p in everything.values():
            p.requires_grad_(p is chosen)
        for y in (layer(u), layer.step(u)[0]):
            assert worst(gradients([y], [chosen]), [expected[name]]) <= TIGHT


def test_inference_does_not_spoil_training() -> None:
    """Nothing that is remembered from inference mode gets into a later graph."""
    layer = random_ssm("bottleneck")
    u, _ = noise(layer, layer.in_channels, 2, 60, seed=6)
    with torch.inference_mode():
        layer(u.detach())
        layer.step(u.detach())
    inputs = [u, *layer.parameters()]
    assert worst(gradients([layer(u)], inputs), gradients([recurrence(layer, u)[0]], inputs)) <= TIGHT
    assert worst(gradients([layer.step(u)[0]], inputs), gradients([recurrence(layer, u)[0]], inputs)) <= TIGHT
