"""The cost of a plan's steps on a device: seconds forward and backward, bytes kept and transient bytes.

The formulas follow ``kernels.program``: the signal is processed in tiles of the batch, and backward computes large
intermediates of several tiles again; everything else is kept by autograd. What depends on the machine is in ``Device``
and measured by ``centaurus calibrate``. The numbers below count operations and passes of the kernels, or, where marked
as fitted, were chosen to match timings that are not recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from centaurus.planner.device import Device

REAL, COMPLEX = 4, 8  # bytes of a number; costs are those of single precision
REAL_FLOPS, COMPLEX_FLOPS = 2, 8  # of a multiply-add
SCAN_FLOPS = 12  # of one sample of one complex mode: a x + u, and Re(w x)
FFT_FLOPS = 2.5  # times n log2 n: a real transform of n samples, half of a complex one
KEPT_BYTES = 96 << 20  # a signal's intermediates are kept for backward up to this many bytes together

# A GEMM with few rows, columns or terms of its sums does not reach its rate: factors 1 + x / size, fitted.
NARROW_ROWS, NARROW_DEPTH, NARROW_COLUMNS = 2, 12, 10
GEMM_REUSE = 2  # half of a GEMM's traffic reaches memory, fitted
TRANSFORM_CALLS = 2  # pad and transform
TILE_CALLS = 8  # slice, permute and accumulate for every further tile
SPECTRUM_PASSES = 1.5  # an element-wise complex product, relative to a pass over as many real numbers
PARTS_PASSES = 3  # a complex contraction outside the chain: real and imaginary parts are separated and joined
BINS_PASSES = 1.5  # over the real matrices of a kernel's bins: their four quarters are written, or added
NATIVE_PRODUCTS = 2.4  # rate of native products over torch's batched GEMM, measured at 4 to 64 terms and 32 columns
BINS_CALLS = 20  # transforms, products and the matrices of a kernel's bins
GENERATE_CALLS = 20  # powers of two, two tables by doubling, their product and the reshapes
TOEPLITZ_PASSES = 3  # repeat, cut and copy
TOEPLITZ_CALLS = 6
TOEPLITZ_COPIES = 3  # copies of a Toeplitz matrix that are kept for backward
CHUNK_CALL = 1.2  # a step of the scan over chunks, a fused call on complex numbers, relative to other calls, fitted
CHUNK_TABLE_CALLS = 40
CHUNK_TABLE_POWERS = 4  # real numbers of the weighted powers, for each weight and sample of a chunk
CHUNK_TABLE_KEPT = 8  # the same, kept for backward with their gradients
CHUNK_TURNS = 6  # transpositions of states whose input and output have different indices
LOOP_BACKWARD = 2.5  # the adjoint scan and the gradient of the decay, relative to the scan
SCAN_BACKWARD = 2.5  # the native recurrence: states again, adjoint states and four gradients, relative to forward
SCAN_SETUP = 24  # samples that take as long as loading a row's modes and adding up their gradients, fitted
VECTOR = 16  # rows in a vector of native code with AVX-512
SCAN_BLOCK = 64  # samples between the states that the native recurrence keeps


def whole_vectors(rows: int) -> tuple[int, int]:
    """Return the rows of a tile rounded to whole vectors, and the rows of such a vector (1 for few rows)."""
    lanes = next((lanes for lanes in (VECTOR, VECTOR // 2) if 4 * rows >= 3 * lanes), 1)
    return round(rows / lanes) * lanes, lanes


def only(x: str, y: str) -> str:
    """Return the indices of ``x`` that are not in ``y``."""
    return "".join(i for i in x if i not in y)


def both(x: str, y: str) -> str:
    """Return the indices that ``x`` and ``y`` share, in the order of ``x``."""
    return "".join(i for i in x if i in y)


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
        """Return the product of the sizes of indices."""
        return math.prod([self.size[index] for index in indices])

    def gemm(self, shared: float, m: float, k: float, n: float, complex_: bool = False) -> float:
        """Return the seconds of ``shared`` products (m, k) · (k, n): arithmetic, memory traffic and overhead."""
        d = self.device
        rate, word, weight = (d.complex_gemm, COMPLEX, COMPLEX_FLOPS) if complex_ else (d.gemm, REAL, REAL_FLOPS)
        narrow = (1 + NARROW_COLUMNS / n) * (1 + NARROW_ROWS / m) * (1 + NARROW_DEPTH / k)
        traffic = shared * (m * k + k * n + m * n) * word / (GEMM_REUSE * d.bandwidth)
        return weight * shared * m * k * n * narrow / rate + traffic + shared * d.matrix + d.call

    def moved(self, numbers: float, word: int = REAL) -> float:
        """Return the seconds of an element-wise pass that reads and writes this many numbers of ``word`` bytes."""
        return 2 * numbers * word / self.device.bandwidth + self.device.call

    def turned(self, numbers: float, word: int = COMPLEX) -> float:
        """Return the seconds of a transposition of this many numbers of ``word`` bytes."""
        return numbers * word / self.device.transpose + self.device.call

    def transform(self, rows: float) -> float:
        """Return the seconds of padded real transforms of this many rows."""
        nominal = self.transform_flops(rows) / self.device.fft
        return nominal + self.moved(rows * self.fft) + TRANSFORM_CALLS * self.device.call

    def transform_flops(self, rows: float) -> float:
        """Return the nominal FLOPs of real transforms of this many rows."""
        return FFT_FLOPS * rows * self.fft * math.log2(self.fft)

    @property
    def rows(self) -> int:
        """Rows of the batch that is split into tiles."""
        return self.size[self.batch] if self.batch else 1

    def tiles(self, numbers_per_row: float) -> int:
        """Return the number of tiles of the batch for an intermediate of this many real numbers in each row."""
        if not self.batch:
            return 1
        rows = max(1, int(self.device.tile_bytes // max(1.0, numbers_per_row * REAL)))
        return math.ceil(self.size[self.batch] / whole_vectors(rows)[0])

    def kept(self, numbers: float) -> bool:
        """Return whether an intermediate of this many real numbers is kept for backward rather than computed again."""
        return 3 * int(numbers * REAL) <= KEPT_BYTES

    def done(
        self, flops: float, forward: float, back: float, numbers: float, signal: bool, keeps: bool = False
    ) -> Cost:
        """Return the cost of a step whose result has this many real numbers, with the overhead of tiles and memory.

        ``forward`` and ``back`` are its seconds without that. ``signal``: the step is part of the chain; ``keeps``: its
        result is kept for backward if it is small.
        """
        size = int(numbers * REAL)
        if not self.backward:
            return Cost(flops, forward, 0.0, 0, min(size, 2 * self.device.tile_bytes) if signal else size)
        if not signal:
            allocation = 2 * size / self.device.fresh
            return Cost(flops, forward + allocation, back + allocation, 2 * size, size)
        tiles = self.tiles(numbers / self.rows)
        overhead = (tiles - 1) * TILE_CALLS * self.device.call
        if tiles == 1:
            return Cost(flops, forward, back, size, 2 * size)
        if keeps and self.kept(numbers):
            return Cost(flops, forward + overhead, back + overhead, size, 4 * size // tiles)
        return Cost(flops, forward + overhead, back + forward + overhead, 0, 4 * size // tiles)


def contract(r: Rates, x: str, y: str, out: str, domain: str, signal: bool) -> Cost:
    """Return the cost of a contraction without convolution. ``x`` is the operand with time, if either has it."""
    steps = {"time": r.samples if signal else r.kernel, "frequency": 2 * r.bins, "modes": 2, "none": 1}[domain]
    summed = only(both(x, y), out)
    shared = r.count(both(both(x, y), out))
    rows, columns = r.count(only(x, y)) * steps, r.count(only(y, x))
    k = r.count(summed)
    result = r.count(out) * steps
    flops = 2.0 * shared * rows * k * columns
    if not summed:
        once = r.moved(result)
        return r.done(flops / 2, once, 2 * once, result, signal)
    if domain == "time" and not signal:  # other indices of a kernel lie outside the summed one: a product for each
        shared, rows = shared * rows // steps, steps
    forward = r.gemm(shared, columns, k, rows)
    back = r.gemm(shared, k, columns, rows) + r.gemm(shared, columns, rows, k)
    arrange = r.moved(r.count(x) * steps) if signal else 0.0
    if domain == "frequency" and not signal:  # complex, outside the chain
        arrange = PARTS_PASSES * r.moved(result)
    return r.done(flops, forward + arrange, back + arrange, result, signal, keeps=domain == "time")


def generate(r: Rates, weight: str, modes: str, out: str) -> Cost:
    """Return the cost of generating the kernel from its modes: powers of two, two tables, and one GEMM."""
    bits = max(1, (r.kernel - 1).bit_length())
    fine = 1 << (bits + 1) // 2
    coarse = math.ceil(r.kernel / fine)
    shared = r.count(both(modes, out))
    summed = 2 * r.count(only(modes, out))
    extra = r.count(only(weight, modes))
    tables = 2.0 * ((fine + coarse) * r.count(modes) + coarse * r.count(weight))
    gemm = r.gemm(shared, extra * coarse, summed, fine)
    thin = bits * r.count(modes) / r.device.exp + r.moved(tables) + GENERATE_CALLS * r.device.call
    flops = 2.0 * shared * extra * coarse * summed * fine
    return r.done(flops, gemm + thin, 2 * gemm + 2 * thin, r.count(out) * r.kernel, signal=False)


def transform(r: Rates, indices: str, signal: bool) -> Cost:
    """Return the cost of the rfft or irfft of every row."""
    rows = r.count(indices)
    seconds = r.transform(rows)
    return r.done(r.transform_flops(rows), seconds, seconds, 2 * rows * r.bins, signal, keeps=True)


def multiply(r: Rates, x: str, k: str, out: str) -> Cost:
    """Return the cost of multiplying the signal's spectrum by the kernel's."""
    summed = only(both(x, k), out)
    own, new = r.count(only(x, k)), r.count(only(k, x))
    shared, depth = r.count(both(both(x, k), out)), r.count(summed)
    result = 2 * r.count(out) * r.bins
    flops = float(COMPLEX_FLOPS) * r.bins * shared * own * new * depth
    if not summed:
        once = SPECTRUM_PASSES * r.moved(result)
        return r.done(flops, once, 3 * once, result, signal=True, keeps=True)
    matrices = r.bins * shared
    into, outof, kernel = r.count(x) * r.bins, r.count(out) * r.bins, r.count(k) * r.bins
    tiles = r.tiles(2 * max(into, outof) / r.rows)
    columns = max(1.0, own / tiles)
    product = tiles * r.gemm(matrices, new, depth, columns, True)
    forward = product + r.turned(into) + r.turned(outof) + r.turned(kernel)
    back = tiles * (r.gemm(matrices, depth, new, columns, True) + r.gemm(matrices, new, columns, depth, True))
    back += r.turned(outof) + 2 * r.turned(into) + r.turned(kernel) + tiles * r.moved(2 * kernel)
    if tiles > 1 and not r.kept(result):  # what is computed again stops before the product
        back -= r.turned(outof) + r.turned(kernel) + product
    return r.done(flops, forward, back, result, signal=True, keeps=True)


def bins(r: Rates, x: str, k: str, out: str, native: bool) -> Cost:
    """Return the cost of ``kernels.bins``: transforms with the bins outermost and a real GEMM for every bin.

    With ``native`` they run in native code, else as products with a table.
    """
    summed, own, new = r.count(both(x, k)), r.count(only(x, k)), r.count(only(k, x))
    numbers = 2 * r.count(out) * r.bins
    largest = max(2 * r.count(x) * r.bins, numbers)
    tiles = r.tiles(largest / r.rows)
    columns = max(1.0, own / tiles)

    def spectra(rows: float, samples: int) -> float:
        if native:
            return r.transform_flops(rows) * _idle(rows) / r.device.spectra + r.device.call
        return r.gemm(1, 2 * r.bins, samples, rows)

    rate = max(1.0, NATIVE_PRODUCTS / _idle(columns)) if native else 1.0
    product = tiles * r.gemm(r.bins, 2 * new, 2 * summed, columns) / rate
    into, outof = spectra(r.count(x), r.samples), spectra(r.count(out), r.samples)
    copies = r.moved((r.count(x) + r.count(out)) * r.samples)
    weights = 4 * r.count(k) * r.bins
    kernel = spectra(r.count(k), r.kernel) + BINS_PASSES * r.moved(weights) + BINS_CALLS * r.device.call
    forward = into + product + outof + copies + kernel
    gradients = r.gemm(r.bins, 2 * summed, 2 * new, columns) + r.gemm(r.bins, 2 * new, columns, 2 * summed)
    back = into + outof + tiles * gradients / rate
    back += copies + kernel + (tiles - 1) * r.moved(weights)
    if tiles > 1 and not r.kept(largest):  # what is computed again stops before the product
        back -= product + outof + kernel
    flops = float(COMPLEX_FLOPS) * r.bins * summed * own * new + r.transform_flops(r.count(x) + r.count(out))
    cost = r.done(flops, forward, back, largest, signal=True, keeps=True)
    return Cost(cost.flops, cost.seconds, cost.backward, cost.kept + weights * REAL, cost.transient + weights * REAL)


def direct(r: Rates, x: str, k: str, out: str) -> Cost:
    """Return the cost of Toeplitz GEMMs over blocks as long as the kernel."""
    block = min(r.kernel, r.samples)
    blocks = math.ceil(r.samples / block)
    reach = 1 if blocks == 1 else 2
    shared, own = r.count(both(both(x, k), out)), r.count(only(x, k))
    depth, new = r.count(only(both(x, k), out)), r.count(only(k, x))
    gemm = reach * r.gemm(shared, own * blocks, depth * block, new * block)
    back = reach * (
        r.gemm(shared, own * blocks, new * block, depth * block)
        + r.gemm(shared, depth * block, own * blocks, new * block)
    )
    table = reach * r.count(k) * block * block
    copies = r.moved((r.count(x) + r.count(out)) * r.samples)
    build = TOEPLITZ_PASSES * r.moved(table) + 2 * table * REAL / r.device.fresh + TOEPLITZ_CALLS * r.device.call
    flops = 2.0 * reach * shared * own * blocks * depth * new * block * block
    cost = r.done(flops, gemm + copies + build, back + copies + build, r.count(out) * r.samples, signal=True)
    return Cost(cost.flops, cost.seconds, cost.backward, cost.kept + TOEPLITZ_COPIES * table * REAL, cost.transient)


@dataclass(frozen=True)
class _Chunks:
    """Sizes of a convolution in chunks: of the states, and of three GEMMs as (batch, m, k, n)."""

    count: int
    states: float  # real numbers of the states after every chunk
    kernel: str  # indices of the kernel inside a chunk
    inside: tuple[float, float, float, float]
    into: tuple[float, float, float, float]
    out_of: tuple[float, float, float, float]

    @property
    def gemms(self) -> tuple[tuple[float, float, float, float], ...]:
        """The GEMMs inside a chunk, into the states and out of them."""
        return self.inside, self.into, self.out_of


def _chunks(r: Rates, x: str, weight: str, modes: str, phase: str, out: str, chunk: int) -> _Chunks:
    count = math.ceil(r.samples / chunk)
    kernel = "".join(i for i in weight if i in x or i in out)
    own = only(only(x, modes), phase)
    columns = r.count(only(x, weight)) * count
    shared, depth, new = both(both(x, kernel), out), only(both(x, kernel), out), only(kernel, x)
    driven = r.count(phase) if phase else 1
    read = r.count(both(modes, out))
    rest = 2 * r.count(modes) // max(1, read) * r.count(both(own, weight))
    return _Chunks(
        count=count,
        states=r.count(modes) * r.count(own) * count * 2.0,
        kernel=kernel,
        inside=(r.count(shared), columns, r.count(depth) * chunk, r.count(new) * chunk),
        into=(r.count(both(modes, x)), r.count(own) * count, chunk * driven, 2 * r.count(only(modes, x))),
        out_of=(read, columns, rest, r.count(only(only(weight, modes), x)) * chunk),
    )


def chunked(r: Rates, x: str, weight: str, modes: str, phase: str, out: str, chunk: int) -> Cost:
    """Return the cost of a Toeplitz GEMM inside chunks, GEMMs into and out of the states, and a scan over chunks."""
    c = _chunks(r, x, weight, modes, phase, out, chunk)
    result = r.count(out) * r.samples
    forward = sum(r.gemm(*g) for g in c.gemms)
    back = sum(r.gemm(b, m, n, k) + r.gemm(b, k, m, n) for b, m, k, n in c.gemms)
    scan = r.tiles(max(c.states, result) / r.rows) * c.count * CHUNK_CALL * r.device.call + r.moved(c.states)
    copies = r.moved(r.count(x) * r.samples + result) + r.moved(c.states)
    if only(both(modes, x), out):  # input and output of the states have different indices
        copies += CHUNK_TURNS * r.turned(c.states, REAL)
    flops = sum(float(REAL_FLOPS) * b * m * k * n for b, m, k, n in c.gemms)
    cost = r.done(
        flops, forward + scan + copies, back + LOOP_BACKWARD * scan + 2 * copies, result + c.states, True, keeps=True
    )
    tables, kept = _chunk_tables(r, weight, modes, c.kernel, chunk)
    return Cost(cost.flops, cost.seconds + tables, cost.backward + 2 * tables, cost.kept + kept, cost.transient)


def scan(r: Rates, x: str, modes: str, out: str) -> Cost:
    """Return the cost of the native recurrence: every mode of every row, sample by sample.

    A vector holds rows of the output, in backward rows of the input; with few rows, lanes stay idle.
    """
    rows = r.count(only(x, modes))
    shared = rows * r.count(both(both(x, modes), out))
    summed, new = r.count(only(both(x, modes), out)), r.count(only(both(modes, out), x))
    steps = float(r.count(modes)) * rows * r.samples
    seconds = steps * (1 + SCAN_SETUP / r.samples) / r.device.scan
    copies = r.moved((r.count(x) + r.count(out)) * r.samples)
    result = r.count(out) * r.samples
    forward = seconds * _idle(shared * new) + copies
    back = SCAN_BACKWARD * seconds * _idle(shared * summed) + 2 * copies
    return r.done(SCAN_FLOPS * steps, forward, back, result + int(2 * steps / SCAN_BLOCK), signal=True, keeps=True)


def _idle(rows: float) -> float:
    """Return the lanes of whole vectors divided by the rows in them: 1 if none is idle."""
    return math.ceil(rows / VECTOR) * VECTOR / rows


def _chunk_tables(r: Rates, weight: str, modes: str, kernel: str, chunk: int) -> tuple[float, int]:
    """Return the seconds to make the tables of a chunk, and the bytes of them that are kept for backward."""
    toeplitz = r.count(kernel) * chunk * chunk
    weighted = r.count(weight) * chunk
    seconds = chunk * (2.0 * r.count(modes) / r.device.exp) + TOEPLITZ_PASSES * r.moved(toeplitz)
    seconds += 2 * r.moved(CHUNK_TABLE_POWERS * weighted) + CHUNK_TABLE_CALLS * r.device.call
    return seconds, int(REAL * (TOEPLITZ_COPIES * toeplitz + CHUNK_TABLE_KEPT * weighted))
