"""Resampling: length, pitch, shape; a stream in any pieces equals the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centaurus import audio

RATES = st.sampled_from([8000, 11_025, 16_000, 22_050, 44_100, 48_000])


@settings(max_examples=25)
@given(RATES, RATES, st.integers(1, 2), st.lists(st.integers(0, 3000), max_size=6), st.booleans())
def test_streaming_equals_offline(a: int, b: int, channels: int, sizes: list[int], flat: bool) -> None:
    x = np.random.default_rng(len(sizes)).normal(size=(channels, sum(sizes))).astype(np.float32)
    if flat and channels == 1:
        x = x[0]
    stream = audio.Resampler(a, b, channels)
    for _ in range(2):  # flush resets the state
        cuts = np.cumsum(sizes)[:-1] if sizes else []
        pieces = [stream.process(piece) for piece in np.split(x, cuts, axis=-1)]
        got = np.concatenate([*pieces, stream.flush()], axis=-1)
        expected = audio.resample(x, a, b)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize(("a", "b"), [(16_000, 48_000), (44_100, 16_000), (48_000, 16_000), (16_000, 16_000)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tone_keeps_its_pitch_and_length(a: int, b: int, dtype: type) -> None:
    def tone(rate: int) -> np.ndarray:
        return np.sin(2 * np.pi * 1000 * np.arange(2 * rate) / rate).astype(dtype)

    y = audio.resample(tone(a), a, b)
    assert y.dtype == dtype
    assert len(y) == 2 * b
    np.testing.assert_allclose(y[1000:-1000], tone(b)[1000:-1000], atol=2e-4)


def test_leading_axes_are_kept_and_the_input_is_not_shared() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 480)).astype(np.float32)
    y = audio.resample(x, 48_000, 16_000)
    assert y.shape == (2, 3, 160)
    np.testing.assert_array_equal(y[1, 2], audio.resample(x[1, 2], 48_000, 16_000))
    same = audio.resample(x, 8000, 8000)
    assert not np.shares_memory(same, x)
    assert audio.resample(x[..., :0], 48_000, 16_000).shape == (2, 3, 0)


def test_invalid_rates_and_signals_are_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        audio.resample(np.zeros(3, np.float32), 0, 16_000)
    with pytest.raises(ValueError, match="int16"):
        audio.resample(np.zeros(3, np.int16), 8000, 16_000)
    with pytest.raises(ValueError, match="2 channels"):
        audio.Resampler(8000, 16_000, 2).process(np.zeros((3, 10), np.float32))
