"""A wake word from a folder to a model with a threshold: what is read, what is written, what is refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from centaurus.audio import AudioError
from centaurus.data import near
from centaurus.evaluation import live
from centaurus.models import Row, SpotterTable, classifier
from centaurus.models import save as save_model
from centaurus.models.tables import CLASSIFIERS
from centaurus.recipes import launch, wake
from centaurus.runtime import Session
from centaurus.runtime.session import smoothing_of
from centaurus.train.run import LIVE

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
    return replace(small, **({"phrase": "hello you", "validation_items": 8, "near": 0} | more))  # type: ignore[arg-type]


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
    at = run.read_json(LIVE)
    assert at["model"] == "hello-you.onnx"
    assert at["threshold"] == smoothing_of(known).threshold
    assert at["description"] in known.card
    assert min(point["misses"] for point in points) < 0.3
    held = {clip.id for clip in wake.recordings(chosen, folder)[0].where(split="val")}
    assert 0 < len(held) < 12


@pytest.mark.parametrize(("alarms", "said"), [(0, False), (1, True)])
def test_a_rate_that_is_not_reached_is_said(alarms: int, said: bool) -> None:
    text = wake._said(live.Point(0.9, 0.05, alarms, 2.0 * alarms, 5.0), settings(), 0.5)
    assert "misses 5.0% of phrases" in text
    assert ("0.5 an hour was not reached with 10% misses or fewer" in text) == said


def test_corrections_are_trained_on(folder: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    write(tmp_path / "kept" / "missed" / "a.wav", tones((400.0, 1200.0), rng))
    write(tmp_path / "kept" / "alarms" / "b.wav", tones((400.0, 900.0), rng))
    phrases, speech, _ = wake.recordings(settings(corrections=str(tmp_path / "kept")), folder)
    assert [clip.labels["split"] for clip in phrases if clip.id == "missed/a.wav"] == ["train"]
    assert sum(clip.id == "alarms/b.wav" for clip in speech) == wake.REPEATS
    with pytest.raises(ValueError, match="missed/ or alarms/"):
        wake.recordings(settings(corrections=str(tmp_path)), folder)


def speaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for espeak-ng: a letter is a phoneme, and what is spoken is a tone. Return the texts that it speaks."""
    texts: list[str] = []

    def run(text: str, *arguments: str) -> str:
        if "-w" in arguments:
            texts.append(text)
            write(
                Path(arguments[arguments.index("-w") + 1]).with_suffix(".wav"),
                tones((500.0,), np.random.default_rng(0)),
            )
            Path(arguments[-1]).with_suffix(".wav").rename(arguments[-1])
        return " ".join("_".join(word) for word in text.split())

    monkeypatch.setattr(near, "_run", run)
    monkeypatch.setattr(near.shutil, "which", lambda program: program)
    return texts


def test_similar_phrases_are_spoken_and_trained_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = speaks(tmp_path, monkeypatch)
    before = wake.recordings(settings(), folder)
    chosen = settings(near=40)
    phrases, speech, noise = wake.recordings(chosen, folder)
    assert [len(corpus) for corpus in (phrases, speech, noise)] == [
        len(before[0]) + len(near.VOICES), len(before[1]) + 40 * wake.NEAR_REPEATS, len(before[2]),
    ]  # fmt: skip
    assert texts.count("hello you") == len(near.VOICES)
    assert {"hello", "you hello"} < set(texts)
    for corpus, earlier in zip((phrases, speech, noise), before, strict=True):
        ids = {clip.id for clip in earlier}
        new = [clip for clip in corpus if clip.id not in ids]
        assert all(clip.labels["split"] == "train" for clip in new)  # thresholds are chosen on real recordings
    count = len(texts)
    assert [clip.id for clip in wake.recordings(chosen, folder)[1]] == [clip.id for clip in speech]
    assert len(texts) == count  # they are kept
    assert wake.prepare(chosen, folder).notes["similar_phrases"] == 40
    assert len(wake.recordings(replace(chosen, phrase=wake.UNNAMED), folder)[1]) == len(before[1])


def test_without_espeak_nothing_is_spoken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near.shutil, "which", lambda program: None)
    assert near.spoken_near("hello you", 10) == near.spoken(["hello"], 10) == []
    assert len(wake.recordings(settings(near=40), folder)[1]) == len(wake.recordings(settings(), folder)[1])


@pytest.mark.parametrize("phrase", ["hello centaurus", "computer", "okay blue tree", "émile's dog"])
def test_similar_phrases_differ_from_the_phrase(phrase: str) -> None:
    texts = near.near_phrases(phrase)
    assert len(texts) > 20
    assert len(set(texts)) == len(texts)
    assert phrase not in texts
    assert all(text.strip() == text for text in texts)


def test_what_sounds_like_the_phrase_is_not_learnt_as_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    texts = speaks(tmp_path, monkeypatch)
    monkeypatch.setattr(near, "near_phrases", lambda phrase: ["hullo", "hallo yew", "mello", "h e l l o"])
    assert len(near.spoken_near("hello", 6)) == 6
    assert set(texts) == {"hallo yew", "mello"}  # one vowel is not enough, one consonant is
    assert near._distance("kitten", "sitting") == 3
    assert near._distance("", "abc") == near._distance("abc", "") == 3


def test_an_espeak_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "PROGRAM", sys.executable)
    with pytest.raises(AudioError, match=r"failed to speak 'hello' \(near=0"):
        near._run("hello", "-c", "raise SystemExit(3)")
    monkeypatch.setattr(near, "SECONDS", 0.5)
    with pytest.raises(AudioError, match=r"within 0.5 seconds"):
        near._run("hello", "-c", "import time; time.sleep(9)")


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
