"""Counts derived from the equation are the paper's table, row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest

from centaurus.ssm import S6, SSM

RANK = 16  # the factor r of the low-rank Δ


class Sizes(NamedTuple):
    H: int  # input channels
    K: int  # output channels, H' in the paper
    N: int  # states
    M: int  # sub-states


SIZES = [Sizes(16, 32, 256, 16), Sizes(1, 1, 1, 1), Sizes(2, 3, 5, 7), Sizes(32, 16, 4, 1), Sizes(64, 64, 128, 4)]
Formula = Callable[[Sizes], int]

# Appendix D: parameters and FLOPs of each recurrent step, as printed.
TABLE: dict[tuple[str, bool], tuple[Formula, Formula]] = {
    ("depthwise", False): (lambda s: 3 * s.H * s.N, lambda s: 9 * s.H * s.N),
    ("separable", False): (lambda s: 3 * s.H * s.N + s.H * s.K, lambda s: 9 * s.H * s.N + 2 * s.H * s.K),
    ("pointwise", False): (
        lambda s: s.H * s.N + 2 * s.N + s.K * s.N,
        lambda s: 2 * s.H * s.N + 7 * s.N + 2 * s.K * s.N,
    ),
    ("bottleneck", False): (
        lambda s: s.H * s.N + 3 * s.N * s.M + s.K * s.N,
        lambda s: 2 * s.H * s.N + 9 * s.N * s.M + 2 * s.K * s.N,
    ),
    ("full", False): (lambda s: 3 * s.H * s.K * s.N, lambda s: 9 * s.H * s.K * s.N),
    ("depthwise", True): (lambda s: 4 * s.H * s.N, lambda s: 11 * s.H * s.N),
    ("separable", True): (lambda s: 4 * s.H * s.N + s.H * s.K, lambda s: 11 * s.H * s.N + 2 * s.H * s.K),
    ("pointwise", True): (
        lambda s: 2 * s.H * s.N + 2 * s.N + 2 * s.K * s.N,
        lambda s: 4 * s.H * s.N + 8 * s.N + 4 * s.K * s.N,
    ),
    ("bottleneck", True): (
        lambda s: 2 * s.H * s.N + 4 * s.N * s.M + 2 * s.K * s.N,
        lambda s: 4 * s.H * s.N + 16 * s.N * s.M + 4 * s.K * s.N,
    ),
    ("full", True): (lambda s: 4 * s.H * s.K * s.N, lambda s: 11 * s.H * s.K * s.N),
}
MODES: dict[str, Formula] = {
    "depthwise": lambda s: s.H * s.N,
    "separable": lambda s: s.H * s.N,
    "pointwise": lambda s: s.N,
    "bottleneck": lambda s: s.N * s.M,
    "full": lambda s: s.H * s.K * s.N,
}


def build(topology: str, complex: bool, s: Sizes) -> SSM:
    out = s.H if topology == "depthwise" else s.K
    return SSM(topology, s.H, out, states=s.N, substates=s.M if topology == "bottleneck" else 1, complex=complex)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("topology", "complex"), TABLE)
def test_a_row_of_the_table(topology: str, complex: bool, sizes: Sizes) -> None:
    layer = build(topology, complex, sizes)
    parameters, flops = (formula(sizes) for formula in TABLE[topology, complex])
    counts = layer.counts()
    assert (counts.parameters, counts.flops) == (parameters, flops)
    assert counts.state_floats == 2 * MODES[topology](sizes) == layer.init_state(1).numel()
    assert parameters == sum(p.numel() for name, p in layer.named_parameters() if name != "log_dt")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("topology", MODES)
def test_the_count_of_the_result_tables(topology: str, sizes: Sizes) -> None:
    """Full 8HH'N, bottleneck 8NM, pointwise 6N: one FLOP less for every state."""
    layer = build(topology, False, sizes)
    assert layer.counts("results").parameters == layer.counts().parameters
    assert layer.counts("results").flops == TABLE[topology, False][1](sizes) - MODES[topology](sizes)


@pytest.mark.parametrize("complex", [False, True])
def test_groups_are_full_blocks_side_by_side(complex: bool) -> None:
    grouped = SSM("grouped", 6, 9, states=4, groups=3, complex=complex).counts()
    full = SSM("full", 2, 3, states=4, complex=complex).counts()
    assert grouped.parameters == 3 * full.parameters
    assert grouped.flops == 3 * full.flops
    assert grouped.state_floats == 3 * full.state_floats


@pytest.mark.parametrize("convention", ["table", "results"])
@pytest.mark.parametrize(("H", "K", "N"), [(16, 32, 4), (32, 32, 64), (64, 16, 16), (6, 3, 5)])
def test_s6(H: int, K: int, N: int, convention: str) -> None:
    """4HN + H²/r + HH' and 14HN + 4H²/r + 2HH', where H²/r is rounded up."""
    mixed, core = S6(H, K, states=N).counts(convention), S6(H, states=N).counts(convention)
    assert (core.parameters, core.flops) == (
        4 * H * N + math.ceil(H * H / RANK),
        14 * H * N + math.ceil(4 * H * H / RANK),
    )
    assert (mixed.parameters, mixed.flops) == (core.parameters + H * K, core.flops + 2 * H * K)
    assert core.state_floats == H * N == S6(H, states=N).init_state(1).numel()


@pytest.mark.parametrize(("H", "N"), [(16, 4), (64, 16), (512, 16)])
def test_mamba_is_projections_around_s6(H: int, N: int) -> None:
    """8H² + 8HN + 4H²/r and 16H² + 28HN + 16H²/r: H to 4H and 2H to H, and S6 on 2H channels."""
    inner = S6(2 * H, states=N).counts()
    assert 8 * H**2 + inner.parameters == 8 * H**2 + 8 * H * N + 4 * H**2 // RANK
    assert 16 * H**2 + inner.flops == 16 * H**2 + 28 * H * N + 16 * H**2 // RANK


def test_conventions_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match=r"'table' or 'results', got 'paper'"):
        SSM("full", 2).counts("paper")
    with pytest.raises(ValueError, match=r"'table' or 'results', got 'paper'"):
        S6(2).counts("paper")
    with pytest.raises(ValueError, match="'results' is defined for real layers only"):
        SSM("full", 2, complex=True).counts("results")
