"""The recipes have the paper's numbers, read folders in every layout, and say what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from centaurus.audio import AudioError
from centaurus.models import count, load
from centaurus.recipes import RECIPES, asr, denoise, kws, launch
from centaurus.train.config import from_data, override, to_data
from centaurus.train.tokens import CHARACTERS
from tests import corpora


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_numbers_are_the_papers() -> None:
    settings = [RECIPES[name].configure(False) for name in ("kws", "denoise", "asr")]
    found = [(s.epochs, s.lr, s.decay, s.warmup, s.batch, s.clip) for s in settings]
    assert found == [
        (200, 0.01, 0.05, 0.1, 512, 1),
        (500, 0.005, 0.02, 0.01, 192, 1),
        (100, 0.02, 0.1, 0.01, 256, 1),
    ]
    assert (denoise.configure().length, asr.configure().length) == (2**17, 327_680)
    assert denoise.configure().losses == "smooth_l1:1, erb:0..1"
    assert count(kws.network(kws.configure(), list("abcdefghij"))).parameters == 378_336
    assert count(denoise.network(denoise.configure())).parameters == 773_440


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("small", [False, True])
def test_settings_survive_their_file(name: str, small: bool) -> None:
    config = RECIPES[name].configure(small)
    assert from_data(type(config), to_data(config)) == config
    assert override(config, ["minutes=30"]).minutes == 30


def test_recipes_and_networks_are_named() -> None:
    with pytest.raises(ValueError, match="no recipe 'denoize'; did you mean denoise"):
        launch.configure("denoize", True)
    with pytest.raises(ValueError, match="no network 'smal' for denoising; did you mean small"):
        denoise.network(override(denoise.configure(), ["network=smal"]))


def test_words_of_ones_own_are_held_out(tmp_path: Path) -> None:
    data = corpora.speech_commands(tmp_path / "own", ("ja", "nein"), clips=12, speakers=12)
    for name in ("validation_list.txt", "testing_list.txt"):
        (data / name).unlink()
    ready = kws.prepare(replace(kws.configure(True), background=0.5), data)
    assert ready.notes["classes"] == ["ja", "nein", "background"]
    item = ready.data.train.example(0, np.random.default_rng(0))
    assert item["audio"].shape == (1, 20_000)  # a quarter of a second before the word
    assert ready.data.validate.example(0, np.random.default_rng(0))["audio"].shape == (1, 16_000)
    check = ready.data.validate
    labels = {int(check.example(k, np.random.default_rng(k))["label"]) for k in range(check.size())}
    assert labels == {0, 1, 2}


def test_a_window_is_a_word_so_that_a_clip_alone_is_its_mean() -> None:
    """62 frames of 256 samples are a second: the windowed mean at the end of a clip is the mean of all of it."""
    assert kws.network(kws.configure(), ["a", "b"]).table.window == 62  # type: ignore[union-attr]


def test_pairs_are_learnt_from_as_they_are(tmp_path: Path) -> None:
    data = corpora.voicebank(tmp_path / "data", train=16, test=4, seconds=1.5)
    ready = denoise.prepare(replace(denoise.configure(True), length=8192), data)
    assert ready.notes["examples"] == "pairs"
    assert ready.data.train.example(0, np.random.default_rng(0))["clean"].shape == (1, 8192)


def test_speech_needs_a_vocabulary_and_a_teacher_goes_with_its_loss(tmp_path: Path) -> None:
    data = corpora.librispeech(tmp_path / "data", train=8, dev=2, test=2)
    small = asr.configure(True)
    with pytest.raises(ValueError, match="vocabulary=FILE"):
        asr.prepare(replace(small, vocabulary=""), data)
    with pytest.raises(ValueError, match="distillation loss and a teacher go together"):
        asr.prepare(replace(small, losses="tokens:1, distillation:1"), data)


def test_logits_computed_before_travel_with_their_rows(tmp_path: Path) -> None:
    data = corpora.librispeech(tmp_path / "data", train=8, dev=2, test=2)
    logits = tmp_path / "logits"
    logits.mkdir()
    for path in data.rglob("*.flac"):
        np.save(logits / f"{path.stem}.npy", np.full((len(CHARACTERS), 40), len(path.stem), np.float16))
    settings = replace(asr.configure(True), losses="tokens:1, distillation:1", teacher=str(logits), length=2**18)
    ready = asr.prepare(settings, data)
    item = ready.data.train.example(0, np.random.default_rng(0))
    assert item["teacher"].shape == (len(CHARACTERS), 2**18 // 320)
    assert item["teacher"][1, :40].tolist() == [13.0] * 40
    assert set(item) == {"audio", "samples", "tokens", "tokens_length", "letters", "letters_length", "text", "teacher"}


def test_a_damaged_file_is_left_out_and_named(tmp_path: Path) -> None:
    data = corpora.dns(tmp_path / "data", clean=10, noise=8, seconds=1.5)
    broken = next(data.rglob("noise_003.wav"))
    broken.write_bytes(b"not a sound")
    ready = denoise.prepare(replace(denoise.configure(True), length=8192), data)
    assert any("noise_003" in name for name in ready.faults)


@pytest.mark.parametrize("once", ["true", "false"])
def test_a_damaged_recording_is_skipped_or_fails(tmp_path: Path, once: str) -> None:
    data = corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=12, speakers=12)
    damaged = min((data / "yes").glob("*.wav"))
    damaged.write_bytes(damaged.read_bytes()[:30])
    settings = override(kws.configure(True), [f"decode_once={once}"])
    assert any(damaged.name in name for name in kws.prepare(settings, data).faults)
    with pytest.raises(AudioError, match=damaged.name):
        kws.prepare(override(settings, ["on_fault=fail"]), data)
    with pytest.raises(ValueError, match="on_fault should be skip or fail, got 'stop'"):
        override(settings, ["on_fault=stop"])


@pytest.mark.parametrize("vocabulary", ["words", "characters"])
def test_connected_words_are_put_together(tmp_path: Path, vocabulary: str) -> None:
    data = corpora.speech_commands(tmp_path / "data", ("go", "left"), clips=12, speakers=12)
    settings = override(
        RECIPES["commands"].configure(True),
        [
            f"vocabulary={vocabulary}",
            "length=24000",
            "phrases=4",
            "steps=1",
            "batch=2",
            "workers=0",
            "validation_items=2",
        ],
    )
    run = launch.start("commands", settings, data, tmp_path / "run")
    launch.train(run, "commands", settings, data)
    net = load(tmp_path / "run" / "last.safetensors")
    letters = [" ", *sorted(set("goleft"))]
    assert net.settings["tokens"] == ["<blank>", *(["go", "left"] if vocabulary == "words" else letters)]
    assert float(1 / net.ratio / 16_000) == 0.032
