"""Call the C kernels on float32 tensors on the CPU, on as many threads as torch uses; with gradients."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.native.build import library, status

BLOCK = 64  # samples between saved states, as in scan.c and selective.c
LINE = 16  # floats in a cache line
SPLIT = 1 << 20  # multiplications below which a second thread costs more than it saves


def usable(*tensors: Tensor | None) -> bool:
    """Return whether the kernels are available and take these tensors: float32, on the CPU, not compiled."""
    plain = all(x is None or (x.dtype == torch.float32 and x.device.type == "cpu") for x in tensors)
    return plain and not torch.compiler.is_compiling() and library() is not None


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "centaurus-native")


def _parts(count: int, work: float) -> list[tuple[int, int]]:
    """Split ``count`` units into a range for each of torch's threads; little work stays in one."""
    threads = min(torch.get_num_threads(), count) if work > SPLIT else 1
    edges = [count * k // threads for k in range(threads + 1)]
    return list(pairwise(edges))


def _run(parts: list[tuple[int, int]], call: Callable[[int, int, int], int]) -> None:
    """Run ``call(part, first, last)`` for all parts, each on a thread: ctypes releases the GIL."""
    if len(parts) == 1:
        failed = call(0, *parts[0])
    else:
        jobs = [_pool(torch.get_num_threads()).submit(call, k, *part) for k, part in enumerate(parts)]
        failed = sum(job.result() for job in jobs)
    if failed:
        raise MemoryError("not enough memory for a native kernel")


def _at(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def scan_forward(u: Tensor, a: Tensor, w: Tensor, save: bool) -> tuple[Tensor, Tensor | None]:
    """Return y (s, j, b, t) from u (s, i, b, t) and modes a, w (s, j, i, m, 2), and the states that backward needs.

    x[t] = a x[t-1] + u[t], y[t] = Σ_i Σ_m Re(w x[t]). Tensors are contiguous.
    """
    (s, i, b, t), (_, j, _, m, _) = u.shape, a.shape
    kernels, lanes = library(), status().lanes
    assert kernels is not None
    y = u.new_empty(s, j, b, t)
    saved = u.new_empty(-(-t // BLOCK), s, j, i, m, 2, b) if save else None
    sizes = (ctypes.c_long * 6)(s, i, j, m, b, t)
    parts = _parts(-(-s * j * b // lanes), float(a.numel()) * b * t)
    run = kernels.centaurus_scan_forward
    arguments = [u.data_ptr(), y.data_ptr(), a.data_ptr(), w.data_ptr(), _at(saved), sizes]
    _run(parts, lambda part, first, last: run(*arguments, first, last))
    return y, saved


def scan_backward(u: Tensor, grad: Tensor, a: Tensor, w: Tensor, saved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of u, a and w of ``scan_forward``."""
    (s, i, b, t), (_, j, _, m, _) = u.shape, a.shape
    kernels, lanes = library(), status().lanes
    assert kernels is not None
    parts = _parts(-(-s * i * b // lanes), 3.0 * a.numel() * b * t)
    du = torch.empty_like(u)
    da, dw = (a.new_zeros(len(parts), *a.shape) for _ in range(2))
    sizes = (ctypes.c_long * 6)(s, i, j, m, b, t)
    run = kernels.centaurus_scan_backward
    arguments = [x.data_ptr() for x in (u, grad, a, w, saved, du)]
    _run(parts, lambda part, first, last: run(*arguments, _at(da[part]), _at(dw[part]), sizes, first, last))
    return du, da.sum(0), dw.sum(0)


@lru_cache(maxsize=64)
def _roots(length: int) -> Tensor:
    """Return e^(-2πi k / length), (length, 2)."""
    angles = torch.arange(length, dtype=torch.float64) * (-2 * math.pi / length)
    return torch.stack((angles.cos(), angles.sin()), 1).float()


def _bins(like: Tensor, bins: int, rows: int, columns: int) -> Tensor:
    """Return an empty (bins, rows, columns) tensor with an odd number of cache lines from one bin to the next.

    At a distance of a power of two, all bins would compete for a few lines of the cache.
    """
    step = -(-rows * columns // LINE) * LINE
    step += LINE if step // LINE % 2 == 0 else 0
    return like.new_empty(bins * step).as_strided((bins, rows, columns), (step, columns, 1))


def spectrum(u: Tensor, length: int) -> Tensor:
    """Return half spectra (length / 2 + 1, 2, rows) of signals (rows, t), zero-padded to ``length``.

    ``length`` is even and has no prime factors above 5.
    """
    rows, samples = u.shape
    out = _bins(u, length // 2 + 1, 2, rows)
    return _transform("spectrum", u, out, rows, samples, length, out.stride(0))


def signal(spectra: Tensor, samples: int, length: int) -> Tensor:
    """Return the adjoint of ``spectrum``: Re Σ_f X[f] e^(2πi f t / length), (rows, samples)."""
    rows = spectra.shape[2]
    out = spectra.new_empty(rows, samples)
    return _transform("signal", spectra, out, rows, samples, length, spectra.stride(0))


def _transform(name: str, x: Tensor, out: Tensor, rows: int, samples: int, length: int, step: int) -> Tensor:
    kernels, lanes = library(), status().lanes
    assert kernels is not None
    run = getattr(kernels, f"centaurus_{name}")
    arguments = [x.data_ptr(), out.data_ptr(), _roots(length).data_ptr(), rows, samples, length, step]
    work = 2.5 * rows * length * math.log2(length)
    _run(_parts(-(-rows // lanes), work), lambda part, first, last: run(*arguments, first, last))
    return out


def products(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` of matrices (bins, m, k) and (bins, k, n); the rows of b or of its transpose are contiguous."""
    kernels = library()
    assert kernels is not None
    (bins, m, k), n = a.shape, b.shape[2]
    turned = b.stride(2) != 1
    out = _bins(a, bins, m, n)
    row = b.stride(2) if turned else b.stride(1)
    sizes = (ctypes.c_long * 11)(m, k, n, *a.stride(), b.stride(0), row, out.stride(0), n, turned)
    arguments = [a.data_ptr(), b.data_ptr(), out.data_ptr(), sizes]
    run = kernels.centaurus_products
    _run(_parts(bins, float(bins) * m * k * n), lambda part, first, last: run(*arguments, first, last))
    return out


def compressed_differences(
    ours: Tensor, theirs: Tensor, weights: Tensor, floor: float, power: float, share: float
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of squared differences of compressed spectra, and its gradient for ``ours``.

    Spectra are (frames, bins, 2), ``weights`` (bins,). ``share`` is the weight of differences of magnitudes, the rest
    that of differences of complex values. loss.c has the equations, with ``floor`` and ``power``.
    """
    kernels = library()
    assert kernels is not None
    frames, bins, _ = ours.shape
    grad = torch.empty_like(ours)
    parts = _parts(frames, 64.0 * ours.numel())
    sums = torch.zeros(len(parts), dtype=torch.float64)
    run = kernels.centaurus_compressed
    arguments = [x.data_ptr() for x in (ours, theirs, weights, grad)]
    _run(
        parts,
        lambda part, first, last: run(*arguments, _at(sums[part]), bins, floor, power, share, first, last),
    )
    return sums.sum().to(ours.dtype), grad


class Norm(torch.autograd.Function):
    """silu(scale · norm(u) + before) + after for signals (c, b, t), normalised over c; scale is (c, b, 1)."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        weight: Tensor,
        bias: Tensor,
        scale: Tensor | None,
        before: Tensor | None,
        after: Tensor | None,
        activate: bool,
        eps: float,
    ) -> Tensor:
        # Without a scale the batch is one long row.
        c, b, t = u.shape if scale is not None else (u.shape[0], 1, u.shape[1] * u.shape[2])
        kernels = library()
        assert kernels is not None
        y, mean, rstd = torch.empty_like(u), u.new_empty(b, t), u.new_empty(b, t)
        run = kernels.centaurus_norm_forward
        arguments = [_at(x) for x in (u, weight, bias, scale, before, after, y, mean, rstd)]
        _run(
            _parts(b, 8.0 * u.numel()),
            lambda part, first, last: run(*arguments, c, b, t, activate, eps, first, last),
        )
        ctx.save_for_backward(u, weight, bias, scale, before, mean, rstd)
        ctx.activate, ctx.after = activate, after is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        u, weight, bias, scale, before, mean, rstd = ctx.saved_tensors
        c, (b, t) = u.shape[0], mean.shape
        kernels = library()
        assert kernels is not None
        grad = grad.contiguous()
        du = torch.empty_like(u)
        added = None if before is None else torch.empty_like(u)
        parts = _parts(b, 16.0 * u.numel())
        sums = torch.zeros(len(parts), 2, c, dtype=torch.float64)
        run = kernels.centaurus_norm_backward
        arguments = [_at(x) for x in (u, weight, bias, scale, before, grad, mean, rstd, du, added)]

        def call(part: int, first: int, last: int) -> int:
            gain, shift = sums[part].unbind()
            failed: int = run(*arguments, gain.data_ptr(), shift.data_ptr(), c, b, t, ctx.activate, first, last)
            return failed

        _run(parts, call)
        dweight, dbias = sums.sum(0).to(weight.dtype).unbind()
        return du, dweight, dbias, None, added, grad if ctx.after else None, None, None


class Selective(torch.autograd.Function):
    """``SelectiveScan`` of ``kernels/scan.py`` (the recurrence of S6) in native code."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, dt: Tensor, into: Tensor, out_of: Tensor, A: Tensor, E: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        kernels, lanes = library(), status().lanes
        assert kernels is not None
        ctx.states = A.shape[1]
        more = -A.shape[1] % lanes
        padded = [torch.nn.functional.pad(x, (0, more)) if more else x for x in (into, out_of, A, E, state)]
        *tensors, last = [x.contiguous() for x in (u, dt, *padded)]
        last = last.clone()  # the initial state, which the kernel overwrites by the last one
        b, i, t = u.shape
        n = ctx.states + more
        y = torch.empty_like(tensors[0])
        saved = u.new_empty(b, i, -(-t // BLOCK), n) if any(ctx.needs_input_grad) else None
        run = kernels.centaurus_selective_forward
        arguments = [_at(x) for x in (*tensors, last, y, saved)]
        _run(_parts(b * i, 16.0 * u.numel() * n), lambda part, start, stop: run(*arguments, i, n, t, start, stop))
        ctx.save_for_backward(*tensors, *([] if saved is None else [saved]))
        return y, last[..., : ctx.states]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        *tensors, saved = ctx.saved_tensors
        kernels = library()
        assert kernels is not None
        grad = grad.contiguous()
        b, i, t = grad.shape
        n = saved.shape[-1]
        carried = torch.nn.functional.pad(last, (0, n - ctx.states)).clone(memory_format=torch.contiguous_format)
        grads = [torch.empty_like(x) for x in tensors[:4]]
        parts = _parts(b, 32.0 * grad.numel() * n)
        sums = torch.zeros(2, len(parts), i, n, dtype=torch.float64)
        run = kernels.centaurus_selective_backward
        arguments = [_at(x) for x in (*tensors, grad, saved, carried, *grads)]

        def call(part: int, first: int, last: int) -> int:
            failed: int = run(*arguments, _at(sums[0, part]), _at(sums[1, part]), i, n, t, first, last)
            return failed

        _run(parts, call)
        dA, dE = (x[:, : ctx.states].to(grad.dtype) for x in sums.sum(1))
        du, ddt, dB, dC = grads
        return du, ddt, dB[..., : ctx.states], dC[..., : ctx.states], dA, dE, carried[..., : ctx.states]
