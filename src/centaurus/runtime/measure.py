"""Measure and describe exported files without torch: laws of streaming, time of a step, and the models that ship."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime.modelfile import KEY, SessionError, Settings, find_model, read_settings, shipped_models
from centaurus.runtime.onnxfile import inspect
from centaurus.runtime.session import Session
from centaurus.system import AnyPath, ContentError
from centaurus.tasks import TASKS
from centaurus.verification import Law, Verification

Samples = NDArray[np.float32]
ROWS, TOLERANCE = 3, 1e-4
DELAY_SHARE = 16  # a trained filter may move the peak of an impulse by this fraction of a hop
WARM, LEAST, MOST = 10, 20, 100_000  # steps before timing, and steps that are timed
# Prints the resident bytes that a model adds to a process with numpy and onnxruntime.
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
FENCE = "---"


def verify_file(path: str | Path, extra: Sequence[Law] = (), seed: int = 0) -> Verification:
    """Stream noise through a file in pieces, rows and restored sessions, and compare with the whole signal at once."""
    session = Session(path, batch=ROWS)
    s, rng = session.settings, np.random.default_rng(seed)
    samples = 3 * s.chunk + s.chunk // 2 + s.hop // 3 + 1
    signal = (0.1 * rng.standard_normal((ROWS, samples))).astype(np.float32)
    whole = run(session, signal, [samples])
    laws = [
        Law("pieces of any size = the whole", _pieces(session, signal, whole, rng), 0.0),
        Law("frames = samples · ratio", float(whole.shape[-1] != s.frames(samples)), 0.0),
        Law("a row alone = the row in a batch", _alone(path, signal, whole), TOLERANCE),
        Law("save and restore = going on", _restored(path, session, signal, whole), TOLERANCE),
        Law("a row that joins later = the row from the start", _joined(session, signal, whole), TOLERANCE),
        Law("silence and full scale stay finite", _finite(session, samples), 0.0),
        *extra,
    ]
    if s.delay:
        laws.append(Law("delay is what the settings say, in samples", _lateness(session), s.hop // DELAY_SHARE))
    return Verification(tuple(laws))


def run(session: Session, signal: Samples, sizes: Sequence[int]) -> Samples:
    """Return the output of a whole signal, processed in pieces of these sizes, repeated."""
    pieces, at, k = [], 0, 0
    while at < signal.shape[-1]:
        pieces.append(session.process(signal[..., at : at + sizes[k % len(sizes)]]))
        at, k = at + sizes[k % len(sizes)], k + 1
    return np.concatenate([*pieces, session.flush()], -1)


def error(actual: Samples, expected: Samples) -> float:
    """Return the largest difference over the largest value; infinite for another shape, NaN or infinity."""
    if actual.shape != expected.shape:
        return float("inf")
    worst = float(np.abs(actual - expected).max(initial=0) / max(1e-30, float(np.abs(expected).max(initial=0))))
    return worst if np.isfinite(worst) else float("inf")


def _sizes(session: Session, rng: np.random.Generator) -> Iterator[list[int]]:
    hop, chunk = session.settings.hop, session.settings.chunk
    yield from ([n] for n in (max(1, chunk // 97), max(1, hop - 1), hop, hop + 1, chunk, chunk + 1, 2 * chunk + 3))
    yield from ([int(n) for n in rng.integers(0, 2 * chunk, 50)] + [chunk] for _ in range(4))


def _pieces(session: Session, signal: Samples, whole: Samples, rng: np.random.Generator) -> float:
    return max(error(run(session, signal, sizes), whole) for sizes in _sizes(session, rng))


def _alone(path: str | Path, signal: Samples, whole: Samples) -> float:
    session = Session(path)
    return max(error(run(session, signal[r], [signal.shape[-1]]), whole[r]) for r in range(ROWS))


def _restored(path: str | Path, session: Session, signal: Samples, whole: Samples) -> float:
    cut = session.settings.chunk + session.settings.hop // 2
    first = session.process(signal[:, :cut])
    saved = session.save()
    session.reset()
    other = Session(path, batch=ROWS)
    other.restore(saved)
    return error(np.concatenate([first, other.process(signal[:, cut:]), other.flush()], -1), whole)


def _joined(session: Session, signal: Samples, whole: Samples) -> float:
    """Measure a stream that joins the last row after another one has left it, while the other rows continue."""
    late = session.settings.chunk
    session.join()
    session.join()
    row = session.join()
    session.process(signal[:, :late])
    session.leave(row)
    row = session.join()
    shifted = np.concatenate([signal[:-1, late:], signal[-1:, :-late]], 0)
    output = np.concatenate([session.process(shifted), session.flush()], -1)
    hops = shifted.shape[-1] // session.settings.hop  # within the last one the two signals differ
    frames = session.settings.frames(hops * session.settings.hop)
    return error(output[row][..., :frames], whole[row][..., :frames])


def _lateness(session: Session) -> float:
    """Return the difference in samples between the measured delay of an impulse in noise and the declared one."""
    s, rng = session.settings, np.random.default_rng(0)
    samples = 4 * s.chunk + 2 * s.delay + 8 * s.hop
    noise = np.repeat(0.01 * rng.standard_normal((1, samples)), ROWS, axis=0).astype(np.float32)
    at = [s.chunk + s.hop + k * (s.hop // ROWS) for k in range(ROWS)]
    struck = noise.copy()
    struck[range(ROWS), at] += 1
    response = np.abs(run(session, struck, [samples]) - run(session, noise, [samples]))
    aligned = np.stack([row[k : k + 2 * s.delay + 4 * s.hop] for row, k in zip(response, at, strict=True)])
    return float(abs(int(aligned.sum(0).argmax()) - s.delay))


def _finite(session: Session, samples: int) -> float:
    silence, full = np.zeros((ROWS, samples), np.float32), np.ones((ROWS, samples), np.float32)
    square = full * np.sign(np.sin(np.arange(samples, dtype=np.float32) / 20))
    return float(not all(np.isfinite(run(session, x, [samples])).all() for x in (silence, full, square)))


@dataclass(frozen=True)
class Timing:
    """Times of the steps of one configuration: real-time factor, percentiles of a step, steps that were too slow."""

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
    step: Callable[[np.ndarray], object], chunk: int, seconds: float, clock: Callable[[], float] = time.perf_counter
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


@dataclass(frozen=True)
class Shipped:
    """A model that comes with the package. ``latency`` is in seconds, ``bytes`` the size of its ONNX file.

    ``score`` and ``licence`` are those of its card; ``command`` is the verb of the command line that runs it, and
    ``default`` whether that command takes it where no model is named.
    """

    name: str
    command: str
    default: bool
    rate: int
    latency: float
    bytes: int
    score: str
    licence: str


def describe_shipped() -> list[Shipped]:
    """Return the shipped models, those that commands take by default first."""
    models = [_describe(name) for name in shipped_models()]
    verbs = [task.command for task in TASKS.values()]
    return sorted(models, key=lambda model: (not model.default, verbs.index(model.command), model.name))


def _describe(name: str) -> Shipped:
    path = find_model(name)
    settings = read_settings(inspect(path).metadata[KEY], path)
    task, (card, _) = TASKS[settings.task], read_card(path.with_suffix(".md"))
    latency, size = settings.latency / settings.rate, path.stat().st_size
    default = name == task.model
    return Shipped(name, task.command, default, settings.rate, latency, size, card["score"], card["license"])


def read_card(path: AnyPath) -> tuple[dict[str, str], str]:
    """Return a model card's front matter, the ``key: value`` lines between its first two ``---``, and its text."""
    lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    fences = [number for number, line in enumerate(lines) if line.strip() == FENCE]
    if len(fences) < 2 or fences[0] != 0:
        raise ContentError(f"a model card begins with key: value lines between two lines of {FENCE}", path)
    pairs = (line.partition(":") for line in lines[1 : fences[1]] if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}, "".join(lines[fences[1] + 1 :]).lstrip("\n")
