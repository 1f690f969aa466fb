from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import centaurus as ct
from centaurus.models import names
from centaurus.runtime import Session
from centaurus.runtime.measure import read_card
from centaurus.runtime.modelfile import find_model, shipped_models
from centaurus.ssm import SSM
from tests.cli.run import run

SMALL = "kws-hybrid-2"


def width(text: str) -> int:
    return max(len(line) for line in text.splitlines())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    ct.save(ct.classifier(SMALL, classes=3), path)
    return path


def test_models_lists_every_network(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "models", "--networks")
    assert done.code == 0
    assert width(done.out) <= 80
    assert all(name in done.out for name in names())
    rows = {row["name"]: row for row in run(capsys, "models", "--networks", "--json").json()}
    assert list(rows) == names()
    assert rows["denoiser/hybrid"]["parameters"] == 773_440
    assert round(rows["denoiser/hybrid"]["flops_per_second"] / 1e6, 1) == 336.9


def test_models_lists_what_ships(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(capsys, "models")
    assert done.code == 0
    assert width(done.out) <= 80
    rows = {row["name"]: row for row in run(capsys, "models", "--json").json()}
    assert sorted(rows) == shipped_models()
    assert list(rows)[:3] == ["denoise-16k", "kws-30", "commands"]  # what commands take by default
    for name, row in rows.items():
        settings = Session(name).settings
        assert (row["rate"], row["latency"]) == (settings.rate, settings.latency / settings.rate)
        assert all(cell in done.out for cell in (name, row["command"], *row["score"].split(), row["licence"]))


@pytest.mark.parametrize("name", shipped_models())
def test_the_score_of_a_model_is_in_its_card(name: str) -> None:
    front, text = read_card(find_model(name).with_suffix(".md"))
    body = text.replace("%", " %").replace("  %", " %")
    numbers = re.findall(r"\d+\.\d+(?: %)?", front["score"])
    assert numbers
    assert all(number in body for number in numbers)


def test_models_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from centaurus.cli.main import main; main(['models'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "denoise-16k" in done.stdout


def test_count_by_name_file_and_convention(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    done = run(capsys, "count", "denoiser/hybrid")
    assert done.code == 0
    assert "773,440" in done.out
    assert width(done.out) <= 80
    slim = run(capsys, "count", "denoiser/hybrid-slim", "--convention", "results", "--json").json()
    assert slim["parameters"] == 510_272
    assert round(slim["flops_per_second"] / 1e6, 1) == 293.0
    half = run(capsys, "count", str(model), "--rate", "8000", "--json").json()
    report = ct.count(ct.load(model), rate=8000)
    assert (half["parameters"], half["flops_per_second"]) == (report.parameters, report.flops_per_second)
    assert len(half["rows"]) == len(report.rows)


def test_the_plan_of_a_network_is_that_of_its_layers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", SMALL, "--batch", "4", "--length", "1000")
    done = run(capsys, *arguments)
    assert done.code == 0
    assert width(done.out) <= 80
    assert "blocks.5.body" in done.out
    assert "rfft" in run(capsys, *arguments, "--steps").out
    data = run(capsys, *arguments, "--json").json()
    layers = [layer for layer in ct.classifier(SMALL).modules() if isinstance(layer, SSM)]
    lengths = [1024, 256, 64, 32, 16, 8]  # 1000 samples are four hops of 256; pools of 4, 4, 2, 2, 2, 2
    expected = [layer.plan(batch=4, length=length).json() for layer, length in zip(layers, lengths, strict=True)]
    assert [layer["plan"] for layer in data["layers"]] == expected
    assert data["seconds"] == pytest.approx(sum(plan["seconds"] for plan in expected))
    assert data["peak_bytes"] == max(plan["peak_bytes"] for plan in expected)


def test_verify_reports_every_law(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    done = run(capsys, "verify", str(model))
    assert done.code == 0
    assert "all laws hold" in done.out
    assert width(done.out) <= 80


def test_verify_fails_when_a_law_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    from centaurus import models
    from centaurus.verification import Law

    broken = models.Verification((Law("rows are independent", 0.5, 1e-9),))
    monkeypatch.setattr(models, "verify", lambda net: broken)
    done = run(capsys, "verify", str(model), "--json")
    assert done.code == 1
    assert done.json()["laws"][0]["worst"] == 0.5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("denoiser/nope", ["nope", "hybrid-slim"]),
        ("painter/hybrid", ["painter/hybrid", "denoiser/hybrid"]),
        ("missing.safetensors", ["missing.safetensors"]),
    ],
)
def test_an_unknown_name_is_one_message(name: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("count", "verify"):
        done = run(capsys, command, name)
        assert (done.code, done.out) == (4 if name.endswith(".safetensors") else 2, "")
        assert done.err.count("\n") == 1
        assert all(word in done.err for word in words)


def test_a_damaged_file_is_one_message(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    model.write_bytes(model.read_bytes()[:500])
    done = run(capsys, "count", str(model))
    assert done.code == 4
    assert done.err.startswith("centaurus: ")
    assert model.name in done.err
    assert "Traceback" not in done.err


def test_the_demo_streams_what_it_runs_whole(capsys: pytest.CaptureFixture[str]) -> None:
    data = run(capsys, "demo", "--json").json()
    assert data["network"]["relative_error"] < 1e-4
    assert data["layer"]["plan"]["seconds"] > 0
