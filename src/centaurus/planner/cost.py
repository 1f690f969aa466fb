"""What a step costs on a device: seconds forward and backward, bytes kept and bytes in passing.

The formulas follow how ``execute`` runs a step: the signal goes in tiles of the batch and is computed again
in backward when it needs several, everything else is kept by autograd.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from centaurus.planner.device import Device

REAL, COMPLEX = 4, 8  # bytes of a number; costs are those of single precision
KEPT_BYTES = 96 << 20  # a signal's intermediates in time are kept for backward up to this size in all


@dataclass(frozen=True)
class Cost:
    """Seconds, forward FLOPs and bytes of one step."""

    flops: float
    seconds: float
    backward: float
    kept: int
    transient: int


@dataclass(frozen=True)
class Rates:
    """Costs of the operations on one device, for one signal length and batch."""

    device: Device
    size: dict[str, int]
    samples: int
    kernel: int
    fft: int
    batch: str  # index that tiles run over, or ""
    backward: bool

    @property
    def bins(self) -> int:
        """Bins of a half spectrum."""
        return self.fft // 2 + 1

    def count(self, indices: str) -> int:
        """Product of sizes."""
        return math.prod([self.size[index] for index in indices])

    def gemm(self, shared: float, m: float, k: float, n: float, complex_: bool = False) -> float:
        """Seconds of a batched GEMM: arithmetic, traffic and a fixed part per matrix."""
        d = self.device
        rate, word, weight = (d.complex_gemm, COMPLEX, 8) if complex_ else (d.gemm, REAL, 2)
        narrow = (1 + 6 / n) * (1 + 4 / m) * (1 + 8 / k)
        traffic = shared * (m * k + k * n + m * n) * word / (4 * d.bandwidth)
        return weight * shared * m * k * n * narrow / rate + traffic + shared * d.matrix + d.call

    def moved(self, numbers: float, word: int = REAL) -> float:
        """Seconds of an element-wise pass that reads and writes this many numbers."""
        return 2 * numbers * word / self.device.bandwidth + self.device.call

    def turned(self, numbers: float, word: int = COMPLEX) -> float:
        """Seconds of a transposition."""
        return numbers * word / self.device.transpose + self.device.call

    def transform(self, rows: float) -> float:
        """Seconds of padded real transforms."""
        nominal = 2.5 * rows * self.fft * math.log2(self.fft) / self.device.fft
        return nominal + self.moved(rows * self.fft) + 2 * self.device.call

    def tiles(self, numbers_per_row: float) -> int:
        """Tiles of the batch for an intermediate of this many real numbers in each row."""
        if not self.batch:
            return 1
        rows = max(1, int(self.device.tile_bytes // max(1.0, numbers_per_row * REAL)))
        return math.ceil(self.size[self.batch] / rows)

    def done(
        self, flops: float, forward: float, back: float, numbers: float, signal: bool, keeps: bool = False
    ) -> Cost:
        """Forward and backward time and bytes of a step whose result has this many real numbers."""
        size = int(numbers * REAL)
        if not self.backward:
            return Cost(flops, forward, 0.0, 0, min(size, 2 * self.device.tile_bytes) if signal else size)
        if not signal:
            fresh = 2 * size / self.device.fresh
            return Cost(flops, forward + fresh, back + fresh, 2 * size, size)
        rows = self.size[self.batch] if self.batch else 1
        tiles = self.tiles(numbers / rows)
        overhead = (tiles - 1) * 8 * self.device.call
        if tiles == 1:
            return Cost(flops, forward, back, size, 2 * size)
        if keeps and 3 * size <= KEPT_BYTES:
            return Cost(flops, forward + overhead, back + overhead, size, 4 * size // tiles)
        return Cost(flops, forward + overhead, back + forward + overhead, 0, 4 * size // tiles)


def contract(r: Rates, x: str, y: str, out: str, domain: str, signal: bool) -> Cost:
    """A pair without convolution. ``x`` is the operand with time (or either), ``y`` the other."""
    steps = {"time": r.samples if signal else r.kernel, "frequency": 2 * r.bins, "modes": 2, "none": 1}[domain]
    summed = [i for i in x if i in y and i not in out]
    shared = r.count("".join(i for i in x if i in y and i in out))
    rows, columns = r.count("".join(i for i in x if i not in y)) * steps, r.count("".join(i for i in y if i not in x))
    k = r.count("".join(summed))
    result = r.count(out) * steps
    flops = 2.0 * shared * rows * k * columns
    if not summed:
        once = r.moved(result)
        return r.done(flops / 2, once, 2 * once, result, signal)
    forward = r.gemm(shared, columns, k, rows)
    back = r.gemm(shared, k, columns, rows) + r.gemm(shared, columns, rows, k)
    arrange = r.moved(r.count(x) * steps) if signal else 0.0
    if domain == "frequency" and not signal:  # complex, outside the chain: passes for parts and weights
        arrange = 3 * r.moved(result)
    return r.done(flops, forward + arrange, back + arrange, result, signal, keeps=domain == "time")


def generate(r: Rates, weight: str, modes: str, out: str) -> Cost:
    """The kernel from its modes, by the split exponential."""
    q = math.ceil(math.sqrt(r.kernel))
    tables = 2.0 * q * r.count(modes)
    shared = r.count("".join(i for i in modes if i in out))
    summed = 2 * r.count("".join(i for i in modes if i not in out))
    extra = r.count("".join(i for i in weight if i not in modes))
    left = q * r.count(weight) * 2.0
    gemm = r.gemm(shared, extra * q, summed, q)
    thin = tables / r.device.exp + r.moved(3 * left) + 14 * r.device.call
    flops = 2.0 * shared * extra * q * summed * q
    return r.done(flops, gemm + thin, 2 * gemm + 2 * thin, r.count(out) * r.kernel, signal=False)


def transform(r: Rates, indices: str, signal: bool) -> Cost:
    """rfft or irfft of every row."""
    rows = r.count(indices)
    seconds = r.transform(rows)
    flops = 2.5 * rows * r.fft * math.log2(r.fft)
    return r.done(flops, seconds, seconds, 2 * rows * r.bins, signal)


def multiply(r: Rates, x: str, k: str, out: str) -> Cost:
    """Spectrum times spectrum."""
    summed = [i for i in x if i in k and i not in out]
    own, fresh = r.count("".join(i for i in x if i not in k)), r.count("".join(i for i in k if i not in x))
    shared, depth = r.count("".join(i for i in x if i in k and i in out)), r.count("".join(summed))
    result = 2 * r.count(out) * r.bins
    flops = 8.0 * r.bins * shared * own * fresh * depth
    if not summed:
        once = 1.5 * r.moved(result)
        return r.done(flops, once, 3 * once, result, signal=True)
    matrices = r.bins * shared
    into, outof, kernel = r.count(x) * r.bins, r.count(out) * r.bins, r.count(k) * r.bins
    tiles = r.tiles(2 * max(into, outof) / (r.size[r.batch] if r.batch else 1))
    columns = max(1.0, own / tiles)
    product = tiles * r.gemm(matrices, fresh, depth, columns, True)
    forward = product + r.turned(into) + r.turned(outof) + r.turned(kernel)
    back = tiles * (r.gemm(matrices, depth, fresh, columns, True) + r.gemm(matrices, fresh, columns, depth, True))
    back += r.turned(outof) + 2 * r.turned(into) + r.turned(kernel) + tiles * r.moved(2 * kernel)
    if tiles > 1:  # what is computed again stops before the product
        back -= r.turned(outof) + r.turned(kernel) + product
    return r.done(flops, forward, back, result, signal=True)


def direct(r: Rates, x: str, k: str, out: str) -> Cost:
    """A Toeplitz GEMM over blocks as long as the kernel."""
    block = min(r.kernel, r.samples)
    blocks = math.ceil(r.samples / block)
    reach = 1 if blocks == 1 else 2
    shared, own = r.count("".join(i for i in x if i in k and i in out)), r.count("".join(i for i in x if i not in k))
    depth, fresh = (
        r.count("".join(i for i in x if i in k and i not in out)),
        r.count("".join(i for i in k if i not in x)),
    )
    gemm = reach * r.gemm(shared, own * blocks, depth * block, fresh * block)
    back = reach * (
        r.gemm(shared, own * blocks, fresh * block, depth * block)
        + r.gemm(shared, depth * block, own * blocks, fresh * block)
    )
    table = reach * r.count(k) * block * block
    copies = r.moved((r.count(x) + r.count(out)) * r.samples)
    build = 3 * r.moved(table) + 2 * table * REAL / r.device.fresh + 6 * r.device.call
    flops = 2.0 * reach * shared * own * blocks * depth * fresh * block * block
    cost = r.done(flops, gemm + copies + build, back + copies + build, r.count(out) * r.samples, signal=True)
    return Cost(cost.flops, cost.seconds, cost.backward, cost.kept + 3 * table * REAL, cost.transient)


def chunked(r: Rates, x: str, weight: str, modes: str, phase: str, out: str, chunk: int) -> Cost:
    """Toeplitz GEMM inside a chunk, GEMMs into and out of the states, a loop over the chunks."""
    chunks = math.ceil(r.samples / chunk)
    kernel = "".join(i for i in weight if i in x or i in out)
    own = "".join(i for i in x if i not in modes and i != phase)
    columns = r.count("".join(i for i in x if i not in weight)) * chunks
    shared = r.count("".join(i for i in x if i in kernel and i in out))
    depth, fresh = (
        r.count("".join(i for i in x if i in kernel and i not in out)),
        r.count("".join(i for i in kernel if i not in x)),
    )
    local = (shared, columns, depth * chunk, fresh * chunk)
    common = "".join(i for i in modes if i in x)
    states = r.count(modes) * r.count(own) * chunks * 2.0
    driven = r.count(phase) if phase else 1
    into = (
        r.count(common),
        r.count(own) * chunks,
        chunk * driven,
        2 * r.count("".join(i for i in modes if i not in x)),
    )
    kept_out = r.count("".join(i for i in modes if i in out))
    rest = 2 * r.count(modes) // max(1, kept_out) * r.count("".join(i for i in own if i in weight))
    extra = r.count("".join(i for i in weight if i not in modes and i not in x))
    outof = (kept_out, columns, rest, extra * chunk)
    gemms = [local, into, outof]
    forward = sum(r.gemm(*g) for g in gemms)
    back = sum(r.gemm(b, m, n, k) + r.gemm(b, k, m, n) for b, m, k, n in gemms)
    tiles = r.tiles(max(states, r.count(out) * r.samples) / (r.size[r.batch] if r.batch else 1))
    loop = tiles * chunks * 0.5 * r.device.call + r.moved(states)
    copies = r.moved((r.count(x) + r.count(out)) * r.samples) + r.moved(states)
    if any(i in x and i not in out for i in modes):  # the states are driven and read along different indices
        copies += 6 * r.turned(states, REAL)
    tables = chunk * (2.0 * r.count(modes) / r.device.exp) + 3 * r.moved(r.count(kernel) * chunk * chunk)
    tables += 2 * r.moved(r.count(weight) * chunk * 4) + 40 * r.device.call
    flops = sum(2.0 * b * m * k * n for b, m, k, n in gemms)
    numbers = r.count(out) * r.samples + states
    cost = r.done(flops, forward + loop + copies, back + 2.5 * loop + 2 * copies, numbers, signal=True, keeps=True)
    held = int(REAL * (3 * r.count(kernel) * chunk * chunk + 8 * r.count(weight) * chunk))
    return Cost(cost.flops, cost.seconds + tables, cost.backward + 2 * tables, cost.kept + held, cost.transient)
