"""Contraction of two tensors by index strings, as one batched GEMM."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from centaurus.kernels.precision import product


def pair(x: Tensor, x_indices: str, y: Tensor, y_indices: str, out: str, onto: Tensor | None = None) -> Tensor:
    """Contract two tensors to the indices ``out``, as ``einsum`` does.

    In memory the result has the order (shared indices, x's own, y's own); it is returned as a view. ``onto`` is a
    tensor with the indices ``out`` to which the result is added, in place by the GEMM if its memory layout allows it.
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
    shapes = _shapes(recipe, x.shape, y.shape)
    if onto is not None:
        base = onto.permute(recipe.forth)
        if not base.is_contiguous():
            return onto + pair(x, x_indices, y, y_indices, out)
        left, right = x.permute(recipe.left).reshape(shapes.batched), y.permute(recipe.right).reshape(shapes.others)
        base.view(*shapes.batched[:2], shapes.others[2]).baddbmm_(left, right)
        return onto
    left, right = x.permute(recipe.left).reshape(shapes.left), y.permute(recipe.right).reshape(shapes.right)
    return product(left, right).reshape(shapes.made).permute(recipe.back)


class _Recipe(NamedTuple):
    """Indices that are shared, x's own, summed and y's own; the orders of axes before and after the GEMM."""

    shared: str
    rows: str
    summed: str
    columns: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    back: tuple[int, ...]
    forth: tuple[int, ...]  # from the result to its order in memory


@lru_cache(maxsize=4096)
def _recipe(x: str, y: str, out: str) -> _Recipe:
    shared = "".join(i for i in x if i in y and i in out)
    summed = "".join(i for i in x if i in y and i not in out)
    rows, columns = "".join(i for i in x if i not in y), "".join(i for i in y if i not in x)
    left, right = tuple(map(x.index, shared + rows + summed)), tuple(map(y.index, shared + summed + columns))
    order = shared + rows + columns
    back, forth = (tuple(map(order.index, out)), tuple(map(out.index, order))) if summed else ((), ())
    return _Recipe(shared, rows, summed, columns, left, right, back, forth)


class _Shapes(NamedTuple):
    """Shapes of a contraction's GEMM: operands (matrices if no index is shared), operands as batches, and result."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    batched: tuple[int, int, int]
    others: tuple[int, int, int]
    made: tuple[int, ...]


@lru_cache(maxsize=4096)
def _shapes(recipe: _Recipe, x: tuple[int, ...], y: tuple[int, ...]) -> _Shapes:
    s, r, k = len(recipe.shared), len(recipe.rows), len(recipe.summed)
    left, right = [x[axis] for axis in recipe.left], [y[axis] for axis in recipe.right]
    b, m, depth, n = (math.prod(sizes) for sizes in (left[:s], left[s : s + r], left[s + r :], right[s + k :]))
    made = (*left[: s + r], *right[s + k :])
    batched, others = (b, m, depth), (b, depth, n)
    return _Shapes(batched[b == 1 :], others[b == 1 :], batched, others, made)


def laid_out(y: Tensor, y_indices: str, x_indices: str, out: str, turned: bool = False) -> Tensor:
    """Return y in a memory layout in which ``pair(x, …, y, …, out)`` does not have to copy it.

    ``turned`` stores its matrices transposed, which a GEMM reads twice as fast if they have few columns.
    """
    shared = [i for i in x_indices if i in y_indices and i in out]
    summed = [i for i in x_indices if i in y_indices and i not in out]
    own = [i for i in y_indices if i not in x_indices]
    order = shared + (own + summed if turned else summed + own)
    laid = y.permute([y_indices.index(i) for i in order]).contiguous()
    return laid.permute([order.index(i) for i in y_indices])


def align(x: Tensor, indices: str, out: str) -> Tensor:
    """Return a view of x whose axes line up with ``out`` for broadcasting."""
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
