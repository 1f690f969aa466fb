"""Spotting and transcribing: against the session and the decoder by hand, pieces against the whole, channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus.decode import Smoothing, Spotting, Vocabulary, greedy
from centaurus.runtime.session import Session, SessionError, Spotter, Transcriber, smoothing_of, spot, transcribe
from tests.runtime.models import CLASSES, TOKENS, exported

KEEN = Smoothing(threshold=0.34, release=0.33, window=0.03, refractory=0.05)  # random weights are never confident


def bursts(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Noise that comes and goes, so that outputs change."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(round(16_000 * seconds)).astype(np.float32)
    return x * np.repeat(rng.random(len(x) // 1600 + 1).astype(np.float32) ** 4, 1600)[: len(x)]


def logits(task: str, x: NDArray[np.float32]) -> NDArray[np.float32]:
    session = Session(exported(task))
    return np.concatenate([session.process(x), session.flush()], axis=-1)


def test_spotting_is_the_decoder_on_the_session() -> None:
    x = bursts(3)
    spotting = Spotting(CLASSES, 1 / 62.5, KEEN)
    expected = spotting.push(logits("classifier", x)) + spotting.flush()
    assert expected, "the test needs a keyword"
    assert spot(x, 16_000, exported("classifier"), KEEN) == expected
    assert all(0 < k.time <= 3 and k.word in CLASSES[:2] for k in expected)


def test_transcribing_is_the_decoder_on_the_session() -> None:
    x = bursts(3)
    expected = greedy(logits("recognizer", x), Vocabulary.of(TOKENS), 0.16)
    assert expected, "the test needs a word"
    assert transcribe(x, 16_000, exported("recognizer")) == expected


@settings(max_examples=8)
@given(st.lists(st.integers(0, 44_100), max_size=5))
def test_streaming_equals_offline(cuts: list[int]) -> None:
    x = bursts(2, seed=3)[None, :44_100]
    spotter = Spotter(exported("classifier"), 22_050, 1, KEEN)
    transcriber = Transcriber(exported("recognizer"), 22_050)
    for job in (spotter, transcriber):
        whole = job.process(x) + job.flush()
        pieces = [result for piece in np.split(x, sorted(cuts), axis=1) for result in job.process(piece)]
        pieces += job.flush()
        assert [result.confidence for result in pieces] == pytest.approx(
            [result.confidence for result in whole], abs=1e-4
        )


def test_channels_are_averaged() -> None:
    x = 0.5 * bursts(2)  # within the range when doubled
    stereo = np.stack([2 * x, np.zeros_like(x)])
    assert spot(stereo, 16_000, exported("classifier"), KEEN) == spot(x, 16_000, exported("classifier"), KEEN)


def test_a_partial_word_is_shown_and_then_returned() -> None:
    job = Transcriber(exported("recognizer"))
    x = bursts(2)[None]
    words = job.process(x)
    partial = job.partial
    assert words + partial == transcribe(x[0], 16_000, exported("recognizer"))
    assert partial == job.flush()


def test_repaired_samples_are_counted_and_leave_no_trace() -> None:
    x = bursts(1)
    x[100] = np.nan
    job = Spotter(exported("classifier"))
    job.process(x[None])
    assert job.repaired == 1
    clean = np.where(np.isnan(x), 0, x).astype(np.float32)
    assert spot(x, 16_000, exported("classifier"), KEEN) == spot(clean, 16_000, exported("classifier"), KEEN)


def test_empty_input_gives_empty_output() -> None:
    assert spot(np.zeros(0), 16_000, exported("classifier")) == []
    assert transcribe(np.zeros(0), 48_000, exported("recognizer")) == []


def test_models_that_do_not_fit_are_named() -> None:
    with pytest.raises(SessionError, match="is a denoiser, which denoises; a classifier is needed"):
        Spotter(exported("denoiser"))
    with pytest.raises(SessionError, match="a recognizer is needed"):
        Transcriber(exported("classifier"))
    with pytest.raises(SessionError, match="has no class names"):
        Spotter(exported("nameless"))


def test_a_spotter_keeps_what_its_file_says_of_reports(tmp_path: Path) -> None:
    from centaurus.export import export_onnx
    from tests.models.small import narrow

    net, own = narrow("kws-hybrid-2").eval(), {"threshold": 0.4, "window": 0.2, "caution": 2.5}
    net.settings |= {"classes": ("yes", "no", "background"), **own}
    session = Session(export_onnx(net, tmp_path / "net.onnx"))
    assert smoothing_of(session.settings) == Smoothing(**own)
    assert session.settings.json().items() >= own.items()
    assert "caution" not in Session(exported("classifier")).settings.json()
    assert Session("kws-30").settings.caution > 0
