"""The paper's orders of contraction in plain torch, for comparison: no tiles, no chunks, gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.fft import irfft, rfft

from centaurus.kernels.program import Program
from centaurus.planner.expression import Expression
from centaurus.ssm import SSM
from centaurus.ssm.layer import _planned_expression

Labelled = tuple[str, Tensor]


@contextmanager
def contracted(net: nn.Module, order: str) -> Iterator[None]:
    """Run every state-space layer of a network in a named order (``planner.named.NAMES``) within the block."""
    layers = [module for module in net.modules() if isinstance(module, SSM)]
    for layer in layers:
        layer._whole = partial(whole, layer, order)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer._whole


def in_order(net: nn.Module, order: str, run: Callable[[], object]) -> Callable[[], object]:
    """Return ``run`` with every state-space layer of a network in this order; ``planned`` is the planner's choice."""

    def inner() -> object:
        if order == "planned":
            return run()
        with contracted(net, order):
            return run()

    return inner


def whole(layer: SSM, order: str, u: Tensor) -> Tensor:
    """Run a whole signal through a layer: ``natural`` and ``paper`` in plain torch, other names as planned."""
    if order in ("natural", "paper"):
        expression, modes, _ = _planned_expression(layer.topology)
        return run_baseline(order, expression, layer.topology.before(), layer._operands(u), modes)
    return Program(layer.plan(u.shape[0], u.shape[-1], order=order))(layer._operands(u))


def basis_kernels(log_a: Tensor, weight: Tensor, modes: str, indices: str, length: int) -> Tensor:
    """Return K = Re(w exp(log Ā τ)) for every mode and sample."""
    steps = torch.arange(length, device=log_a.device, dtype=log_a.dtype)
    a = torch.view_as_complex(log_a.contiguous())
    basis = torch.exp(a[..., None] * steps)
    if indices == modes and not bool(weight[..., 1].any()):
        return basis.real * weight[..., 0, None]
    w = torch.view_as_complex(weight.contiguous())
    extra = w.dim() - a.dim()
    return (w[..., None] * basis.reshape(*a.shape, *(1,) * extra, length)).real


def fft_conv(signal: Labelled, kernel: Labelled, others: Sequence[Labelled], out: str) -> Tensor:
    """Return rfft, one einsum of all operands, irfft."""
    length = signal[1].shape[-1]
    x, k = rfft(signal[1], n=2 * length), rfft(kernel[1], n=2 * length)
    equation = ",".join([signal[0], kernel[0], *(i for i, _ in others)]) + "->" + out
    y = torch.einsum(equation, x, k, *(tensor.to(x.dtype) for _, tensor in others))
    return irfft(y, n=2 * length)[..., :length]


def run_baseline(order: str, e: Expression, before: Sequence[str], operands: Sequence[object], modes: str) -> Tensor:
    """Evaluate the expression in the ``natural`` order or as the paper's Listing 1 does (``paper``)."""
    named = dict(zip(e.names, zip(e.operands, operands, strict=True), strict=True))
    u = (e.operands[0], _tensor(operands[0]))
    indices, source = named["K"]
    weight, log_a = source.weight, source.log_a  # type: ignore[attr-defined]
    inner = indices.replace(e.time, "")
    basis = basis_kernels(log_a, weight, modes, inner, u[1].shape[-1])
    weights = [n for n in e.names if n not in ("u", "K") and set(named[n][0]) <= set(inner)]
    others = [n for n in e.names if n not in ("u", "K", *weights)]
    labelled = {n: (named[n][0], _tensor(named[n][1])) for n in [*weights, *others]}
    reached = set(e.output).union(e.operands[0], *(named[n][0] for n in others))
    k_indices = "".join(i for i in indices if i in reached)
    equation = ",".join([indices, *(labelled[n][0] for n in weights)]) + "->" + k_indices
    k = (k_indices, torch.einsum(equation, basis, *(labelled[n][1] for n in weights)))
    first = [labelled[n] for n in others if n in before]
    last = [labelled[n] for n in others if n not in before]
    if order == "natural":
        return _natural(u, k, first, last, e.output)
    return _paper(u, k, first, last, e.output)


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def _left(parts: Sequence[Labelled], needed: str) -> str:
    """Return the indices of a product that are needed later, batch first and time last."""
    indices = "".join(dict.fromkeys("".join(i for i, _ in parts)))
    return "b" + "".join(i for i in indices if i in needed and i not in "bt") + "t"


def _natural(u: Labelled, k: Labelled, first: Sequence[Labelled], last: Sequence[Labelled], out: str) -> Tensor:
    """Project, convolve, project: the order of the state-space equations."""
    later = out + "".join(i for i, _ in last)
    if first:
        indices = _left([*first, u], later + k[0])
        u = (
            indices,
            torch.einsum(",".join([u[0], *(i for i, _ in first)]) + "->" + indices, u[1], *(t for _, t in first)),
        )
    indices = _left([k, u], later)
    y = (indices, fft_conv(u, k, [], indices))
    if not last:
        return y[1] if indices == out else torch.einsum(f"{indices}->{out}", y[1])
    return torch.einsum(",".join([y[0], *(i for i, _ in last)]) + "->" + out, y[1], *(t for _, t in last))


def _paper(u: Labelled, k: Labelled, first: Sequence[Labelled], last: Sequence[Labelled], out: str) -> Tensor:
    """Listing 1 with its if-statements if there are B and C; for other blocks one einsum between the transforms."""
    if len(first) == len(last) == 1 and len(k[0]) == 2:
        batch, inputs, _ = u[1].shape
        outputs, states = last[0][1].shape
        if 1 / inputs + 1 / outputs < 1 / batch + 1 / states:
            if states <= inputs:
                return _natural(u, k, first, last, out)
        elif inputs * outputs <= states:
            n, i, j = k[0][0], u[0][1], out[1]
            kernel = torch.einsum(f"{j}{n},{n}{i},{n}t->{j}{i}t", last[0][1], first[0][1], k[1])
            return fft_conv(u, (f"{j}{i}t", kernel), [], out)
    return fft_conv(u, k, [*first, *last], out)
