"""A wake word from a folder to a model with a threshold: what is read, what is written, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from centaurus.evaluation import live
from centaurus.models import Row, SpotterTable, classifier
from centaurus.models import save as save_model
from centaurus.models.tables import CLASSIFIERS
from centaurus.recipes import launch, wake
from centaurus.runtime import Session
from centaurus.runtime.session import smoothing_of

TINY = SpotterTable((Row("mel", 256, 20, window=512), Row("pointwise", 1, 16, 16)), expansion=0)
RATE = 16_000


def tones(hertz: tuple[float, ...], rng: np.random.Generator) -> np.ndarray:
    t = np.arange(RATE // 5) / RATE
    voice = rng.uniform(0.95, 1.05)
    x = np.concatenate([np.sin(2 * np.pi * voice * f * t) for f in hertz])
    return 0.3 * np.pad(x * np.hanning(len(x)), RATE // 5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(CLASSIFIERS, "tiny-mel", TINY)
    monkeypatch.setattr(live, "MEASURED", 60)
    rng = np.random.default_rng(0)
    for k in range(24):
        write(tmp_path / "data" / "positive" / f"{k}.wav", tones((400.0, 1200.0), rng))
        write(tmp_path / "data" / "talk" / f"p{k}_1.wav", tones(tuple(rng.choice([300.0, 700.0, 2500.0], 4)), rng))
    write(tmp_path / "data" / "noise" / "fan.wav", 0.05 * rng.standard_normal(8 * RATE))
    return tmp_path / "data"


def write(path: Path, x: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, x, RATE)


def settings(**more: object) -> wake.WakeSettings:
    small = replace(
        wake.configure("small"), start="", minutes=0, steps=60, batch=8, ema=0.9, workers=0, network="tiny-mel"
    )
    return replace(small, phrase="hello you", validation_items=8, **more)  # type: ignore[arg-type]


def test_a_folder_becomes_a_model_with_a_threshold(folder: Path, tmp_path: Path) -> None:
    chosen = settings()
    run = launch.start("wake", chosen, folder, tmp_path / "run")
    launch.train(run, "wake", chosen, folder)
    known = Session(tmp_path / "run" / "hello-you.onnx").settings
    points = json.loads((tmp_path / "run" / "curve.json").read_text())
    assert known.classes == ("hello you", "background")
    assert smoothing_of(known).threshold in [point["threshold"] for point in points]
    assert smoothing_of(known).window == wake.WINDOW
    assert "one continuous stream" in known.card.lower()
    assert min(point["misses"] for point in points) < 0.3
    held = {clip.id for clip in wake.recordings(chosen, folder)[0].where(split="val")}
    assert 0 < len(held) < 12


def test_corrections_are_trained_on(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    write(tmp_path / "kept" / "missed" / "a.wav", tones((400.0, 1200.0), rng))
    write(tmp_path / "kept" / "alarms" / "b.wav", tones((400.0, 900.0), rng))
    phrases, speech, _ = wake.recordings(settings(corrections=str(tmp_path / "kept")), folder)
    assert [clip.labels["split"] for clip in phrases if clip.id == "missed/a.wav"] == ["train"]
    assert sum(clip.id == "alarms/b.wav" for clip in speech) == wake.REPEATS
    with pytest.raises(ValueError, match="missed/ or alarms/"):
        wake.recordings(settings(corrections=str(tmp_path)), folder)


def test_too_little_is_refused(folder: Path) -> None:
    for path in sorted((folder / "positive").iterdir())[4:]:
        path.unlink()
    with pytest.raises(ValueError, match="at least 20"):
        wake.recordings(settings(), folder)


def test_other_classes_start_from_a_spotters_blocks(folder: Path, tmp_path: Path) -> None:
    trained = classifier(TINY, ["a", "b", "background"])
    save_model(trained, tmp_path / "trained.safetensors")
    net = classifier(TINY, ["x", "background"])
    launch.go_on_from(str(tmp_path / "trained.safetensors"), net)
    assert net.state_dict()["body.into.weight"].equal(trained.state_dict()["body.into.weight"])
    assert net.state_dict()["body.out.weight"].shape[0] == 2
