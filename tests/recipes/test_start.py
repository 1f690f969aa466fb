"""A run may go on from a trained model of the same table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from centaurus.models import ClassifierTable, Row, classifier, save
from centaurus.recipes.launch import go_on_from


def test_the_weights_are_those_of_the_model(tmp_path: Path) -> None:
    table = ClassifierTable((Row("full", 4, 2, 2),), classes=3)
    trained, net = classifier(table), classifier(table)
    save(trained, tmp_path / "trained.safetensors")
    go_on_from(str(tmp_path / "trained.safetensors"), net)
    u = torch.randn(1, 1, 64)
    torch.testing.assert_close(net.eval()(u), trained.eval()(u))


def test_another_table_is_refused(tmp_path: Path) -> None:
    save(classifier(ClassifierTable((Row("full", 4, 2, 2),), classes=3)), tmp_path / "trained.safetensors")
    with pytest.raises(ValueError, match=r"another table .*classes=3.* than .*classes=4"):
        go_on_from(
            str(tmp_path / "trained.safetensors"), classifier(ClassifierTable((Row("full", 4, 2, 2),), classes=4))
        )
