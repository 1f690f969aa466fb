"""Preparing a plan to run: the tiles of its signal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from centaurus.kernels.program import Program
from centaurus.planner.search import plan_expression

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
