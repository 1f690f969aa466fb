"""The truth every fast path is compared with: recurrences and convolutions written naively, in fp64."""

from __future__ import annotations

import torch
from torch import Tensor


def convolve(expression: str, *operands: Tensor, time: str = "t") -> Tensor:
    """A temporal einsum by its definition: y[t] = Σ_τ einsum(u[t - τ], k[τ], …), one lag after the other."""
    left, out = expression.replace(" ", "").split("->")
    terms = left.split(",")
    first, second = (p for p, term in enumerate(terms) if time in term)
    u, k = operands[first], operands[second].movedim(terms[second].index(time), 0)
    terms[second] = terms[second].replace(time, "")
    axis, length = terms[first].index(time), u.shape[terms[first].index(time)]
    total: Tensor | None = None
    for lag in range(min(length, k.shape[0])):
        shifted = torch.zeros_like(u)
        shifted = torch.cat((shifted.narrow(axis, 0, lag), u.narrow(axis, 0, length - lag)), axis)
        inputs = list(operands)
        inputs[first], inputs[second] = shifted, k[lag]
        term = torch.einsum(",".join(terms) + "->" + out, *inputs)
        total = term if total is None else total + term
    assert total is not None
    return total
