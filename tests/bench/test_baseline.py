"""The paper's orders, as the benchmarks run them, are the same function as the recurrence."""

from __future__ import annotations

import pytest
import torch

from bench.baseline import contracted, in_order
from centaurus.planner.named import NAMES
from centaurus.ssm import SSM
from tests.reference import gradients, recurrence, worst
from tests.ssm.layers import TIGHT, TOPOLOGIES, noise, random_ssm


@pytest.mark.parametrize("order", NAMES)
@pytest.mark.parametrize(("topology", "complex"), TOPOLOGIES)
def test_every_named_order_is_the_same_function(topology: str, complex: bool, order: str) -> None:
    layer = random_ssm(topology, complex)
    for batch, length in ((1, 40), (5, 90)):
        u, _ = noise(layer, layer.in_channels, batch, length, seed=3)
        inputs = [u, *layer.parameters()]
        expected = recurrence(layer, u)[0]
        with contracted(layer, order):
            y = layer(u)
        assert worst([y], [expected]) <= TIGHT
        assert worst(gradients([y], inputs), gradients([expected], inputs)) <= TIGHT
        assert layer.plan(batch, length, order=order).name == order


@pytest.mark.parametrize("sizes", [(2, 4, 4), (4, 2, 2), (8, 2, 2), (2, 8, 16), (4, 1, 1), (1, 1, 8)])
def test_the_papers_if_statements(sizes: tuple[int, int, int]) -> None:
    """Listing 1 chooses by batch, channels and states: each of its branches is the same function."""
    batch, channels, states = sizes
    torch.manual_seed(0)
    layer = SSM("bottleneck", channels, channels, states=states, substates=2).double()
    u, _ = noise(layer, channels, batch, 50, seed=4)
    with contracted(layer, "paper"):
        y = layer(u)
    assert worst([y], [recurrence(layer, u)[0]]) <= TIGHT


def test_each_order_is_run_as_itself() -> None:
    layer, seen = SSM("full", 1, 2), []
    for order in ("planned", "paper", "natural"):
        in_order(layer, order, lambda: seen.append("_whole" in vars(layer)))()
    assert seen == [False, True, True]
    assert "_whole" not in vars(layer)
