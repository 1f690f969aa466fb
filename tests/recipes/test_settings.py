"""The recipes have the paper's numbers, read folders in every layout, and say what is wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centaurus.audio import AudioError
from centaurus.models import count, load
from centaurus.recipes import RECIPES, asr, denoise, kws, launch
from centaurus.train.config import from_data, override, to_data
from centaurus.train.targets import CHARACTERS
from tests import corpora


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


# Every setting that the paper determines (appendix E), by recipe. What says how a run is carried out, and not what is
# trained, is left out: validations, workers, caches and logs.
EVERY_RUN = {
    "steps": 0, "minutes": 0, "optimizer": "adamw", "clip": 1, "clip_value": 0, "ema": 0, "precision": "auto",
    "compile": "auto", "start": "", "rate": 16_000, "dc_block": False,
}  # fmt: skip
PAPER: dict[str, dict[str, Any]] = {
    "kws": {
        "network": "kws-hybrid-8", "states": 0, "epochs": 200, "lr": 0.01, "decay": 0.05, "warmup": 0.1, "batch": 512,
        "dropout": 0.1, "losses": "cross_entropy:1", "words": "all", "seconds": 1, "before": 0, "background": 0,
        "noise": "", "tuned": 0, "smoothing": 0, "teacher": "", "speed": 0, "gain_db": 0, "shift": 0, "noisy": 0,
        "tone_db": 0, "mixed": 0,
    },
    "denoise": {
        "network": "hybrid", "epochs": 500, "lr": 0.005, "decay": 0.02, "warmup": 0.01, "batch": 192,
        "losses": "smooth_l1:1, erb:0..1", "sets": "vctk, librivox", "length": 2**17, "cut": False, "snr_low": -5,
        "snr_high": 15, "level_low": -35, "level_high": -15, "time_masks": 2, "frequency_masks": 2, "level": 0,
        "variety": 0, "silent_speech": 0, "clean_input": 0, "rumble": 0, "residue": 0,
    },
    "asr": {
        "network": "base", "epochs": 100, "lr": 0.02, "decay": 0.1, "warmup": 0.01, "batch": 8 * 32,
        "losses": "tokens:1, distillation:1", "mls_share": 0.01, "length": 327_680, "vocabulary": "", "teacher": "",
        "mls": "", "leak_limit": 0.5,
    },
}  # fmt: skip
HOW_IT_RUNS = {
    "accumulate", "seed", "workers", "validations", "validation_items", "save_minutes", "log_every", "decode_once",
    "cache", "on_fault",
}  # fmt: skip


@pytest.mark.parametrize("name", PAPER)
def test_every_setting_is_the_papers(name: str) -> None:
    """By default, and none is left over: a new setting has to be put into one of the tables above."""
    settings = to_data(launch.configure(name))
    assert {key: value for key, value in settings.items() if key not in HOW_IT_RUNS} == EVERY_RUN | PAPER[name]


def test_the_networks_are_the_papers() -> None:
    assert count(kws.network(kws.configure(), list("abcdefghij"))).parameters == 378_336
    assert count(denoise.network(denoise.configure())).parameters == 773_440


def test_ten_words_are_the_ten_of_the_paper(tmp_path: Path) -> None:
    ten = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
    data = corpora.speech_commands(tmp_path / "data", (*ten, "bed"), clips=4, speakers=4)
    ready = kws.prepare(override(kws.configure(), ["words=10"]), data)
    assert set(ready.notes["classes"]) == set(ten)
    assert ready.data.train.example(0, np.random.default_rng(0))["audio"].shape == (1, 16_000)


def test_clean_speech_of_the_papers_sets_alone(tmp_path: Path) -> None:
    data = corpora.dns(tmp_path / "data", clean=16, noise=8, seconds=1.0)
    clean = data / "datasets_fullband" / "clean_fullband"
    shutil.copytree(clean / "read_speech", clean / "german_speech")
    paper = replace(denoise.configure(), length=8192, decode_once=True)
    fewer, more = (denoise.prepare(override(paper, [f"sets={sets}"]), data) for sets in (paper.sets, "all"))
    assert 0 < fewer.notes["speech_hours"] < more.notes["speech_hours"]
    assert fewer.notes["noise_hours"] == more.notes["noise_hours"]
    with pytest.raises(ValueError, match="no clean speech of french in this folder, which has german_speech, librivox"):
        denoise.prepare(override(paper, ["sets=vctk,french"]), data)


@pytest.mark.parametrize(("name", "preset"), [(name, preset) for name in RECIPES for preset in RECIPES[name].presets])
def test_settings_survive_their_file(name: str, preset: str) -> None:
    config = launch.configure(name, preset)
    assert from_data(type(config), to_data(config)) == config
    assert from_data(type(config), to_data(config) | {"compile": True}).compile == "true"  # as earlier runs have it
    assert override(config, ["minutes=30"]).minutes == 30


def test_recipes_and_networks_are_named() -> None:
    with pytest.raises(ValueError, match="no recipe 'denoize'; did you mean denoise"):
        launch.configure("denoize")
    with pytest.raises(ValueError, match="recipe commands has no preset 'paper'; it has ours, small"):
        launch.configure("commands", "paper")
    with pytest.raises(ValueError, match="no network 'smal' for denoising; did you mean small"):
        denoise.network(override(denoise.configure(), ["network=smal"]))


def test_words_of_ones_own_are_held_out(tmp_path: Path) -> None:
    data = corpora.speech_commands(tmp_path / "own", ("ja", "nein"), clips=12, speakers=12)
    for name in ("validation_list.txt", "testing_list.txt"):
        (data / name).unlink()
    ready = kws.prepare(replace(kws.configure("small"), background=0.5), data)
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


def test_pairs_are_trained_on_as_they_are(tmp_path: Path) -> None:
    data = corpora.voicebank(tmp_path / "data", train=16, test=4, seconds=1.5)
    ready = denoise.prepare(replace(denoise.configure("small"), length=8192), data)
    assert ready.notes["examples"] == "pairs"
    assert ready.data.train.example(0, np.random.default_rng(0))["clean"].shape == (1, 8192)


def test_speech_needs_a_vocabulary_and_a_teacher_goes_with_its_loss(tmp_path: Path) -> None:
    data = corpora.librispeech(tmp_path / "data", train=8, dev=2, test=2)
    small = asr.configure("small")
    with pytest.raises(ValueError, match="vocabulary=FILE"):
        asr.prepare(replace(small, vocabulary=""), data)
    with pytest.raises(ValueError, match="distillation loss and a teacher go together"):
        asr.prepare(replace(small, losses="tokens:1, distillation:1"), data)


def test_stored_logits_come_with_their_rows(tmp_path: Path) -> None:
    data = corpora.librispeech(tmp_path / "data", train=8, dev=2, test=2)
    logits = tmp_path / "logits"
    logits.mkdir()
    for path in data.rglob("*.flac"):
        np.save(logits / f"{path.stem}.npy", np.full((len(CHARACTERS), 40), len(path.stem), np.float16))
    settings = replace(asr.configure("small"), losses="tokens:1, distillation:1", teacher=str(logits), length=2**18)
    ready = asr.prepare(settings, data)
    item = ready.data.train.example(0, np.random.default_rng(0))
    assert item["teacher"].shape == (len(CHARACTERS), 2**18 // 320)
    assert item["teacher"][1, :40].tolist() == [13.0] * 40
    assert set(item) == {"audio", "samples", "tokens", "tokens_length", "letters", "letters_length", "text", "teacher"}


def test_a_damaged_file_is_left_out_and_named(tmp_path: Path) -> None:
    data = corpora.dns(tmp_path / "data", clean=10, noise=8, seconds=1.5)
    broken = next(data.rglob("noise_003.wav"))
    broken.write_bytes(b"not a sound")
    ready = denoise.prepare(replace(denoise.configure("small"), length=8192), data)
    assert any("noise_003" in name for name in ready.faults)


@pytest.mark.parametrize("once", ["true", "false"])
def test_a_damaged_recording_is_skipped_or_fails(tmp_path: Path, once: str) -> None:
    data = corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=12, speakers=12)
    damaged = min((data / "yes").glob("*.wav"))
    damaged.write_bytes(damaged.read_bytes()[:30])
    settings = override(kws.configure("small"), [f"decode_once={once}"])
    assert any(damaged.name in name for name in kws.prepare(settings, data).faults)
    with pytest.raises(AudioError, match=damaged.name):
        kws.prepare(override(settings, ["on_fault=fail"]), data)
    with pytest.raises(ValueError, match="on_fault should be skip or fail, got 'stop'"):
        override(settings, ["on_fault=stop"])


@pytest.mark.parametrize("vocabulary", ["words", "characters"])
def test_connected_words_are_put_together(tmp_path: Path, vocabulary: str) -> None:
    data = corpora.speech_commands(tmp_path / "data", ("go", "left"), clips=12, speakers=12)
    settings = override(
        RECIPES["commands"].configure("small"),
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
