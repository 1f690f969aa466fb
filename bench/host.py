"""Threads of a benchmark, chosen when this is imported, and the machine's limits (GEMM rate and bandwidth).

Import this before torch: OpenMP reads its settings only once.
"""

from __future__ import annotations

import os
import sys
import time

from centaurus.system import choose_threads

THREADS = choose_threads(os.environ)
print(THREADS, file=sys.stderr)
LARGE = 64 << 20  # bytes: more than a core's share of any cache


def limits() -> dict[str, float]:
    """Return the FLOPs per second of a large matrix product and bytes per second of a copy, in CPU time."""
    import numpy as np

    x, y, out = (np.ones((1024, 1024), np.float32) for _ in range(3))
    begin = time.process_time()
    np.matmul(x, y, out=out)
    gemm = 2 * 1024**3 / (time.process_time() - begin)
    large, other = np.ones(LARGE, np.uint8), np.ones(LARGE, np.uint8)
    begin = time.process_time()
    np.copyto(other, large)
    return {
        "gemm_flops_per_second": gemm,
        "bandwidth_bytes_per_second": 2 * LARGE / (time.process_time() - begin),
    }


def best_limits(rounds: int = 3) -> dict[str, float]:
    """Return the highest rates of several rounds: other work on the machine only lowers them."""
    measured = [limits() for _ in range(rounds)]
    return {name: max(one[name] for one in measured) for name in measured[0]}
