"""``centaurus export``, ``bench`` and ``verify`` of exported files, as a user types them."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from rich.cells import cell_len

import centaurus as ct
from tests.cli.run import run
from tests.runtime.models import exported, network

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    ct.save(network("classifier"), tmp_path / "words.safetensors")
    return tmp_path / "words.safetensors"


def test_several_chunks_in_one_command(weights: Path, capsys: Capture) -> None:
    target = weights.with_name("words.onnx")
    done = run(capsys, "export", str(weights), "-o", str(target), "--chunk", "256", "--chunk", "1024", "--json")
    assert done.code == 0, done.err
    assert [Path(row["file"]).name for row in done.json()] == ["words-256.onnx", "words-1024.onnx"]
    assert [row["chunk"] for row in done.json()] == [256, 1024]
    assert all(row["difference"] < 1e-4 and row["bytes"] > 0 for row in done.json())
    assert not target.exists()


def test_one_chunk_keeps_the_name_and_nothing_is_overwritten(weights: Path, capsys: Capture) -> None:
    target = weights.with_name("words.onnx")
    command = ("export", str(weights), "-o", str(target), "--chunk", "512")
    done = run(capsys, *command)
    assert done.code == 0
    assert "words.onnx" in done.out
    before = target.stat().st_mtime_ns
    done = run(capsys, *command)
    assert done.code != 0
    assert "-f overwrites" in done.err
    assert target.stat().st_mtime_ns == before
    assert run(capsys, *command, "-f").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kws-hybrid-2", "-o", "x.onnx", "--chunk", "100"), "multiple of the hop 256, got 100"),
        (("kws-hybrid-2", "-o", "nowhere/x.onnx"), "no folder nowhere"),
        (("nothing", "-o", "x.onnx"), "nothing"),
    ],
)
def test_what_cannot_be_exported(
    arguments: tuple[str, ...], message: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(capsys, "export", *arguments)
    assert done.code != 0
    assert message in done.err
    assert not list(tmp_path.iterdir())


def test_verify_a_file_and_the_weights_beside_it(weights: Path, capsys: Capture) -> None:
    alone = run(capsys, "verify", str(exported("denoiser")), "--json")
    assert alone.code == 0
    assert alone.json()["holds"]
    beside = weights.with_suffix(".onnx")
    shutil.copy(exported("classifier"), beside)
    both = run(capsys, "verify", str(beside))
    assert both.code == 0
    assert "pieces = words.safetensors whole, in torch" in both.out
    assert "all laws hold" in both.out


def test_verify_finds_a_file_that_is_not_its_weights(weights: Path, capsys: Capture) -> None:
    model = onnx.load(exported("classifier"))
    for x in model.graph.initializer:
        numbers = onnx.numpy_helper.to_array(x)
        if numbers.dtype == "float32" and numbers.size > 64:
            x.CopyFrom(onnx.numpy_helper.from_array(numbers * 1.1, x.name))
            break
    beside = weights.with_suffix(".onnx")
    onnx.save(model, beside)
    done = run(capsys, "verify", str(beside), "--json")
    assert done.code == 1
    broken = [law["name"] for law in done.json()["laws"] if not law["holds"]]
    assert broken == ["pieces = words.safetensors whole, in torch"]


def test_bench_prints_a_table_or_json(weights: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(capsys, "bench", str(weights), "--seconds", "0.1", "--chunk", "512")
    assert done.code == 0, done.err
    assert max(cell_len(line) for line in done.out.splitlines()) <= 80
    for word in ("1 thread", "torch, 1 thread", "RTF", "p99 ms", "xruns", "latency ms", "memory above"):
        assert word in done.out
    done = run(capsys, "bench", str(exported("denoiser")), "--seconds", "0.1", "--json")
    data = done.json()
    assert (data["task"], data["chunk"], data["algorithmic_latency_ms"]) == ("denoiser", 256, 16.0)
    first = data["runs"][0]
    assert 0 < first["p50_ms"] <= first["p95_ms"] <= first["p99_ms"] <= first["max_ms"]
    assert first["latency_ms"] == pytest.approx(16 + first["p99_ms"])
    assert first["rtf"] > 0
    assert data["memory_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("nowhere.onnx",), "no model file 'nowhere.onnx'"), (("x.onnx", "--chunk", "256"), "fixed number of samples")],
)
def test_bench_says_what_is_wrong(arguments: tuple[str, ...], message: str, capsys: Capture) -> None:
    done = run(capsys, "bench", *arguments)
    assert done.code != 0
    assert message in done.err
