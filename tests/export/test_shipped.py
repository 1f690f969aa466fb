"""The models that ship: every ONNX file is the network of the safetensors beside it, and small."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from centaurus.export.write import TOLERANCE, difference
from centaurus.models import load, shipped
from centaurus.runtime import Session
from centaurus.runtime.measure import describe_shipped, read_card
from centaurus.runtime.modelfile import find_model, shipped_models

FOLDER = Path(str(files("centaurus") / "pretrained"))


def test_every_model_ships_in_both_forms() -> None:
    assert set(shipped()) == set(shipped_models()), "run make models"


def test_shipped_files_are_the_shipped_networks() -> None:
    for name in shipped():
        net, path = load(name), find_model(name)
        settings = Session(path).settings
        assert difference(net, path) < TOLERANCE / 10, name
        assert path.stat().st_size < 6_500_000, name
        assert (settings.name, settings.task, settings.hop) == (name, net.task, net.hop)
        _, text = read_card(FOLDER / f"{name}.md")
        assert settings.card == text, f"{name}: run make models after changing its card"


def test_the_readme_gives_the_latency_of_the_files() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([\w-]+)\]\(src/centaurus/pretrained/.* (\d+) ms \|$", text, re.MULTILINE)
    assert {name: int(ms) for name, ms in rows} == {
        model.name: round(1000 * model.latency) for model in describe_shipped() if model.name in dict(rows)
    }
    assert len(rows) >= 4
