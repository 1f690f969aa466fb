"""Containers derive their hop and ratio, and refuse layers that cannot be aligned."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from centaurus.layer import Layer
from centaurus.nn import AvgPool, Block, Down, Hourglass, Pointwise, Residual, Serial, SiLU, Up
from tests.check_layer import check_layer


@pytest.mark.parametrize(
    ("layers", "hop", "ratio"),
    [
        ([], 1, Fraction(1)),
        ([AvgPool(4), AvgPool(2)], 8, Fraction(1, 8)),
        ([Up(1, 1, 4), AvgPool(2)], 1, Fraction(2)),
        ([AvgPool(4), Up(1, 1, 2)], 4, Fraction(1, 2)),
        ([Up(1, 1, 2), AvgPool(3)], 3, Fraction(2, 3)),
        ([AvgPool(3), Up(1, 1, 2), AvgPool(4)], 6, Fraction(1, 6)),
    ],
)
def test_hop_and_ratio_of_a_chain(layers: list[Layer], hop: int, ratio: Fraction) -> None:
    net = Serial(layers)
    assert (net.hop, net.ratio) == (hop, ratio)


@st.composite
def chains(draw: st.DrawFn) -> Serial:
    """Random resampling layers of two channels."""
    kinds = st.tuples(st.sampled_from(["down", "up", "pool"]), st.integers(1, 4))
    makers = {"down": lambda r: Down(2, 2, r), "up": lambda r: Up(2, 2, r), "pool": AvgPool}
    return Serial([makers[kind](r) for kind, r in draw(st.lists(kinds, max_size=3))])


@given(net=chains(), hops=st.integers(1, 3), extra=st.integers(0, 50))
def test_any_chain_gives_the_frames_it_declares(net: Serial, hops: int, extra: int) -> None:
    samples = hops * net.hop + extra
    assert net(torch.randn(1, 2, samples)).shape[-1] == net.frames(samples)
    y, _ = net.step(torch.randn(1, 2, hops * net.hop))
    assert y.shape[-1] == hops * net.hop * net.ratio


@given(inside=st.sampled_from([1, 2, 3]), factor=st.integers(1, 4), deeper=st.integers(1, 3))
def test_an_hourglass_in_an_hourglass_lines_up(inside: int, factor: int, deeper: int) -> None:
    core = Hourglass(SiLU(), Down(3, 2, deeper), Serial(), Up(2, 3, deeper), SiLU())
    net = Hourglass(Pointwise(inside, 1), Down(1, 3, factor), core, Up(3, 1, factor), SiLU())
    assert (net.hop, net.ratio) == (factor * deeper, 1)
    assert net(torch.randn(2, inside, 7)).shape == (2, 1, 7)


def test_a_residual_has_a_hop_that_fits_body_and_skip() -> None:
    body, skip = Serial(Down(1, 1, 2), Up(1, 1, 2)), Serial(Down(1, 1, 3), Up(1, 1, 3))
    assert (Residual(body, skip).hop, Residual(skip, body).hop, Residual(body).hop) == (6, 6, 2)


def test_a_deep_hourglass_keeps_the_laws() -> None:
    net: Layer = Serial()
    for factor in (2, 3, 2):
        net = Hourglass(Pointwise(2, 2), Down(2, 2, factor), net, Up(2, 2, factor), Pointwise(2, 2))
    check_layer(net, 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Residual(AvgPool(2), SiLU()), "got 1/2 and 1"),
        (lambda: Hourglass(SiLU(), Down(1, 1, 4), Serial(), Up(1, 1, 2), SiLU()), "should be 1"),
        (lambda: Hourglass(AvgPool(2), Down(1, 1, 4), Serial(), Up(1, 1, 4), SiLU()), "encode has ratio 1/2"),
        (lambda: Block(AvgPool(2), 3), "hop 2"),
    ],
)
def test_what_cannot_line_up_is_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_only_layers_are_taken() -> None:
    with pytest.raises(TypeError, match="'norm' should be a centaurus layer, got LayerNorm"):
        Serial({"norm": torch.nn.LayerNorm(3)})
