"""The figures train their cells once, continue where they were, and report their results."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from centaurus.recipes import kws
from centaurus.ssm import S6
from centaurus.train.config import override
from scripts import figures
from tests import corpora

SCRIPT = Path(__file__).parents[2] / "scripts" / "figures.py"


def test_cells_are_trained_once_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, out = corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=12, speakers=12), tmp_path / "out"

    def run(networks: str) -> list[str]:
        options = [
            "--small",
            "--networks",
            networks,
            "--out",
            str(out),
            "steps=1",
            "words=yes,no",
            "validations=1",
            "batch=4",
        ]
        done = subprocess.run([sys.executable, SCRIPT, data, *options], check=True, capture_output=True, text=True)
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


def test_the_figures_are_the_papers(tmp_path: Path) -> None:
    """Every width of its table, ten seeds, its settings, and the test split; S6 at several numbers of states."""
    from scripts import figures

    assert len(figures.FIGURES["scaling"]) == 4 * 3 + 2 * 4
    assert {kind.states for kind in figures.FIGURES["s6"]} == {0, 8, 16}
    assert all(kind.network in kws.TABLES for kinds in figures.FIGURES.values() for kind in kinds)
    assert [kind.name for kind in figures.FIGURES["sc10"]] == ["kws-hybrid-8-sc10"]  # a cell of its own
    assert figures.PAPER_SEEDS == 10
    assert replace(kws.configure("paper"), words="35") == figures.PAPER_SETTINGS
    net = kws.network(replace(figures.PAPER_SETTINGS, network="kws-s6-2", states=16), ["yes", "no"])
    assert {layer.states for layer in net.modules() if isinstance(layer, S6)} == {16}
    assert figures.part_of("3/8") == (2, 8)


def test_a_cell_at_the_papers_settings_is_measured_on_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts import figures

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=12, speakers=12)
    settings = override(figures.PAPER_SETTINGS, ["steps=1", "words=yes,no", "validations=1", "batch=4", "workers=0"])
    cell = figures.cell(figures.Kind("kws-s6-2", 2, "no,yes"), 0, settings, data, tmp_path / "out", "test")
    assert (cell["network"], cell["split"]) == ("kws-s6-2-n2-scno,yes", "test")
    assert figures.family_of(cell["network"]) == "s6, 2 states"
    trained = json.loads((tmp_path / "out" / "cells" / f"{cell['network']}-0" / "config.json").read_text())
    assert trained["settings"]["words"] == "no,yes"
    assert 0 <= cell["error"] <= 1


def test_the_table_of_the_page_is_that_of_its_data() -> None:
    docs = Path(__file__).parent.parent.parent / "docs"
    assert figures.table(json.loads((docs / "ablation.json").read_text())) in (docs / "ablation.md").read_text()
