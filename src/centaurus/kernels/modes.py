"""Exponential modes a^τ: kernels from them by the split exponential, Toeplitz tables, tables of a chunk."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from centaurus.kernels.pair import align, pair


def times(x: Tensor, y: Tensor) -> Tensor:
    """Complex product of real tensors with a last axis of 2."""
    xr, xi = x.unbind(-1)
    yr, yi = y.unbind(-1)
    return torch.stack((xr * yr - xi * yi, xr * yi + xi * yr), -1)


def arange(stop: int, like: Tensor, start: int = 0, step: int = 1) -> Tensor:
    """Whole numbers on the device and in the dtype of ``like``."""
    return torch.arange(start, stop, step, device=like.device, dtype=like.dtype)


def powers(log_a: Tensor, steps: Tensor, conjugate: bool = False) -> Tensor:
    """a^τ for every mode and step: (..., 2) and (τ,) to (..., τ, 2), where log_a = (log|a|, angle)."""
    growth, angle = log_a.unbind(-1)
    magnitude = torch.exp(growth[..., None] * steps)
    phase = angle[..., None] * (-steps if conjugate else steps)
    return torch.stack((magnitude * torch.cos(phase), magnitude * torch.sin(phase)), -1)


def generate(weight: Tensor, weight_indices: str, log_a: Tensor, modes: str, out: str, length: int) -> Tensor:
    """k[out, τ] = Σ Re(weight · a^τ) with τ = αq + ρ: one GEMM of two tables of about √length columns.

    The sum runs over the indices that ``out`` lacks; the basis kernels themselves never exist.
    """
    q = math.ceil(math.sqrt(length))
    blocks = math.ceil(length / q)
    coarse = powers(log_a, arange(blocks * q, log_a, step=q))  # modes α h
    fine = powers(log_a, arange(q, log_a), conjugate=True)  # modes ρ h
    extra = "".join(index for index in weight_indices if index not in modes)
    weight = align(weight, weight_indices + "η", extra + modes + "η")[..., None, :]
    k = pair(times(weight, coarse), extra + modes + "αη", fine, modes + "ρη", out + "αρ")
    return k.reshape(*k.shape[:-2], blocks * q)[..., :length]


def toeplitz(k: Tensor, rows: int, columns: int, lag: int = 0) -> Tensor:
    """M[p, q] = k[q - p + lag], zero outside k: (..., τ) to (..., p, q), by tiling and cutting alone."""
    period = rows + max(columns, k.shape[-1])
    taps = torch.nn.functional.pad(k, (0, period - k.shape[-1])).roll(-lag, -1)
    tiled = taps[..., None, :].expand(*k.shape[:-1], rows, period).reshape(*k.shape[:-1], rows * period)
    skewed = tiled[..., : rows * (period - 1)].reshape(*k.shape[:-1], rows, period - 1)
    return skewed[..., :columns]


def chunk_tables(
    weight: Tensor, weight_indices: str, log_a: Tensor, modes: str, kernel: str, phase: str, chunk: int
) -> list[Tensor]:
    """Return a chunk's tables: Toeplitz (kernel p q), into states (modes phase p h), out of them (weight q h), a^Q.

    With a ``phase`` index the weight's entries for its two values differ by the factor i, which the
    state takes over: the tables out of the state have the weight at phase zero.
    """
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
