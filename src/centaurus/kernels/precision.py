"""Precision of matrix products under autocast and TF32, and the choice between torch's BLAS and oneDNN.

Kernels, transforms and states are computed in full single precision, whatever the settings of autocast and TF32 are.
Projections of the signal (B and C) follow the caller's settings: TF32 inputs, or bfloat16 under autocast.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

FULL = "highest"  # torch's name of full single precision
WORTH = 1.2  # least speed of bfloat16 products over those of single precision to be worth using
PATIENCE = 60.0  # seconds for the process that tries them
TRIAL = """
import time, torch
def seconds(dtype):
    x, best = torch.ones(512, 512, dtype=dtype), float("inf")
    for _ in range(8):
        begin = time.thread_time()
        x @ x
        best = min(best, time.thread_time() - begin)
    return best
torch.set_num_threads(1)
print(seconds(torch.float32) / seconds(torch.bfloat16))
"""


class Allowed(NamedTuple):
    """Precision of projections: torch's float32 matmul precision, and bfloat16 if autocast is on with that dtype."""

    matmul: str = FULL
    dtype: torch.dtype | None = None


NOTHING = Allowed()
_allowed: ContextVar[Allowed] = ContextVar("centaurus-projections", default=NOTHING)


@lru_cache
def why_no_bf16() -> str:
    """Return why this CPU should not multiply matrices in bfloat16, or "" if it does so faster.

    A separate process tries it: some virtual machines advertise instructions that they do not support, which kills the
    process that uses them.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        tried = subprocess.run(
            [sys.executable, "-c", TRIAL], capture_output=True, text=True, timeout=PATIENCE, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a trial failed: {error}"
    if tried.returncode < 0:
        return (
            f"a trial was stopped by signal {-tried.returncode}: the CPU advertises instructions that it does not "
            "support; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment may avoid them"
        )
    if tried.returncode:
        return f"a trial failed: {(tried.stderr.strip().splitlines() or ['no message'])[-1]}"
    ratio = float(tried.stdout)
    return "" if ratio >= WORTH else f"matrix products run at {ratio:.2g} times the rate of single precision"


def working(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of kernels, transforms and states: float64 for that, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_precision(u: Tensor, dtype: torch.dtype) -> None:
    """Raise TypeError for a float64 signal in a layer that is not float64: it would be rounded silently."""
    if u.dtype == torch.float64 and dtype != torch.float64:
        raise TypeError("this layer is float32 and the signal float64: use layer.double() or u.float()")


def without_autocast(u: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the signal's device; some devices, like meta, have no autocast."""
    kind = u.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


@contextmanager
def full_precision(u: Tensor) -> Iterator[None]:
    """Switch off autocast and TF32 inside; ``rounded_products`` still has the caller's settings."""
    if torch.compiler.is_dynamo_compiling():  # a compiled graph has one matmul precision for all products
        with without_autocast(u):
            yield
        return
    kind = u.device.type
    half = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if half else None
    outside = Allowed(torch.get_float32_matmul_precision(), dtype if dtype is torch.bfloat16 else None)
    token = _allowed.set(outside)
    try:
        with without_autocast(u), _matmul_precision(FULL):
            yield
    finally:
        _allowed.reset(token)


def allowed() -> Allowed:
    """Return the precision of projections inside ``full_precision``, for ``projecting`` in the backward pass."""
    return _allowed.get()


@contextmanager
def projecting(how: Allowed) -> Iterator[None]:
    """Set the precisions of ``full_precision`` again in a backward pass, which runs outside of it."""
    token = _allowed.set(how)
    try:
        with _matmul_precision(FULL):
            yield
    finally:
        _allowed.reset(token)


@contextmanager
def rounded_products() -> Iterator[torch.dtype | None]:
    """Apply the caller's precision inside; yields the dtype to which operands should be cast, or None."""
    how = _allowed.get()
    with _matmul_precision(how.matmul):
        yield how.dtype


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    """Set torch's float32 matmul precision inside, and restore it afterwards."""
    before = torch.get_float32_matmul_precision()
    if before == precision:
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def full_products() -> AbstractContextManager[None]:
    """Return a context with products in full single precision, for a backward pass outside ``full_precision``."""
    return _matmul_precision(FULL)


LARGE = 1 << 21  # multiplications of a product from which oneDNN's overhead of ten microseconds does not matter
COPIED = 32  # rows of a product from which it is worth copying the other matrix if it is not dense
FEW = 8  # most products of a batch that run one by one if each is large
WORTHWHILE = 1.2  # least speed of oneDNN over torch's BLAS to use it


@lru_cache(maxsize=8)
def onednn_faster(threads: int) -> bool:
    """Return whether oneDNN multiplies faster than torch's BLAS: MKL does not use AVX-512 on some processors."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    x, own, other = torch.ones(256, 256), float("inf"), float("inf")
    with torch.no_grad():
        for _ in range(8):
            begin = time.perf_counter()
            torch.mm(x, x)
            middle = time.perf_counter()
            by_onednn(x, x)
            own, other = min(own, middle - begin), min(other, time.perf_counter() - middle)
    return own > WORTHWHILE * other


def by_onednn(x: Tensor, y: Tensor) -> Tensor:
    """Return ``x @ y`` by oneDNN, without gradients, for operands that ``suits_onednn`` accepts and a contiguous x."""
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, y.t(), None, "none", [], "")
    return made


def suits_onednn(x: Tensor, y: Tensor) -> bool:
    """Return whether both are large, dense float32 matrices on the CPU, and oneDNN is the faster library."""
    return _large(x, y) and _dense(x) and _dense(y)


def _dense(x: Tensor) -> bool:
    return x.is_contiguous() or x.t().is_contiguous()


def _large(x: Tensor, y: Tensor) -> bool:
    return (
        x.dim() == y.dim() == 2
        and x.shape[0] * x.shape[1] * y.shape[1] >= LARGE
        and x.dtype == y.dtype == torch.float32
        and x.device.type == y.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and onednn_faster(torch.get_num_threads())
    )


def multiplied(x: Tensor, y: Tensor) -> Tensor:
    """Return ``x @ y`` without gradients, by the faster of torch's BLAS and oneDNN."""
    if _large(x, y) and (_dense(y) or len(x) >= COPIED):
        return by_onednn(x.contiguous(), y if _dense(y) else y.contiguous())
    if x.dim() == y.dim() == 3 and len(x) <= FEW and suits_onednn(x[0], y[0]):
        shared = x[0].contiguous() if x.stride(0) == 0 else None
        out = x.new_empty(len(x), x.shape[1], y.shape[2])
        for k, matrix in enumerate(y.unbind()):
            out[k] = by_onednn(x[k].contiguous() if shared is None else shared, matrix)
        return out
    return x @ y


class _Product(torch.autograd.Function):
    """A product by the faster library; with ``exact`` its backward runs in full single precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, exact: bool) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.exact = exact
        return multiplied(x, y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y = ctx.saved_tensors
        with _matmul_precision(FULL) if ctx.exact else nullcontext():
            dx = product(grad, y.mT) if ctx.needs_input_grad[0] else None
            return dx, product(x.mT, grad) if ctx.needs_input_grad[1] else None, None


def product(x: Tensor, y: Tensor) -> Tensor:
    """Return ``x @ y`` of matrices or batches; inside ``full_precision`` gradients are in full precision too."""
    if torch.compiler.is_dynamo_compiling():
        return x @ y
    if not (torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)):
        return multiplied(x, y)
    exact = _allowed.get().matmul != FULL
    if not exact and not suits_onednn(x, y):
        return x @ y
    result: Tensor = _Product.apply(x, y, exact)
    return result


def projected(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ y + bias`` of matrices; autocast applies as to torch's own operations."""
    kind = y.device.type
    half = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    if half or not suits_onednn(x, y):
        return x @ y if bias is None else torch.addmm(bias, x, y)
    made = product(x, y)
    return made if bias is None else made + bias
