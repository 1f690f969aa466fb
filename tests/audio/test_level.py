"""Levels and mixtures have the requested decibels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centaurus import audio


def noise(seed: int, frames: int = 5000) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, frames).astype(np.float32)


def test_levels_of_known_signals() -> None:
    assert audio.dbfs(np.ones(10, np.float32)) == pytest.approx(0)
    t = np.arange(16_000) / 16_000
    assert audio.dbfs(np.sin(2 * np.pi * 440 * t)) == pytest.approx(-3.0103, abs=1e-3)
    assert audio.dbfs(np.zeros(10)) == audio.dbfs(np.zeros(0)) == -math.inf


@pytest.mark.parametrize("frames", [1, 1023, 1024, 1025, 5000])
def test_power_is_the_mean_square_at_any_length(frames: int) -> None:
    x = noise(1, frames)
    assert audio.power(x) == pytest.approx(float(np.mean(np.square(x.astype(np.float64)))), rel=1e-6)


@settings(max_examples=30)
@given(st.floats(-5, 40), st.floats(-60, 0), st.floats(1e-3, 1e3))
def test_a_mixture_has_the_ratio_and_the_level(snr: float, level: float, scale: float) -> None:
    speech, other = noise(1), noise(2) * np.float32(scale)
    noisy, clean = audio.mix(speech, other, snr, level)
    assert noisy.dtype == clean.dtype == np.float32
    assert audio.dbfs(noisy) == pytest.approx(level, abs=1e-3)
    assert audio.dbfs(clean) - audio.dbfs(noisy - clean) == pytest.approx(snr, abs=1e-2)
    np.testing.assert_allclose(clean / speech, clean[0] / speech[0], rtol=1e-4)


def test_without_a_level_the_speech_is_left_as_it_was() -> None:
    speech = noise(1)
    noisy, clean = audio.mix(speech, noise(2), 3.0)
    np.testing.assert_array_equal(clean, speech)
    assert not np.shares_memory(clean, speech)
    assert not np.shares_memory(noisy, speech)


def test_silence_has_no_ratio_and_no_level() -> None:
    silent, loud = np.zeros(5000, np.float32), noise(1)
    noisy, clean = audio.mix(loud, silent, 0.0, -20)
    np.testing.assert_array_equal(noisy, clean)
    noisy, clean = audio.mix(silent, loud, 0.0, -20)
    assert audio.dbfs(noisy) == pytest.approx(-20, abs=1e-3)
    assert not clean.any()
    assert not audio.mix(silent, silent, 0.0, -20)[0].any()
    assert not audio.to_level(silent, -20).any()


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        audio.mix(noise(1, 10), noise(2, 11), 0)
