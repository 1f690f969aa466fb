"""Denoising at any rate: the count and place of every sample, pieces against the whole, limits, accidents."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus.runtime.denoise import Denoiser, cleaned_share, denoise
from centaurus.runtime.io import Intake
from centaurus.runtime.modelfile import PEAK
from centaurus.runtime.session import SessionError
from tests.runtime.models import exported

RATES = [8000, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000]


@dataclass(frozen=True)
class FakeSettings:
    rate: int = 16_000
    latency: int = 256
    chunk: int = 256
    delay: int = 0
    peak: float = PEAK


class Echo:
    """A session that waits for whole chunks like a network, and returns half of its input."""

    settings = FakeSettings()

    def __init__(self, rows: int) -> None:
        self._waiting = np.zeros((rows, 0), np.float32)

    def process(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        line = np.concatenate([self._waiting, x], axis=1)
        whole = line.shape[1] // 256 * 256
        self._waiting = line[:, whole:]
        return line[:, :whole] / 2

    def flush(self) -> NDArray[np.float32]:
        rest, self._waiting = self._waiting / 2, self._waiting[:, :0]
        return rest


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(task: str, model: Any, batch: int, threads: int) -> Echo:
        return Echo(batch)

    monkeypatch.setattr(sys.modules[Denoiser.__module__], "open_for", fake)


def tone(rate: int, seconds: float, channels: int = 1) -> NDArray[np.float32]:
    """Low tones, a different one in each channel, that begin and end softly."""
    t = np.arange(round(rate * seconds)) / rate
    x = np.stack([np.sin(2 * np.pi * (300 + 200 * k) * t) for k in range(channels)])
    return (0.5 * x * np.sin(np.pi * t / seconds)).astype(np.float32)


def in_pieces(job: Denoiser, x: NDArray[np.float32], cuts: list[int]) -> NDArray[np.float32]:
    pieces = np.split(x, sorted(min(cut, x.shape[1]) for cut in cuts), axis=1)
    return np.concatenate([*(job.process(piece) for piece in pieces), job.flush()], axis=1)


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("rate", RATES)
def test_every_sample_keeps_its_place_at_any_rate(rate: int) -> None:
    x = tone(rate, 0.3, channels=2)
    y = denoise(x, rate)
    assert y.shape == x.shape
    assert y.dtype == np.float32
    assert np.abs(y - x / 2).max() < 1e-3  # half a sample of shift would be 0.01 at 48 kHz, and more below


def late(monkeypatch: pytest.MonkeyPatch, delay: int) -> None:
    """Sessions that return half of their input, ``delay`` samples late."""

    class Late(Echo):
        settings = FakeSettings(latency=256 + delay, delay=delay)

        def __init__(self, rows: int) -> None:
            self._waiting = np.zeros((rows, delay), np.float32)

        def flush(self) -> NDArray[np.float32]:
            rest = self._waiting[:, : self._waiting.shape[1] - delay] / 2
            self._waiting = np.zeros((len(rest), delay), np.float32)
            return rest

    monkeypatch.setattr(sys.modules[Denoiser.__module__], "open_for", lambda task, model, batch, threads: Late(batch))


@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("delay", [128, 700])
def test_a_network_that_answers_late_gives_aligned_files(
    monkeypatch: pytest.MonkeyPatch, rate: int, delay: int
) -> None:
    late(monkeypatch, delay)
    x = tone(rate, 0.3, channels=2)
    job = Denoiser("any", rate, 2)
    for _ in range(2):
        y = in_pieces(job, x, [1, 100, 5000])
        assert y.shape == x.shape
        assert np.abs(y - x / 2).max() < 1e-3
    assert job.latency == (256 + delay) / 16_000
    live = Denoiser("any", rate, 1, block=100)
    result = [live.process(piece) for piece in np.split(x[0, : 100 * (x.shape[1] // 100)], x.shape[1] // 100)]
    assert live.delay >= delay * rate // 16_000
    kept = np.concatenate(result)[live.delay :]
    assert np.abs(kept - x[0, : len(kept)] / 2).max() < 1e-3


@pytest.mark.usefixtures("echo")
@settings(max_examples=25)
@given(st.sampled_from(RATES), st.integers(0, 2000), st.lists(st.integers(0, 2000), max_size=5), st.integers(1, 3))
def test_as_many_samples_come_out_as_went_in(rate: int, frames: int, cuts: list[int], channels: int) -> None:
    x = np.random.default_rng(frames).standard_normal((channels, frames)).astype(np.float32) * np.float32(0.1)
    job = Denoiser("any", rate, channels, mix=0.5)
    for _ in range(2):  # and again after a flush
        got = 0
        for piece in np.split(x, sorted(min(cut, frames) for cut in cuts), axis=1):
            got += job.process(piece).shape[1]
        assert got <= frames
        assert got + job.flush().shape[1] == frames


@pytest.mark.usefixtures("echo")
def test_a_block_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[tuple[int, ...]] = []
    finite = Intake.finite
    monkeypatch.setattr(Intake, "finite", lambda self, x: (checks.append(x.shape), finite(self, x))[1])
    job = Denoiser("any", 44_100, 2)
    job.process(np.full((2, 441), np.nan, np.float32))
    assert checks == [(2, 441)]
    assert job.repaired == 882


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("rate", [44_100, 22_050, 48_000])
def test_a_second_file_comes_out_as_the_first(rate: int) -> None:
    """Resampling there and back gives a sample too many or too few: a flush leaves none of it for the next file."""
    job = Denoiser("any", rate, 1, mix=0.5)
    for frames in range(rate // 4, rate // 4 + 12):
        x = tone(rate, frames / rate)
        for _ in range(2):
            y = in_pieces(job, x, [])
            assert y.shape == x.shape
            assert np.abs(y - 0.75 * x).max() < 1e-3, frames


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_streaming_equals_offline(rate: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, rate // 4)).astype(np.float32) * np.float32(0.1)
    job = Denoiser(exported("denoiser"), rate, 2, attn_limit_db=20)
    whole = in_pieces(job, x, [])
    pieces = in_pieces(job, x, [1, 2, 500, 501, 3000])
    assert np.abs(whole - pieces).max() < 1e-5 * np.abs(whole).max()
    assert np.abs(whole - denoise(x, rate, exported("denoiser"), attn_limit_db=20)).max() < 1e-5


def test_channels_are_independent() -> None:
    x = np.random.default_rng(1).standard_normal((2, 3000)).astype(np.float32) * np.float32(0.1)
    both = denoise(x, 16_000, exported("denoiser"))
    assert np.allclose(both[1], denoise(x[1], 16_000, exported("denoiser")), atol=1e-5)


def test_at_its_own_rate_nothing_is_between_samples_and_session() -> None:
    from centaurus.runtime.session import Session

    x = np.random.default_rng(2).standard_normal(5000).astype(np.float32) * np.float32(0.1)
    session = Session(exported("denoiser"))
    assert np.array_equal(
        denoise(x, 16_000, exported("denoiser")), np.concatenate([session.process(x), session.flush()])
    )


@pytest.mark.usefixtures("echo")
def test_mix_and_limit() -> None:
    x = tone(16_000, 0.2)
    assert np.allclose(denoise(x, 16_000, mix=0.0), x, atol=1e-6)
    assert np.allclose(denoise(x, 16_000, mix=0.5), 0.75 * x, atol=1e-6)
    assert np.allclose(denoise(x, 16_000, attn_limit_db=0), x, atol=1e-6)
    limited = denoise(x, 16_000, attn_limit_db=20)
    assert np.allclose(limited, x * (0.1 + 0.9 / 2), atol=1e-6)
    assert 20 * np.log10(1 - cleaned_share(1.0, 12.0)) == pytest.approx(-12)  # noise removed wholly falls by the limit


@pytest.mark.usefixtures("echo")
def test_samples_that_are_not_finite_become_zeros_and_loud_ones_are_limited() -> None:
    x = tone(16_000, 0.2)
    x[0, [10, 20, 30]] = np.nan, np.inf, 1e30
    x[0, 40] = 3.9  # within the range
    job = Denoiser("any", 16_000)
    y = in_pieces(job, x, [15])
    assert np.isfinite(y).all()
    assert job.repaired == 3
    assert (y[0, [10, 20]] == 0).all()
    assert y[0, [30, 40]] == pytest.approx([PEAK / 2, 3.9 / 2])


@pytest.mark.usefixtures("echo")
def test_shapes_and_types() -> None:
    x = tone(16_000, 0.1)[0]
    assert denoise(x, 16_000).shape == x.shape
    assert denoise(x[:0], 16_000).shape == (0,)
    assert denoise(np.zeros((2, 0), np.float32), 48_000).shape == (2, 0)
    assert np.allclose(denoise((x * 32768).astype(np.int16), 16_000), x / 2, atol=1e-4)
    for bad, message in [(np.zeros((1000, 2)), "transpose"), (np.zeros((1, 1, 9)), "shape"), (x > 0, "bool")]:
        with pytest.raises(ValueError, match=message):
            denoise(bad, 16_000)
    with pytest.raises(ValueError, match="mix"):
        denoise(x, 16_000, mix=1.5)
    with pytest.raises(ValueError, match="attenuation"):
        denoise(x, 16_000, attn_limit_db=-1)
    with pytest.raises(ValueError, match=r"\(1, n\)"):
        Denoiser("any").process(np.zeros((2, 5), np.float32))


def test_a_model_of_another_task_is_named() -> None:
    with pytest.raises(SessionError, match=r"is a classifier, which spots keywords; a denoiser is needed"):
        Denoiser(exported("classifier"))


@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize(("rate", "block"), [(16_000, 256), (16_000, 160), (16_000, 1), (48_000, 480), (44_100, 441)])
def test_a_block_comes_back_for_every_block(rate: int, block: int) -> None:
    blocks = max(4, rate // 5 // block)
    x = tone(rate, blocks * block / rate)[0]
    job = Denoiser("any", rate, block=block)
    for _ in range(2):  # and again after a flush
        pieces = [job.process(x[k * block : (k + 1) * block]) for k in range(blocks)]
        assert {piece.shape for piece in pieces} == {(block,)}
        y = np.concatenate([*pieces, job.flush()])
        assert y.shape == (len(x) + job.delay,)
        assert not y[: job.delay].any()
        assert np.abs(y[job.delay :] - x / 2).max() < 1e-3
    assert job.latency == (job.delay + block) / rate
    if rate == 16_000:
        assert job.delay == 256 - np.gcd(256, block)  # chunks of 256: no later than they make it


@pytest.mark.usefixtures("echo")
def test_blocks_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="every block has 160 samples, got 161"):
        Denoiser("any", block=160).process(np.zeros(161, np.float32))
    with pytest.raises(ValueError, match="at least one sample"):
        Denoiser("any", block=0)
    with pytest.raises(ValueError, match=r"blocks should be \(2, n\)"):
        Denoiser("any", channels=2).process(np.zeros(161, np.float32))


@pytest.mark.usefixtures("echo")
def test_one_channel_may_come_without_an_axis_for_it() -> None:
    x = tone(16_000, 0.1)[0]
    job = Denoiser("any")
    assert np.allclose(np.concatenate([job.process(x[:700]), job.process(x[700:]), job.flush()]), x / 2)
