"""Kernels from exponential modes, Toeplitz tables and the tables of a chunk, against loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centaurus.kernels.modes import Exponential, _chunk_tables, chunk_tables, generate, powers, times, toeplitz
from tests.reference import gradients, kernel_of, worst

TIGHT = 1e-10
few = settings(max_examples=40, derandomize=True, deadline=None)


def modes_of(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A weight and log Ā of decaying modes."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    log_a = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    log_a[..., 0] = -0.1 * log_a[..., 0].abs()
    return weight.requires_grad_(), log_a.requires_grad_()


def test_powers_and_products_are_those_of_complex_numbers() -> None:
    weight, log_a = modes_of(3, 2)
    steps = torch.arange(5, dtype=torch.float64)
    a = torch.exp(torch.view_as_complex(log_a))
    expected = torch.stack([a**t for t in range(5)], -1)
    assert worst([powers(log_a, steps)], [torch.view_as_real(expected)]) <= TIGHT
    assert worst([powers(log_a, steps, conjugate=True)], [torch.view_as_real(expected.conj().resolve_conj())]) <= TIGHT
    product = torch.view_as_complex(weight) * a
    assert worst([times(weight, torch.view_as_real(a))], [torch.view_as_real(product)]) <= TIGHT


@few
@given(st.integers(1, 70), st.sampled_from(("nm", "n", "m", "mn", "")), st.integers(0, 9))
def test_a_generated_kernel(length: int, out: str, seed: int) -> None:
    """Σ Re(w a^τ) over the modes that are not asked for, in values and gradients."""
    weight, log_a = modes_of(3, 2, seed=seed)
    expected = torch.einsum(f"nmt->{out}t", kernel_of(weight, log_a, length))
    got = generate(weight, "nm", log_a, "nm", out, length)
    assert worst([got], [expected]) <= TIGHT
    assert worst(gradients([got], [weight, log_a]), gradients([expected], [weight, log_a])) <= TIGHT


@few
@given(st.integers(1, 40))
def test_a_generated_kernel_with_more_than_modes(length: int) -> None:
    """A weight may have indices of its own: one kernel for each."""
    _, log_a = modes_of(3)
    weight = torch.randn(4, 3, 2, dtype=torch.float64)
    expected = torch.stack([kernel_of(w, log_a, length) for w in weight], 1)  # n j t
    got = generate(weight, "jn", log_a, "n", "nj", length)
    assert worst([got], [expected]) <= TIGHT


def test_no_table_of_a_kernel_is_longer_than_a_square_root() -> None:
    """The basis kernels never exist: no intermediate has an axis over both modes and time."""
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            sizes.extend(
                x.numel() for x in (result if isinstance(result, tuple | list) else [result]) if isinstance(x, Tensor)
            )
            return result

    weight, log_a = modes_of(16, 32)
    with Watch(), torch.no_grad():
        generate(weight, "nm", log_a, "nm", "n", 4096)
    assert max(sizes) <= 16 * 32 * 2 * 64 < 16 * 32 * 4096


@few
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.integers(0, 9))
def test_toeplitz(rows: int, columns: int, taps: int, lag: int) -> None:
    k = torch.randn(2, taps, dtype=torch.float64, requires_grad=True)
    lag = min(lag, rows)
    expected = k.new_zeros(2, rows, columns)
    cells = [(p, q, q - p + lag) for p in range(rows) for q in range(columns) if 0 <= q - p + lag < taps]
    for p, q, at in cells:
        expected[:, p, q] = k[:, at]
    got = toeplitz(k, rows, columns, lag)
    assert torch.equal(got, expected)
    if cells:
        assert worst(gradients([got], [k]), gradients([expected], [k])) <= TIGHT


@few
@given(st.integers(1, 12), st.integers(0, 9))
def test_the_tables_of_a_chunk_are_the_recurrence(chunk: int, seed: int) -> None:
    """One chunk from a random state: its output, the state it leaves, and what the state adds."""
    weight, log_a = modes_of(3, seed=seed)
    local, into, out_of, decay = chunk_tables(weight, "n", log_a, "n", "n", "", chunk)
    u = torch.randn(chunk, dtype=torch.float64)
    start = torch.randn(3, dtype=torch.complex128)
    a, w = torch.exp(torch.view_as_complex(log_a)), torch.view_as_complex(weight)
    x, outputs = start, []
    for sample in u:
        x = a * x + sample
        outputs.append((w * x).real)
    output = torch.einsum("p,npq->nq", u, local) + torch.einsum("nh,nqh->nq", torch.view_as_real(start), out_of)
    left = torch.view_as_complex(decay.contiguous()) * start
    left = left + torch.view_as_complex(torch.einsum("p,nph->nh", u, into).contiguous())
    assert worst([output], [torch.stack(outputs, -1)]) <= TIGHT
    assert worst([torch.view_as_real(left)], [torch.view_as_real(x)]) <= TIGHT


@pytest.mark.parametrize("chunk", [1, 2, 7, 16])
@pytest.mark.parametrize(
    ("weights", "modes", "kernel"),
    [("n", "n", "n"), ("nm", "nm", "n"), ("jin", "jin", "ji"), ("nmji", "nm", "nji"), ("jnm", "mn", "jn")],
)
def test_the_tables_of_a_chunk_as_one_node(weights: str, modes: str, kernel: str, chunk: int) -> None:
    size = {"n": 3, "m": 2, "j": 2, "i": 4}
    weight, _ = modes_of(*(size[i] for i in weights), seed=1)
    _, log_a = modes_of(*(size[i] for i in modes), seed=2)
    made = chunk_tables(weight, weights, log_a, modes, kernel, "", chunk)
    expected = _chunk_tables(weight, weights, log_a, modes, kernel, "", chunk)
    assert made[0].grad_fn is not None
    assert "ChunkTables" in made[0].grad_fn.name()
    assert [x.shape for x in made] == [x.shape for x in expected]
    assert worst(made, expected) <= TIGHT
    inputs = [weight, log_a]
    assert worst(gradients(made, inputs), gradients(expected, inputs)) <= TIGHT


def test_modes_of_their_logarithms_have_exact_gradients() -> None:
    torch.manual_seed(0)
    log_a = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    a = torch.view_as_complex(log_a.detach()).exp()
    torch.testing.assert_close(torch.view_as_complex(Exponential.apply(log_a)), a)
    assert torch.autograd.gradcheck(Exponential.apply, (log_a,))
