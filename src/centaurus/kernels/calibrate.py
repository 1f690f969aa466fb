"""Measure this machine's rates for the planner."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from centaurus.native import functions as native
from centaurus.planner.device import Device

LARGE = 64 << 20  # bytes of the data that bandwidth is measured on: more than a core's share of any cache
BUDGET = 0.6  # seconds for each rate


def _seconds(run: Callable[[], object]) -> float:
    """Return the fastest of many runs, after one to warm up: a busy machine still has quiet moments."""
    run()
    best, begin = math.inf, time.perf_counter()
    while time.perf_counter() - begin < BUDGET:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def measure(threads: int, name: str = "") -> Device:
    """Return the rates of the operations that plans are made of, on this many threads, in about ten seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measure(name or f"this machine, {threads} thread{'s' if threads > 1 else ''}")
    finally:
        torch.set_num_threads(before)


def _measure(name: str) -> Device:
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
    large, result = torch.randn(LARGE // 4), torch.empty(LARGE // 4)
    bandwidth = 2 * LARGE / _seconds(lambda: torch.mul(large, 2.0, out=result))
    turned = torch.empty(2049, 128, dtype=torch.complex64)
    transpose = spectrum.numel() * 8 / _seconds(lambda: turned.copy_(spectrum.t()))
    fresh = LARGE / _seconds(lambda: torch.zeros(LARGE, dtype=torch.uint8).fill_(1))
    angles = torch.randn(1 << 18)
    exp = angles.numel() / _seconds(lambda: torch.stack((angles.exp() * angles.cos(), angles.exp() * angles.sin())))
    one = torch.randn(8)
    call = _seconds(lambda: [one + 1 for _ in range(1000)]) / 1000
    return Device(
        name, gemm, complex_gemm, matrix, fft, bandwidth, transpose, fresh, exp, 2 * call, 16 << 20, _scan_rate()
    )


def _scan_rate() -> float:
    """Samples of modes a second through the native recurrence, or 0 where there is none."""
    u = torch.randn(128, 1, 16, 1024)  # channels, 1, batch, time
    if not native.usable(u):
        return 0.0
    modes, weights = torch.full((128, 1, 1, 4, 2), 0.5), torch.randn(128, 1, 1, 4, 2)
    return 4 * u.numel() / _seconds(lambda: native.scan_forward(u, modes, weights, save=True))
