"""Contraction of two tensors by index strings, as one batched GEMM."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

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
    recipe = _recipe(x_indices, y_indices, out)
    if not recipe.summed:
        aligned = align(x, x_indices, out) * align(y, y_indices, out)
        return aligned if onto is None else onto + aligned
    size = dict(zip(x_indices, x.shape, strict=True)) | dict(zip(y_indices, y.shape, strict=True))
    left, right = x.permute(recipe.left), y.permute(recipe.right)
    groups = (recipe.shared, recipe.rows, recipe.summed, recipe.columns)
    b, m, k, n = (math.prod([size[index] for index in group]) for group in groups)
    order, back = recipe.shared + recipe.rows + recipe.columns, recipe.back
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


class _Recipe(NamedTuple):
    """Indices that are shared, x's own, summed and y's own; the orders of axes before and after the GEMM."""

    shared: str
    rows: str
    summed: str
    columns: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    back: tuple[int, ...]


@lru_cache(maxsize=4096)
def _recipe(x: str, y: str, out: str) -> _Recipe:
    shared = "".join(i for i in x if i in y and i in out)
    summed = "".join(i for i in x if i in y and i not in out)
    rows, columns = "".join(i for i in x if i not in y), "".join(i for i in y if i not in x)
    left, right = tuple(map(x.index, shared + rows + summed)), tuple(map(y.index, shared + summed + columns))
    back = tuple(map((shared + rows + columns).index, out)) if summed else ()
    return _Recipe(shared, rows, summed, columns, left, right, back)


def laid_out(y: Tensor, y_indices: str, x_indices: str, out: str) -> Tensor:
    """The same tensor, lying in memory so that ``pair(x, …, y, …, out)`` need not copy it."""
    shared = [i for i in x_indices if i in y_indices and i in out]
    summed = [i for i in x_indices if i in y_indices and i not in out]
    order = shared + summed + [i for i in y_indices if i not in x_indices]
    laid = y.permute([y_indices.index(i) for i in order]).contiguous()
    return laid.permute([order.index(i) for i in y_indices])


def align(x: Tensor, indices: str, out: str) -> Tensor:
    """View of x whose axes line up with ``out`` for broadcasting."""
    axes, places = _aligned(indices, out)
    return x.permute(axes)[places]


@lru_cache(maxsize=4096)
def _aligned(indices: str, out: str) -> tuple[tuple[int, ...], tuple[slice | None, ...]]:
    axes = tuple(indices.index(index) for index in out if index in indices)
    return axes, tuple(slice(None) if index in indices else None for index in out)


def _sum_unneeded(x: Tensor, indices: str, needed: str) -> tuple[Tensor, str]:
    """Sum over the indices that nothing else needs."""
    summed = [axis for axis, index in enumerate(indices) if index not in needed]
    if not summed:
        return x, indices
    return x.sum(summed), "".join(index for index in indices if index in needed)
