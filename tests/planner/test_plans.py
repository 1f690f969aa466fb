"""Every plan of an expression is the same function: values and gradients of the convolution by its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centaurus.kernels.program import Modes, Program
from centaurus.planner import Plan, enumerate_plans
from tests.reference import convolve, gradients, kernel_of, worst

TIGHT = 1e-9  # largest relative error in fp64, values and gradients
ONE_ROW = 1  # tile_bytes so small that every tile is one row of the batch and backward computes everything again
few = settings(max_examples=15, derandomize=True, deadline=None)


class Case(NamedTuple):
    """An expression; with modes its kernel is generated, with a phase what drives the state is complex."""

    expression: str
    modes: str = ""
    phase: str = ""


DENSE = [
    Case("bit,in,int->bit"),
    Case("bit,in,int,ji->bjt"),
    Case("bgit,gjin,gjint->bgjt"),
    Case("bit,ni,nt,jn->bjt"),
    Case("bit,ni,nm,nmt,jn->bjt"),
    Case("bit,jin,jint->bjt"),
    Case("t,t->t"),
    Case("bt,nt->bnt"),
    Case("nt,bt->bnt"),  # the kernel has the index that looks like a batch
    Case("it,jit->jt"),  # no batch
    Case("bit,it->bt"),  # channels that are only summed
    Case("bict,it,jc->jbt"),  # the signal's own index is contracted later; output in another order
    Case("bit,nt,ki->bkt"),  # a state that nothing but the kernel has
    Case("ab,bct,at->cat"),  # the signal is not the first operand
]
GENERATED = [
    Case("bit,in,int->bit", "in"),
    Case("bit,in,int,ji->bjt", "in"),
    Case("bgit,gjin,gjint->bgjt", "gjin"),
    Case("bit,ni,nt,jn->bjt", "n"),
    Case("bit,ni,nm,nmt,jn->bjt", "nm"),
    Case("bit,jin,jint->bjt", "jin"),
    Case("t,nt->t", "n"),
    Case("bit,nt->bt", "n"),
    Case("bit,inqt,jnq->bjt", "in"),  # the read-out is complex
    Case("bit,nip,npt->bt", "n", "p"),  # the drive is complex
    Case("bit,nip,npqt,jnq->bjt", "n", "p"),  # both are
]


def label(case: Case) -> str:
    return case.expression + (f" [{case.modes}{'/' + case.phase if case.phase else ''}]" if case.modes else "")


def indices_of(case: Case) -> str:
    return "".join(sorted({c for c in case.expression if c.isalpha()} - {"t"}))


def sizes_for(case: Case, data: st.DataObject, longest: int) -> dict[str, int]:
    """Random small sizes; the parts of a complex number are two."""
    sizes = {i: 2 if i in "pq" else data.draw(st.integers(1, 3), label=i) for i in indices_of(case)}
    return sizes | {"t": data.draw(st.integers(1, longest), label="t")}


def tensors(case: Case, sizes: Mapping[str, int], lags: int, seed: int) -> list[Tensor]:
    """Random operands that require gradients; for a generated kernel its weight and log Ā."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    terms = case.expression.split("->")[0].split(",")
    kernel = [p for p, term in enumerate(terms) if "t" in term][1]
    result = []
    for position, term in enumerate(terms):
        shape = [lags if i == "t" and position == kernel else sizes[i] for i in term]
        if position != kernel or not case.modes:
            result.append(normal(*shape))
            continue
        modes = [sizes[i] for i in case.modes]
        log_a = torch.stack((-normal(*modes).abs() * 0.2, normal(*modes)), -1)
        result += [normal(*modes, 2), log_a]
    return [x.requires_grad_() for x in result]


def split_kernel(case: Case, operands: Sequence[Tensor]) -> list[Tensor | Modes]:
    """Operands as a program takes them: weight and log Ā of a generated kernel are one.

    The entries of an index over real and imaginary part differ by the factor i.
    """
    if not case.modes:
        return list(operands)
    terms = case.expression.split("->")[0].split(",")
    kernel = [p for p, term in enumerate(terms) if "t" in term][1]
    weight = operands[kernel]
    for _ in terms[kernel][len(case.modes) : -1]:
        weight = torch.stack((weight, torch.stack((-weight[..., 1], weight[..., 0]), -1)), -2)
    return [*operands[:kernel], Modes(weight, operands[kernel + 1]), *operands[kernel + 2 :]]


def direct(case: Case, operands: Sequence[Tensor], samples: int) -> Tensor:
    """The expression by its definition."""
    given = split_kernel(case, operands)
    plain = [kernel_of(x.weight, x.log_a, samples) if isinstance(x, Modes) else x for x in given]
    return convolve(case.expression, *plain)


def check(case: Case, plans: Sequence[Plan], operands: Sequence[Tensor], samples: int) -> None:
    """Every plan gives the values and gradients of the definition."""
    y = direct(case, operands, samples)
    expected = [y, *gradients([y], operands)]
    for plan in plans:
        got = Program(plan)(split_kernel(case, operands))
        error = max(worst([got], [y]), worst(gradients([got], operands), expected[1:]))
        assert error <= TIGHT, f"{plan.summary()} with tiles of {plan.tile_bytes} bytes: {error:.3g}"


@pytest.mark.parametrize("case", [*DENSE, *GENERATED], ids=label)
def test_all_plans_are_one_function(case: Case) -> None:
    """The whole search space, at one size with several tiles, several chunks and a piece left over."""
    sizes = {index: 2 + (index in "bj") for index in indices_of(case)} | {"t": 37}
    sizes |= {i: 2 for i in sizes if i in "pq"}
    plans = enumerate_plans(case.expression, sizes, modes=case.modes, phase=case.phase)
    operands = tensors(case, sizes, 37, seed=0)
    check(case, plans, operands, 37)
    check(case, [replace(plan, tile_bytes=ONE_ROW) for plan in plans[:: max(1, len(plans) // 100)]], operands, 37)


@pytest.mark.parametrize("case", [*DENSE, *GENERATED], ids=label)
@few
@given(data=st.data())
def test_any_shape(case: Case, data: st.DataObject) -> None:
    """Some plans at random sizes, lengths of signal and kernel, and tiles."""
    sizes = sizes_for(case, data, longest=40)
    lags = sizes["t"] if case.modes else data.draw(st.integers(1, 50))
    plans = enumerate_plans(case.expression, sizes, kernel_length=lags, modes=case.modes, phase=case.phase)
    chosen = data.draw(st.lists(st.sampled_from(range(len(plans))), min_size=1, max_size=4, unique=True))
    tile = data.draw(st.sampled_from((ONE_ROW, 2000, 16 << 20)))
    operands = tensors(case, sizes, lags, seed=data.draw(st.integers(0, 99)))
    check(case, [replace(plans[p], tile_bytes=tile) for p in chosen], operands, sizes["t"])


@pytest.mark.parametrize("case", [Case("bit,ni,nt,jn->bjt"), Case("bit,ni,nt,jn->bjt", "n")], ids=label)
@pytest.mark.parametrize("tile", [ONE_ROW, 16 << 20])
def test_gradients_of_some_operands_only(case: Case, tile: int) -> None:
    """Whatever does not ask for a gradient is skipped, and the others get the gradient they get together."""
    sizes = {"b": 3, "i": 2, "n": 2, "j": 3, "t": 21}
    operands = tensors(case, sizes, 21, seed=1)
    expected = gradients([direct(case, operands, 21)], operands)
    for plan in enumerate_plans(case.expression, sizes, modes=case.modes):
        program = Program(replace(plan, tile_bytes=tile))
        for chosen, right in zip(operands, expected, strict=True):
            some = [x if x is chosen else x.detach() for x in operands]
            got = gradients([program(split_kernel(case, some))], [chosen])
            assert worst(got, [right]) <= TIGHT, plan.summary()


@pytest.mark.parametrize("case", [Case("bit,ni,nt,jn->bjt"), Case("bit,ni,nt,jn->bjt", "n")], ids=label)
def test_nothing_kept_for_backward_is_written_to(case: Case) -> None:
    """A second backward through the same graph gives the same gradients, and the operands stay as they were."""
    sizes = {"b": 3, "i": 2, "n": 2, "j": 3, "t": 37}
    operands = tensors(case, sizes, 37, seed=2)
    before = [x.detach().clone() for x in operands]
    weights = torch.randn(3, 3, 37, dtype=torch.float64)
    for plan in enumerate_plans(case.expression, sizes, modes=case.modes):
        total = (Program(plan)(split_kernel(case, operands)) * weights).sum()
        first = torch.autograd.grad(total, operands, retain_graph=True)
        for a, b in zip(first, torch.autograd.grad(total, operands), strict=True):
            assert torch.equal(a, b), plan.summary()
    assert all(torch.equal(x, old) for x, old in zip(operands, before, strict=True))
