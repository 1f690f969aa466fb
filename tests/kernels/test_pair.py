"""Contraction of two tensors by index strings against torch.einsum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centaurus.kernels import precision
from centaurus.kernels.pair import align, laid_out, pair
from tests.reference import gradients, worst

TIGHT = 1e-12
few = settings(max_examples=80, derandomize=True, deadline=None)
INDICES = "abcdef"


@st.composite
def contractions(draw: st.DrawFn) -> tuple[str, str, str, dict[str, int]]:
    """Two index strings and an output over some of their indices, in any order, with sizes."""
    x, y = (
        "".join(draw(st.permutations(INDICES)))[: draw(st.integers(1, 4))],
        "".join(draw(st.permutations(INDICES)))[: draw(st.integers(1, 4))],
    )
    every = list(dict.fromkeys(x + y))
    out = "".join(draw(st.permutations(every)))[: draw(st.integers(0, len(every)))]
    return x, y, out, {i: draw(st.integers(1, 4)) for i in INDICES}


def number(indices: str, size: dict[str, int], kind: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = [size[i] for i in indices]
    return torch.randn(shape, generator=generator, dtype=kind).requires_grad_()


def split(x: Tensor) -> list[Tensor]:
    return [x.real, x.imag] if x.is_complex() else [x]


@few
@given(
    contractions(),
    st.sampled_from((torch.float64, torch.complex128)),
    st.sampled_from((torch.float64, torch.complex128)),
)
def test_any_contraction(given_: tuple[str, str, str, dict[str, int]], first: torch.dtype, second: torch.dtype) -> None:
    xi, yi, out, size = given_
    x, y = number(xi, size, first, 1), number(yi, size, second, 2)
    wide = torch.promote_types(first, second)
    expected = torch.einsum(f"{xi},{yi}->{out}", x.to(wide), y.to(wide))
    got = pair(x, xi, y, yi, out)
    assert got.dtype == wide
    assert worst(split(got), split(expected)) <= TIGHT
    actual = [part for g in gradients(split(got), [x, y]) for part in split(g)]
    right = [part for g in gradients(split(expected), [x, y]) for part in split(g)]
    assert worst(actual, right) <= TIGHT


@few
@given(contractions(), st.booleans())
@torch.no_grad()
def test_adding_onto_a_result(given_: tuple[str, str, str, dict[str, int]], contiguous: bool) -> None:
    """Where the result lies as the product would, the sum happens in place; elsewhere beside it."""
    xi, yi, out, size = given_
    x, y = number(xi, size, torch.float64, 1), number(yi, size, torch.float64, 2)
    product = pair(x, xi, y, yi, out)
    onto = torch.randn_like(product) if contiguous else torch.randn(product.shape, dtype=torch.float64)
    expected = onto + product
    assert worst([pair(x, xi, y, yi, out, onto=onto)], [expected]) <= TIGHT


@few
@given(contractions())
@torch.no_grad()
def test_a_laid_out_tensor_is_the_same(given_: tuple[str, str, str, dict[str, int]]) -> None:
    xi, yi, out, size = given_
    y = number(yi, size, torch.float64, 2)
    assert torch.equal(laid_out(y, yi, xi, out), y)


def test_aligning_is_a_view_for_broadcasting() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert align(x, "ab", "cbda").shape == (1, 3, 1, 2)
    assert torch.equal(align(x, "ab", "ba"), x.T)
    assert align(x, "ab", "ab").data_ptr() == x.data_ptr()


def test_an_index_that_is_nowhere_is_an_error() -> None:
    with pytest.raises((ValueError, KeyError, RuntimeError)):
        pair(torch.ones(2, 3), "ab", torch.ones(3, 4), "bc", "az")


Products = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Products:
    """The matrices that oneDNN multiplies while it counts as faster."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    products: Products = []
    by_onednn = precision.by_onednn
    monkeypatch.setattr(precision, "onednn_faster", lambda threads: True)
    monkeypatch.setattr(precision, "by_onednn", lambda x, y: products.append((x, y)) or by_onednn(x, y))
    torch.manual_seed(0)
    return products


@pytest.mark.parametrize("x_transposed", [False, True])
@pytest.mark.parametrize("y_transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_products_by_onednn(x_transposed: bool, y_transposed: bool, bias: bool, used: Products) -> None:
    m, k, n = 96, 200, 130
    x = torch.randn(k, m).t() if x_transposed else torch.randn(m, k)
    y = torch.randn(n, k).t() if y_transposed else torch.randn(k, n)
    inputs = [x.requires_grad_(), y.requires_grad_(), *([torch.randn(m, 1, requires_grad=True)] if bias else [])]
    exact = [z.detach().double().requires_grad_() for z in inputs]
    made, right = precision.projected(*inputs), exact[0] @ exact[1] + (exact[2] if bias else 0)
    actual, expected = (gradients([z], of) for z, of in ((made, inputs), (right, exact)))
    assert worst([made, *actual], [right, *expected]) < 1e-5
    assert len(used) == 3  # forward, and both gradients


def test_small_or_sliced_matrices_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "onednn_faster", lambda threads: True)
    large = torch.randn(256, 256)
    assert precision.suits_onednn(large, large)
    for x, y in ((large[:8], large), (large[:, :200], large[:200]), (large.double(), large.double())):
        assert not precision.suits_onednn(x, y)


@pytest.mark.parametrize("shared", [False, True])
def test_a_few_large_products_go_one_by_one(shared: bool, used: Products) -> None:
    x = torch.randn(200, 96).t().expand(3, -1, -1) if shared else torch.randn(3, 200, 96).mT
    y = torch.randn(3, 200, 130)
    assert worst([precision.multiplied(x, y)], [x.double() @ y.double()]) < 1e-5
    assert [x.shape for x, _ in used] == [(96, 200)] * 3
    precision.multiplied(x[:, :8], y)
    assert len(used) == 3


def test_a_large_matrix_with_gaps_is_copied_for_onednn(used: Products) -> None:
    x, y = torch.randn(64, 128), torch.randn(128, 600)[:, 100:500]
    assert worst([precision.multiplied(x, y)], [x.double() @ y.double()]) < 1e-5
    assert [y.stride() for _, y in used] == [(400, 1)]
    precision.multiplied(x[:8], torch.randn(128, 6000)[:, :4000])
    assert len(used) == 1  # a copy would cost as much as the product
