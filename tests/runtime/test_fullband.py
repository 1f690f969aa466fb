"""Audio above the network's band follows the gain in its top band."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from centaurus.runtime.denoise import FRAME, Denoiser, UpperBand, denoise

RATE = 48_000
NETWORK = 16_000
Signal = NDArray[np.float32]


def above(x: Signal, rate: int, cut: float = 9_000.0) -> float:
    """The power of a signal above a frequency."""
    power = np.square(np.abs(np.fft.rfft(x * np.hanning(len(x)))))
    return float(power[np.fft.rfftfreq(len(x), 1 / rate) > cut].sum())


def noise(seconds: float, rate: int = RATE, seed: int = 0) -> Signal:
    return (0.1 * np.random.default_rng(seed).standard_normal(int(seconds * rate))).astype(np.float32)


def in_pieces(x: Signal, sizes: tuple[int, ...], band: str = "full", rate: int = RATE) -> Signal:
    job = Denoiser(rate=rate, channels=len(x), band=band)  # type: ignore[arg-type]
    parts, at, k = [], 0, 0
    while at < x.shape[1]:
        parts.append(job.process(x[:, at : at + sizes[k % len(sizes)]]))
        at, k = at + sizes[k % len(sizes)], k + 1
    return np.concatenate([*parts, job.flush()], axis=1)


def test_a_gain_of_the_top_band_scales_what_lies_above() -> None:
    upper = UpperBand(RATE, NETWORK, 1)
    x = noise(1.0, NETWORK)[None]
    gain = np.where(np.arange(NETWORK) < NETWORK // 2, 1.0, 0.1).astype(np.float32)
    upper.pair(x, x * gain)
    upper.end()
    scaled = upper.scale(np.ones((1, RATE), np.float32))[0]
    assert scaled[: RATE // 2 - 500] == pytest.approx(1.0, abs=1e-6)
    assert scaled[RATE // 2 + RATE // 10 :] == pytest.approx(0.1, abs=1e-3)
    assert np.abs(np.diff(scaled)).max() < 0.02  # no click where the gain changes


def test_gains_are_returned_only_where_they_are_known() -> None:
    upper = UpperBand(RATE, NETWORK, 1)
    x = noise(0.1, NETWORK)[None]
    upper.pair(x[:, : FRAME - 1], x[:, : FRAME - 1])
    assert upper.ready == 0
    upper.pair(x[:, FRAME - 1 : FRAME], x[:, FRAME - 1 : FRAME])
    assert upper.ready == FRAME * RATE // NETWORK
    upper.scale(np.zeros((1, 100), np.float32))
    assert upper.ready == FRAME * RATE // NETWORK - 100


def test_noise_above_the_band_falls_as_far_as_below() -> None:
    x = noise(3.0)
    clean = denoise(x, RATE)
    steady = slice(RATE, None)
    fall = 10 * np.log10(above(clean[steady], RATE) / above(x[steady], RATE))
    assert fall < -15


def test_full_band_keeps_what_narrow_removes() -> None:
    """Clicks are passed by the network: below and above its band alike."""
    t = np.arange(2 * RATE) / RATE
    x = (0.1 * np.sin(2 * np.pi * 12_000 * t)).astype(np.float32)  # nothing below 8 kHz: no noise for the network
    full, narrow = denoise(x, RATE), denoise(x, RATE, band="narrow")
    assert above(full, RATE) > 0.9 * above(x, RATE)
    assert above(narrow, RATE) < 1e-4 * above(x, RATE)


def test_below_the_band_full_and_narrow_agree() -> None:
    x = noise(1.5)
    full, narrow = denoise(x, RATE), denoise(x, RATE, band="narrow")
    low = np.fft.rfftfreq(len(x), 1 / RATE) < 7_000
    difference = np.abs(np.fft.rfft(full - narrow))[low].max() / np.abs(np.fft.rfft(x))[low].max()
    assert difference < 1e-3


@pytest.mark.parametrize("rate", [22_050, 44_100, 48_000])
def test_streaming_equals_offline(rate: int) -> None:
    x = np.stack([noise(1.1, rate, 1), noise(1.1, rate, 2)])
    whole = in_pieces(x, (x.shape[1],), rate=rate)
    cut = in_pieces(x, (480, 1, 7777, 33), rate=rate)
    assert whole.shape == cut.shape == x.shape
    assert np.abs(whole - cut).max() < 1e-6


def test_a_second_stream_is_independent_of_the_first() -> None:
    x = noise(0.7)[None]
    job = Denoiser(rate=RATE)
    first = np.concatenate([job.process(x), job.flush()], axis=1)
    second = np.concatenate([job.process(x), job.flush()], axis=1)
    np.testing.assert_array_equal(first, second)


def test_blocks_have_as_many_samples_out_as_in() -> None:
    x = noise(1.0)
    job = Denoiser(rate=RATE, block=480)
    blocks = [job.process(x[k : k + 480]) for k in range(0, len(x), 480)]
    assert {len(block) for block in blocks} == {480}
    late = np.concatenate([*blocks, job.flush()])
    assert np.abs(late[job.delay : job.delay + len(x)] - denoise(x, RATE)).max() < 1e-6


def test_networks_at_the_rate_of_the_input_have_no_upper_band() -> None:
    assert Denoiser(rate=16_000).scaled_above is None
    assert Denoiser(rate=RATE).scaled_above == 8_000
    assert Denoiser(rate=RATE, band="narrow").scaled_above is None
    assert Denoiser(rate=RATE, band="narrow").removed_above == 8_000


def test_an_unknown_band_is_refused() -> None:
    with pytest.raises(ValueError, match=r"band should be one of full, narrow, got 'wide'"):
        Denoiser(band="wide")  # type: ignore[arg-type]
