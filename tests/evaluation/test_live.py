"""Continuous measurement of a spotter: what counts as a hit, a wrong word or a false alarm, and the curve."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from centaurus.decode import Smoothing, Spotting
from centaurus.evaluation import live

RATE, HOP = 8000, 80
CLASSES = ("low", "high", "background")
Samples = NDArray[np.float32]


def tone(hertz: float, seconds: float = 0.3) -> Samples:
    return np.sin(2 * np.pi * hertz * np.arange(round(seconds * RATE)) / RATE).astype(np.float32)


WORDS = {"low": tone(200.0), "high": tone(2000.0)}


def listener() -> Callable[[Samples], NDArray[np.float64]]:
    """Logits of two tones by zero crossings of frames that are loud enough; whole frames only."""

    def push(x: Samples) -> NDArray[np.float64]:
        frames = x[: len(x) // HOP * HOP].reshape(-1, HOP)
        loud = np.square(frames).mean(1) > 1e-4
        crossings = (np.diff(np.sign(frames), axis=1) != 0).mean(1)
        p = np.full((3, len(frames)), 0.01)
        p[np.where(loud, (crossings > 0.2).astype(int), 2), np.arange(len(frames))] = 0.98
        return np.log(p)

    return push


def spotting(words: list[str] | None = None) -> Spotting:
    return Spotting(CLASSES, HOP / RATE, Smoothing(window=0.1, refractory=0.3), words)


def stream(count: int = 60, kind: str = "silence", below: float = 30.0) -> live.Words:
    rng = np.random.default_rng(0)
    names = [("low", "high")[k] for k in rng.integers(0, 2, count)]
    sound = live.background(kind, RATE, RATE, rng)
    x, spoken = live.compose(((name, WORDS[name]) for name in names), sound, below, RATE, rng)
    reader = spotting()
    return live.Words(live.score(listener(), reader, [x]), spoken, RATE, reader.seconds)


def test_every_clear_word_is_a_hit_and_the_first_minute_is_not_counted() -> None:
    said = stream()
    assert 0 < len(said.spoken) < 60
    assert all(spoken.start >= live.WARM_UP * RATE for spoken in said.spoken)
    result = live.outcome(live.reports(said.scores, spotting(), 0.6), said)
    assert (result.recall, result.wrong, result.between) == (1.0, 0, 0)
    assert -0.3 < np.median(result.delays) < 0.1


def test_wrong_words_and_reports_between_words_are_counted_separately() -> None:
    said = stream()
    swapped = live.Words(said.scores[::-1], said.spoken, said.rate, said.seconds)
    result = live.outcome(live.reports(swapped.scores, spotting(), 0.6), swapped)
    assert (result.hits, result.wrong) == (0, len(said.spoken))
    missing = live.Words(said.scores, said.spoken[::2], said.rate, said.seconds)
    assert live.outcome(live.reports(said.scores, spotting(), 0.6), missing).between == len(said.spoken[1::2])


@pytest.mark.parametrize("kind", ["white", "hum"])
def test_the_background_is_at_its_level(kind: str) -> None:
    rng = np.random.default_rng(0)
    sound = live.background(kind, RATE, RATE, rng)
    x, spoken = live.compose([("low", WORDS["low"])] * 40, sound, 20.0, RATE, rng)
    quiet = x[spoken[0].end + 200 : spoken[1].start - 200]
    assert 20 * np.log10(np.sqrt(np.square(quiet).mean())) == pytest.approx(live.WORD_LEVEL - 20.0, abs=0.7)
    with pytest.raises(ValueError, match="rain"):
        live.background("rain", 10, RATE, rng)


def test_the_curve_and_its_threshold() -> None:
    said = stream()
    noise = 0.99 * np.random.default_rng(1).random((2, 36_000)) ** 4  # averaged probabilities that rise at random
    points = live.curve(said, live.Others(noise, 0.1, HOP / RATE), spotting())
    alarms = [point.alarms for point in points]
    assert alarms[0] > alarms[-1] == 0
    chosen = live.threshold_for(points, 20.0)
    assert chosen.alarms_per_hour <= 20.0 < points[0].alarms_per_hour
    assert chosen.misses == min(point.misses for point in points if point.alarms_per_hour <= 20.0)
    assert points[-1].at_most == pytest.approx(30.0, rel=0.01)  # nothing in a tenth of an hour


def test_a_threshold_that_misses_nearly_everything_is_not_chosen() -> None:
    rows = [(0.5, 0.0, 9), (0.9, 0.02, 3), (0.94, 0.06, 1), (0.96, 0.08, 1), (0.98, 0.9, 1), (0.999, 1.0, 0)]
    points = [live.Point(t, misses, count, count / 0.6, 9.0) for t, misses, count in rows]
    assert live.threshold_for(points, 0.5).threshold == 0.999
    assert live.threshold_for(points, 0.5, 0.1).threshold == 0.94  # as few alarms as 0.96, fewer misses
    assert live.threshold_for(points, 6.0, 0.1).threshold == 0.9  # the rate is reached
    assert live.threshold_for(points[-2:], 0.5, 0.1).threshold == 0.999  # nothing is useful


def test_a_word_that_is_said_is_not_a_false_alarm() -> None:
    scores = np.zeros((2, 600))
    scores[0, 100:120] = scores[0, 400:420] = 0.9
    others = live.Others(scores, 0.1, HOP / RATE, [3.0, 6.0], ["how low can you go", "nothing of the kind"])
    reported = live.reports(scores, spotting(), 0.6)
    assert len(reported) == 2
    assert [keyword.time > 3.0 for keyword in others.false(reported)] == [True]
    others.transcripts = ["nothing", "nothing of the kind"]
    assert len(others.false(reported)) == 2


def test_the_rule_of_three_and_poisson_bounds() -> None:
    assert live.most_alarms(0) == pytest.approx(3.0, abs=0.01)
    assert live.most_alarms(5) == pytest.approx(10.51, abs=0.01)
    assert live.most_alarms(200) == pytest.approx(225.0, abs=1.0)
