"""A run may start from a trained model of the same table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from centaurus.models import (
    ClassifierTable,
    DenoiserTable,
    RecognizerTable,
    Row,
    SpotterTable,
    classifier,
    denoiser,
    load,
    recognizer,
    save,
)
from centaurus.recipes import kws
from centaurus.recipes.launch import go_on_from
from centaurus.train.config import override
from centaurus.train.run import Run
from scripts.stages import save_mean, shorter, train
from tests import corpora


def test_the_weights_are_those_of_the_model(tmp_path: Path) -> None:
    table = ClassifierTable((Row("full", 4, 2, 2),), classes=3)
    trained, net = classifier(table), classifier(table)
    save(trained, tmp_path / "trained.safetensors")
    go_on_from(str(tmp_path / "trained.safetensors"), net)
    u = torch.randn(1, 1, 64)
    torch.testing.assert_close(net.eval()(u), trained.eval()(u))


def test_another_table_is_refused(tmp_path: Path) -> None:
    save(classifier(ClassifierTable((Row("full", 4, 2, 2),), classes=3)), tmp_path / "trained.safetensors")
    with pytest.raises(ValueError, match=r"its table is .*classes=3.*, not .*classes=4"):
        go_on_from(
            str(tmp_path / "trained.safetensors"), classifier(ClassifierTable((Row("full", 4, 2, 2),), classes=4))
        )


def test_a_recogniser_has_the_blocks_of_a_spotter(tmp_path: Path) -> None:
    rows = (Row("full", 4, 2, 2), Row("pointwise", 2, 4, 4))
    spotter = classifier(ClassifierTable(rows, classes=3))
    save(spotter, tmp_path / "spotter.safetensors")
    table = RecognizerTable(rows, (Row("pointwise", 1, 4, 4),), vocabulary=3, pooled=True)
    net = recognizer(table)
    go_on_from(str(tmp_path / "spotter.safetensors"), net)
    u = torch.randn(1, 1, 64)
    first, backbone = spotter.eval().body.layers()[0], net.eval().body.layers()[0]
    torch.testing.assert_close(backbone(u), first(u))
    for other in (replace(table, pooled=False), replace(table, backbone=rows[:1])):
        with pytest.raises(ValueError, match="backbone cannot start from"):
            go_on_from(str(tmp_path / "spotter.safetensors"), recognizer(other))


def test_a_recogniser_on_mel_frames_begins_with_the_blocks_of_a_spotter(tmp_path: Path) -> None:
    torch.manual_seed(0)
    table = SpotterTable((Row("mel", 64, 8, window=128), Row("pointwise", 1, 6, 4, times=2)), classes=3)
    spotter = classifier(table)
    save(spotter, tmp_path / "spotter.safetensors")
    net = recognizer(replace(table, blocks=(table.blocks[0], replace(table.blocks[1], times=3))), vocabulary=5)
    out = net.body.out.weight.clone()
    go_on_from(str(tmp_path / "spotter.safetensors"), net)
    theirs, mine = spotter.state_dict(), net.state_dict()
    for name in set(theirs) - {"body.out.weight", "body.out.bias"}:
        assert torch.equal(mine[name], theirs[name]), name
    assert torch.equal(mine["body.out.weight"], out)
    with pytest.raises(ValueError, match="cannot start from"):  # fewer blocks than the spotter's
        go_on_from(
            str(tmp_path / "spotter.safetensors"),
            recognizer(replace(table, blocks=(table.blocks[0], replace(table.blocks[1], times=1)))),
        )


def test_the_share_a_denoiser_keeps_may_differ(tmp_path: Path) -> None:
    table = DenoiserTable((Row("full", 4, 2, 2),), (), (Row("full", 4, 1, 2),), (), level=2.0)
    save(denoiser(replace(table, kept=0.2)), tmp_path / "trained.safetensors")
    net = denoiser(table)
    go_on_from(str(tmp_path / "trained.safetensors"), net)
    u = torch.randn(1, 1, 64)
    kept = load(tmp_path / "trained.safetensors")
    torch.testing.assert_close(kept(u), 0.8 * net.eval()(u) + 0.2 * u)


def test_dropout_may_differ(tmp_path: Path) -> None:
    settings = override(kws.configure("small"), ["dropout=0.3"])
    trained, net = kws.network(settings, ["a", "b"]), kws.network(kws.configure("small"), ["a", "b"])
    assert isinstance(trained.table, ClassifierTable)
    assert trained.table.dropout == 0.3
    save(trained, tmp_path / "trained.safetensors")
    go_on_from(str(tmp_path / "trained.safetensors"), net)
    u = torch.randn(1, 1, 4096)
    torch.testing.assert_close(net.eval()(u), trained.eval()(u))


def test_stages_follow_each_other_and_are_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=12, speakers=12)
    first = override(kws.configure("small"), ["steps=2", "batch=2", "workers=0", "validations=1", "lr=1e-9"])
    stages = {"first": first, "second": shorter(first, 0.5)}
    last = train("kws", stages, data, tmp_path / "run")
    assert last == tmp_path / "run" / "second" / "last.safetensors"
    one, two = (load(tmp_path / "run" / name / "last.safetensors") for name in stages)
    for before, after in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(before, after, atol=1e-6, rtol=0)
    assert Run(last.parent).description()["settings"]["steps"] == 1
    written = last.stat().st_mtime_ns
    assert train("kws", stages, data, tmp_path / "run") == last
    assert last.stat().st_mtime_ns == written


def test_the_mean_of_models_is_the_mean_of_their_weights(tmp_path: Path) -> None:
    table = ClassifierTable((Row("full", 4, 2, 2),), classes=3)
    paths = [tmp_path / f"{k}.safetensors" for k in range(3)]
    nets = [classifier(table) for _ in paths]
    for net, path in zip(nets, paths, strict=True):
        save(net, path)
    shares = (0.5, 0.2, 0.3)
    mean = load(save_mean(dict(zip(paths, shares, strict=True)), tmp_path / "mean.safetensors"))
    for result, *each in zip(mean.parameters(), *(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(result, sum(share * weight for share, weight in zip(shares, each, strict=True)))
