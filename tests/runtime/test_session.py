"""A session: pieces of any length, many streams, saved and restored, and what it refuses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus.runtime import Session, SessionError
from centaurus.runtime.measure import run, verify_file
from tests.runtime.models import CLASSES, exported

TASKS = ["denoiser", "classifier", "recognizer"]


def noise(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("task", TASKS)
def test_a_file_keeps_its_laws(task: str) -> None:
    report = verify_file(exported(task))
    assert report.holds, str(report)
    assert len(report.laws) == 6


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 900), min_size=1, max_size=8).filter(any), samples=st.integers(1, 3000))
def test_streaming_equals_offline(sizes: list[int], samples: int) -> None:
    session, x = Session(exported("denoiser")), noise(samples)
    whole = run(session, x, [samples])
    assert whole.shape == (samples,)
    assert np.array_equal(run(session, x, sizes), whole)


def test_settings_say_what_the_file_does() -> None:
    s = Session(exported("classifier")).settings
    assert (s.task, s.rate, s.hop, s.chunk, s.latency, s.ratio) == (
        "classifier", 16_000, 256, 2048, 2048, Fraction(1, 256)
    )  # fmt: skip
    assert s.classes == CLASSES
    assert s.tokens is None
    assert s.name == "classifier"
    with pytest.raises(AttributeError):
        s.rate = 8000  # type: ignore[misc]


@pytest.mark.parametrize(("task", "features"), [("denoiser", None), ("classifier", 3), ("recognizer", 5)])
def test_shapes(task: str, features: int | None) -> None:
    one, two = Session(exported(task)), Session(exported(task), batch=2)
    s = one.settings
    frames = s.frames(s.chunk)
    lead = () if features is None else (features,)
    assert one.process(noise(s.chunk)).shape == (*lead, frames)
    assert one.process(noise(0)).shape == (*lead, 0)
    assert one.process(noise(1, s.chunk)).shape == (1, *lead, frames)
    assert one.flush().shape == (1, *lead, 0)
    assert two.process(noise(2, s.chunk + 1)).shape == (2, *lead, frames)
    assert two.flush().shape == (2, *lead, s.frames(1))
    assert Session(exported(task)).flush().shape == (*lead, 0)


def test_double_precision_is_taken_and_results_are_the_callers() -> None:
    session, x = Session(exported("denoiser")), noise(2048)
    single = session.process(x)
    kept = single.copy()
    session.reset()
    assert np.array_equal(session.process(x.astype(np.float64)), kept)
    session.process(noise(2048, seed=1))
    assert np.array_equal(single, kept)


@pytest.mark.parametrize("task", TASKS)
def test_save_and_restore(task: str) -> None:
    first, second = Session(exported(task), batch=2), Session(exported(task), batch=2)
    cut = first.settings.chunk + 77
    x = noise(2, 4 * first.settings.chunk)
    first.join()
    first.process(x[:, :cut])
    saved = first.save()
    expected = first.process(x[:, cut:])
    second.process(noise(2, 999, seed=5))
    second.restore(saved)
    assert np.array_equal(second.process(x[:, cut:]), expected)
    assert second.samples == first.samples == [x.shape[-1]] * 2
    assert second.join() == 1


def test_streams_join_and_leave() -> None:
    session, alone = Session(exported("denoiser"), batch=2), Session(exported("denoiser"))
    x, y = noise(1500), noise(700, seed=1)
    both = np.zeros((2, 1500), np.float32)
    assert session.join() == 0
    both[0] = x
    first = session.process(both[:, :512])
    row = session.join()
    both[row, 512 : 512 + 700] = y
    later = session.process(both[:, 512 : 512 + 700])
    tail = session.leave(row)
    end = session.process(both[:, 512 + 700 :])
    wanted_y = np.concatenate([alone.process(y), alone.flush()])
    assert np.allclose(np.concatenate([later[row], tail]), wanted_y, atol=1e-6)
    wanted_x = np.concatenate([alone.process(x), alone.flush()])
    assert np.allclose(np.concatenate([first[0], later[0], end[0], session.flush()[0]]), wanted_x, atol=1e-6)


def test_reset_clears_the_samples_that_wait() -> None:
    session, other = Session(exported("denoiser")), Session(exported("denoiser"))
    x = noise(1000)
    session.process(noise(session.settings.chunk + 7, seed=3))
    session.reset()
    assert session.samples == [0]
    assert np.array_equal(session.process(x), other.process(x))
    assert np.array_equal(session.flush(), other.flush())


def test_a_stream_joins_between_chunk_boundaries() -> None:
    """Zeros stand for what a row had before its stream: nothing of an earlier stream, waiting samples included."""
    session, alone = Session(exported("denoiser"), batch=2), Session(exported("denoiser"))
    early, late = session.settings.chunk + 7, noise(900, seed=1)
    session.join()
    session.process(np.stack([noise(early), noise(early, seed=2)]))
    row = session.join()
    streamed = session.process(np.stack([noise(900, seed=3), late]))[row]
    expected = alone.process(np.concatenate([np.zeros(7, np.float32), late]))
    assert np.allclose(streamed, expected, atol=1e-6)


def test_rows_are_counted() -> None:
    session = Session(exported("denoiser"), batch=2)
    assert [session.join(), session.join()] == [0, 1]
    with pytest.raises(SessionError, match="all 2 rows"):
        session.join()
    session.leave(0)
    assert session.join() == 0
    session.leave(1)
    with pytest.raises(SessionError, match="no stream has joined row 1"):
        session.leave(1)
    with pytest.raises(SessionError, match="there is no row 2"):
        session.reset([2])


def test_a_row_is_reset_alone() -> None:
    session, restarted = Session(exported("denoiser"), batch=2), Session(exported("denoiser"))
    x = noise(2, 1024)
    session.process(x)
    kept = session.save()
    going = session.process(x)
    session.restore(kept)
    session.reset([1])
    output = session.process(x)
    assert np.array_equal(output[0], going[0])
    assert np.allclose(output[1], restarted.process(x[1]), atol=1e-6)
    assert session.samples == [2048, 1024]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((3, 100), np.float32), r"takes \(2, samples\), got shape \(3, 100\)"),
        (np.zeros(100, np.float32), r"got shape \(100,\)"),
        (np.zeros((2, 1, 100), np.float32), r"got shape \(2, 1, 100\)"),
        (np.zeros((2, 100), np.int16), "floating-point numbers, about -1 to 1, got int16"),
        (np.full((2, 4), np.nan, np.float32), "NaN or infinity"),
        (np.array([[0, 1], [np.inf, 0]], np.float32), "NaN or infinity"),
    ],
)
def test_bad_pieces_change_nothing(x: NDArray[np.float32], message: str) -> None:
    session = Session(exported("denoiser"), batch=2)
    session.process(noise(2, 300))
    before = session.save()
    with pytest.raises(SessionError, match=message):
        session.process(x)
    assert session.save() == before


@pytest.mark.parametrize("batch", [0, -1])
def test_a_session_has_rows(batch: int) -> None:
    with pytest.raises(SessionError, match="at least one row"):
        Session(exported("denoiser"), batch=batch)


def test_what_cannot_be_restored() -> None:
    session = Session(exported("denoiser"))
    session.process(noise(300))
    saved = session.save()
    head, _, body = saved.partition(b"\n")
    other = Session(exported("classifier"))
    with pytest.raises(SessionError, match="saved with a model other than"):
        other.restore(saved)
    with pytest.raises(SessionError, match="has 1 rows, this one has 2"):
        Session(exported("denoiser"), batch=2).restore(saved)
    for data, message in [
        (b"", "not the bytes"),
        (b"[]\n", "not the bytes"),
        (b"\xff\xfe\n", "not the bytes"),
        (b"[" * 100_000, "not the bytes"),
        (saved[:-1], "damaged"),
        (head.replace(b'"waiting": 44', b'"waiting": -1') + b"\n" + body, "damaged"),
        (head.replace(b'"samples": [300]', b'"samples": "no"') + b"\n" + body, "damaged"),
    ]:
        with pytest.raises(SessionError, match=message):
            session.restore(data)
    assert session.save() == saved


def test_memory_does_not_grow() -> None:
    import tracemalloc

    session, x = Session(exported("denoiser")), noise(256)
    session.process(x)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(300):
            session.process(x)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("task", TASKS)
def test_rows_that_are_stepped_at_their_own_pace_give_what_they_give_alone(task: str) -> None:
    together, alone = Session(exported(task), batch=3), Session(exported(task))
    chunk, x = alone.settings.chunk, noise(3, 4 * alone.settings.chunk)
    turns = [[0, 1, 2], [2], [1, 0], [0], [2, 1], [2], [0, 1]]
    got: dict[int, list[NDArray[np.float32]]] = {0: [], 1: [], 2: []}
    for rows in turns:
        pieces = np.stack([x[row, len(got[row]) * chunk : (len(got[row]) + 1) * chunk] for row in rows])
        for row, frames in zip(rows, together.step(rows, pieces), strict=True):
            got[row].append(frames)
    for row, frames in got.items():
        expected = alone.process(x[row]).reshape(alone.settings.features, -1)
        alone.reset()
        assert np.allclose(np.concatenate(frames, -1), expected, atol=1e-5 * np.abs(expected).max())


def test_a_step_takes_whole_chunks_of_rows_that_exist() -> None:
    session = Session(exported("denoiser"), batch=2)
    chunk = session.settings.chunk
    for rows, shape in (([0], (1, chunk - 1)), ([0, 1, 1], (3, chunk)), ([], (0, chunk)), ([2], (1, chunk))):
        with pytest.raises(SessionError):
            session.step(rows, noise(*shape))
    session.process(noise(2, 10))
    with pytest.raises(SessionError, match="10 samples waiting"):
        session.step([0], noise(1, chunk))
