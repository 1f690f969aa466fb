from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.run import run

EXPRESSION = "bit,ni,nt,jn->bjt"
SIZES = "b=8,i=16,n=32,j=32,t=256"


def width(text: str) -> int:
    return max(len(line) for line in text.splitlines())


def test_an_expression_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "plan", EXPRESSION, "--sizes", SIZES)
    assert done.code == 0
    assert "einsum" in done.out
    assert width(done.out) <= 80
    data = run(capsys, "plan", EXPRESSION, "--sizes", SIZES, "--json").json()
    assert data["expression"] == EXPRESSION
    assert data["sizes"] == {"b": 8, "i": 16, "j": 32, "n": 32, "t": 256}
    assert data["seconds"] > 0


def test_batch_and_length_fill_in_for_b_and_t(capsys: pytest.CaptureFixture[str]) -> None:
    data = run(capsys, "plan", EXPRESSION, "--sizes", "i=2,n=4,j=3", "--batch", "5", "--length", "70", "--json").json()
    assert (data["sizes"]["b"], data["sizes"]["t"]) == (5, 70)


def test_a_layer_is_planned_by_topology_or_by_equation(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--batch", "4", "--length", "128", "--json", "--sizes")
    named = run(capsys, "plan", "bottleneck", *sizes, "i=4,j=6,n=8,m=2").json()
    equation = "u_bit B_ni E_nm K_nmt C_jn -> y_bjt"
    written = run(capsys, "plan", equation, *sizes, "i=4,j=6,n=8,m=2").json()
    assert named["sizes"] == written["sizes"] == {"b": 4, "i": 4, "j": 6, "m": 2, "n": 8, "t": 128}
    grouped = run(capsys, "plan", "grouped", *sizes, "g=3,i=2,j=4,n=2").json()
    assert grouped["sizes"] == {"b": 4, "g": 3, "i": 2, "j": 4, "n": 2, "t": 128}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((EXPRESSION, "--sizes", "b=8,i=16,n=32,t=256"), ["'j'"]),
        ((EXPRESSION, "--sizes", SIZES + ",q=2"), ["'q'"]),
        ((EXPRESSION, "--sizes", "b=8,i=sixteen"), ["i=sixteen", "index=size"]),
        ((EXPRESSION, "--sizes", "b=8,b=9"), ["'b'", "twice"]),
        (("bit,bit,bit->bit", "--sizes", "b=1,i=1,t=9"), ["exactly two"]),
        (("bottle", "--sizes", "i=4,n=8"), ["unknown topology 'bottle'", "bottleneck"]),
        (("depthwise", "--sizes", "i=4,n=8,z=3"), ["'z'"]),
        (("bottleneck",), ["bottleneck", "--sizes i=16"]),
        (("no/such/model.safetensors",), ["no/such/model.safetensors"]),
    ],
)
def test_bad_input_is_one_message(
    arguments: tuple[str, ...], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(capsys, "plan", *arguments)
    assert done.code == (4 if "model" in arguments[0] else 2)
    assert done.out == ""
    assert done.err.startswith("centaurus: ")
    assert done.err.count("\n") == 1
    assert all(word in done.err for word in words), done.err


def test_a_number_out_of_range_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "plan", EXPRESSION, "--batch", "0")
    assert done.code == 2
    assert "--batch" in done.err


def test_planning_an_expression_needs_no_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(capsys, "plan", EXPRESSION, "--sizes", SIZES).code == 0


def test_calibration_is_stored_where_plans_find_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from centaurus.kernels import calibrate
    from centaurus.planner import CPU, Device

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "measure", lambda threads: replace(CPU, name=f"{threads} threads", gemm=1.5e9))
    done = run(capsys, "calibrate")
    assert done.code == 0
    assert "1.5e+09" in done.out
    code = "from centaurus.planner import Device; print(Device.load('cpu', 1).name)"
    later = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert later.stdout == "1 threads\n"
    data = run(capsys, "calibrate", "--json").json()
    assert Path(data["1"]["path"]) == Device.path(1)
    assert data["1"]["device"]["gemm"] == 1.5e9
