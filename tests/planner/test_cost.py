"""The cost model against counts made by hand: FLOPs, calls, tiles, what is kept and what is computed again."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from centaurus.planner import cost
from centaurus.planner.cost import KEPT_BYTES, REAL, Rates
from centaurus.planner.device import CPU, Device
from centaurus.planner.search import FRONT, Entry, front

SIZES = {"b": 4, "i": 3, "j": 5, "n": 6}
# Everything but starting an operation is free: seconds are the number of calls.
CALLS = Device("calls", 1e30, 1e30, 1e-30, 1e30, 1e30, 1e30, 1e30, 1e30, 1.0, 1 << 30)


def rates(device: Device = CPU, samples: int = 1024, backward: bool = True, batch: str = "b") -> Rates:
    return Rates(device, SIZES, samples, samples, 2 * samples, batch, backward)


def test_flops_of_each_step() -> None:
    r = rates(samples=1024)
    assert cost.transform(r, "bi", True).flops == 2.5 * 12 * 2048 * 11
    assert cost.contract(r, "bi", "ni", "bn", "time", True).flops == 2 * 4 * 1024 * 3 * 6
    assert cost.contract(r, "bi", "i", "bi", "time", True).flops == 4 * 3 * 1024
    assert cost.multiply(r, "bi", "ji", "bj").flops == 8 * 1025 * 4 * 3 * 5
    q = math.isqrt(1024)
    assert cost.generate(r, "jn", "n", "j").flops == 2 * (5 * q) * (2 * 6) * q
    assert cost.bins(r, "bi", "ji", "bj", native=False).flops == 8 * 1025 * 4 * 3 * 5 + 2.5 * 32 * 2048 * 11
    inside, into, out_of = 2 * 4 * 3 * 5 * 1024 * 64, 2 * 4 * 1024 * 3 * 2 * 6 * 5, 2 * 4 * 1024 * 2 * 3 * 6 * 5
    assert cost.chunked(r, "bi", "jin", "jin", "", "bj", 64).flops == inside + into + out_of


def test_a_transform_takes_as_long_as_its_flops_at_the_devices_rate() -> None:
    free = replace(CALLS, fft=1e9, call=1e-30)
    estimate = cost.transform(rates(free), "bi", True)
    assert estimate.seconds == pytest.approx(estimate.flops / 1e9)
    assert estimate.backward == pytest.approx(estimate.seconds)


def test_native_transforms_take_as_long_as_their_flops_at_their_own_rate() -> None:
    """Signal, output and kernel forth (12, 20 and 15 rows, in whole vectors of 16); then the gradients of all three."""
    free = replace(CALLS, spectra=1e9, call=1e-30)
    estimate = cost.bins(rates(free), "bi", "ji", "bj", native=True)
    assert estimate.seconds == pytest.approx(2.5 * (16 + 32 + 16) * 2048 * 11 / 1e9)
    assert estimate.backward == pytest.approx(estimate.seconds)


def test_a_kernel_with_an_index_outside_the_summed_one_is_a_batch_of_products() -> None:
    matrices = replace(CALLS, matrix=1.0, call=1e-30)
    several, one = (cost.contract(rates(matrices), x, y, "ji", "time", False) for x, y in (("in", "jn"), ("n", "jin")))
    assert several.flops == one.flops
    assert several.seconds == pytest.approx(3)  # one for each i
    assert one.seconds == pytest.approx(1)


@pytest.mark.parametrize(("rows", "faster"), [(32, 2.4), (20, 1.5), (2, 1.0)])
def test_native_products_of_bins_are_faster_where_rows_fill_vectors(rows: int, faster: float) -> None:
    free = replace(CALLS, gemm=1e9, spectra=1e30, call=1e-30)
    sizes = SIZES | {"b": rows}
    native = cost.bins(Rates(free, sizes, 1024, 1024, 2048, "b", True), "bi", "ji", "bj", native=True)
    narrow = (1 + cost.NARROW_COLUMNS / rows) * (1 + cost.NARROW_ROWS / 10) * (1 + cost.NARROW_DEPTH / 6)
    assert native.seconds == pytest.approx(2 * 1025 * 10 * 6 * rows * narrow / 1e9 / faster)


@pytest.mark.parametrize(("rows", "whole"), [(31, (32, 16)), (22, (16, 16)), (9, (8, 8)), (12, (16, 16)), (5, (5, 1))])
def test_tiles_have_whole_vectors_of_rows(rows: int, whole: tuple[int, int]) -> None:
    assert cost.whole_vectors(rows) == whole


def test_the_recurrence_of_few_rows_takes_as_long_as_that_of_a_whole_vector() -> None:
    """Forward a vector holds rows of the output, 4 × 5 in two vectors; backward of the input, 4 × 3 in one."""
    free = replace(CALLS, scan=1e9, call=1e-30)
    estimate = cost.scan(rates(free, samples=1000), "bi", "jin", "bj")
    once = 3 * 5 * 6 * 4 * (1000 + cost.SCAN_SETUP) / 1e9
    assert estimate.seconds == pytest.approx(once * 32 / 20)
    assert estimate.backward == pytest.approx(cost.SCAN_BACKWARD * once * 16 / 12)


@pytest.mark.parametrize("chunks", [4, 40])
def test_the_scan_over_chunks_has_a_fused_call_for_each(chunks: int) -> None:
    estimate = cost.chunked(rates(CALLS, samples=16 * chunks), "bn", "n", "n", "", "bn", 16)
    gemms, passes, tables = 3, 3, 3 + 2 + 40
    steps = chunks * cost.CHUNK_CALL
    assert estimate.seconds == pytest.approx(gemms + passes + tables + steps)
    assert estimate.backward == pytest.approx(2 * gemms + 2 * 2 + 2 * tables + 2.5 * (1 + steps))


def test_every_tile_scans_its_own_chunks() -> None:
    small = replace(CALLS, tile_bytes=16 * 40 * REAL * SIZES["n"])  # one row of the batch at a time
    whole, tiled = (
        cost.chunked(rates(device, samples=640, backward=False), "bn", "n", "n", "", "bn", 16)
        for device in (CALLS, small)
    )
    assert tiled.seconds - whole.seconds == pytest.approx(3 * 40 * cost.CHUNK_CALL)


@pytest.mark.parametrize(("numbers", "tiles"), [(1, 1), (256, 1), (257, 2), (512, 2), (513, 4), (10_000, 4)])
def test_tiles_hold_as_many_rows_as_fit(numbers: int, tiles: int) -> None:
    r = rates(replace(CPU, tile_bytes=4 * 256 * REAL))
    assert r.tiles(numbers) == tiles
    assert rates(replace(CPU, tile_bytes=1), batch="").tiles(numbers) == 1


def test_what_does_not_fit_a_tile_is_computed_again() -> None:
    r = rates(replace(CALLS, tile_bytes=400 * REAL))
    fits = r.done(0, 5.0, 7.0, 400, signal=True)
    assert (fits.seconds, fits.backward, fits.kept) == (5, 7, 400 * REAL)
    again = r.done(0, 5.0, 7.0, 404, signal=True)  # two tiles
    assert (again.seconds, again.backward, again.kept) == (5 + 8, 7 + 5 + 8, 0)
    kept = r.done(0, 5.0, 7.0, 404, signal=True, keeps=True)
    assert (kept.backward, kept.kept) == (7 + 8, 404 * REAL)
    large = KEPT_BYTES // REAL
    assert r.done(0, 5.0, 7.0, large, signal=True, keeps=True).kept == 0


def entry(seconds: float, kept: int, peak: int) -> Entry:
    return Entry(seconds, kept, peak, None, "operand", ())


def test_the_front_has_the_fastest_and_under_a_limit_all_that_nothing_beats() -> None:
    fast = [entry(k, 100, 100) for k in range(FRONT)]
    less_peak, less_kept = entry(10, 100, 50), entry(11, 50, 100)
    beaten = [entry(12, 100, 100), entry(13, 100, 50), entry(14, 60, 200)]
    everything = [*beaten, less_kept, less_peak, *fast]
    assert front(everything, limited=False) == fast
    assert front(everything, limited=True) == [*fast, less_peak, less_kept]
