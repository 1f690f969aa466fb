"""The laws of an exported file, measured without torch: the output does not depend on how a signal is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime.session import Session
from centaurus.verification import Law, Verification

Samples = NDArray[np.float32]
ROWS, TOLERANCE = 3, 1e-4
DELAY_SHARE = 16  # a trained filter may move the peak of an impulse by this part of a hop


def verify_file(path: str | Path, extra: Sequence[Law] = (), seed: int = 0) -> Verification:
    """Stream noise through a file in many ways and compare with the whole at once."""
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
    """A whole signal in pieces of these sizes, again and again."""
    pieces, at, k = [], 0, 0
    while at < signal.shape[-1]:
        pieces.append(session.process(signal[..., at : at + sizes[k % len(sizes)]]))
        at, k = at + sizes[k % len(sizes)], k + 1
    return np.concatenate([*pieces, session.flush()], -1)


def error(actual: Samples, expected: Samples) -> float:
    """The largest difference against the largest value; infinite for another shape, NaN or infinity."""
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
    """Measure a stream in the last row, after another one has left it while the rows before it continued."""
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
    """Samples between where an impulse in noise comes out and where the settings say it should."""
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
    made: list[Callable[[], Samples]] = [
        lambda: np.zeros((ROWS, samples), np.float32),
        lambda: np.ones((ROWS, samples), np.float32),
        lambda: np.sign(np.sin(np.arange(samples, dtype=np.float32) / 20)) * np.ones((ROWS, 1), np.float32),
    ]
    return float(not all(np.isfinite(run(session, make(), [samples])).all() for make in made))
