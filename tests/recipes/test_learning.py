"""Every recipe learns: small networks on synthetic corpora reach a given metric, in under a minute each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from centaurus.models import ClassifierTable, DenoiserTable, RecognizerTable, Row
from centaurus.recipes import asr, denoise, kws, launch
from centaurus.train.config import Training
from centaurus.train.run import Run
from tests import corpora

WORDS = ("yes", "no", "up", "down", "stop")
LISTENER = ClassifierTable((Row("full", 16, 4, 8), Row("full", 4, 16, 4), Row("pointwise", 2, 48, 48)), dropout=0.0)
CLEANER = DenoiserTable(
    (Row("full", 16, 24, 8), Row("pointwise", 4, 48, 48), Row("pointwise", 2, 64, 64)),
    (),
    (Row("pointwise", 2, 48, 64), Row("pointwise", 4, 24, 48), Row("full", 16, 1, 8)),
    (Row("full", 1, 1, 4),),
)
# A frame of 100 ms for letters of 200: with many more frames than letters CTC first predicts only blanks.
SPELLER = RecognizerTable((Row("full", 160, 96, 16), Row("pointwise", 10, 96, 96)), (Row("pointwise", 1, 96, 96),))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def best(name: str, settings: Training, data: Path, out: Path) -> dict[str, float]:
    """The figures of the best validation."""
    run = launch.start(name, settings, data, out)
    launch.train(run, name, settings, data)
    assert (run.folder / "card.md").is_file()
    return [record for record in Run(out).records() if record["kind"] == "validation" and record["best"]][-1]


def test_a_spotter_learns_its_keywords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kws.TABLES, "small", LISTENER)
    data = corpora.speech_commands(tmp_path / "data", WORDS, clips=40, speakers=20)
    settings = replace(
        kws.configure("small"), epochs=0, steps=200, batch=16, lr=0.01, ema=0.95, before=0.25, speed=0.0,
        workers=0, validations=3,
    )  # fmt: skip
    figures = best("kws", settings, data, tmp_path / "run")
    assert figures["accuracy"] > 0.95


def test_noise_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(denoise.TABLES, "small", CLEANER)
    data = corpora.dns(tmp_path / "data", clean=40, noise=150, seconds=2.0)
    settings = replace(
        denoise.configure("small"), epochs=0, steps=500, batch=4, lr=0.01, ema=0.95, length=2**13, snr_low=-15.0,
        snr_high=-5.0, variety=0.0, silent_speech=0.0, clean_input=0.0, residue=0.0, workers=0, validations=2,
        validation_items=32,
    )  # fmt: skip
    figures = best("denoise", settings, data, tmp_path / "run")
    assert figures["si_sdr"] > figures["si_sdr_before"] + 5


def test_letters_are_spelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(asr.TABLES, "small", SPELLER)
    data = corpora.librispeech(tmp_path / "data", train=300, dev=12, test=2, words=2, letters="afkpqs", seconds=0.2)
    settings = replace(
        asr.configure("small"), epochs=0, steps=150, batch=8, ema=0.95, length=40_960, losses="tokens:1",
        workers=0, validations=2,
    )  # fmt: skip
    figures = best("asr", settings, data, tmp_path / "run")
    assert figures["cer"] < 0.1
