"""The contraction benchmark: its summary, and its picture from results that were stored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def contraction(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    import contraction

    return contraction


def point(ratio: float, dominates: bool, **more: float) -> dict[str, Any]:
    return {"ratio": {"listing1": ratio}, "torch_ratio": ratio / 2, "kernel_dominates": dominates} | more


def test_figures_that_were_not_measured_are_left_out(contraction: ModuleType) -> None:
    figures = contraction.summary([point(2.0, True), point(8.0, True)])
    assert figures["geometric_mean"] == pytest.approx(4)
    assert figures["lowest_where_kernel_dominates"] == 2
    assert not {"largest_memory_ratio", "lowest_elsewhere"} & set(figures)
    json.dumps(figures, allow_nan=False)


def test_the_summary_takes_the_worst_of_every_shape(contraction: ModuleType) -> None:
    points = [point(2.0, True, memory_ratio=0.5), point(4.0, False, memory_ratio=0.9), point(3.0, False)]
    figures = contraction.summary(points)
    assert (figures["lowest"], figures["lowest_elsewhere"], figures["lowest_of_torch_alone"]) == (2, 3, 1)
    assert figures["largest_memory_ratio"] == 0.9


@pytest.mark.parametrize("name", ["contraction", "native"])
def test_a_stored_result_is_drawn_without_measuring(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    stored = ROOT / "docs" / "speed" / f"{name}.json"
    out.with_suffix(".json").write_bytes(stored.read_bytes())
    script = [sys.executable, str(ROOT / "bench" / "contraction.py"), "--draw", "--out", str(out)]
    subprocess.run(script, check=True, capture_output=True, timeout=120)
    assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert out.with_suffix(".json").read_bytes() == stored.read_bytes()
