"""The reference that every fast path is compared with: recurrences and convolutions written naively, in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus


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


def kernel_of(weight: Tensor, log_a: Tensor, length: int) -> Tensor:
    """k[…, τ] = Re(w exp(log Ā τ)), every mode and lag of it; pairs have a last axis of 2, modes come first in w."""
    w, a = torch.view_as_complex(weight), torch.exp(torch.view_as_complex(log_a))
    a = a.reshape(*a.shape, *(1,) * (w.dim() - a.dim()))
    return torch.stack([(w * a**lag).real for lag in range(length)], -1)


def discretize(a: Tensor, dt: Tensor, rule: str) -> tuple[Tensor, Tensor]:
    """(Ā, w) of every mode, in complex arithmetic."""
    z = dt * a
    if rule == "bilinear":
        return (1 + z / 2) / (1 - z / 2), dt / (1 - z / 2)
    return torch.exp(z), {"simple": dt + 0 * z, "zoh": (torch.exp(z) - 1) / a}[rule]


def recurrence(layer: Any, u: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x[t] = Ā x[t-1] + (B u)[t], y[t] = Re(C E w x[t]) with an SSM's equation and parameters; y and the last x."""
    e, size = layer.topology.expression, layer.topology.size
    terms = dict(zip(e.names, e.operands, strict=True))
    into, modes, out = terms.pop("u"), terms.pop("K")[:-1], e.output
    values = {name: _number(getattr(layer, name), len(indices)) for name, indices in terms.items()}
    lost, before = set(into) - set(modes + out), []
    for _ in terms:  # what takes an index of u that K lacks acts before the state, and what takes one from that
        before = [name for name in terms if lost & set(terms[name])]
        lost.update(*(set(terms[name]) - set(modes + out) for name in before))
    after = [name for name in terms if name not in before]

    ones = torch.ones([size[i] for i in modes], dtype=torch.complex128, device=u.device)
    dt = torch.einsum(f"{layer.topology.step_indices()},{modes}->{modes}", layer.log_dt.double().exp() + 0j, ones)
    a = torch.complex(-softplus(layer.A_real.double()), layer.A_imag.double())
    decay, w = discretize(a, dt, layer.discretization)

    u = u.double().reshape(u.shape[0], *(size[i] for i in into[1:-1]), u.shape[-1]) + 0j
    drive = torch.einsum(
        ",".join([into, *(terms[n] for n in before), modes]) + f"->tb{modes}", u, *_pick(values, before), ones
    )
    x = torch.zeros_like(drive[0]) if state is None else torch.view_as_complex(state.double())
    states = []
    for new in drive.unbind(0):
        x = decay * x + new
        states.append(x)
    read = ",".join([f"tb{modes}", modes, *(terms[n] for n in after)]) + f"->{out}"
    y = torch.einsum(read, torch.stack(states), w, *_pick(values, after)).real
    return y.reshape(y.shape[0], -1, y.shape[-1]), torch.view_as_real(x)


def _number(parameter: Tensor, axes: int) -> Tensor:
    """A parameter as a complex tensor; complex ones have a last axis of 2."""
    p = parameter.double()
    return torch.view_as_complex(p.contiguous()) if p.dim() > axes else p + 0j


def _pick(values: dict[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    return [values[name] for name in names]


def selective(layer: Any, u: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x[t] = exp(Δ A) x[t-1] + Δ B(u) u, y = M Σ_n C(u) E x, Δ = softplus(low rank of u + bias); y and the last x."""
    p = {name: value.double() for name, value in layer.named_parameters()}
    u = u.double()
    x = u.new_zeros(u.shape[0], *p["A_log"].shape) if state is None else state.double()
    outputs = []
    for sample in u.unbind(-1):  # b i
        dt = softplus(sample @ (p["dt_up"] @ p["dt_down"]).T + p["dt_bias"])
        x = torch.exp(-dt[..., None] * p["A_log"].exp()) * x + (dt * sample)[..., None] * (sample @ p["B"].T)[:, None]
        outputs.append((p["E"] * x * (sample @ p["C"].T)[:, None]).sum(-1))
    y = torch.stack(outputs, -1)
    return torch.einsum("ji,bit->bjt", p["M"], y) if "M" in p else y, x


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """Gradients of one random projection of all outputs; zeros where an input is not used."""
    generator = torch.Generator().manual_seed(seed)
    total = sum((y * torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)).sum() for y in outputs)
    grads = torch.autograd.grad(total, inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)]


def worst(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference between two lists of tensors, each against the largest expected value of its own tensor.

    A tensor a thousand times smaller than the largest of the list is measured against a thousandth of that one.
    Infinite for a wrong shape or NaN.
    """
    assert len(actual) == len(expected)
    floor = 1e-3 * max(float(w.detach().abs().max()) for w in expected)
    errors = [0.0]
    for g, w in zip(actual, expected, strict=True):
        if g.shape != w.shape or not bool(torch.isfinite(g).all()):
            return float("inf")
        error = (g.detach().double() - w.detach().double()).abs().max() / max(
            float(w.detach().abs().max()), floor, 1e-30
        )
        errors.append(float(error))
    return max(errors)
