"""The cost of a plan's steps on a device: seconds forward and backward, bytes kept and bytes in passing.

The formulas follow how ``kernels.program`` runs a step: the signal goes in tiles of the batch and is computed again
in backward when it needs several, everything else is kept by autograd. What depends on the machine is in ``Device``
and measured by ``centaurus calibrate``; the numbers below count operations and passes of our own code, or were chosen
to fit timings that are not recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from centaurus.planner.device import Device

REAL, COMPLEX = 4, 8  # bytes of a number; costs are those of single precision
REAL_FLOPS, COMPLEX_FLOPS = 2, 8  # of a multiplication and an addition
SCAN_FLOPS = 12  # of a complex mode's sample: a x + u, and Re(w x)
FFT_FLOPS = 2.5  # times n log2 n: a real transform of n samples, half of a complex one
KEPT_BYTES = 96 << 20  # a signal's intermediates in time are kept for backward up to this size in all

# A GEMM with few rows, columns or terms runs below its rate: fitted factors 1 + x / size.
NARROW_ROWS, NARROW_DEPTH, NARROW_COLUMNS = 2, 12, 10
GEMM_REUSE = 2  # of a GEMM's traffic only a half reaches memory, fitted
TRANSFORM_CALLS = 2  # pad and transform
TILE_CALLS = 8  # slice, permute and accumulate for every further tile
SPECTRUM_PASSES = 1.5  # a complex product element by element, against a pass over real numbers of the same size
PARTS_PASSES = 3  # a complex contraction outside the chain: real and imaginary parts taken apart and joined
BINS_PASSES = 1.5  # over the matrices of a kernel's bins: four quarters written, or added
NATIVE_PRODUCTS = 2.4  # times the rate of torch's batched ones, measured at 4 to 64 terms and 32 columns
BINS_CALLS = 20  # transforms, products and the matrices of a kernel's bins
GENERATE_CALLS = 20  # powers of two, two tables by doubling, their product and the reshapes
TOEPLITZ_PASSES = 3  # tile, cut and arrange
TOEPLITZ_CALLS = 6
TOEPLITZ_COPIES = 3  # bytes of a Toeplitz table that stay for backward, in tables
CHUNK_CALL = 1.2  # a step of the scan over chunks, a fused call on complex numbers, in ordinary calls, fitted
CHUNK_TABLE_CALLS = 40
CHUNK_TABLE_POWERS = 4  # real numbers of the weighted powers, for each weight and sample of a chunk
CHUNK_TABLE_KEPT = 8  # the same, kept for backward with their gradients
CHUNK_TURNS = 6  # transpositions of states that are driven and read along different indices
LOOP_BACKWARD = 2.5  # the adjoint scan and the gradient of the decay, against the scan
SCAN_BACKWARD = 2.5  # the native recurrence: states again, adjoint states and four gradients, against forward
SCAN_SETUP = 24  # samples in the time that a row's modes take to load and their gradients to add up, fitted
VECTOR = 16  # rows of a vector of native code, where vectors are widest
SCAN_BLOCK = 64  # samples between the states that it keeps


def whole_vectors(rows: int) -> tuple[int, int]:
    """Return the rows of a tile as a multiple of a vector's numbers, where there are about as many, and that number."""
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
        """Product of sizes."""
        return math.prod([self.size[index] for index in indices])

    def gemm(self, shared: float, m: float, k: float, n: float, complex_: bool = False) -> float:
        """Seconds of a batched GEMM: arithmetic, traffic and a fixed part per matrix."""
        d = self.device
        rate, word, weight = (d.complex_gemm, COMPLEX, COMPLEX_FLOPS) if complex_ else (d.gemm, REAL, REAL_FLOPS)
        narrow = (1 + NARROW_COLUMNS / n) * (1 + NARROW_ROWS / m) * (1 + NARROW_DEPTH / k)
        traffic = shared * (m * k + k * n + m * n) * word / (GEMM_REUSE * d.bandwidth)
        return weight * shared * m * k * n * narrow / rate + traffic + shared * d.matrix + d.call

    def moved(self, numbers: float, word: int = REAL) -> float:
        """Seconds of an element-wise pass that reads and writes this many numbers."""
        return 2 * numbers * word / self.device.bandwidth + self.device.call

    def turned(self, numbers: float, word: int = COMPLEX) -> float:
        """Seconds of a transposition."""
        return numbers * word / self.device.transpose + self.device.call

    def transform(self, rows: float) -> float:
        """Seconds of padded real transforms."""
        nominal = self.transform_flops(rows) / self.device.fft
        return nominal + self.moved(rows * self.fft) + TRANSFORM_CALLS * self.device.call

    def transform_flops(self, rows: float) -> float:
        """FLOPs of real transforms."""
        return FFT_FLOPS * rows * self.fft * math.log2(self.fft)

    @property
    def rows(self) -> int:
        """Rows that tiles run over."""
        return self.size[self.batch] if self.batch else 1

    def tiles(self, numbers_per_row: float) -> int:
        """Tiles of the batch for an intermediate of this many real numbers in each row."""
        if not self.batch:
            return 1
        rows = max(1, int(self.device.tile_bytes // max(1.0, numbers_per_row * REAL)))
        return math.ceil(self.size[self.batch] / whole_vectors(rows)[0])

    def kept(self, numbers: float) -> bool:
        """Whether tiles of an intermediate of this many real numbers are kept for backward, not computed again."""
        return 3 * int(numbers * REAL) <= KEPT_BYTES

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
        tiles = self.tiles(numbers / self.rows)
        overhead = (tiles - 1) * TILE_CALLS * self.device.call
        if tiles == 1:
            return Cost(flops, forward, back, size, 2 * size)
        if keeps and self.kept(numbers):
            return Cost(flops, forward + overhead, back + overhead, size, 4 * size // tiles)
        return Cost(flops, forward + overhead, back + forward + overhead, 0, 4 * size // tiles)


def contract(r: Rates, x: str, y: str, out: str, domain: str, signal: bool) -> Cost:
    """A pair without convolution. ``x`` is the operand with time (or either), ``y`` the other."""
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
    if domain == "frequency" and not signal:  # complex, outside the chain: passes for parts and weights
        arrange = PARTS_PASSES * r.moved(result)
    return r.done(flops, forward + arrange, back + arrange, result, signal, keeps=domain == "time")


def generate(r: Rates, weight: str, modes: str, out: str) -> Cost:
    """The kernel from its modes, by the split exponential: powers of two, tables by products, and one GEMM."""
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
    """rfft or irfft of every row."""
    rows = r.count(indices)
    seconds = r.transform(rows)
    return r.done(r.transform_flops(rows), seconds, seconds, 2 * rows * r.bins, signal, keeps=True)


def multiply(r: Rates, x: str, k: str, out: str) -> Cost:
    """Spectrum times spectrum."""
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
    """Transforms that lay the bins outermost, a real GEMM for every bin between them; natively, or as products."""
    summed, own, fresh = r.count(both(x, k)), r.count(only(x, k)), r.count(only(k, x))
    numbers = 2 * r.count(out) * r.bins
    largest = max(2 * r.count(x) * r.bins, numbers)
    tiles = r.tiles(largest / r.rows)
    columns = max(1.0, own / tiles)

    def spectra(rows: float, samples: int) -> float:
        if native:
            return r.transform_flops(rows) * _idle(rows) / r.device.spectra + r.device.call
        return r.gemm(1, 2 * r.bins, samples, rows)

    rate = max(1.0, NATIVE_PRODUCTS / _idle(columns)) if native else 1.0
    product = tiles * r.gemm(r.bins, 2 * fresh, 2 * summed, columns) / rate
    into, outof = spectra(r.count(x), r.samples), spectra(r.count(out), r.samples)
    copies = r.moved((r.count(x) + r.count(out)) * r.samples)
    weights = 4 * r.count(k) * r.bins
    kernel = spectra(r.count(k), r.kernel) + BINS_PASSES * r.moved(weights) + BINS_CALLS * r.device.call
    forward = into + product + outof + copies + kernel
    back = (
        into
        + outof
        + tiles
        * (r.gemm(r.bins, 2 * summed, 2 * fresh, columns) + r.gemm(r.bins, 2 * fresh, columns, 2 * summed))
        / rate
    )
    back += copies + kernel + (tiles - 1) * r.moved(weights)
    if tiles > 1 and not r.kept(largest):  # what is computed again stops before the product
        back -= product + outof + kernel
    flops = float(COMPLEX_FLOPS) * r.bins * summed * own * fresh + r.transform_flops(r.count(x) + r.count(out))
    cost = r.done(flops, forward, back, largest, signal=True, keeps=True)
    return Cost(cost.flops, cost.seconds, cost.backward, cost.kept + weights * REAL, cost.transient + weights * REAL)


def direct(r: Rates, x: str, k: str, out: str) -> Cost:
    """A Toeplitz GEMM over blocks as long as the kernel."""
    block = min(r.kernel, r.samples)
    blocks = math.ceil(r.samples / block)
    reach = 1 if blocks == 1 else 2
    shared, own = r.count(both(both(x, k), out)), r.count(only(x, k))
    depth, new = (
        r.count(only(both(x, k), out)),
        r.count(only(k, x)),
    )
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
    """The sizes of a convolution in chunks: three GEMMs (batch, m, k, n), the states and the tables."""

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
    """Toeplitz GEMM inside a chunk, GEMMs into and out of the states, a scan over the chunks."""
    c = _chunks(r, x, weight, modes, phase, out, chunk)
    result = r.count(out) * r.samples
    forward = sum(r.gemm(*g) for g in c.gemms)
    back = sum(r.gemm(b, m, n, k) + r.gemm(b, k, m, n) for b, m, k, n in c.gemms)
    scan = r.tiles(max(c.states, result) / r.rows) * c.count * CHUNK_CALL * r.device.call + r.moved(c.states)
    copies = r.moved(r.count(x) * r.samples + result) + r.moved(c.states)
    if only(both(modes, x), out):  # the states are driven and read along different indices
        copies += CHUNK_TURNS * r.turned(c.states, REAL)
    flops = sum(float(REAL_FLOPS) * b * m * k * n for b, m, k, n in c.gemms)
    cost = r.done(
        flops, forward + scan + copies, back + LOOP_BACKWARD * scan + 2 * copies, result + c.states, True, keeps=True
    )
    tables, kept = _chunk_tables(r, weight, modes, c.kernel, chunk)
    return Cost(cost.flops, cost.seconds + tables, cost.backward + 2 * tables, cost.kept + kept, cost.transient)


def scan(r: Rates, x: str, modes: str, out: str) -> Cost:
    """The native recurrence: every mode of every row, sample by sample, on signals that are read and written once.

    A vector holds rows of the output, and in backward rows of the input: few of them leave it idle.
    """
    rows = r.count(only(x, modes))
    shared = rows * r.count(both(both(x, modes), out))
    summed, fresh = r.count(only(both(x, modes), out)), r.count(only(both(modes, out), x))
    steps = float(r.count(modes)) * rows * r.samples
    seconds = steps * (1 + SCAN_SETUP / r.samples) / r.device.scan
    copies = r.moved((r.count(x) + r.count(out)) * r.samples)
    result = r.count(out) * r.samples
    forward = seconds * _idle(shared * fresh) + copies
    back = SCAN_BACKWARD * seconds * _idle(shared * summed) + 2 * copies
    return r.done(SCAN_FLOPS * steps, forward, back, result + int(2 * steps / SCAN_BLOCK), signal=True, keeps=True)


def _idle(rows: float) -> float:
    """Lanes of whole vectors for each row."""
    return math.ceil(rows / VECTOR) * VECTOR / rows


def _chunk_tables(r: Rates, weight: str, modes: str, kernel: str, chunk: int) -> tuple[float, int]:
    """Seconds to make the tables of a chunk, and their bytes that stay for backward."""
    toeplitz = r.count(kernel) * chunk * chunk
    weighted = r.count(weight) * chunk
    seconds = chunk * (2.0 * r.count(modes) / r.device.exp) + TOEPLITZ_PASSES * r.moved(toeplitz)
    seconds += 2 * r.moved(CHUNK_TABLE_POWERS * weighted) + CHUNK_TABLE_CALLS * r.device.call
    return seconds, int(REAL * (TOEPLITZ_COPIES * toeplitz + CHUNK_TABLE_KEPT * weighted))
