"""Device profiles: measured rates, from which the cost model estimates seconds."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

from centaurus.system import cache_folder, write_file


@dataclass(frozen=True)
class Device:
    """Rates of one kind of machine, per second if not stated; ``centaurus calibrate`` measures them."""

    name: str
    gemm: float  # FLOPs of real matrix products; a multiply-add counts as 2
    complex_gemm: float  # FLOPs of complex matrix products; a multiply-add counts as 8
    matrix: float  # overhead of each matrix of a batched GEMM, in seconds
    fft: float  # nominal FLOPs of real transforms: 2.5 n log2 n for n samples
    bandwidth: float  # bytes read and written by element-wise work on data in cache
    transpose: float  # bytes moved when the innermost axis changes
    fresh: float  # bytes of newly allocated memory that can be touched
    exp: float  # complex exponentials: exp, sine and cosine
    call: float  # overhead of an operation, in seconds
    tile_bytes: int  # bytes of the largest intermediate of a tile of the batch
    scan: float = 0.0  # samples times modes of the native recurrence; 0 without native code
    spectra: float = 0.0  # nominal FLOPs of native real transforms, bins outermost; 0 without native code
    measured: bool = True  # False for the default profile of a GPU, which is a guess

    @staticmethod
    def load(name: str, threads: int | None = None, native: bool = False) -> Device:
        """Return the stored calibration of this machine, or the default profile of that name (``cpu``, ``cuda``, …).

        Rates are those of ``threads`` threads (all cores if not given), or of the nearest number that is known.
        Rates of native code are zero unless ``native``: not every process can use it.
        """
        return _stored(name, threads or os.cpu_count() or 1, native)

    @staticmethod
    def path(key: int | str) -> Path:
        """Return the file in which ``centaurus calibrate`` stores rates, by the number of threads or ``"cuda"``."""
        return cache_folder() / f"device-{key}.json"

    @staticmethod
    def read(path: Path) -> Device:
        """Return the profile of a JSON file; raise ValueError for unknown, missing or impossible rates."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is not a device profile: {error}; run 'centaurus calibrate' again") from error
        known = {field.name for field in fields(Device)}
        if not isinstance(data, dict) or set(data) != known:
            raise ValueError(f"{path} is not a device profile of this version; run 'centaurus calibrate' again")
        for key, value in data.items():
            if key in ("name", "measured") or (key in ("scan", "spectra") and value == 0):
                continue
            if not (_is_number(value) and 0 < value < math.inf):
                raise ValueError(
                    f"{path} is not a device profile: {key} should be a positive number, got {value!r}; "
                    f"run 'centaurus calibrate' again"
                )
        return Device(**data)

    def write(self, path: Path) -> None:
        """Store the profile as JSON, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, json.dumps(asdict(self), indent=1) + "\n")
        _stored.cache_clear()


ONE = Device(  # AMD EPYC (Zen 5): products and transforms as measured by calibrate, the rest fitted to timed plans
    name="cpu (1 thread, AVX-512)",
    gemm=119e9,
    complex_gemm=106e9,
    matrix=0.09e-6,
    fft=44e9,
    bandwidth=16e9,
    transpose=5e9,
    fresh=1.9e9,
    exp=0.088e9,
    call=5.6e-6,
    tile_bytes=16 << 20,
)

CPU = Device(
    name="cpu (2 cores, AVX-512)",
    gemm=120e9,
    complex_gemm=80e9,
    matrix=0.15e-6,
    fft=32e9,
    bandwidth=12e9,
    transpose=5e9,
    fresh=3e9,
    exp=0.15e9,
    call=10e-6,
    tile_bytes=16 << 20,
)

CPUS = {1: ONE, 2: CPU}
"""Default profiles by number of threads."""

SCAN, SPECTRA = 7e9, 26e9  # rates of native code on one of these cores, fitted to timed plans

CUDA = Device(
    name="cuda (unmeasured)",
    gemm=60e12,
    complex_gemm=15e12,
    matrix=2e-9,
    fft=1.5e12,
    bandwidth=1.2e12,
    transpose=0.6e12,
    fresh=1e15,
    exp=0.4e12,
    call=6e-6,
    tile_bytes=1 << 30,
    measured=False,
)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nearest(counts: Iterable[int], threads: int) -> int:
    return min(counts, key=lambda count: (abs(math.log(count / threads)), count))


@lru_cache(maxsize=32)
def _stored(name: str, threads: int, native: bool) -> Device:
    if name == "cuda":
        path = Device.path(name)
        return Device.read(path) if path.is_file() else CUDA
    matches = [re.fullmatch(r"device-([1-9]\d*)\.json", path.name) for path in cache_folder().glob("device-*.json")]
    counts = [int(match[1]) for match in matches if match]
    if counts:
        device = Device.read(Device.path(_nearest(counts, threads)))
    else:
        known = _nearest(CPUS, threads)
        device = replace(CPUS[known], scan=known * SCAN, spectra=known * SPECTRA)
    return device if native else replace(device, scan=0.0, spectra=0.0)
