"""The ablation trains its cells once, goes on where it was, and says what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import corpora

SCRIPT = Path(__file__).parents[2] / "bench" / "ablation.py"


def test_cells_are_trained_once_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, out = corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=12, speakers=12), tmp_path / "out"

    def run(networks: str) -> list[str]:
        given = ["--networks", networks, "--out", str(out), "steps=1", "words=yes,no", "validations=1", "batch=4"]
        done = subprocess.run([sys.executable, SCRIPT, data, *given], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    first = run("kws-hybrid-2")
    result = out / "cells" / "kws-hybrid-2-0" / "result.json"
    before = result.stat().st_mtime_ns
    both = run("kws-hybrid-2,kws-separable-2")
    assert len(first) == 1
    assert both[0] == first[0]
    assert result.stat().st_mtime_ns == before
    rows = json.loads((out / "ablation.json").read_text())
    assert [row["network"] for row in rows] == ["kws-hybrid-2", "kws-separable-2"]
    assert all(0 <= row["low"] <= row["error"] <= row["high"] <= 1 for row in rows)
    assert rows[0]["parameters"] > rows[1]["parameters"] > 10_000
    assert (out / "ablation.png").is_file()
    assert (out / "ablation.md").read_text().count("\n") == 4
