"""Layers and networks as C, compiled and compared with torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import centaurus as ct
from centaurus.cli.main import app
from centaurus.export import c as exporter
from centaurus.layer import Layer
from centaurus.native.build import find_compiler
from centaurus.nn import Analysis, Compress, Delay, Mask, Mel, Pointwise, Serial, Synthesis
from centaurus.nn.layers import Stateless
from centaurus.ssm import SSM
from tests.export.test_layers import LAYERS
from tests.export.test_networks import network, shipped_like, windowed
from tests.models.small import FAMILIES

TOLERANCE = 1e-5  # single precision against double, of the largest value
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler here")

EQUATIONS: dict[str, SSM] = {
    "depthwise": SSM("depthwise", 11, states=3),
    "separable": SSM("separable", 3, 5, states=4),
    "grouped": SSM("grouped", 6, 4, states=2, groups=2),
    "pointwise": SSM("pointwise", 3, 5, states=7),
    "wide pointwise": SSM("pointwise", 4, 4, states=44),
    "bottleneck": SSM("bottleneck", 3, 5, states=9, substates=5),
    "full": SSM("full", 3, 10, states=3),
    "full, few outputs": SSM("full", 2, 1, states=21),
    "full, one to one": SSM("full", 1, 1, states=16),
    "complex pointwise": SSM("pointwise", 3, 5, states=9, complex=True),
    "complex bottleneck": SSM("bottleneck", 3, 5, states=9, substates=3, complex=True),
    "complex full": SSM("full", 3, 5, states=4, complex=True),
    "complex separable": SSM("separable", 3, 5, states=4, complex=True),
    "zoh": SSM("pointwise", 2, 2, states=4, discretization="zoh"),
    "states of an input": SSM("u_bit K_int C_jn -> y_bjt", sizes={"i": 3, "n": 5, "j": 2}),
    "states between": SSM("u_bit B_pi K_npt C_jn -> y_bjt", sizes={"i": 3, "p": 2, "n": 9, "j": 4}),
}

SPECTRAL: dict[str, tuple[Layer, int]] = {
    "analysis": (Analysis(64, 16), 1),
    "analysis, not a power of two": (Analysis(60, 15), 1),
    "synthesis": (Synthesis(64, 32, 16), 66),
    "synthesis, not a power of two": (Synthesis(70, 40, 10), 72),
    "there and back": (Serial([Analysis(512, 128), Synthesis(512, 256, 128)]), 1),
    "compress": (Compress(9, release=5.0), 18),
    "mel": (Serial([Analysis(128, 32), Mel(65, 12)]), 1),
    "mel of a power": (Serial([Analysis(128, 32), Mel(65, 12, power=0.3, release=7.0)]), 1),
    "mask": (Serial([Analysis(32, 8), Mask(Serial([Compress(17), Pointwise(51, 34)]), 17), Synthesis(32, 16, 8)]), 1),
    "late mask": (Mask(Serial([Delay(10, 3), Pointwise(10, 10)]), 5), 10),
    "filter": (Mask(Pointwise(10, 22), 5, taps=3, low=3), 10),
    "late filter of all bins": (Mask(Serial([Delay(10, 2), Pointwise(10, 20)]), 5, taps=2, low=5), 10),
    "delay": (Delay(3, 4), 3),
}


def exported(layer: Layer, channels: int, chunk: int, folder: Path) -> float:
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # biases and norms that are not the identity
    made = exporter.export_c(layer, folder / "layer.c", chunk, channels=channels)
    assert made.difference is not None
    return made.difference


@needs_compiler
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_c_equals_the_layer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SECONDS", 0.01)
    layer, channels = LAYERS[name]
    assert exported(layer, channels, 24, tmp_path) < TOLERANCE


@needs_compiler
@pytest.mark.parametrize("name", SPECTRAL)
def test_a_spectral_layer_in_c_equals_the_layer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SECONDS", 0.05)
    layer, channels = SPECTRAL[name]
    assert exported(layer, channels, 3 * layer.hop, tmp_path) < TOLERANCE


@needs_compiler
@pytest.mark.parametrize("name", EQUATIONS)
def test_an_equation_in_c_equals_the_equation(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SECONDS", 0.05)
    layer = EQUATIONS[name]
    assert exported(layer, layer.in_channels, 13, tmp_path) < TOLERANCE


@needs_compiler
@pytest.mark.parametrize("name", [*FAMILIES, "shipped", "windowed"])
def test_a_network_in_c_equals_the_network(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SECONDS", 0.5)
    special = {"shipped": shipped_like, "windowed": windowed}
    net = special[name]() if name in special else network(name)
    made = exporter.export_c(net, tmp_path / "net.c", 2 * net.hop)
    assert made.difference is not None
    assert made.difference < 10 * TOLERANCE


@needs_compiler
def test_fewer_bits_are_smaller_and_less_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SECONDS", 0.2)
    net = network("denoiser/hybrid")
    kinds = ("fp32", "fp16", "int16", "int8")
    made = {kind: exporter.export_c(net, tmp_path / f"{kind}.c", weights=kind) for kind in kinds}
    assert [made["fp32"].weight_bytes // made[kind].weight_bytes for kind in kinds] == [1, 2, 2, 4]
    exact, half, fixed, coarse = (made[kind].difference or 0.0 for kind in kinds)
    assert exact < fixed < 2e-4
    assert 10 * fixed < half < coarse < 0.1


@pytest.mark.parametrize("name", ["denoiser/spectral-32", "denoiser/hybrid", "kws-hybrid-2"])
def test_a_step_divides_into_halves_of_about_the_same_work(name: str) -> None:
    program = exporter.build(network(name).double(), 16 * network(name).hop, "fp32", "net").program
    share = sum(program._work[: program.half()]) / sum(program._work)
    assert 0.4 < share < 0.6


class Other(Stateless):
    def run(self, u, state, keep):  # type: ignore[no-untyped-def]
        return u, ()


def test_a_layer_without_a_form_in_c_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="mine is a Other, which cannot be exported to C"):
        ct.export_c(Serial({"first": Pointwise(1, 1), "mine": Other()}), tmp_path / "net.c")
    assert not list(tmp_path.iterdir())


def test_a_wrong_chunk_format_or_suffix_is_refused(tmp_path: Path) -> None:
    net = network("kws-hybrid-2")
    with pytest.raises(ValueError, match="chunk should be a multiple of the hop"):
        ct.export_c(net, tmp_path / "net.c", net.hop + 1)
    with pytest.raises(ValueError, match="weights should be one of fp32, fp16, int16, int8, got 'bf16'"):
        ct.export_c(net, tmp_path / "net.c", weights="bf16")
    with pytest.raises(ValueError, match=r"should end in \.c"):
        ct.export_c(net, tmp_path / "net.onnx")
    with torch.no_grad():
        next(net.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="not a finite number"):
        ct.export_c(net, tmp_path / "net.c")
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_a_step_that_is_off_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SECONDS", 0.05)
    monkeypatch.setattr(exporter, "TOLERANCE", {"fp32": 1e-12})
    with pytest.raises(exporter.ExportError, match="differs from the network by"):
        exporter.export_c(network("kws-hybrid-2"), tmp_path / "net.c")
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    made = ct.export_c(network("kws-hybrid-2"), tmp_path / "kws-2.c")
    assert made.difference is None
    assert "void kws_2_step(void *state, const float *in, float *out);" in (tmp_path / "kws-2.h").read_text()


def test_the_command_writes_both_files_and_says_if_they_were_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done = CliRunner().invoke(app, ["export", "kws-hybrid-2", "-o", str(tmp_path / "kws.c"), "--weights", "int8"])
    assert done.exit_code == 0, done.output
    assert "not compared" in done.output
    assert {path.name for path in tmp_path.iterdir()} == {"kws.c", "kws.h"}
    assert "CT_WEIGHTS_INT8" in (tmp_path / "kws.c").read_text()
