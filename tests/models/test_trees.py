"""Any tree of the library's layers is saved, loaded, counted, streamed and exported; what a file says is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import centaurus as ct
from centaurus.layer import Layer
from centaurus.models.io import KINDS, MOST_LAYERS, build_tree, describe
from centaurus.nn import (
    Activation,
    Analysis,
    AvgPool,
    BandConv,
    Block,
    CausalConv,
    Compress,
    DCBlock,
    Delay,
    Down,
    Dropout1d,
    Gated,
    Hourglass,
    LayerNorm,
    Leveled,
    Lift,
    Mask,
    Mel,
    Pointwise,
    Residual,
    RunningMean,
    Serial,
    SiLU,
    Synthesis,
    Up,
    WindowedMean,
)
from centaurus.nn.layers import Stateless
from centaurus.runtime import Session
from tests.check_layer import check_layer


def everything() -> Serial:
    """One of every layer, from one channel to two."""
    from centaurus.models.build import Dense

    spectral = Serial(
        Analysis(32, 8), Mask(Serial(Compress(17), Pointwise(51, 34), Delay(34, 1)), 17), Synthesis(32, 16, 8)
    )
    glass = Hourglass(CausalConv(1), Down(1, 4, 2), Residual(SiLU(), Serial()), Up(4, 1, 2), Serial())
    block = Block(ct.SSM("full", 1, 4), 4, Pointwise(1, 4), 0.1, Activation.BEFORE_SKIP, AvgPool(2))
    own = ct.SSM("u_bit B_ni K_nt C_jn -> y_bjt", sizes={"i": 4, "n": 3, "j": 4}, discretization="zoh")
    front = Serial(Analysis(32, 8), Mel(17, 3, release=4.0))
    return Serial(
        {
            "first": Serial(DCBlock(), spectral, Leveled(glass, 4.0, 0.1)),
            "block": block,
            "own": Serial(own, ct.S6(4, 4, states=2, weighted=False), LayerNorm(4, activate=True), Dropout1d(0.5)),
            "gated": Gated(4, 6, ct.SSM("bottleneck", 6, 6, states=2, substates=2, complex=True), kernel=2),
            "lifted": Serial(Lift(nn.Conv1d(4, 1, 1)), Lift(nn.GELU("tanh")), Lift(nn.ReLU())),
            "mel": Serial(front, BandConv(1, 2, 3, stride=(2, 1)), Pointwise(4, 3)),
            "means": Serial(WindowedMean(3, 2), RunningMean(3), Dense(3, 2)),
        }
    )


def kinds(layer: Layer) -> set[type]:
    return {type(x) for x in layer.modules() if isinstance(x, Layer)}


def test_every_layer_comes_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = everything().eval()
    assert kinds(net) == set(KINDS)  # a new layer belongs into the list and into this test
    ct.save(net, tmp_path / "net.safetensors")
    back = ct.load(tmp_path / "net.safetensors")
    assert describe(back) == describe(net)
    assert (back.hop, back.ratio, back.delay) == (net.hop, net.ratio, net.delay)
    u = torch.randn(1, 1, 4 * net.hop)
    with torch.no_grad():
        assert torch.equal(back(u), net(u))


def enhancer() -> Serial:
    torch.manual_seed(0)
    return Serial(
        Down(1, 8, 16, bias=True),
        Residual(Serial(LayerNorm(8), ct.SSM("pointwise", 8, 8, states=6), SiLU())),
        Lift(nn.Conv1d(8, 8, 1)),
        Lift(nn.GELU()),
        Up(8, 1, 16),
    ).eval()


def test_a_network_of_ones_own_does_all_that_the_papers_do(tmp_path: Path) -> None:
    net = enhancer()
    report = ct.count(net)
    assert (report.hop, report.latency) == (16, 16)
    assert any(row.kind == "lift" and row.flops_per_second for row in report.rows)
    check_layer(net, 1, hops=4)
    live, u = ct.Stream(net), torch.randn(1, 1, 1000)
    streamed = torch.cat([*(live(piece) for piece in u.split(77, dim=-1)), live.flush()], dim=-1)
    torch.testing.assert_close(streamed, net(u).detach(), rtol=1e-4, atol=1e-5)
    path = ct.export_onnx(net, tmp_path / "own.onnx", chunk=64)
    session = Session(path)
    assert (session.settings.task, session.settings.rate) == ("denoiser", 16_000)
    result = np.concatenate([session.process(u[0, 0].numpy()), session.flush()])
    assert np.abs(result - net(u)[0, 0].detach().numpy()).max() < 1e-4


def test_the_task_of_a_tree_follows_from_what_it_gives(tmp_path: Path) -> None:
    layers = [Analysis(64, 16), Mel(33, 6), CausalConv(6), Pointwise(6, 2)]
    words = Session(ct.export_onnx(Serial(layers), tmp_path / "words.onnx", classes=["yes", "no"], rate=8000)).settings
    assert (words.task, words.classes, words.rate) == ("classifier", ("yes", "no"), 8000)
    plain = Session(ct.export_onnx(Serial(layers), tmp_path / "plain.onnx")).settings
    assert (plain.task, plain.features) == ("layers", 2)
    with pytest.raises(ValueError, match="built for 6 input channels, got 1"):
        ct.export_onnx(Serial(layers[2:]), tmp_path / "many.onnx")


@pytest.mark.parametrize(
    "module", [nn.GELU(), nn.GELU("tanh"), nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.Identity()]
)
def test_lifted_modules_are_exported(module: nn.Module, tmp_path: Path) -> None:
    net = Serial(Lift(nn.Conv1d(1, 3, 1, bias=False)), Lift(module), Lift(nn.Conv1d(3, 1, 1)))
    ct.export_onnx(net, tmp_path / "net.onnx", chunk=8)  # compared with torch before it is written


def test_what_cannot_be_lifted_saved_or_exported_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a LSTM mixes frames"):
        Lift(nn.LSTM(2, 2))
    with pytest.raises(ValueError, match="Conv1d, mixes frames"):
        Lift(nn.Sequential(nn.Conv1d(2, 2, 3)))
    with pytest.raises(ValueError, match=r"a Linear mixes frames .* last axis, which is time.*: use Pointwise\(4, 2\)"):
        Lift(nn.Linear(4, 2))
    with pytest.raises(TypeError, match=r"got Linear: use Pointwise\(4, 2\)"):
        Serial(nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"1, a LayerNorm, mixes frames .* use ct\.nn\.LayerNorm"):
        Lift(nn.Sequential(nn.GELU(), nn.LayerNorm(16)))
    with pytest.raises(TypeError, match="a centaurus layer already"):
        Lift(SiLU())
    with pytest.raises(TypeError, match=r"layers\.0 lifts a Softplus, which cannot be saved"):
        ct.save(Serial(Lift(nn.Softplus())), tmp_path / "x.safetensors")
    with pytest.raises(TypeError, match="lifts a Softplus, which cannot be exported"):
        ct.export_onnx(Serial(Lift(nn.Softplus())), tmp_path / "x.onnx")

    class Own(Stateless):
        def run(self, u: torch.Tensor, state: Any, keep: bool) -> Any:
            return u, ()

    with pytest.raises(TypeError, match=r"layers\.0 is a Own, which is not one of the library's layers"):
        ct.save(Serial(Own()), tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_serial_takes_layers_a_list_or_names() -> None:
    a, b = Pointwise(1, 2), SiLU()
    assert [*Serial(a, b).state_dict()] == [*Serial([a, b]).state_dict()] == ["0.weight", "0.bias"]
    assert [*Serial({"first": a, "last": b}).state_dict()] == ["first.weight", "first.bias"]
    with pytest.raises(TypeError, match=r"got GELU: a torch module without memory goes into Lift"):
        Serial(a, nn.GELU())
    with pytest.raises(TypeError, match="got Sequential: pass its layers to Serial"):
        Serial(a, nn.Sequential(nn.GELU()))
    with pytest.raises(ValueError, match="'forward' cannot be the name of a layer"):
        Serial({"forward": a})


def test_a_stream_of_torch_modules_is_refused_with_advice() -> None:
    with pytest.raises(TypeError, match=r"got Sequential: put layers into centaurus\.nn\.Serial"):
        ct.Stream(nn.Sequential(nn.GELU()))


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: ct.count(nn.Linear(2, 3)), r"count takes a centaurus layer .* got Linear: use Pointwise\(2, 3\)"),
        (lambda: ct.verify(nn.GELU()), "verify takes a centaurus layer .* got GELU: .* goes into Lift"),
        (lambda: ct.export_c(nn.GELU(), "x.c"), "export_c takes a centaurus layer .* got GELU"),
        (lambda: Residual(nn.GELU()), "the body of Residual should be a centaurus layer, got GELU"),
        (lambda: Residual(SiLU(), nn.GELU()), "the skip of Residual should be a centaurus layer, got GELU"),
        (lambda: ct.Stream(SiLU())(np.zeros((1, 1, 4))), "takes a torch tensor, got ndarray: use torch.from_numpy"),
    ],
)
def test_what_is_not_a_layer_or_a_tensor_is_refused_with_advice(use: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        use()


def test_repr_shows_sizes() -> None:
    assert repr(Pointwise(3, 5)) == "Pointwise(in_channels=3, out_channels=5, bias=True)"
    assert repr(Analysis(64, 16)) == "Analysis(window=64, hop=16)"
    assert "factor=4" in repr(Serial(Down(1, 2, 4)))


GOOD = {"layer": "Pointwise", "in_channels": 1, "out_channels": 2, "bias": True}


def nested(depth: int) -> dict[str, Any]:
    tree: dict[str, Any] = GOOD
    for _ in range(depth):
        tree = {"layer": "Serial", "layers": {"0": tree}}
    return tree


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"layer": "os.system"}, "a layer 'os.system', which this library does not have"),
        ({"layer": "Classifier"}, "does not have"),
        ({"layer": ["SiLU"]}, "should be a layer with its name"),
        ({}, "should be a layer with its name"),
        (GOOD | {"bias": 1}, "bias should be of type bool, got 1"),
        (GOOD | {"in_channels": 1 << 40}, "in_channels should be a number up to 1,048,576"),
        (GOOD | {"in_channels": -1}, "at least 1"),
        (GOOD | {"colour": 1}, "has no argument 'colour'"),
        ({"layer": "Pointwise", "in_channels": 1}, "lacks out_channels"),
        ({"layer": "SSM", "topology": "pointwise", "in_channels": 2, "device": "cuda"}, "has no argument 'device'"),
        ({"layer": "SSM", "topology": "__import__('os')", "in_channels": 2}, "unknown topology"),
        ({"layer": "Serial", "layers": [GOOD]}, "layers by name and nothing else"),
        ({"layer": "Serial", "layers": {"a.b": GOOD}}, "'a.b' cannot be the name of a layer"),
        (
            {"layer": "Serial", "layers": {str(k): {"layer": "SiLU"} for k in range(MOST_LAYERS)}},
            "more than 4096 layers",
        ),
        (nested(80), "nested more than 64 deep"),
        ({"layer": "Lift", "module": {"layer": "Linear"}}, "a file may lift Conv1d"),
        ({"layer": "Lift", "module": {"layer": "Conv1d", "in_channels": 1}}, "its arguments are"),
        ({"layer": "Analysis", "window": 1 << 20, "hop": 8}, "at most 65536"),
        ({"layer": "Mel", "bins": 1025, "bands": 100_000}, "bands"),
        ({"layer": "Dropout1d", "probability": float("nan")}, "should be a number"),
    ],
)
def test_a_file_that_describes_what_cannot_be_is_refused(tree: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        build_tree(tree)
    path = tmp_path / "odd.safetensors"
    save_file({"x": torch.zeros(1)}, path, {"kind": "centaurus-model", "version": "2", "tree": json.dumps(tree)})
    with pytest.raises(ValueError, match=r"odd\.safetensors: describes a network that cannot be built"):
        ct.load(path)


def test_weights_that_do_not_fit_the_tree_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.safetensors"
    save_file(
        {"weight": torch.zeros(2, 2), "bias": torch.zeros(2, 1)},
        path,
        {"kind": "centaurus-model", "version": "2", "tree": json.dumps(GOOD)},
    )
    with pytest.raises(ValueError, match="weight has shape"):
        ct.load(path)
