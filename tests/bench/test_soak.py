"""Ten minutes of what ``make soak`` does for a day; and a check that it detects faults."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from bench.soak import Aligned, Soak, audio, soak
from tests.runtime.models import exported, network


@pytest.mark.parametrize(("task", "minutes"), [("classifier", 10), ("denoiser", 1)])
def test_a_stream_neither_drifts_nor_grows(task: str, minutes: float) -> None:
    report = soak(task, exported(task), copy.deepcopy(network(task)), minutes / 60, trained=False)
    assert report.faults == []
    assert report.frames == minutes * 60 * 16_000 // (256 if task == "classifier" else 1)
    assert max(report.errors) < 1e-4


def test_another_network_is_noticed() -> None:
    other = copy.deepcopy(network("classifier"))
    for parameter in other.parameters():
        parameter.data.mul_(1.01)
    report = soak("other", exported("classifier"), other, 0.01, trained=False)
    assert "the error reaches" in report.faults[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"errors": [1e-6] * 6 + [9e-6] * 6}, "drifts"),
        ({"errors": [float("nan")]}, "reaches"),
        ({"not_finite": 2}, "2 values"),
        ({"memory_end": 2e7}, "grows by 10.0 MB"),
        ({"frames": 0}, "no output"),
    ],
)
def test_faults_are_noticed(changes: dict[str, object], words: str) -> None:
    good = {"name": "", "trained": False, "hours": 1.0, "errors": [1e-6] * 12, "not_finite": 0, "frames": 9}
    good |= {"memory_start": 1e7, "memory_end": 1.1e7, "seconds": 1.0}
    assert Soak(**good).faults == []  # type: ignore[arg-type]
    assert words in Soak(**(good | changes)).faults[0]  # type: ignore[arg-type]


def test_streams_that_arrive_unevenly_are_compared_frame_by_frame() -> None:
    x = np.arange(10.0)[None]
    aligned = Aligned()
    assert aligned.compare(x[:, :3], x[:, :5]) == (0, 2)
    assert aligned.compare(x[:, 3:], x[:, 5:] + 1) == (1, 10)
    assert aligned.frames == 10


def test_the_audio_is_the_same_for_the_same_number() -> None:
    assert np.array_equal(audio(3, 16_000), audio(3, 16_000))
    assert audio(3, 16_000).shape == (160_000,)
    assert not np.array_equal(audio(3, 16_000), audio(4, 16_000))
