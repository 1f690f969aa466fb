"""Preparing a plan to run, the tiles of its signal, and what is kept of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from centaurus.kernels.program import Program
from centaurus.planner.search import plan_expression
from centaurus.ssm import SSM
from tests.reference import recurrence, worst

NUMBERS = 16 * 3  # real numbers in a row of the batch: samples times the larger channel count


@pytest.mark.parametrize(("numbers", "rows"), [(NUMBERS, 1), (2 * NUMBERS - 1, 1), (4 * NUMBERS, 4), (8 * NUMBERS, 8)])
def test_a_tile_holds_as_many_rows_as_fit_the_cache(numbers: int, rows: int) -> None:
    plan = plan_expression(
        "u_bit B_ji K_jt -> y_bjt",
        {"b": 8, "i": 3, "j": 2, "t": 16},
        kernel_length=4,
        allowed=lambda a, b, kind, domain: kind != "rfft",
    )
    assert Program(replace(plan, tile_bytes=4 * numbers)).chain.tile == rows


@pytest.mark.parametrize(
    ("fitting", "total", "tile"), [(31, 64, 32), (22, 64, 16), (9, 64, 8), (31, 40, 32), (5, 10, 5)]
)
def test_a_tile_of_many_rows_has_whole_vectors_of_them(fitting: int, total: int, tile: int) -> None:
    plan = plan_expression(
        "u_bit B_ji K_jt -> y_bjt",
        {"b": total, "i": 3, "j": 2, "t": 16},
        kernel_length=4,
        allowed=lambda a, b, kind, domain: kind != "rfft",
    )
    assert Program(replace(plan, tile_bytes=4 * NUMBERS * fitting)).chain.tile == tile


@pytest.mark.parametrize("kind", ["multiply", "chunked", "dft", "direct"])
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("time_last", [False, True])
def test_plans_in_tiles_and_whole_through_a_retained_graph(kind: str, rows: int, time_last: bool) -> None:
    """Values and gradients are the recurrence's, also in a second backward pass, when nothing is kept any more."""
    torch.manual_seed(0)
    layer = SSM("full", 3, 2, states=2).double()
    u = torch.randn(20, 3, 64, dtype=torch.float64)
    u = (u if time_last else u.transpose(0, 1).contiguous().transpose(0, 1)).requires_grad_()
    plan = plan_expression(
        "u_bit E_jin K_jint -> y_bjt",
        {"b": 20, **layer.topology.size, "t": 64},
        modes="jin",
        allowed=lambda a, b, step, domain: step == kind or step not in ("multiply", "chunked", "dft", "direct"),
    )
    program = Program(plan)
    for keep in (True, False):
        program.chain = replace(program.chain, tile=rows, keep=keep)
        y = layer.run_program(program, u)
        expected = recurrence(layer, u)[0]
        inputs, seen = [u, *layer.parameters()], torch.randn_like(y)
        exact = torch.autograd.grad(expected, inputs, seen)
        assert y.stride() == torch.empty_like(u[:, :2]).stride()
        for _ in range(2):
            made = torch.autograd.grad(y, inputs, seen, retain_graph=True)
            assert worst([y, *made], [expected, *exact]) < 1e-9
            assert made[0].stride() == u.stride()


def test_intermediates_are_freed_in_backward() -> None:
    layer = SSM("pointwise", 8, 8, states=16)
    y = layer(torch.randn(4, 8, 256, requires_grad=True))
    node = next(iter(_nodes(y.grad_fn, "_RunBackward")))
    assert node.trails
    y.sum().backward(retain_graph=True)
    assert not node.trails


def _nodes(node: torch.autograd.graph.Node | None, name: str) -> list[torch.autograd.graph.Node]:
    """Nodes of a graph with a name."""
    if node is None:
        return []
    below = [found for following, _ in node.next_functions for found in _nodes(following, name)]
    return ([node] if node.name() == name else []) + below
