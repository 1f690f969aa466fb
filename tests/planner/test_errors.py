"""Wrong expressions and operands: the error says what was given and what is right."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from centaurus.kernels.program import temporal_einsum
from centaurus.planner import ExpressionError, LimitError, parse, plan_expression


def says(*parts: str) -> str:
    """A pattern for a message with these parts, in this order."""
    return ".*".join(re.escape(part) for part in parts)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("bit,nt", ["exactly one '->'", "'bit,nt'"]),
        ("bit->bt->t", ["exactly one '->'"]),
        ("", ["exactly one '->'", "''"]),
        ("bit,nt->bjt", ["output index 'j'", "in no operand"]),
        ("biit,nt->bnt", ["index 'i' is repeated in operand 0 ('biit')"]),
        ("bit,nt->bnnt", ["index 'n' is repeated in the output ('bnnt')"]),
        ("u_bit K_nnt -> y_bnt", ["index 'n' is repeated in K ('nnt')"]),
        (
            "bit,nt,jt->bjt",
            ["exactly two operands may carry the time index 't'", "3 do: operand 0, operand 1, operand 2"],
        ),
        ("u_bit K_nt C_jnt -> y_bjt", ["exactly two operands", "3 do: u, K, C"]),
        ("bit,ni->bnt", ["exactly two operands", "1 do: operand 0"]),
        ("bi,ni->bn", ["exactly two operands", "0 do: none"]),
        ("bit,nt->bn", ["the output 'bn'", "does not carry the time index"]),
        ("bit,n1t->bnt", ["operand 1", "'n1t'", "one or more letters"]),
        ("bit,,nt->bnt", ["operand 1", "''", "one or more letters"]),
        ("bit,πt->bπt", ["operand 1", "'πt'", "letters a-z"]),
        ("u_bit nt -> y_bnt", ["term 'nt'", "has no letter"]),
    ],
)
def test_an_expression_that_cannot_be_read(text: str, parts: list[str]) -> None:
    with pytest.raises(ExpressionError, match=says(*parts)):
        parse(text)


def test_a_time_index_is_one_letter() -> None:
    with pytest.raises(ExpressionError, match=says("time index is one letter", "'tt'")):
        parse("bit,nt->bnt", time="tt")


SIZES = {"b": 2, "i": 3, "n": 4, "t": 50}


@pytest.mark.parametrize("size", [math.nan, 4.0, -1, 0, True, "4", None])
def test_a_size_that_is_not_an_integer(size: Any) -> None:
    with pytest.raises(ExpressionError, match=says("index 'n'", f"has size {size!r}", "whole number of at least 1")):
        plan_expression("bit,ni,nt->bnt", SIZES | {"n": size})


@pytest.mark.parametrize("length", [math.nan, 4.0, -1, 0, "4"])
def test_a_kernel_length_that_is_not_an_integer(length: Any) -> None:
    with pytest.raises(ExpressionError, match=says("kernel", f"{length!r}", "whole number of at least 1")):
        plan_expression("bit,ni,nt->bnt", SIZES, kernel_length=length)


def test_sizes_that_are_missing_or_unknown() -> None:
    with pytest.raises(ExpressionError, match=says("no size given for index 'n'", "bit,ni,nt->bnt")):
        plan_expression("bit,ni,nt->bnt", {"b": 2, "i": 3, "t": 50})
    with pytest.raises(ExpressionError, match=says("size given for index 'j'", "bit,ni,nt->bnt does not have")):
        plan_expression("bit,ni,nt->bnt", SIZES | {"j": 3})


def test_modes_that_are_not_the_kernels() -> None:
    with pytest.raises(ExpressionError, match=says("modes 'i'", "kernel 'nt'")):
        plan_expression("bit,ni,nt->bnt", SIZES, modes="i")
    with pytest.raises(ExpressionError, match=says("phase 'i'", "kernel 'nt'")):
        plan_expression("bit,ni,nt->bnt", SIZES, modes="n", phase="i")


def operands(**shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape) for shape in shapes.values()]


def test_operands_that_do_not_fit_each_other() -> None:
    u, B, k = operands(u=(2, 3, 50), B=(4, 3), k=(4, 50))
    with pytest.raises(ExpressionError, match=says("index 'i'", "is 3 in operand 0 and 5 in operand 1")):
        temporal_einsum("bit,ni,nt->bnt", u, torch.randn(4, 5), k)
    with pytest.raises(ExpressionError, match=says("index 'n'", "is 4 in B and 7 in K")):
        temporal_einsum("u_bit B_ni K_nt -> y_bnt", u, B, torch.randn(7, 50))
    with pytest.raises(ExpressionError, match=says("operand 1", "'ni' (2 axes)", "(4, 3, 1) (3 axes)")):
        temporal_einsum("bit,ni,nt->bnt", u, B[..., None], k)
    with pytest.raises(ExpressionError, match=says("has 3 operands, 2 tensors were given")):
        temporal_einsum("bit,ni,nt->bnt", u, B)


def test_empty_operands() -> None:
    with pytest.raises(ExpressionError, match=says("index 't' of operand 0 has size 0")):
        temporal_einsum("bit,it->bit", torch.randn(2, 3, 0), torch.randn(3, 5))
    with pytest.raises(ExpressionError, match=says("index 't' of operand 1 has size 0")):
        temporal_einsum("bit,it->bit", torch.randn(2, 3, 5), torch.randn(3, 0))
    with pytest.raises(ExpressionError, match=says("index 'b' of operand 0 has size 0")):
        temporal_einsum("bit,it->bit", torch.randn(0, 3, 5), torch.randn(3, 5))


def test_operands_of_other_types() -> None:
    u, k = operands(u=(2, 3, 50), k=(3, 50))
    with pytest.raises(TypeError, match=says("operand 1 is torch.float64", "operand 0 is torch.float32")):
        temporal_einsum("bit,it->bit", u, k.double())
    for other in (torch.complex64, torch.int64, torch.bfloat16):
        with pytest.raises(TypeError, match=says(f"K is {other}", "float32")):
            temporal_einsum("u_bit K_it -> y_bit", u, k.to(other))
        with pytest.raises(TypeError, match=says(f"u is {other}", "float32")):
            temporal_einsum("u_bit K_it -> y_bit", u.to(other), k)
    with pytest.raises(
        TypeError, match=says("operand 1 is torch.float32 on meta", "operand 0 is torch.float32 on cpu")
    ):
        temporal_einsum("bit,it->bit", u, k.to("meta"))


def test_a_limit_that_nothing_fits() -> None:
    u, k = operands(u=(2, 3, 50), k=(3, 50))
    with pytest.raises(LimitError, match=says("no plan of bit,it->bit fits 1 bytes", "the closest needs")):
        temporal_einsum("bit,it->bit", u, k, limit=1)


def test_a_plan_for_something_else() -> None:
    u, k = operands(u=(2, 3, 50), k=(3, 20))
    sizes = {"b": 2, "i": 3, "t": 50}
    fits = plan_expression("bit,it->bit", sizes, kernel_length=20)
    assert temporal_einsum("bit,it->bit", u, k, plan=fits).shape == u.shape
    with pytest.raises(ValueError, match=says("the plan is for bit,it->bit", "'b': 4", "the operands", "'b': 2")):
        temporal_einsum("bit,it->bit", u, k, plan=plan_expression("bit,it->bit", sizes | {"b": 4}, kernel_length=20))
    with pytest.raises(ValueError, match=says("50 lags", "20 lags")):
        temporal_einsum("bit,it->bit", u, k, plan=plan_expression("bit,it->bit", sizes))
    with pytest.raises(ValueError, match=says("the plan is for bit,it->bt", "bit,it->bit")):
        temporal_einsum("bit,it->bit", u, k, plan=plan_expression("bit,it->bt", sizes, kernel_length=20))
    with pytest.raises(ValueError, match=says("generates the kernel")):
        temporal_einsum("bit,it->bit", u, k, plan=plan_expression("bit,it->bit", sizes, kernel_length=20, modes="i"))
