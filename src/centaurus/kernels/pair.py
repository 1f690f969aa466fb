"""Contraction of two tensors by index strings, as one batched GEMM."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from centaurus.kernels.precision import product


def pair(x: Tensor, x_indices: str, y: Tensor, y_indices: str, out: str, onto: Tensor | None = None) -> Tensor:
    """Contract two tensors; in memory the result is (shared indices, x's own, y's own), returned as a view.

    ``onto`` is a result of the same shape to add to: inside the GEMM, in place, where it lies in memory as this would.
    """
    if x.is_complex() != y.is_complex():
        if x.is_complex():
            x, x_indices = torch.view_as_real(x), x_indices + "~"
        else:
            y, y_indices = torch.view_as_real(y), y_indices + "~"
        return torch.view_as_complex(pair(x, x_indices, y, y_indices, out + "~").contiguous())
    x, x_indices = _sum_unneeded(x, x_indices, y_indices + out)
    y, y_indices = _sum_unneeded(y, y_indices, x_indices + out)
    summed = [index for index in x_indices if index in y_indices and index not in out]
    if not summed:
        aligned = align(x, x_indices, out) * align(y, y_indices, out)
        return aligned if onto is None else onto + aligned
    shared = [index for index in x_indices if index in y_indices and index in out]
    rows = [index for index in x_indices if index not in y_indices]
    columns = [index for index in y_indices if index not in x_indices]
    size = dict(zip(x_indices, x.shape, strict=True)) | dict(zip(y_indices, y.shape, strict=True))
    left = x.permute([x_indices.index(index) for index in shared + rows + summed])
    right = y.permute([y_indices.index(index) for index in shared + summed + columns])
    b, m, k, n = (math.prod([size[index] for index in group]) for group in (shared, rows, summed, columns))
    order = shared + rows + columns
    back = [order.index(index) for index in out]
    if onto is not None:
        base = onto.permute([out.index(index) for index in order])
        if base.is_contiguous():
            base.view(b, m, n).baddbmm_(left.reshape(b, m, k), right.reshape(b, k, n))
            return onto
        return onto + pair(x, x_indices, y, y_indices, out)
    if b == 1:
        made = product(left.reshape(m, k), right.reshape(k, n))
    else:
        made = product(left.reshape(b, m, k), right.reshape(b, k, n))
    return made.reshape([size[index] for index in order]).permute(back)


def laid_out(y: Tensor, y_indices: str, x_indices: str, out: str) -> Tensor:
    """The same tensor, lying in memory so that ``pair(x, …, y, …, out)`` need not copy it."""
    shared = [i for i in x_indices if i in y_indices and i in out]
    summed = [i for i in x_indices if i in y_indices and i not in out]
    order = shared + summed + [i for i in y_indices if i not in x_indices]
    laid = y.permute([y_indices.index(i) for i in order]).contiguous()
    return laid.permute([order.index(i) for i in y_indices])


def align(x: Tensor, indices: str, out: str) -> Tensor:
    """View of x whose axes line up with ``out`` for broadcasting."""
    x = x.permute([indices.index(index) for index in out if index in indices])
    return x[tuple(slice(None) if index in indices else None for index in out)]


def _sum_unneeded(x: Tensor, indices: str, needed: str) -> tuple[Tensor, str]:
    """Sum over the indices that nothing else needs."""
    summed = [axis for axis, index in enumerate(indices) if index not in needed]
    if not summed:
        return x, indices
    return x.sum(summed), "".join(index for index in indices if index in needed)
