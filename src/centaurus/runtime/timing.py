"""How fast a session is on this machine: step by step, so that the slow ones show."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from centaurus.runtime.modelfile import SessionError, Settings
from centaurus.runtime.session import Session

WARM, LEAST, MOST = 10, 20, 100_000  # steps

# What a model costs above numpy and onnxruntime, in a process of its own: resident bytes before and after.
WEIGH = """
import sys, numpy, onnxruntime
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * __import__("os").sysconf("SC_PAGE_SIZE")
before = resident()
from centaurus.runtime.session import Session
session = Session(sys.argv[1])
silence = numpy.zeros(session.settings.chunk, numpy.float32)
for _ in range(20):
    session.process(silence)
sys.stdout.write(str(resident() - before))
"""


@dataclass(frozen=True)
class Timing:
    """Steps of one way to run a model: real-time factor, milliseconds of a step, steps that came too late."""

    name: str
    steps: int
    chunk: int
    rate: int
    rtf: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    xruns: int
    latency_ms: float

    def json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def summary(name: str, settings: Settings, seconds: np.ndarray) -> Timing:
    """Return the figures of measured steps. Latency: a sample waits for its chunk to fill, then for 99 of 100 steps."""
    chunk = settings.chunk / settings.rate
    p50, p95, p99 = (float(np.percentile(seconds, q)) for q in (50, 95, 99))
    return Timing(
        name=name,
        steps=len(seconds),
        chunk=settings.chunk,
        rate=settings.rate,
        rtf=float(seconds.mean()) / chunk,
        p50_ms=1e3 * p50,
        p95_ms=1e3 * p95,
        p99_ms=1e3 * p99,
        max_ms=1e3 * float(seconds.max()),
        xruns=int((seconds > chunk).sum()),
        latency_ms=1e3 * (settings.latency / settings.rate + p99),
    )


def time_steps(
    step: Callable[[np.ndarray], object],
    chunk: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> np.ndarray:
    """Return the seconds of every step on noise by a clock, measured for about ``seconds`` seconds."""
    signal = 0.1 * np.random.default_rng(0).standard_normal((16, chunk)).astype(np.float32)
    for k in range(WARM):
        step(signal[k % len(signal)])
    spent: list[float] = []
    end = time.perf_counter() + seconds
    while len(spent) < LEAST or (time.perf_counter() < end and len(spent) < MOST):
        piece = signal[len(spent) % len(signal)]
        start = clock()
        step(piece)
        spent.append(clock() - start)
    return np.array(spent)


def time_session(model: str | Path, threads: int, seconds: float, name: str) -> Timing:
    """Time a session of one stream with this many threads (0: one for each core)."""
    session = Session(model, threads=threads)
    return summary(name, session.settings, time_steps(session.process, session.settings.chunk, seconds))


def weigh(path: Path) -> int | None:
    """Return the bytes that model and session add to a process with numpy and onnxruntime; None where unknown."""
    if not Path("/proc/self/statm").exists():
        return None
    done = subprocess.run([sys.executable, "-c", WEIGH, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SessionError(f"its memory could not be measured: {done.stderr.strip().splitlines()[-1:]}", path)
    return int(json.loads(done.stdout))
