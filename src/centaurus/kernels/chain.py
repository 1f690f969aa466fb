"""A chain of operations as one autograd node: in tiles of the batch that fit the cache, recomputed in backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.kernels.ops import Link
from centaurus.kernels.precision import allowed, projecting


@dataclass(frozen=True)
class Chain:
    """Links in order, how many tensors each takes, and how the signal enters and leaves."""

    links: tuple[Link, ...]
    counts: tuple[int, ...]
    signal: str  # indices as the caller has them
    held: str  # channel-major, as the first link has them
    out: str
    left: str  # channel-major, as the last link leaves them
    batch: str  # index that tiles run over, or ""
    tile: int
    keep: bool  # what backward needs is kept from forward instead of computed again

    def __call__(self, u: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Return the signal after all links, differentiable in the signal and the tensors."""
        out: Tensor = _Run.apply(self, u, *tensors)
        return out

    def groups(self, tensors: Sequence[Any]) -> list[list[Any]]:
        """Return the tensors grouped by link."""
        out, start = [], 0
        for count in self.counts:
            out.append(list(tensors[start : start + count]))
            start += count
        return out

    def tiles(self, x: Tensor, indices: str) -> list[Tensor]:
        """Return tiles along the batch, as views."""
        if not self.batch:
            return [x]
        return list(x.split(self.tile, indices.index(self.batch)))

    def last_with_tensors(self) -> int:
        """Return the position of the last link that has tensors: backward recomputes no further."""
        return max((p for p, count in enumerate(self.counts) if count), default=-1)


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, u: Tensor, *tensors: Tensor) -> Tensor:
        prepared = [link.prepare(group) for link, group in zip(chain.links, chain.groups(tensors), strict=True)]
        held = u.permute([chain.signal.index(i) for i in chain.held])
        pieces = chain.tiles(held, chain.held)
        keep = chain.keep and any(ctx.needs_input_grad)
        trails: list[list[tuple[Any, Any]]] = []
        result: Tensor | None = None
        start = 0
        for piece in pieces:
            x, trail = piece, []
            for link, group in zip(chain.links, prepared, strict=True):
                y, kept = link.forward(x, group)
                if keep:
                    trail.append((x if link.wants_input else None, kept))
                x = y
                del y, kept
            if keep:
                trails.append(trail)
            result = _place(chain, u, result, x, start, held)
            start += x.shape[chain.left.index(chain.batch)] if chain.batch else 0
        ctx.allowed = allowed()
        ctx.chain, ctx.trails, ctx.prepared = chain, trails, prepared if any(ctx.needs_input_grad) else []
        ctx.save_for_backward(u, *tensors)
        assert result is not None
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with projecting(ctx.allowed):
            return _backward(ctx, grad)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Gradients of the signal and of every tensor, tile by tile."""
    chain: Chain = ctx.chain
    u, *tensors = ctx.saved_tensors
    groups = chain.groups(tensors)
    needed = chain.groups(ctx.needs_input_grad[2:])
    prepared = ctx.prepared
    first = next((p for p, group in enumerate(needed) if any(group)), len(chain.links))
    inputs = chain.tiles(u.permute([chain.signal.index(i) for i in chain.held]), chain.held)
    outputs = chain.tiles(grad.permute([chain.out.index(i) for i in chain.left]), chain.left)
    totals: list[list[Tensor] | None] = [None] * len(chain.links)
    want_u = bool(ctx.needs_input_grad[1])
    du = torch.empty_like(u) if want_u else None
    pieces = chain.tiles(du.permute([chain.signal.index(i) for i in chain.held]), chain.held) if du is not None else []
    for tile, (x, dy) in enumerate(zip(inputs, outputs, strict=True)):
        trail = ctx.trails[tile] if ctx.trails else _retrace(chain, x, prepared)
        del x
        for p in range(len(chain.links) - 1, -1 if want_u else first - 1, -1):
            source, kept = trail[p] if p < len(trail) else (None, None)
            back, own = chain.links[p].backward(dy, source, kept, prepared[p], want_u or p > first)
            _accumulate(totals, p, own)
            dy = dy if back is None else back
            del source, kept, back, own
        if want_u:
            pieces[tile].copy_(dy)
    out: list[Any] = []
    for link, total, group, want in zip(chain.links, totals, groups, needed, strict=True):
        finished = link.finish(total, group) if total else [None] * len(group)
        out += [
            g.reshape(t.shape) if w and g is not None else None for g, t, w in zip(finished, group, want, strict=True)
        ]
    return (None, du, *out)


def _accumulate(totals: list[list[Tensor] | None], position: int, own: list[Tensor]) -> None:
    total = totals[position]
    if total is None:
        totals[position] = own
    else:
        for a, b in zip(total, own, strict=True):
            a.add_(b)


def _retrace(chain: Chain, x: Tensor, prepared: Sequence[Sequence[Tensor]]) -> list[tuple[Any, Any]]:
    """Recompute the inputs of the links, as far as backward needs them."""
    trail = []
    last = chain.last_with_tensors()
    for position in range(last + 1):
        link = chain.links[position]
        if position == last:
            trail.append((x if link.wants_input else None, link.recall(x, prepared[position])))
        else:
            y, kept = link.forward(x, prepared[position])
            trail.append((x if link.wants_input else None, kept))
            x = y
            del y, kept
    return trail


def _place(chain: Chain, u: Tensor, result: Tensor | None, x: Tensor, start: int, held: Tensor) -> Tensor:
    """Copy a tile into the output, which has the memory layout of the signal."""
    order = [chain.left.index(i) for i in chain.out]
    if not chain.batch:
        return x.permute(order).contiguous()
    axis = chain.left.index(chain.batch)
    total = u.shape[chain.signal.index(chain.batch)]
    if result is None:
        shape = list(x.shape)
        shape[axis] = total
        if held.is_contiguous():
            result = x.new_empty(shape).permute(order)
        else:
            result = x.new_empty([shape[a] for a in order])
    result.narrow(chain.out.index(chain.batch), start, x.shape[axis]).copy_(x.permute(order))
    return result
