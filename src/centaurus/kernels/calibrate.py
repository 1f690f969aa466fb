"""Measure the rates of this machine that the planner uses, and return those of a tensor's device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from centaurus.kernels.precision import full_precision
from centaurus.native import functions as native
from centaurus.planner.cost import FFT_FLOPS
from centaurus.planner.device import CUDA, Device

LARGE = 64 << 20  # bytes of the data that bandwidth is measured on: more than a core's share of any cache
BUDGET = 0.6  # seconds of measurement for each rate
LAUNCHES = 20  # operations between two synchronisations with a GPU, which cost as much as a small operation
GPU_ROWS = 16  # rows for each row on a CPU: smaller operations do not fill a GPU
CPU_TILE = 16 << 20  # bytes of the largest intermediate of a tile


def current(tensor: Tensor) -> Device:
    """Return the rates of a tensor's device on torch's threads; those of native code if it takes the tensor."""
    return Device.load(tensor.device.type, torch.get_num_threads(), native.usable(tensor))


def measure(threads: int, name: str = "") -> Device:
    """Return the rates of the operations that plans are made of, on this many threads, in about ten seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measure(name or f"this machine, {threads} thread{'s' if threads > 1 else ''}", torch.device("cpu"))
    finally:
        torch.set_num_threads(before)


def measure_gpu() -> Device:
    """Return the rates of this machine's GPU, in full single precision, in about ten seconds."""
    if not torch.cuda.is_available():
        raise ValueError("torch finds no GPU: calibrate --device cuda needs a machine with one")
    device = torch.device("cuda")
    with full_precision(torch.zeros(1, device=device)):
        return _measure(f"cuda ({torch.cuda.get_device_name(device)})", device)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of many runs after a warm-up: other work on the machine only adds time.

    One thread is timed in CPU time, on which other work has less influence than on wall-clock time.
    """
    times = 1 if device.type == "cpu" else LAUNCHES
    clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    run()
    _wait(device)
    best, begin = math.inf, clock()
    while clock() - begin < BUDGET:
        start = clock()
        for _ in range(times):
            run()
        _wait(device)
        best = min(best, (clock() - start) / times)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _measure(name: str, device: torch.device) -> Device:
    cpu = device.type == "cpu"
    rows = 1 if cpu else GPU_ROWS

    def timed(run: Callable[[], object]) -> float:
        return _seconds(run, device)

    def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    x, y = randn(512, 512), randn(512, 4096 * rows)
    wide = torch.empty_like(y)
    gemm = 2 * 512 * wide.numel() / timed(lambda: torch.mm(x, y, out=wide))
    a, b = randn(512, 32, 32, dtype=torch.complex64), randn(512, 32, 64 * rows, dtype=torch.complex64)
    product = torch.empty_like(b)
    complex_gemm = 8 * 32 * product.numel() / timed(lambda: torch.bmm(a, b, out=product))
    small = randn(8192 * rows, 4, 4)
    tiny = torch.empty_like(small)
    matrix = timed(lambda: torch.bmm(small, small, out=tiny)) / len(small)
    signal = randn(128 * rows, 4096)
    spectrum = torch.fft.rfft(signal)
    fft = FFT_FLOPS * signal.numel() * 12 / timed(lambda: torch.fft.rfft(signal, out=spectrum))
    large = randn(LARGE // 4)
    result = torch.empty_like(large)
    bandwidth = 2 * LARGE / timed(lambda: torch.mul(large, 2.0, out=result))
    turned = torch.empty_like(spectrum.t(), memory_format=torch.contiguous_format)
    transpose = spectrum.numel() * 8 / timed(lambda: turned.copy_(spectrum.t()))
    fresh = LARGE / timed(lambda: torch.zeros(LARGE, dtype=torch.uint8, device=device).fill_(1))
    angles = randn(rows << 18)
    exp = angles.numel() / timed(lambda: torch.stack((angles.exp() * angles.cos(), angles.exp() * angles.sin())))
    one = randn(8)
    call = timed(lambda: [one + 1 for _ in range(1000)]) / 1000
    tile, scan, spectra = (CPU_TILE, _scan_rate(), _spectra_rate()) if cpu else (CUDA.tile_bytes, 0.0, 0.0)
    rates = (gemm, complex_gemm, matrix, fft, bandwidth, transpose, fresh, exp, 2 * call)
    return Device(name, *rates, tile, scan, spectra, measured=True)


def _scan_rate() -> float:
    """Return the samples of modes per second of the native recurrence, or 0 if it is not available."""
    u = torch.randn(1, 16, 8, 1024)  # 1, channels, batch, time: few signals and many modes, to be bound by arithmetic
    if not native.usable(u):
        return 0.0
    modes, weights = torch.full((1, 16, 16, 4, 2), 0.5), torch.randn(1, 16, 16, 4, 2)
    samples = 16 * 16 * 4 * 8 * 1024
    return samples / _seconds(lambda: native.scan_forward(u, modes, weights, save=True), u.device)


def _spectra_rate() -> float:
    """Return the nominal FLOPs per second of native real transforms, forward and inverse; 0 if not available."""
    u, length = torch.randn(1024, 1024), 2048
    if not native.usable(u):
        return 0.0
    nominal = 2 * FFT_FLOPS * len(u) * length * math.log2(length)
    return nominal / _seconds(lambda: native.signal(native.spectrum(u, length), u.shape[1], length), u.device)
