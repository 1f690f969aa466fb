"""Listing 1 of the paper as printed (with its undefined x read as u), and the natural order, for comparison."""

from __future__ import annotations

import torch
from torch import Tensor, einsum
from torch.fft import irfft, rfft


def fft_conv(equation: str, x: Tensor, k: Tensor, *args: Tensor) -> Tensor:
    """Convolve by FFT, contracting additional tensors, which are cast to complex: torch.einsum takes one dtype."""
    length = x.shape[-1]
    x_f = rfft(x, n=2 * length)
    k_f = rfft(k, n=2 * length)
    y_f = einsum(equation, x_f, k_f, *(arg.to(x_f.dtype) for arg in args))
    return irfft(y_f)[..., :length]


def get_kernel(delta: Tensor, A: Tensor, E: Tensor, length: int) -> Tensor:
    """Return the kernels (n, t) as sums of all basis kernels (n, m, t)."""
    dtA = einsum("n,nm->nm", delta.to(A.dtype), A)
    K = einsum("nm,t->nmt", dtA, torch.arange(length, device=A.device).to(A.dtype)).exp()
    return einsum("nmt,nm->nt", K.real, E)


def opt_fft_conv(u: Tensor, k_real: Tensor, B_discrete: Tensor, C: Tensor) -> Tensor:
    """Contract in the order that the paper's if-statements choose."""
    batch, H_in, _ = u.shape
    H_out, N = C.shape
    if (1 / H_in + 1 / H_out) < (1 / batch + 1 / N):
        if H_in >= N:
            x = einsum("bit,ni->bnt", u, B_discrete)
            x = fft_conv("bnt,nt->bnt", x, k_real)
            return einsum("bnt,jn->bjt", x, C)
    else:
        if H_in * H_out <= N:
            k_full = einsum("jn,ni,nt->jit", C, B_discrete, k_real)
            return fft_conv("bit,jit->bjt", u, k_full)
    return fft_conv("bit,nt,ni,jn->bjt", u, k_real, B_discrete, C)


def natural_fft_conv(u: Tensor, k_real: Tensor, B_discrete: Tensor, C: Tensor) -> Tensor:
    """Project the input, convolve, project the output."""
    x = einsum("bit,ni->bnt", u, B_discrete)
    x = fft_conv("bnt,nt->bnt", x, k_real)
    return einsum("bnt,jn->bjt", x, C)


def ssm_bottleneck(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, E: Tensor, natural: bool = False
) -> Tensor:
    """Run the bottleneck block of Listing 1 on a signal (batch, in_channels, time)."""
    k_real = get_kernel(delta, A, E, u.shape[-1])
    B_discrete = einsum("n,ni->ni", delta, B)
    return (natural_fft_conv if natural else opt_fft_conv)(u, k_real, B_discrete, C)
