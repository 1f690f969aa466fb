"""``centaurus demo`` on the clip that ships: with models, without them, and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from centaurus.audio import read
from centaurus.cli import serve
from tests.cli.run import run
from tests.runtime.models import exported


@pytest.fixture(autouse=True)
def no_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_plan_and_stream", lambda quiet: {})  # it has a test of its own


def test_the_clip_is_what_its_list_of_words_says() -> None:
    assets = Path(str(files("centaurus") / "assets"))
    noisy, clean = read(assets / "demo.flac"), read(assets / "demo.clean.flac")
    about = json.loads((assets / "demo.json").read_text())
    assert (noisy.rate, noisy.samples.shape) == (16_000, clean.samples.shape)
    noise = noisy.samples - clean.samples
    assert 10 * np.log10((clean.samples**2).sum() / (noise**2).sum()) == pytest.approx(about["snr_db"], abs=0.1)
    spoken = np.zeros(clean.samples.shape[1], bool)
    for word in about["words"]:
        spoken[round(16_000 * word["start"]) : round(16_000 * word["end"])] = True
    assert np.abs(clean.samples[0, ~spoken]).max() < 1e-3
    assert all(word["word"] for word in about["words"])


def test_the_demo_writes_sound_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    models = ("--denoiser", str(exported("denoiser")), "--spotter", str(exported("classifier")))
    models += ("--recogniser", str(exported("recognizer")))
    done = run(capsys, "demo", *models, "-o", str(tmp_path / "new" / "demo"))
    assert done.code == 0, done.err
    names = sorted(path.name for path in (tmp_path / "new" / "demo").iterdir())
    assert names == ["denoised.wav", "noisy.wav", "spectrograms.png"]
    for word in ("SI-SDR", "latency", "marvin", "found", "yes stop left marvin"):
        assert word in done.out
    again = run(capsys, "demo", *models, "-o", str(tmp_path / "new" / "demo"), "--json").json()
    assert again["denoise"]["si_sdr"]["noisy"] == pytest.approx(8, abs=0.1)
    assert len(again["spot"]) == 8
    assert list(again["transcribe"]) == ["clean", "noisy", "denoised"]


def test_the_demo_reports_missing_models(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = run(capsys, "demo", "--denoiser", "none", "--spotter", "neither", "--recogniser", "nor", "-o", str(tmp_path))
    assert done.code == 0
    assert "The model none is not part of this installation" in done.out
    assert "The model nor is not part of this installation: nothing is transcribed." in done.out
    assert not list(tmp_path.iterdir())


def test_the_demo_needs_no_torch(tmp_path: Path) -> None:
    block = "import sys, importlib.util as u; sys.modules['torch'] = None; f = u.find_spec"
    hide = "u.find_spec = lambda name, package=None: None if name == 'torch' else f(name, package)"
    code = f"{block}; {hide}; from centaurus.cli.main import main; main(sys.argv[1:])"
    words = [
        "demo",
        "--denoiser",
        str(exported("denoiser")),
        "--spotter",
        "none",
        "--recogniser",
        "none",
        "-o",
        str(tmp_path),
    ]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "SI-SDR denoised" in done.stdout


def test_the_shipped_recogniser_transcribes_the_clip(capsys: pytest.CaptureFixture[str]) -> None:
    """A synthetic voice that was not trained on, clean: most words, at their times."""
    assets = Path(str(files("centaurus") / "assets"))
    said = json.loads((assets / "demo.json").read_text())["words"]
    words = run(capsys, "transcribe", str(assets / "demo.clean.flac"), "--format", "json").json()["words"]
    right = [
        (word, spoken)
        for word in said
        for spoken in words
        if spoken["word"] == word["word"] and abs(spoken["start"] - word["start"]) < 0.2
    ]
    assert len(right) >= 6
    assert len(words) <= 9
    for key in ("start", "end"):
        assert np.mean([abs(spoken[key] - word[key]) for word, spoken in right]) < 0.1
