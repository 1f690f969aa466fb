"""Metrics have their known values for simple signals, and missing packages are named."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centaurus import audio
from centaurus.audio.metrics import MetricError


def warble(frames: int = 70_000) -> np.ndarray:
    """A gated, frequency-modulated tone with a little noise."""
    t = np.arange(310_000) / 16_000
    tone = 0.3 * np.sin(2 * np.pi * (200 + 50 * np.sin(2 * np.pi * 3 * t)) * t) * (np.sin(2 * np.pi * 2 * t) > 0)
    return (tone + np.random.default_rng(0).normal(0, 0.01, t.size)).astype(np.float32)[:frames]


@settings(max_examples=20)
@given(st.floats(-20, 60), st.floats(1e-2, 1e2))
def test_si_sdr_is_the_ratio_it_was_made_with_at_any_scale(ratio: float, scale: float) -> None:
    rng = np.random.default_rng(0)
    reference, other = rng.normal(size=4000), rng.normal(size=4000)
    reference -= reference.mean()
    other -= other.mean()
    other -= other @ reference / (reference @ reference) * reference
    other *= math.sqrt((reference @ reference) / (other @ other)) * 10 ** (-ratio / 20)
    assert audio.si_sdr(scale * (reference + other) + 3, reference) == pytest.approx(ratio, abs=1e-6)


def test_si_sdr_at_its_ends() -> None:
    x = np.random.default_rng(0).normal(size=100)
    assert audio.si_sdr(np.zeros(100), x) == -math.inf
    assert audio.si_sdr(x, x) > 200
    with pytest.raises(MetricError, match="silent"):
        audio.si_sdr(x, np.zeros(100))
    with pytest.raises(ValueError, match="one length"):
        audio.si_sdr(x, x[:-1])


def test_pesq_and_stoi_fall_with_noise_and_are_best_for_the_reference() -> None:
    clean = warble()
    noise = np.random.default_rng(1).normal(0, 1, clean.size).astype(np.float32)
    noisy = [audio.mix(clean, noise, snr)[0] for snr in (20, 0)]
    for measure, best in ((audio.pesq, 4.64), (audio.stoi, 1.0)):
        assert measure(clean, clean) == pytest.approx(best, abs=0.01)
        assert best > measure(noisy[0], clean) > measure(noisy[1], clean)
    assert audio.pesq(clean[::2], clean[::2], rate=8000) > 4.4
    with pytest.raises(MetricError, match="resample from 48000"):
        audio.pesq(clean, clean, rate=48_000)
    with pytest.raises(MetricError, match="PESQ could not be computed"):
        audio.pesq(clean[:10], clean[:10])
    with pytest.raises(MetricError, match="silent"):
        audio.stoi(clean, 0 * clean)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        # What speechmos 0.0.1.1 with librosa 0.11 gives; 70,000 is shorter than a segment, 310,000 has nine.
        (70_000, {"sig": 1.234483, "bak": 1.097049, "ovrl": 1.152932, "p808": 2.491032}),
        (310_000, {"sig": 0.970443, "bak": 1.061643, "ovrl": 1.149816, "p808": 2.748922}),
    ],
)
def test_dnsmos_equals_the_original(frames: int, expected: dict[str, float]) -> None:
    assert audio.dnsmos(warble(frames)) == pytest.approx(expected, abs=2e-3)


def test_dnsmos_takes_one_channel_at_its_rate() -> None:
    with pytest.raises(ValueError, match="16000 Hz"):
        audio.dnsmos(warble(), 8000)
    with pytest.raises(ValueError, match="one channel"):
        audio.dnsmos(np.zeros((2, 100)))


def test_errors_in_words_and_characters() -> None:
    words = audio.word_errors(["the cat sat", "", "extra words"], ["the bat sat down", "gone", ""])
    assert (words.substitutions, words.deletions, words.insertions, words.total) == (1, 2, 2, 5)
    assert words.rate == pytest.approx(1.0)
    chars = audio.char_errors("abd", "abcd")
    assert (chars.edits, chars.total, chars.rate) == (1, 4, 0.25)
    assert audio.word_errors([], []).rate == audio.char_errors("", "").rate == 0
    assert audio.char_errors("a", "").rate == 1
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        audio.word_errors(["a"], ["a", "b"])


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("pesq", lambda x: audio.pesq(x, x)),
        ("pystoi", lambda x: audio.stoi(x, x)),
        ("jiwer", lambda x: audio.word_errors("a", "b")),
    ],
)
def test_an_absent_package_is_named_with_what_to_install(
    package: str, call: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package} is needed.*pip install .*\[eval\]'"):
        call(warble())  # type: ignore[operator]
