"""Wrong layers, signals and states: the error says what was given and what is right."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from centaurus.layer import Layer, State
from centaurus.planner import ExpressionError
from centaurus.ssm import S6, SSM
from tests.ssm.layers import kinds

KINDS = kinds()
by_kind = pytest.mark.parametrize(("build", "channels"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])


def says(*parts: str) -> str:
    """A pattern for a message with these parts, in this order."""
    return ".*".join(re.escape(part) for part in parts)


def test_a_topology_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=says("unknown topology 'fulll'", "depthwise, separable", "full", "u_bit")):
        SSM("fulll", 3)


def test_a_discretization_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=says("unknown discretization 'euler'", "simple, zoh, bilinear")):
        SSM("full", 3, discretization="euler")


def test_an_order_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=says("unknown plan 'fastest'", "planned, natural, paper, full-kernel")):
        SSM("full", 3).plan(1, 10, order="fastest")


def test_a_layer_without_a_topology_says_what_to_write() -> None:
    with pytest.raises(TypeError, match=says("topology or an equation first, got 16", "SSM('pointwise', 16")):
        SSM(16, 32)  # type: ignore[call-overload]


def test_numpy_input_says_how_to_convert_it() -> None:
    with pytest.raises(TypeError, match=says("torch tensor", "ndarray", "torch.from_numpy")):
        SSM("full", 1, 2)(np.zeros((1, 1, 10), np.float32))  # type: ignore[arg-type]


def test_parameters_are_created_on_the_given_device() -> None:
    layer = SSM("pointwise", 3, 4, device="meta", dtype=torch.float64)
    assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float64)}


@pytest.mark.parametrize("size", [math.nan, 3.0, -1, 0, True, "3"])
@pytest.mark.parametrize("name", ["in_channels", "out_channels", "states", "substates", "groups"])
def test_a_size_that_is_not_an_integer(name: str, size: Any) -> None:
    topology = "grouped" if name == "groups" else "bottleneck"
    arguments: dict[str, Any] = {"in_channels": 4, "out_channels": 4, name: size}
    with pytest.raises(ValueError, match=says(f"{name} of", "whole number of at least 1", f"got {size!r}")):
        SSM(topology, **arguments)


@pytest.mark.parametrize("size", [math.nan, 3.0, -1, 0, True, "3"])
@pytest.mark.parametrize("name", ["in_channels", "out_channels", "states", "rank"])
def test_a_size_of_s6_that_is_not_an_integer(name: str, size: Any) -> None:
    arguments: dict[str, Any] = {"in_channels": 4, "out_channels": 4, name: size}
    with pytest.raises(ValueError, match=says(f"{name} of", "whole number of at least 1", f"got {size!r}")):
        S6(**arguments)


def test_s6_of_one_channel() -> None:
    with pytest.raises(ValueError, match=says("at least 2, got 1", "'separable'")):
        S6(1)


@pytest.mark.parametrize(
    ("topology", "arguments", "parts"),
    [
        ("full", {}, ["SSM('full') needs in_channels"]),
        ("full", {"in_channels": 3, "sizes": {"i": 3}}, ["sizes= goes with an equation of your own", "'full'"]),
        ("full", {"in_channels": 3, "substates": 2}, ["full has no sub-states", "got 2"]),
        ("full", {"in_channels": 4, "groups": 2}, ["full has no groups", "got 2"]),
        ("depthwise", {"in_channels": 3, "out_channels": 4}, ["depthwise keeps its channels", "3", "got 4"]),
        ("grouped", {"in_channels": 4, "out_channels": 4, "groups": 3}, ["in_channels=4", "groups=3"]),
        ("grouped", {"in_channels": 6, "out_channels": 4, "groups": 3}, ["out_channels=4", "groups=3"]),
    ],
)
def test_arguments_that_do_not_fit_the_topology(topology: str, arguments: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ValueError, match=says(*parts)):
        SSM(topology, **arguments)


@pytest.mark.parametrize(
    ("equation", "sizes", "parts"),
    [
        ("u_bit E_in K_int -> y_bjt", {"i": 3, "n": 2}, ["output index 'j'", "in no operand"]),
        ("u_bit E_iin K_int -> y_bit", {"i": 3, "n": 2}, ["index 'i' is repeated in E ('iin')"]),
        ("u_bit E_int K_int -> y_bit", {"i": 3, "n": 2}, ["exactly two operands may carry", "3 do: u, E, K"]),
        ("u_bit E_in K_int -> y_bit", {"i": 3}, ["index 'n' has no size", "{'i': 3}"]),
        ("u_bit E_in K_int -> y_bit", {"i": 3, "n": 2, "j": 4}, ["index 'j' is not in the equation"]),
        ("u_bit E_in K_int -> y_bit", {"i": 3, "n": 2, "b": 4}, ["index 'b' is not in the equation"]),
        ("u_bit E_in K_int -> y_bit", {"i": 3, "n": math.nan}, ["index 'n'", "size nan", "whole number"]),
        ("u_bit E_in K_int -> y_bit", {"i": 3, "n": 2.5}, ["index 'n'", "size 2.5", "whole number"]),
        ("u_bit E_in K_int -> y_bit", None, ["takes sizes={index: size}"]),
        ("x_bit E_in K_int -> y_bit", {"i": 3, "n": 2}, ["starts with u_…", "K_…"]),
        ("u_bit E_in F_int -> y_bit", {"i": 3, "n": 2}, ["starts with u_…", "K_…"]),
        ("u_bit E_in E_i K_int -> y_bit", {"i": 3, "n": 2}, ["letter 'E'", "each operand needs its own"]),
        ("u_bit A_in K_int -> y_bit", {"i": 3, "n": 2}, ["letter 'A'", "taken"]),
        ("u_bit log_dt_n K_int -> y_bit", {"i": 3, "n": 2}, ["operand 'log_dt'", "one letter"]),
        ("u_itb E_in K_int -> y_bit", {"i": 3, "n": 2}, ["(batch, channels, time)", "'itb'"]),
        ("u_bit E_in K_int -> y_bt", {"i": 3, "n": 2}, ["(batch, channels, time)", "'bt'"]),
        ("u_bit B_bn K_nt -> y_bnt", {"i": 3, "n": 2}, ["B of", "batch index b"]),
        ("u_bit K_bnt -> y_bnt", {"i": 3, "n": 2}, ["K of", "batch index b"]),
        ("u_bit K_nt C_n -> y_bit", {"i": 3, "n": 2}, ["index 'i'", "goes from u to y past K"]),
        ("u_bit B_nji K_nt -> y_bjt", {"i": 3, "n": 2, "j": 2}, ["index 'j'", "goes from u to y past K"]),
        ("bit,in,int->bit", {"i": 3, "n": 2}, ["starts with u_…"]),
    ],
)
def test_an_equation_that_is_none(equation: str, sizes: dict[str, Any] | None, parts: list[str]) -> None:
    with pytest.raises(ValueError, match=says(*parts)):
        SSM(equation, sizes=sizes)


def test_too_many_complex_operands() -> None:
    equation = "u_bit K_it C_ji D_kj -> y_bkt"
    with pytest.raises(ExpressionError, match=says("one complex operand before and one after")):
        SSM(equation, sizes={"i": 2, "j": 2, "k": 2}, complex=True)
    assert SSM(equation, sizes={"i": 2, "j": 2, "k": 2})(torch.randn(1, 2, 5)).shape == (1, 2, 5)


@by_kind
def test_signals_that_do_not_fit(build: Callable[[], Layer], channels: int) -> None:
    layer = build().float()
    for run in (layer, layer.step):
        with pytest.raises(ValueError, match=says(f"built for {channels} input channels, got 7", "(2, 7, 20)")):
            run(torch.randn(2, 7, 20))
        with pytest.raises(ValueError, match=says("at least one sample", f"(2, {channels}, 0)")):
            run(torch.randn(2, channels, 0))
        with pytest.raises(ValueError, match=says("at least one sample and one row", f"(0, {channels}, 20)")):
            run(torch.randn(0, channels, 20))
        with pytest.raises(ValueError, match=says("takes (batch, channels, time), got shape", f"({channels}, 20)")):
            run(torch.randn(channels, 20))
        for other in (torch.complex64, torch.int16):
            with pytest.raises(TypeError, match=says("floating-point samples", f"got {other}")):
                run(torch.zeros(2, channels, 20, dtype=other))


@by_kind
def test_states_that_do_not_fit(build: Callable[[], Layer], channels: int) -> None:
    layer, u = build().float(), torch.randn(2, channels, 20)
    state = layer.init_state(2)
    assert isinstance(state, Tensor)
    shape, other = tuple(state.shape), (3, *state.shape[1:])
    with pytest.raises(ValueError, match=says(f"state has shape {other}", f"needs {shape} for a batch of 2")):
        layer.step(u, layer.init_state(3))
    with pytest.raises(TypeError, match=says("state is torch.float64", "needs torch.float32")):
        layer.step(u, state.double())
    with pytest.raises(TypeError, match=says("state is torch.complex64", "needs torch.float32")):
        layer.step(u, state.to(torch.complex64))
    with pytest.raises(ValueError, match=says("state should be a tensor of shape", f"{shape}", "got tuple")):
        layer.step(u, (state,))
    y, after = layer.step(u, state)
    assert y.shape[-1] == 20
    assert isinstance(after, Tensor)


class Halves(Layer):
    """Every second sample: a hop of two."""

    hop = 2

    def init_state(self, batch: int) -> State:
        return ()

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return u, ()


def test_a_piece_that_is_not_whole_hops() -> None:
    with pytest.raises(ValueError, match=says("whole hops", "got 5 samples", "multiple of the hop 2", "Stream")):
        Halves().step(torch.randn(1, 1, 5))
    with pytest.raises(ValueError, match=says("state should be a tuple of 0", "got Tensor")):
        Halves().step(torch.randn(1, 1, 4), torch.zeros(1))


def test_a_plan_for_no_signal() -> None:
    layer = SSM("full", 3)
    for batch, length, index in ((0, 10, "b"), (2, 0, "t"), (2, math.nan, "t"), (2.5, 10, "b")):
        with pytest.raises(ExpressionError, match=says(f"index '{index}'", "whole number of at least 1")):
            layer.plan(batch=batch, length=length)  # type: ignore[arg-type]
