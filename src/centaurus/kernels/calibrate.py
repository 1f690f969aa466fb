"""Measure this machine's rates for the planner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from centaurus.planner.device import Device


def _seconds(run: Callable[[], object], budget: float = 0.6) -> float:
    """The fastest of many runs, after one to warm up: a busy machine still has quiet moments."""
    run()
    best, begin = math.inf, time.perf_counter()
    while time.perf_counter() - begin < budget:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def measure(name: str = "cpu") -> Device:
    """Rates of the operations that plans are made of, in about ten seconds."""
    x, y = torch.randn(512, 512), torch.randn(512, 4096)
    wide = torch.empty(512, 4096)
    gemm = 2 * 512 * 512 * 4096 / _seconds(lambda: torch.mm(x, y, out=wide))
    a, b = torch.randn(512, 32, 32, dtype=torch.complex64), torch.randn(512, 32, 64, dtype=torch.complex64)
    product = torch.empty(512, 32, 64, dtype=torch.complex64)
    complex_gemm = 8 * 512 * 32 * 32 * 64 / _seconds(lambda: torch.bmm(a, b, out=product))
    small, tiny = torch.randn(8192, 4, 4), torch.empty(8192, 4, 4)
    matrix = _seconds(lambda: torch.bmm(small, small, out=tiny)) / 8192
    signal = torch.randn(128, 4096)
    spectrum = torch.empty(128, 2049, dtype=torch.complex64)
    fft = 2.5 * 128 * 4096 * 12 / _seconds(lambda: torch.fft.rfft(signal, out=spectrum))
    flat = torch.empty(128, 4096)
    bandwidth = 2 * signal.numel() * 4 / _seconds(lambda: torch.mul(signal, 2.0, out=flat))
    turned = torch.empty(2049, 128, dtype=torch.complex64)
    transpose = spectrum.numel() * 8 / _seconds(lambda: turned.copy_(spectrum.t()))
    fresh = (64 << 20) / _seconds(lambda: torch.zeros(64 << 20, dtype=torch.uint8).fill_(1))
    angles = torch.randn(1 << 18)
    exp = angles.numel() / _seconds(lambda: torch.stack((angles.exp() * angles.cos(), angles.exp() * angles.sin())))
    one = torch.randn(8)
    call = _seconds(lambda: [one + 1 for _ in range(1000)]) / 1000
    return Device(name, gemm, complex_gemm, matrix, fft, bandwidth, transpose, fresh, exp, 2 * call, 16 << 20)
