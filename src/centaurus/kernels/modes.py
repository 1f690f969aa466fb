"""Exponential modes a^τ: kernels generated from them, Toeplitz matrices, and the tables of a chunk."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.kernels.pair import align, pair
from centaurus.kernels.precision import full_products


def times(x: Tensor, y: Tensor) -> Tensor:
    """Return the complex product of real tensors with a last axis of 2."""
    xr, xi = x.unbind(-1)
    yr, yi = y.unbind(-1)
    return torch.stack((xr * yr - xi * yi, xr * yi + xi * yr), -1)


def arange(stop: int, like: Tensor, start: int = 0, step: int = 1) -> Tensor:
    """Return ``torch.arange`` on the device and in the dtype of ``like``."""
    return torch.arange(start, stop, step, device=like.device, dtype=like.dtype)


def powers(log_a: Tensor, steps: Tensor, conjugate: bool = False) -> Tensor:
    """Return a^τ for every mode and step: (..., 2) and (τ,) to (..., τ, 2), where log_a = (log|a|, angle)."""
    growth, angle = log_a.unbind(-1)
    magnitude = torch.exp(growth[..., None] * steps)
    phase = angle[..., None] * (-steps if conjugate else steps)
    return torch.stack((magnitude * torch.cos(phase), magnitude * torch.sin(phase)), -1)


class Exponential(torch.autograd.Function):
    """a from log a = (log|a|, angle), both with a last axis of 2."""

    @staticmethod
    def forward(ctx: Any, log_a: Tensor) -> Tensor:
        growth, angle = log_a.unbind(-1)
        a = torch.view_as_real(torch.polar(growth.exp(), angle))
        ctx.save_for_backward(a)
        return a

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        # da = a (d log|a| + i d angle): the two gradients are the real and imaginary part of conj(a) times grad.
        return torch.view_as_real(torch.view_as_complex(a).conj() * torch.view_as_complex(grad.contiguous()))


def generate(weight: Tensor, weight_indices: str, log_a: Tensor, modes: str, out: str, length: int) -> Tensor:
    """Return k[out, τ] = Σ Re(weight · a^τ), τ = αq + ρ, as one GEMM of two tables of about √length columns each.

    The sum runs over the indices that are not in ``out``; the kernels of single modes are never stored. Compiled and
    exported graphs use real arithmetic only, which every backend supports.
    """
    if torch.compiler.is_compiling():
        return _generate_real(weight, weight_indices, log_a, modes, out, length)
    shared, summed = ("".join(i for i in modes if (i in out) == kept) for kept in (True, False))
    extra = "".join(i for i in weight_indices if i not in modes)
    size = dict(zip(weight_indices, weight.shape, strict=False))
    s, e, m = (math.prod([size[i] for i in group]) for group in (shared, extra, summed))
    order = shared + extra + summed
    w = weight.permute([*(weight_indices.index(i) for i in order), len(order)]).reshape(s, e, 1, m, 2)
    log = log_a.permute([*(modes.index(i) for i in shared + summed), len(modes)]).reshape(s, 1, m, 2)
    k: Tensor = _Generate.apply(w, log, length)
    return k.view(*(size[i] for i in shared + extra), length).permute([(shared + extra).index(i) for i in out] + [-1])


def _generate_real(weight: Tensor, weight_indices: str, log_a: Tensor, modes: str, out: str, length: int) -> Tensor:
    q = math.ceil(math.sqrt(length))
    blocks = math.ceil(length / q)
    coarse = powers(log_a, arange(blocks * q, log_a, step=q))  # modes α h
    fine = powers(log_a, arange(q, log_a), conjugate=True)  # modes ρ h
    extra = "".join(index for index in weight_indices if index not in modes)
    weight = align(weight, weight_indices + "η", extra + modes + "η")[..., None, :]
    k = pair(times(weight, coarse), extra + modes + "αη", fine, modes + "ρη", out + "αρ")
    return k.reshape(*k.shape[:-2], blocks * q)[..., :length]


class _Generate(torch.autograd.Function):
    """k (s, e, τ) from weights w (s, e, 1, m, 2) and log a (s, 1, m, 2), summed over m.

    Tables have the memory layout that the GEMM reads: modes last, real and imaginary parts interleaved.
    """

    @staticmethod
    def forward(ctx: Any, w: Tensor, log: Tensor, length: int) -> Tensor:
        bits = max(1, (length - 1).bit_length())
        low = (bits + 1) // 2
        doubled = _powers_of_two(log, bits)
        fine = _products(doubled[:low], 1 << low).conj_physical()  # s ρ m
        coarse = _products(doubled[low:] or doubled, -(-length >> low))  # s α m
        left = torch.view_as_complex(w.contiguous()) * coarse[:, None]  # s e α m
        ctx.save_for_backward(w, coarse, fine, left)
        ctx.length = length
        k = torch.bmm(_parts(left), _parts(fine).mT)
        return k.view(*w.shape[:2], -1)[..., :length].contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        w, coarse, fine, left = ctx.saved_tensors
        s, e, m = len(w), w.shape[1], w.shape[3]
        q, blocks = fine.shape[1], coarse.shape[1]
        whole = torch.nn.functional.pad(grad, (0, blocks * q - ctx.length)).reshape(s, e * blocks, q)
        with full_products():
            d_left = _complex(torch.bmm(whole, _parts(fine)), s, e, blocks, m)
            d_fine = _complex(torch.bmm(whole.mT, _parts(left)), s, q, m)
        d_weight = torch.view_as_real((d_left * coarse[:, None].conj()).sum(2, keepdim=True))
        # d exp(zτ) = τ exp(zτ) dz: the gradient of log a is Σ_τ τ · gradient · conj(table), of both tables.
        about = (d_left * left.conj()).sum(1) if e > 1 else (d_left * left.conj()).view(s, blocks, m)
        turns = torch.view_as_real(d_fine.conj() * fine).flatten(2)
        steps = arange(q, grad)
        with full_products():
            d_log = (q * arange(blocks, grad)) @ torch.view_as_real(about).flatten(2) + steps @ turns
        return d_weight, d_log.view(s, 1, m, 2), None


def _powers_of_two(log: Tensor, count: int) -> list[Tensor]:
    """Return a, a^2, a^4 …, each (s, 1, m), complex, from log a (s, 1, m, 2). Doubling an angle is exact."""
    growth, angle = (log.movedim(-1, 0)[:, None] * 2.0 ** arange(count, log)[:, None, None, None]).unbind()  # … s 1 m
    size = growth.exp()
    return list(torch.view_as_complex(torch.stack((size * angle.cos(), size * angle.sin()), -1)))


def _products(doubled: list[Tensor], count: int) -> Tensor:
    """Return a^0 … a^(count - 1), (s, τ, m); each doubling of the table is one product."""
    s, _, m = doubled[0].shape
    table = doubled[0].new_empty(s, count, m)
    table[:, :1] = 1
    for bit, power in enumerate(doubled):
        start = 1 << bit
        more = min(count - start, start)
        if more > 0:
            torch.mul(table[:, :more], power, out=table[:, start : start + more])
    return table


def _parts(x: Tensor) -> Tensor:
    """View complex (s, …, m) as real matrices (s, …, m · 2)."""
    return torch.view_as_real(x).view(len(x), -1, 2 * x.shape[-1])


def _complex(x: Tensor, *shape: int) -> Tensor:
    return torch.view_as_complex(x.view(*shape, 2))


def toeplitz(k: Tensor, rows: int, columns: int, lag: int = 0) -> Tensor:
    """Return M[p, q] = k[q - p + lag], zero outside k: (..., τ) to (..., p, q), by repeating and reshaping only."""
    period = rows + max(columns, k.shape[-1])
    taps = torch.nn.functional.pad(k, (0, period - k.shape[-1])).roll(-lag, -1)
    tiled = taps[..., None, :].expand(*k.shape[:-1], rows, period).reshape(*k.shape[:-1], rows * period)
    skewed = tiled[..., : rows * (period - 1)].reshape(*k.shape[:-1], rows, period - 1)
    return skewed[..., :columns]


def chunk_tables(
    weight: Tensor, weight_indices: str, log_a: Tensor, modes: str, kernel: str, phase: str, chunk: int
) -> list[Tensor]:
    """Return the tables of a chunk of Q samples, for ``ops.Chunked``.

    They are the Toeplitz matrix (kernel p q), the table into the states (modes phase p h), the table out of them
    (weight q h) and a^Q (modes h), h being real and imaginary part. With a ``phase`` index, the weight's entries for
    its two values differ by the factor i. The table into the states contains that factor, so the table out of them has
    the weight at phase zero.
    """
    learning = torch.is_grad_enabled() and (weight.requires_grad or log_a.requires_grad)
    if learning and not phase and not torch.compiler.is_compiling():
        return list(_ChunkTables.apply(weight, log_a, weight_indices, modes, kernel, chunk))
    return _chunk_tables(weight, weight_indices, log_a, modes, kernel, phase, chunk)


def _chunk_tables(
    weight: Tensor, weight_indices: str, log_a: Tensor, modes: str, kernel: str, phase: str, chunk: int
) -> list[Tensor]:
    """Return the same by differentiable torch operations: for complex layers, and as reference for ``_ChunkTables``."""
    local = toeplitz(generate(weight, weight_indices, log_a, modes, kernel, chunk), chunk, chunk)
    into = powers(log_a, arange(chunk, log_a).flip(0))  # modes p h
    if phase:
        turned = torch.stack((-into[..., 1], into[..., 0]), -1)
        into = torch.stack((into, turned), len(modes))  # modes phase p h
        weight = weight.select(weight_indices.index(phase), 0)
        weight_indices = weight_indices.replace(phase, "")
    later = powers(log_a, arange(chunk + 1, log_a, start=1))  # modes q h
    response = times(
        align(weight, weight_indices + "η", weight_indices + "κη"), align(later, modes + "κη", weight_indices + "κη")
    )
    out_of = torch.stack((response[..., 0], -response[..., 1]), -1)
    return [local, into, out_of, powers(log_a, arange(chunk + 1, log_a, start=chunk))[..., 0, :]]


class _ChunkTables(torch.autograd.Function):
    """``chunk_tables`` without a phase as one autograd node: as separate operations they cost a hundred calls."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, log_a: Tensor, weight_indices: str, modes: str, kernel: str, chunk: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        growth, angle = log_a[..., None, :].unbind(-1)
        steps = arange(chunk + 1, log_a)
        phase = angle * steps
        table = log_a.new_empty(*phase.shape, 2)
        torch.cos(phase, out=table[..., 0])
        torch.sin(phase, out=table[..., 1])
        table *= (growth * steps).exp_()[..., None]  # a^τ, τ = 0 … Q: modes τ h
        w = torch.view_as_complex(weight.contiguous())[..., None]
        response = w * align(torch.view_as_complex(table), modes + "τ", weight_indices + "τ")
        summed = [axis for axis, i in enumerate(weight_indices) if i not in kernel]
        k = torch.view_as_real(response)[..., :chunk, 0]
        k = k.sum(summed) if summed else k
        ctx.save_for_backward(w, table)
        ctx.indices, ctx.summed, ctx.chunk = (weight_indices, modes), summed, chunk
        reach = k.new_zeros(*k.shape[:-1], 2 * chunk - 1)
        reach[..., chunk - 1 :] = k
        local = reach.unfold(-1, chunk, 1).flip(-2)  # k[q - p]
        out_of = torch.view_as_real(response[..., 1:].conj_physical())
        return local, table[..., :chunk, :].flip(-2), out_of, table[..., chunk, :].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_local: Tensor, d_into: Tensor, d_out_of: Tensor, d_decay: Tensor
    ) -> tuple[Tensor, Tensor, None, None, None, None]:
        w, table = ctx.saved_tensors
        (indices, modes), chunk = ctx.indices, ctx.chunk
        powers = torch.view_as_complex(table)
        d_response = table.new_zeros(*w.shape[:-1], chunk + 1, 2)
        d_response[..., 1:, :] = d_out_of
        d_response[..., 1].neg_()
        d_response[..., :chunk, 0] += _diagonals(d_local)[(..., *(None for _ in ctx.summed), slice(None))].movedim(
            [*range(-1 - len(ctx.summed), -1)], ctx.summed
        )
        d_w = torch.view_as_complex(d_response)
        d_weight = torch.linalg.vecdot(align(powers, modes + "τ", indices + "τ"), d_w)
        d_powers = d_w * w.conj()
        extra = [axis for axis, i in enumerate(indices) if i not in modes]
        d_powers = d_powers.sum(extra) if extra else d_powers
        kept = "".join(i for i in indices if i in modes)
        d_powers = d_powers.permute([*(kept.index(i) for i in modes), len(kept)])
        d_parts = torch.view_as_real(d_powers)
        d_parts[..., :chunk, :] += d_into.flip(-2)
        d_parts[..., chunk, :] += d_decay
        # d exp(zτ) = τ exp(zτ) dz
        d_log = torch.linalg.vecdot(powers * arange(chunk + 1, table), d_powers)
        return torch.view_as_real(d_weight), torch.view_as_real(d_log), None, None, None, None


def _diagonals(table: Tensor) -> Tensor:
    """Return k[τ] = Σ_p table[p, p + τ], the adjoint of ``toeplitz``: (…, p, q) to (…, τ)."""
    size = table.shape[-1]
    rows = table.new_zeros(*table.shape[:-2], size, 2 * size)  # each column collects the entries of one lag
    skewed = rows.flatten(-2)[..., : size * (2 * size - 1)].unflatten(-1, (size, 2 * size - 1))
    skewed[..., :size] = table
    return rows.sum(-2)[..., :size]
