"""Every notebook runs top to bottom, cell by cell in one namespace, without Jupyter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {"__name__": "__notebook__"}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "notebooks are kept without outputs"
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), namespace)


def test_there_is_a_notebook_for_every_task() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {"denoise", "keywords", "transcribe"}
