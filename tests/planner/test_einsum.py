"""temporal_einsum on its own: any expression a user writes, of any length, layout and dtype."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centaurus.kernels.program import temporal_einsum
from centaurus.planner import plan_expression
from tests.reference import convolve, gradients, worst

TIGHT = 1e-9  # fp64
SINGLE = 1e-5  # fp32, values and gradients, at up to 200 samples
few = settings(max_examples=25, derandomize=True, deadline=None)

EXPRESSIONS = [
    ("t,t->t", "t"),
    ("bt,nt->bnt", "t"),  # an index only the kernel and the output have
    ("it,it->it", "t"),  # no batch
    ("bit,it->bt", "t"),
    ("bit,ni,nt,jn->bjt", "t"),
    ("abs,cs->abcs", "s"),  # another time index
    ("tbi,nt,ni->tbn", "t"),  # time is not the last axis
    ("jn,ni,bit,nt->bjt", "t"),  # the signal is not the first operand
    ("bxit,ni,nt->bnt", "t"),  # x is summed in the signal alone
    ("bit,ni,nyt->bnt", "t"),  # y in the kernel alone
    ("bit,niz,nt->bnt", "t"),  # z in another operand alone
    ("bt,t,k->bkt", "t"),  # an operand that shares nothing
    ("bt,t,z->bt", "t"),  # an operand that is only summed
    ("bit,t,ij,jk->bkt", "t"),
    ("bit,jit,b->bjt", "t"),  # a weight for each row
    ("bit,bjit->bjt", "t"),  # a kernel for each row
]


def operands_for(expression: str, time: str, data: st.DataObject, dtype: torch.dtype) -> list[Tensor]:
    terms = expression.split("->")[0].split(",")
    size = {i: data.draw(st.integers(1, 3), label=i) for i in sorted(set("".join(terms)) - {time})}
    lengths = [data.draw(st.integers(1, 200), label=f"{time} of operand {p}") for p, x in enumerate(terms) if time in x]
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99), label="seed"))
    result = []
    for term in terms:
        length = lengths.pop(0) if time in term else 0
        shape = [length if i == time else size[i] for i in term]
        result.append(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_())
    return result


@pytest.mark.parametrize(("expression", "time"), EXPRESSIONS, ids=[e for e, _ in EXPRESSIONS])
@few
@given(data=st.data())
def test_it_is_the_convolution_by_its_definition(expression: str, time: str, data: st.DataObject) -> None:
    operands = operands_for(expression, time, data, torch.float64)
    expected = convolve(expression, *operands, time=time)
    got = temporal_einsum(expression, *operands, time=time)
    assert got.dtype == torch.float64
    assert worst([got], [expected]) <= TIGHT
    assert worst(gradients([got], operands), gradients([expected], operands)) <= TIGHT


@pytest.mark.parametrize("expression", ["bit,ni,nt,jn->bjt", "bt,nt->bnt"])
@few
@given(data=st.data())
def test_single_precision(expression: str, data: st.DataObject) -> None:
    operands = operands_for(expression, "t", data, torch.float32)
    exact = [x.detach().double().requires_grad_() for x in operands]
    expected, got = convolve(expression, *exact), temporal_einsum(expression, *operands)
    assert got.dtype == torch.float32
    assert worst([got], [expected]) <= SINGLE
    assert worst(gradients([got], operands), gradients([expected], exact)) <= SINGLE


def test_layout_of_the_operands_does_not_matter() -> None:
    u, k = torch.randn(4, 3, 50, dtype=torch.float64), torch.randn(2, 3, 50, dtype=torch.float64)
    expected = convolve("bit,jit->bjt", u, k)
    turned = u.transpose(0, 1).contiguous().transpose(0, 1)
    gaps = torch.stack((u, u), -1)[..., 0]
    repeated = u[:1].expand(4, -1, -1)
    for signal, right in ((turned, expected), (gaps, expected), (repeated, expected[:1].expand(4, -1, -1))):
        assert worst([temporal_einsum("bit,jit->bjt", signal, k)], [right]) <= TIGHT


def test_the_same_expression_with_letters() -> None:
    u, k = torch.randn(2, 3, 20), torch.randn(5, 3, 20)
    named = temporal_einsum("u_bit K_jit -> y_bjt", u, k)
    torch.testing.assert_close(named, temporal_einsum("bit,jit->bjt", u, k), rtol=0, atol=0)


def test_a_plan_of_ones_own_is_used() -> None:
    u, k = torch.randn(2, 3, 60, dtype=torch.float64), torch.randn(5, 3, 9, dtype=torch.float64)
    plan = plan_expression("bit,jit->bjt", {"b": 2, "i": 3, "j": 5, "t": 60}, kernel_length=9)
    for chosen in (plan, *plan.runners_up):
        assert worst([temporal_einsum("bit,jit->bjt", u, k, plan=chosen)], [convolve("bit,jit->bjt", u, k)]) <= TIGHT


def test_inputs_are_not_changed_and_gradients_come_twice() -> None:
    u, k = (torch.randn(2, 3, 30, requires_grad=True) for _ in range(2))
    before = [u.detach().clone(), k.detach().clone()]
    y = temporal_einsum("bit,jit->bjt", u, k)
    first = torch.autograd.grad(y.sum(), [u, k], retain_graph=True)
    second = torch.autograd.grad(y.sum(), [u, k])
    for a, b in zip((*first, u, k), (*second, *before), strict=True):
        assert torch.equal(a, b)


def test_runs_without_data(device: torch.device) -> None:
    """On the meta device shapes come out, so no tensor is made on a device of its own."""
    for place in (device, torch.device("meta")):
        operands = [
            torch.randn(shape, device=place, requires_grad=True) for shape in ((2, 3, 40), (4, 3), (4, 40), (5, 4))
        ]
        y = temporal_einsum("bit,ni,nt,jn->bjt", *operands)
        y.sum().backward()
        assert y.shape == (2, 5, 40)
        assert all(x.device.type == place.type for x in (y, *(x.grad for x in operands)))
