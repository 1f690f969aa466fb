"""A classifier learns from another's outputs: one of this library, or any that is an ONNX file."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from centaurus.decode import BACKGROUND
from centaurus.models import classifier, save
from centaurus.recipes import kws, launch
from centaurus.recipes.kws import configure, network
from centaurus.train.objectives import TEMPERATURE, Classify
from centaurus.train.run import Run
from centaurus.train.targets import answers_of
from tests import corpora

CLASSES = ["down", "no", "yes"]
SMALL = replace(configure("small"), dropout=0.0, workers=0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A model of this library."""
    torch.manual_seed(1)
    save(network(SMALL, CLASSES), tmp_path / "teacher.safetensors")
    return tmp_path / "teacher.safetensors"


def loudness(path: Path, classes: list[str] | None, extra: bool = False) -> Path:
    """An ONNX file whose logits are the mean of the squares times 1, 2, 3 for the three classes."""
    factors = numpy_helper.from_array(np.array([[1, 2, 3]], np.float32), "factors")
    nodes = [
        helper.make_node("Mul", ["audio", "audio"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("MatMul", ["mean", "factors"], ["logits"]),
    ]
    shape = helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["b", 1, "t"])
    also = [helper.make_tensor_value_info("state", TensorProto.FLOAT, [1])] if extra else []
    out = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 3])
    graph = helper.make_graph(nodes, "loudness", [shape, *also], [out], [factors])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if classes:
        helper.set_model_props(model, {"classes": json.dumps(classes)})
    onnx.save(model, path)
    return path


def test_a_network_has_nothing_to_learn_from_itself(file: Path) -> None:
    torch.manual_seed(1)
    own = Classify(network(SMALL, CLASSES).eval(), "taught:1", teacher=answers_of(str(file), CLASSES))
    other = Classify(network(SMALL, CLASSES).eval(), "taught:1", teacher=answers_of(str(file), CLASSES))
    batch = {"audio": 0.1 * torch.randn(4, 1, 16_000), "label": torch.zeros(4, dtype=torch.long)}
    nothing, something = (float(objective(batch, 0.0)["loss"].detach()) for objective in (own, other))
    assert nothing < 1e-6 < 1e-4 < something
    assert {id(p) for p in own.parameters()} == {id(p) for p in own.net.parameters()}, "a teacher does not learn"


def test_a_spotter_answers_for_clips_where_a_word_is_most_probable(tmp_path: Path) -> None:
    torch.manual_seed(0)
    names, wanted = ["up", "down", "no", "yes", BACKGROUND], ["yes", "down", BACKGROUND]
    net = classifier("wake-mel", names, settings={"window": 0.1, "sample_rate": 16_000})  # three frames of 32 ms
    with torch.no_grad():
        net.body.out.weight.mul_(20.0)  # clear maxima
    save(net, tmp_path / "spotter.safetensors")
    audio = torch.randn(4, 1, 16_000) * torch.logspace(-3, 0, 16_000)
    answers = answers_of(str(tmp_path / "spotter.safetensors"), wanted)(audio)
    padded = torch.cat([torch.zeros(4, 1, 1_600), audio, torch.zeros(4, 1, 5_600)], 2)
    for row, logits in enumerate(net(padded)):
        means = logits.softmax(0)[[3, 1, 4]].unfold(1, 3, 1).mean(2)
        best = max(range(means.shape[1]), key=lambda frame: float(means[:2, frame].max().detach()))
        torch.testing.assert_close(answers[row].exp(), means[:, best], atol=1e-5, rtol=1e-3)
    with pytest.raises(ValueError, match="has the classes"):
        answers_of(str(tmp_path / "spotter.safetensors"), ["yes", "left"])


def test_outputs_of_an_onnx_teacher_are_distilled(tmp_path: Path) -> None:
    teacher = answers_of(str(loudness(tmp_path / "loud.onnx", CLASSES)), CLASSES)
    audio = torch.randn(5, 1, 4_000)
    answers = teacher(audio)
    torch.testing.assert_close(answers, audio.square().mean(2) * torch.tensor([1.0, 2, 3]))
    logits = torch.randn(5, 3)
    objective = Classify(network(SMALL, CLASSES), "cross_entropy:0.5, taught:2", teacher=teacher)
    p, q = (answers / TEMPERATURE).softmax(1), (logits / TEMPERATURE).softmax(1)
    expected = TEMPERATURE**2 * (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(objective.term("taught", (logits, answers), {}), expected)


@pytest.mark.parametrize(
    ("classes", "extra", "message"),
    [(["up"], False, r"has the classes \['up'\]"), (None, False, "has the classes None"), (CLASSES, True, "state")],
)
def test_a_teacher_of_another_kind_is_named(
    tmp_path: Path, classes: list[str] | None, extra: bool, message: str
) -> None:
    path = loudness(tmp_path / "other.onnx", classes, extra)
    with pytest.raises(ValueError, match=message):
        answers_of(str(path), CLASSES)


def test_a_teacher_that_is_not_there_and_one_without_a_weight(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ValueError, match=r"no teacher file .*missing\.onnx"):
        answers_of(str(tmp_path / "missing.onnx"), CLASSES)
    with pytest.raises(ValueError, match="is a denoiser"):
        answers_of("denoise-16k", CLASSES)
    net = network(SMALL, CLASSES)
    with pytest.raises(ValueError, match="'taught' belong together"):
        Classify(net, "taught:1")
    with pytest.raises(ValueError, match="'taught' belong together"):
        Classify(net, teacher=answers_of(str(file), CLASSES))


def test_a_run_learns_from_a_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With labels left out, the teacher's output is the only target."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = corpora.speech_commands(tmp_path / "data", CLASSES, clips=8, speakers=4)
    teacher = loudness(tmp_path / "loud.onnx", CLASSES)
    settings = replace(
        SMALL, epochs=0, steps=24, batch=4, lr=0.02, ema=0.8, validations=1, log_every=1,
        teacher=str(teacher), losses="taught:1", tone_db=6.0, mixed=0.5, gain_db=20.0,
    )  # fmt: skip
    run = launch.start("kws", settings, data, tmp_path / "run")
    launch.train(run, "kws", settings, data)
    taught = [record["taught"] for record in Run(tmp_path / "run").records() if "taught" in record]
    assert np.mean(taught[-5:]) < 0.2 * np.mean(taught[:5])
    assert kws.RECIPE.configure("small").losses == "cross_entropy:1"


def test_the_teacher_of_the_recipe_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    teacher = importlib.import_module("teacher")
    data = corpora.speech_commands(tmp_path / "data", CLASSES, clips=8, speakers=4)
    path = teacher.teach(replace(SMALL, epochs=0, steps=3, batch=8, lr=0.005), data, tmp_path / "run" / "teacher.onnx")
    answers = answers_of(str(path), CLASSES)(0.1 * torch.randn(5, 1, 20_000))
    assert answers.shape == (5, 3)
    assert answers.std() > 0
    assert [file.name for file in path.parent.iterdir()] == ["teacher.onnx"]
