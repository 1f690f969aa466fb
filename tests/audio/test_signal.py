"""Spectra and back, responses, masks, and equivalent formulations."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import matplotlib.image
import matplotlib.style
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centaurus import audio
from centaurus.audio import augment
from centaurus.audio.signal import frame_count
from centaurus.system import plot_style


def noise(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, frames).astype(np.float32)


def tone(hertz: float, frames: int = 16_000) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(frames) / 16_000).astype(np.float32)


@settings(max_examples=25)
@given(st.integers(0, 3000), st.sampled_from([(512, 128), (512, 256), (64, 16), (8, 4)]))
def test_spectra_give_the_signal_back(frames: int, sizes: tuple[int, int]) -> None:
    x = noise(frames)
    spectra = audio.stft(x, *sizes)
    assert spectra.shape == (frame_count(frames, *sizes), sizes[0] // 2 + 1)
    np.testing.assert_allclose(audio.istft(spectra, frames, *sizes), x, atol=1e-6)


def test_spectra_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="whole hops"):
        audio.stft(noise(100), 100, 30)
    with pytest.raises(ValueError, match="are not those of 99999 samples"):
        audio.istft(audio.stft(noise(100)), 99_999)


@pytest.mark.parametrize("frames", [0, 1, 500, 6144, 6145, 40_000])
def test_a_response_in_blocks_equals_that_of_the_whole(frames: int) -> None:
    def response(hertz: np.ndarray) -> np.ndarray:
        return 1 / (1 + (hertz / 800) ** 2)

    x = noise(frames)
    padded = np.pad(x, 4096)
    whole = np.fft.irfft(np.fft.rfft(padded) * response(np.fft.rfftfreq(len(padded), 1 / 16_000)), len(padded))
    np.testing.assert_allclose(audio.filtered(x, response), whole[4096 : 4096 + frames], atol=1e-6)


@pytest.mark.parametrize("low", [300, 1000, 5000])
def test_an_edge_of_twenty_hertz_is_exact_to_seventy_decibels(low: float) -> None:
    def response(hertz: np.ndarray) -> np.ndarray:
        return 0.5 + 0.5 * np.cos(np.pi * np.clip(np.minimum(hertz - low, low + 200 - hertz) / 20, 0, 1))

    x = noise(40_000)
    padded = np.pad(x, 8192)
    whole = np.fft.irfft(np.fft.rfft(padded) * response(np.fft.rfftfreq(len(padded), 1 / 16_000)), len(padded))
    error = audio.filtered(x, response) - whole[8192:-8192]
    assert audio.dbfs(error) < audio.dbfs(x) - 70


def test_time_masks_silence_a_stretch_and_nothing_else() -> None:
    x = np.ones(20_000, np.float32)
    rng = np.random.default_rng(0)
    for _ in range(20):
        y = audio.mask_time(rng, x, count=1, longest=3200)
        changed = np.flatnonzero(y != 1)
        assert len(changed) <= 3200
        assert not changed.size or changed[-1] - changed[0] < 3200
        assert not (y < 0).any()
    assert audio.mask_time(rng, x[:5], longest=3200).shape == (5,)
    np.testing.assert_array_equal(x, 1)


def test_frequency_masks_take_bands_out_and_leave_the_rest() -> None:
    x = noise(40_000)
    seed = 5
    bands = augment.draw_bands(np.random.default_rng(seed), 2)
    assert all(0 <= low < high <= 8000 for low, high in bands)
    before, after = (np.abs(np.fft.rfft(s)) for s in (x, audio.mask_frequency(np.random.default_rng(seed), x, 2)))
    hertz = np.fft.rfftfreq(len(x), 1 / 16_000)
    inside = np.any([(hertz > low + 50) & (hertz < high - 50) for low, high in bands], axis=0)
    outside = np.all([(hertz < low - 10) | (hertz > high + 10) for low, high in bands], axis=0)
    assert inside.sum() > 100
    assert after[inside].mean() < 0.02 * before[inside].mean()
    np.testing.assert_allclose(after[outside].mean(), before[outside].mean(), rtol=0.01)


def test_speed_changes_length_and_pitch_together() -> None:
    y = augment.change_speed(tone(500), 1.25)
    assert len(y) == 12_800
    np.testing.assert_allclose(y[500:-500], tone(625, 12_800)[500:-500], atol=0.02)
    np.testing.assert_array_equal(augment.change_speed(tone(500), 1.0), tone(500))
    with pytest.raises(ValueError, match="speed"):
        augment.change_speed(tone(500), 0)


def test_shifting_fitting_and_preceding() -> None:
    x = np.arange(1, 6, dtype=np.float32)
    assert augment.shift(x, 2).tolist() == [0, 0, 1, 2, 3]
    assert augment.shift(x, -2).tolist() == [3, 4, 5, 0, 0]
    assert augment.shift(x, 9).tolist() == augment.shift(x, -9).tolist() == [0] * 5
    assert augment.fit(x, 3).tolist() == [1, 2, 3]
    assert augment.fit(x, 7, at=1).tolist() == [0, 1, 2, 3, 4, 5, 0]
    y = augment.preceded(x, np.ones(4, np.float32), fade=2)
    assert y.tolist() == [1, 1, 1, 0, *x]
    assert augment.preceded(x, x[:0]).tolist() == x.tolist()


def test_noise_is_added_at_its_ratio_and_the_signal_stays() -> None:
    x, other = noise(5000, 1), noise(5000, 2)
    y = augment.add_noise(x, other, 7)
    assert audio.dbfs(x) - audio.dbfs(y - x) == pytest.approx(7, abs=0.01)
    np.testing.assert_array_equal(augment.add_noise(x, 0 * other, 7), x)


@pytest.mark.parametrize("frames", [1, 400, 16_000, 500_000])
def test_a_spectrogram_shows_a_tone_where_it_is(frames: int) -> None:
    picture = audio.spectrogram(tone(2000, frames))
    assert picture.shape[0] == 257
    assert 1 <= picture.shape[1] <= 1300
    if frames >= 16_000:
        assert set(picture[:, 10:-10].argmax(axis=0)) == {64}
        assert picture[64, 10:-10].max() == pytest.approx(0, abs=0.1)


def test_a_picture_has_a_panel_for_each_signal(tmp_path: Path) -> None:
    sizes = []
    for count in (1, 3):
        audio.save_png(tmp_path / "a.png", {f"signal {k}": noise(16_000, k) for k in range(count)}, 16_000)
        data = (tmp_path / "a.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        sizes.append(struct.unpack(">II", data[16:24]))
    assert sizes[0][0] == sizes[1][0] == 1200
    assert sizes[1][1] - sizes[0][1] == 552
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    with pytest.raises(audio.OutputError, match="exists already"):
        audio.save_png(tmp_path / "a.png", {"x": noise(100)}, 16_000, overwrite=False)
    with pytest.raises(ValueError, match="no signal"):
        audio.save_png(tmp_path / "a.png", {}, 16_000)


def test_a_picture_has_the_colours_of_the_plot_style(tmp_path: Path) -> None:
    audio.save_png(tmp_path / "a.png", {"noise": noise(16_000, 0)}, 16_000)
    panel = matplotlib.image.imread(tmp_path / "a.png")[100:250, 200:900, :3]
    with matplotlib.style.context(plot_style()):
        colours = matplotlib.colormaps[matplotlib.rcParams["image.cmap"]](range(256), bytes=True)[:, :3]
    shown = {tuple(colour) for colour in np.round(255 * panel).astype(int).reshape(-1, 3)}
    assert len(shown) > 20
    assert shown <= {tuple(map(int, colour)) for colour in colours}


def test_pictures_without_matplotlib_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install .*\[plot\]"):
        audio.save_png(tmp_path / "a.png", {"x": noise(100)}, 16_000)
