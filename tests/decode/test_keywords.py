"""Keyword smoothing: against a plain loop, any pieces against the whole, and what is reported when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus.decode import PATIENCE, MovingMean, Smoothing, Spotting

CLASSES = ("yes", "no", "background")
FRAME = 0.01


def track(scores: dict[int, float], frames: int, word: int = 0, base: float = 0.01) -> NDArray[np.float64]:
    """Logits of a word whose probability jumps to ``scores[frame]`` and stays; the rest is background."""
    p = np.zeros(frames)
    level = base
    for frame in range(frames):
        level = scores.get(frame, level)
        p[frame] = level
    x = np.full((3, frames), 1e-9)
    x[word], x[2] = p, 1 - p - 1e-9
    return np.log(x)


def spot(logits: NDArray[np.float64], **smoothing: float) -> list[tuple[str, float, float]]:
    spotting = Spotting(CLASSES, FRAME, Smoothing(**({"window": 0.0} | smoothing)))
    keywords = spotting.push(logits) + spotting.flush()
    return [(k.word, round(k.time, 4), round(k.confidence, 3)) for k in keywords]


@settings(max_examples=50)
@given(st.integers(0, 30), st.integers(1, 9), st.lists(st.integers(0, 30), max_size=5), st.integers(0, 99))
def test_the_moving_mean_equals_a_loop(frames: int, window: int, cuts: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).random((2, frames))
    expected = [x[:, max(0, k - window + 1) : k + 1].mean(axis=1) for k in range(frames)]
    mean = MovingMean(2, window)
    pieces = [mean.push(piece) for piece in np.split(x, sorted(min(cut, frames) for cut in cuts), axis=1)]
    got = np.concatenate(pieces, axis=1)
    assert np.allclose(got.T, np.array(expected).reshape(-1, 2))
    assert np.array_equal(got, MovingMean(2, window).push(x))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 120), max_size=6), st.integers(0, 99))
def test_streaming_equals_offline(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.standard_normal((3, 12)) * 4, 10, axis=1)
    spotting = Spotting(CLASSES, FRAME, Smoothing(window=0.05, refractory=0.1))
    whole = spotting.push(x) + spotting.flush()
    result = [k for piece in np.split(x, sorted(cuts), axis=1) for k in spotting.push(piece)] + spotting.flush()
    assert result == whole


@settings(max_examples=30)
@given(st.integers(0, 999))
def test_skipping_quiet_frames_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.standard_normal((3, 30)) * 4, rng.integers(1, 20), axis=1)
    spotting = Spotting(CLASSES, FRAME, Smoothing(window=0.02, refractory=float(rng.uniform(0, 0.2))))
    whole = spotting.push(x) + spotting.flush()
    frames = [k for frame in range(x.shape[1]) for k in spotting.push(x[:, frame : frame + 1])] + spotting.flush()
    assert frames == whole


def test_caution_is_added_to_the_logit_of_the_background() -> None:
    x = np.random.default_rng(0).standard_normal((3, 50)) * 3
    cautious = x.copy()
    cautious[CLASSES.index("background")] += 1.5
    plain, raised = (Spotting(CLASSES, FRAME, Smoothing(window=0.05, caution=c)) for c in (0.0, 1.5))
    assert np.allclose(raised.scores(x), plain.scores(cautious))
    assert raised.smoothing.at(0.9).caution == 1.5
    with pytest.raises(ValueError, match=r"the caution should be at most 20 either way, got nan"):
        Smoothing(caution=float("nan"))


def test_with_caution_a_moment_of_certainty_counts_more_than_a_doubtful_while() -> None:
    def peak(probability: float, frames: int, caution: float) -> float:
        x = track({10: probability, 10 + frames: 0.02}, 60)
        return float(Spotting(CLASSES, FRAME, Smoothing(window=0.2, caution=caution)).scores(x).max())

    assert peak(0.8, 20, 0.0) > peak(0.998, 12, 0.0)
    assert peak(0.8, 20, 4.0) < peak(0.998, 12, 4.0)


def test_words_restrict_what_is_reported_and_nothing_else() -> None:
    x = np.concatenate([track({10: 0.9}, 70), track({0: 0.8, 30: 0.01}, 60, word=1)], axis=1)
    spotting = Spotting(CLASSES, FRAME, Smoothing(window=0.0), words=["no"])
    assert [k.word for k in spotting.push(x) + spotting.flush()] == ["no"]


def test_a_keyword_is_reported_once_with_its_peak() -> None:
    assert spot(track({20: 0.7, 22: 0.9, 24: 0.65, 30: 0.01}, 60)) == [("yes", 0.21, 0.9)]
    assert spot(track({20: 0.5, 30: 0.01}, 60)) == []
    assert spot(track({}, 60, word=2, base=0.9)) == []


def test_hysteresis_between_release_and_threshold() -> None:
    dip = {20: 0.9, 30: 0.55, 40: 0.9, 50: 0.01}
    assert len(spot(track(dip, 80), refractory=0.0)) == 1
    assert len(spot(track(dip, 80), refractory=0.0, release=0.58)) == 2
    for level, reports in ((0.485, 1), (0.475, 2)):  # by default a keyword has ended below 0.8 of the threshold, 0.48
        assert len(spot(track({**dip, 30: level}, 80), refractory=0.0)) == reports


def test_the_refractory_time() -> None:
    twice = {20: 0.9, 30: 0.01, 50: 0.9, 60: 0.01}
    assert len(spot(track(twice, 80), refractory=0.29)) == 2
    assert [k[1] for k in spot(track(twice, 80), refractory=0.35)] == [0.21, 0.56]  # still there when it is over
    assert len(spot(track(twice, 80), refractory=0.5)) == 1


def test_smoothing_hides_a_click_and_delays_a_word() -> None:
    assert spot(track({20: 1 - 1e-6, 22: 0.01}, 60), window=0.05) == []
    assert spot(track({20: 1 - 1e-6, 40: 0.01}, 60), window=0.05)[0][1] == 0.23


def test_a_plateau_is_reported_in_time() -> None:
    spotting = Spotting(CLASSES, FRAME, Smoothing(window=0.0))
    x = track({20: 0.9}, 200)
    late = round(PATIENCE / FRAME)
    assert spotting.push(x[:, : 20 + late]) == []
    assert [k.word for k in spotting.push(x[:, 20 + late : 21 + late])] == ["yes"]
    assert spotting.push(x[:, 30:]) == []


def test_without_patience_a_keyword_is_reported_in_the_frame_that_reaches_the_threshold() -> None:
    spotting = Spotting(CLASSES, FRAME, Smoothing(window=0.0, patience=0.0))
    x = track({20: 0.7, 22: 0.9}, 60)
    assert spotting.push(x[:, :20]) == []
    assert [(k.word, round(k.confidence, 3)) for k in spotting.push(x[:, 20:21])] == [("yes", 0.7)]
    assert spotting.push(x[:, 21:]) + spotting.flush() == []


def test_one_word_after_another() -> None:
    x = np.concatenate([track({10: 0.9}, 70), track({0: 0.8, 30: 0.01}, 60, word=1)], axis=1)
    assert [k[0] for k in spot(x)] == ["yes", "no"]


def test_a_word_at_the_very_end_comes_with_flush() -> None:
    spotting = Spotting(CLASSES, FRAME, Smoothing(window=0.0))
    assert spotting.push(track({10: 0.8}, 12)) == []
    assert [k.word for k in spotting.flush()] == ["yes"]
    assert spotting.flush() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": 0.0}, "0"),
        ({"threshold": 1.2}, "1.2"),
        ({"release": 0.9}, "0.9"),
        ({"window": -1.0}, "-1"),
        ({"patience": -2.0}, "-2"),
    ],
)
def test_bad_settings_are_named(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Smoothing(**arguments)


def test_classes_must_leave_something_to_report() -> None:
    with pytest.raises(ValueError, match="no word at all"):
        Spotting(["background"], FRAME)
    with pytest.raises(ValueError, match=r"maybe.*yes, no"):
        Spotting(CLASSES, FRAME, words=["yes", "maybe"])
    with pytest.raises(ValueError, match=r"\(3, frames\)"):
        Spotting(CLASSES, FRAME).push(np.zeros((2, 4)))
