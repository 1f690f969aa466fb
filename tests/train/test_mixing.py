"""Mixtures for the denoiser's training: shapes, levels, and synthetic noise of every kind."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from centaurus.data import Clip, Corpus, prepared

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import mixing
from mixing import RATE, Mixer, Sources, rms

KINDS = ("_coloured", "_tones", "_clicks", "_bursts", "_engine", "_cries")


def corpus(folder: Path, kind: str, seconds: float) -> Corpus:
    clips = []
    for k in range(3):
        path = folder / f"{kind}{k}.wav"
        soundfile.write(path, 0.1 * np.random.default_rng(k).standard_normal(round(seconds * RATE)), RATE)
        clips.append(Clip(path, path.stem, labels={"kind": kind}))
    return prepared(Corpus(kind, tuple(clips)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [RATE // 4, 3 * RATE])
def test_synthetic_noise_is_finite_heard_and_a_function_of_the_seed(kind: str, length: int) -> None:
    for seed in range(8):
        x, again = (getattr(mixing, kind)(np.random.default_rng(seed), length) for _ in range(2))
        assert x.shape == (length,)
        assert np.isfinite(x).all()
        assert rms(x) > 1e-4
        assert np.array_equal(x, again)


@pytest.mark.parametrize("effects", [False, True])
def test_batches_have_mixtures_and_noise_alone(tmp_path: Path, effects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    speech, noise = corpus(tmp_path, "speech", 2.0), corpus(tmp_path, "noise", 5.0)
    some = corpus(tmp_path, "effect", 0.2) if effects else None
    sources = Sources([(speech[1], speech[0])], [(speech, 1.0)], noise, None, some)
    noisy, clean = Mixer(sources, RATE, own=1.0).batch(np.random.default_rng(0), 64)
    assert noisy.shape == clean.shape == (64, 1, RATE)
    assert noisy.dtype == clean.dtype == np.float32
    assert np.isfinite(noisy).all()
    levels = 20 * np.log10([rms(x) for x in noisy])
    assert levels.min() > -37
    assert levels.max() < -13
    alone = ~clean.any(axis=(1, 2))
    assert 0.08 < alone.mean() < 0.35  # nearly a fifth
    assert (np.abs(noisy - clean).max(axis=(1, 2)) > 0)[alone].all()


def band_power(x: np.ndarray, low: float, high: float) -> float:
    hertz = np.fft.rfftfreq(len(x), 1 / RATE)
    return float(np.square(np.abs(np.fft.rfft(x)))[(hertz >= low) & (hertz < high)].sum())


def test_rumble_changes_by_itself() -> None:
    noise = np.random.default_rng(0).standard_normal(2 * RATE).astype(np.float32)
    changes = []
    for seed in range(40):
        y = mixing.rumbling(np.random.default_rng(seed), noise, 1.0)
        assert y.dtype == np.float32
        assert band_power(y, 110, 8000) == pytest.approx(band_power(noise, 110, 8000), rel=1e-3)
        changes.append(10 * np.log10(band_power(y, 2, 60) / band_power(noise, 2, 60)))
    assert min(changes) < -15
    assert max(changes) > 10  # up to the level of the speech


def test_rumble_of_another_recording_takes_the_place_of_its_own() -> None:
    rng = np.random.default_rng(0)
    noise, other = (rng.standard_normal(2 * RATE).astype(np.float32) for _ in range(2))
    y = mixing.with_rumble(noise, 3 * other)
    assert y.dtype == np.float32
    assert band_power(y, 70, 8000) == pytest.approx(band_power(noise, 70, 8000), rel=1e-3)
    assert band_power(y, 0, 69) == pytest.approx(9 * band_power(other, 0, 69), rel=1e-3)


def test_noise_of_a_pair_is_as_loud_beside_other_speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    speech = corpus(tmp_path, "speech", 2.0)
    noisy, clean = (speech.load(speech[k]) for k in (1, 0))
    mixer = Mixer(Sources([(speech[1], speech[0])], [(speech, 1.0)], speech, None, None), RATE, own=0.0)
    length = 5 * RATE
    noise = mixer._pair_noise(np.random.default_rng(0), length)
    assert np.allclose(noise[: len(clean)], noisy - clean)
    assert np.allclose(noise[len(clean) : 2 * len(clean)], (noisy - clean)[::-1])  # no jump, which would be a rumble
    louder = mixer._pair_noise(np.random.default_rng(0), length, speech=2 * mixing.speech_rms(clean))
    assert np.allclose(louder, 2 * noise, rtol=1e-3)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_noise_of_places_gets_the_rumble_of_pairs(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("VOICES", "RESPED", "RECOLOURED", "RUMBLING"):
        monkeypatch.setattr(mixing, name, 0.0)
    monkeypatch.setattr(mixing, "SCENES", 1.0)
    monkeypatch.setattr(mixing, "BORROWED_IN_SCENES", share)
    time = np.arange(5 * RATE) / RATE
    tones = {"speech": 500.0, "rumble": 40.0, "place": 1500.0}
    clips = {}
    for name, hertz in tones.items():
        soundfile.write(tmp_path / f"{name}.wav", 0.1 * np.sin(2 * np.pi * hertz * time), RATE, subtype="FLOAT")
        clips[name] = Clip(tmp_path / f"{name}.wav", name, labels={"kind": name})
    speech, rumble, place = (prepared(Corpus(name, (clip,))) for name, clip in clips.items())
    mixer = Mixer(Sources([(rumble[0], speech[0])], [(speech, 1.0)], place, None, None), RATE, own=0.0)
    noisy, clean = mixer.pair(np.random.default_rng(0))
    ratio = band_power(noisy - clean, 30, 50) / band_power(clean, 490, 510)
    assert ratio == pytest.approx(share, abs=0.1)


def test_another_colour_keeps_the_power() -> None:
    noise = np.random.default_rng(0).standard_normal(2 * RATE).astype(np.float32)
    shapes = []
    for seed in range(20):
        y = mixing.recoloured(np.random.default_rng(seed), noise)
        assert rms(y) == pytest.approx(rms(noise), rel=1e-3)
        shapes.append(10 * np.log10(band_power(y, 100, 400) / band_power(y, 2000, 8000) * 20))
    assert np.std(shapes) > 3


@pytest.mark.parametrize("own", [0.0, 1.0])
def test_pairs_and_mixtures_are_a_function_of_the_seed(
    tmp_path: Path, own: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    speech, noise = corpus(tmp_path, "speech", 2.0), corpus(tmp_path, "noise", 5.0)
    sources = Sources([(speech[1], speech[0])], [(speech, 1.0)], noise, None, None, noise)
    mixer = Mixer(sources, RATE, own)
    (noisy, clean), (again, _) = (mixer.batch(np.random.default_rng(3), 24) for _ in range(2))
    assert np.array_equal(noisy, again)
    assert noisy.dtype == clean.dtype == np.float32
    assert np.isfinite(noisy).all()
