"""``centaurus train`` and ``centaurus eval`` as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from centaurus import tasks
from centaurus.cli.train import _cells
from centaurus.evaluation import live
from centaurus.models import Row, SpotterTable, classifier, load, save
from centaurus.recipes import RECIPES
from centaurus.train import loop
from centaurus.train.config import explain
from tests import corpora
from tests.cli.run import run

FEW = ("steps=4", "batch=4", "workers=0", "validations=2", "before=0", "log_every=1")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=10, speakers=10)


def test_train_resume_and_eval(capsys: pytest.CaptureFixture[str], words: Path, tmp_path: Path) -> None:
    trained = run(capsys, "train", "kws", *FEW, "--small", "--data", str(words), "--json")
    assert trained.code == 0, trained.err
    result = trained.json()
    assert result["step"] == 4
    assert {"accuracy", "loss", "run", "model"} <= set(result)
    folder = tmp_path / "runs" / "kws-1"
    assert (folder / "card.md").read_text().startswith("# kws: small")
    assert {path.name for path in folder.iterdir()} == {
        "best.safetensors", "card.md", "checkpoints", "clips.json", "config.json", "data.json", "environment.json",
        "last.safetensors", "log.jsonl", "tensorboard",
    }  # fmt: skip
    again = run(capsys, "train", "--resume", "runs/kws-1", "--json")
    assert again.json() == result  # of the best model, though this time nothing was trained
    measured = run(capsys, "eval", result["model"], "--data", str(words), "--json", "--out", str(tmp_path / "report"))
    assert measured.code == 0, measured.err
    assert 0 <= measured.json()["accuracy"] <= 1
    assert (tmp_path / "report" / "classes.csv").is_file()
    shown = run(capsys, "eval", str(folder / "last.safetensors"), "--data", str(words), "--limit", "3")
    assert "accuracy" in shown.out
    assert "3 clips" in shown.out


def test_a_console_that_cannot_encode_what_training_prints(words: Path, tmp_path: Path) -> None:
    """Classes, folders and the bar of progress are not in the code page of a Windows console: the run continues."""
    (words / "yes").rename(words / "да")
    settings = ("words=all", "--small", "--data", str(words), "--out", "шум")
    for arguments in (("train", "kws", *FEW, *settings), ("train", "--resume", "шум", "steps=5")):
        done = subprocess.run(
            [sys.executable, "-m", "centaurus", *arguments], env={**os.environ, "PYTHONIOENCODING": "cp1252"},
            cwd=tmp_path, capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert b"???" in done.stdout
        assert rb"2: no, \u0434\u0430" in done.stderr
    assert load(tmp_path / "шум" / "best.safetensors").settings["classes"] == ["no", "да"]


def test_eval_of_a_spotter_draws_misses_against_false_alarms(
    capsys: pytest.CaptureFixture[str], words: Path, tmp_path: Path
) -> None:
    table = SpotterTable((Row("mel", 256, 20, window=512), Row("pointwise", 1, 16, 16)), expansion=0)
    net = classifier(table, ["yes", "no", "background"], settings={"window": 0.2})
    save(net, tmp_path / "spotter.safetensors")
    others = corpora.librispeech(tmp_path / "others", train=0, dev=0, test=2)
    asked = ("eval", str(tmp_path / "spotter.safetensors"), "--data", str(words), "--others", str(others))
    measured = run(capsys, *asked, "--out", str(tmp_path / "report"), "--json")
    assert measured.code == 0, measured.err
    curve = json.loads((tmp_path / "report" / "curve.json").read_text())
    assert [point["threshold"] for point in curve] == list(live.THRESHOLDS)
    chosen = next(p for p in curve if p["threshold"] == measured.json()["threshold_for_0.5_alarms_per_hour"])
    assert measured.json()["misses_at_0.5_alarms_per_hour"] == chosen["misses"]
    assert measured.json()[f"most_alarms_per_hour_at_{chosen['threshold']:g}"] == chosen["at_most"]
    assert (tmp_path / "report" / "curve.png").is_file()


def test_before_and_after_are_shown_side_by_side() -> None:
    assert _cells({"snr": 5, "pesq": 2.5, "pesq_before": 1.9, "stoi": None}) == {
        "snr": "5",
        "pesq": "1.9 → 2.5",
        "stoi": "",
    }


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_setting_is_explained(name: str) -> None:
    kind = type(RECIPES[name].configure(RECIPES[name].presets[0]))
    assert set(explain(kind)) == {field.name for field in fields(kind)}
    assert all(text.endswith(".") for text in explain(kind).values())


def test_the_command_knows_every_recipe() -> None:
    assert set(tasks.RECIPES) == set(RECIPES)


MISTAKES = [
    (["train", "kws"], "--data FOLDER is needed"),
    (["train", "kwx", "--data", "."], "did you mean kws?"),
    (["train", "kws", "--data", "nowhere"], "there is no such folder"),
    (["train", "kws", "--data", "talk.wav"], "is not a folder"),
    (["train", "kws", "--data", ".", "batch"], "key=value"),
    (["train", "--resume", "nowhere"], "is not a run folder"),
    (["count", "nowhere.safetensors"], "there is no model file"),
    (["plan", "model.onnx"], "give the .safetensors file it was made from"),
    (["export", "model.onnx", "-o", "other.onnx"], "is an exported model"),
    (["eval", "nowhere.safetensors", "--data", "."], "there is no model file"),
    (["bench", "model.pt"], "is a torch pickle, which is not read"),
    (["verify", "talk.wav"], "is audio, not a model"),
    (["denoise", "talk.wav", "--model", "net.safetensors"], "centaurus export net.safetensors -o net.onnx"),
    (["spot", "net.safetensors"], "is a model, not audio: give it with --model"),
]
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
from centaurus.cli.main import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as stop:
        print("code", stop.code, file=sys.stderr)
"""


def test_usage_errors_are_reported_before_torch_is_imported(tmp_path: Path) -> None:
    for name in ("model.onnx", "model.pt", "talk.wav", "net.safetensors"):
        (tmp_path / name).touch()
    command = [sys.executable, "-c", WITHOUT_TORCH, json.dumps([words for words, _ in MISTAKES])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(MISTAKES)
    for (words, message), told, code in zip(MISTAKES, lines[::2], lines[1::2], strict=True):
        assert message in told, words
        assert code != "code 0"


def test_settings_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run(capsys, "train", "denoise", "minutes=30", "--show", "--json").json()
    assert (shown["minutes"], shown["epochs"], shown["batch"]) == (30, 0, 192)
    monkeypatch.setenv("COLUMNS", "80")
    text = run(capsys, "train", "kws", "--small", "--show").out
    assert "Probability of dropping a channel." in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train",), "which recipe? denoise, kws, wake, commands or asr"),
        (("train", "kw"), "no recipe 'kw'; did you mean kws?"),
        (("train", "kws"), "--data FOLDER is needed"),
        (("train", "kws", "bacth=3", "--show"), "no setting 'bacth'; did you mean batch?"),
        (("train", "kws", "--resume", "nowhere"), "--resume continues a run with its own settings"),
        (("train", "--resume", "nowhere"), "nowhere is not a run folder"),
        (("train", "kws", "--data", "nowhere"), "nowhere"),
        (("eval", "nothing.safetensors", "--data", "nowhere"), "no model file"),
    ],
)
def test_mistakes_are_one_line(
    capsys: pytest.CaptureFixture[str], words: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run(capsys, *arguments)
    assert result.code in (2, 3, 4)
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_folder_with_a_run_is_not_overwritten(
    capsys: pytest.CaptureFixture[str], words: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    result = run(capsys, "train", "kws", *FEW, "--data", str(words), "--out", str(tmp_path / "run"))
    assert result.code == 5
    assert "already holds a run" in result.err


def test_training_that_fails_says_why(capsys: pytest.CaptureFixture[str], words: Path) -> None:
    result = run(capsys, "train", "kws", *FEW, "--small", "--data", str(words), "lr=inf")
    assert result.code == 1
    assert "at step" in result.err.splitlines()[-1]


def test_a_full_disk_is_code_5(
    capsys: pytest.CaptureFixture[str], words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop, "save_file", full)
    result = run(capsys, "train", "kws", *FEW, "--small", "--data", str(words))
    assert result.code == 5
    assert "No space left on device" in result.err.splitlines()[-1]
