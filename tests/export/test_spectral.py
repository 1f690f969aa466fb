"""Spectral networks as files: equal to torch, aligned for whole signals, late by what the settings say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import centaurus as ct
from centaurus.export.layers import (
    bin_order,
    bin_tables,
    column_table,
    inverse_bin_tables,
    inverse_column_table,
)
from centaurus.export.write import export_and_compare
from centaurus.models import Row, SpotterTable, denoiser
from centaurus.nn.spectral import stages
from centaurus.runtime import Denoiser
from centaurus.runtime.measure import verify_file
from centaurus.runtime.modelfile import read_settings
from centaurus.runtime.onnxfile import OPERATORS
from tests.models.small import narrow


@pytest.mark.parametrize("window", [24, 36, 320, 512])
def test_two_stages_are_the_transform(window: int) -> None:
    x = np.random.default_rng(0).standard_normal(window)
    columns, length = stages(window, window)
    place, channel = bin_order(window, columns)
    inner = (column_table(length) @ x.reshape(length, columns)).reshape(length // 2 + 1, 1, 2 * columns)
    spectrum = (inner @ bin_tables(window, columns)).reshape(-1)[place]
    expected = np.fft.rfft(x)
    assert np.allclose(spectrum, np.concatenate([expected.real, expected.imag]), atol=1e-10)
    back = spectrum[channel].reshape(length // 2 + 1, 1, -1) @ inverse_bin_tables(window, columns)
    rows = length // 2
    actual = inverse_column_table(window, columns, rows) @ back.reshape(2 * (length // 2 + 1), columns)
    assert np.allclose(actual.reshape(-1), x[-rows * columns :], atol=1e-10)


@pytest.mark.parametrize("name", ["denoiser/spectral", "mel-pointwise", "mel-pooled"])
@pytest.mark.parametrize("hops", [1, 3])
def test_a_file_gives_what_torch_gives(name: str, hops: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = narrow(name)
    path = tmp_path / "net.onnx"
    assert export_and_compare(net, path, hops * net.hop).difference < 1e-5
    assert verify_file(path).holds, str(verify_file(path))
    assert {node.op_type for node in onnx.load(path).graph.node} <= set(OPERATORS)


@pytest.mark.parametrize(("window", "indices"), [(32, (6, 2)), (40, (6, 40))])
def test_mel_bands_copy_whole_hops_and_leave_bins_unordered(
    window: int, indices: tuple[int, int], tmp_path: Path
) -> None:
    """Copying single numbers took half of the time of a wake word."""
    torch.manual_seed(0)
    net = ct.classifier(SpotterTable((Row("mel", 16, 4, window=window), Row("pointwise", 1, 4, 4))))
    path = tmp_path / "net.onnx"
    assert export_and_compare(net, path, 3 * net.hop).difference < 1e-5
    graph = onnx.load(path).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    assert [shapes[node.input[1]] for node in graph.node if node.op_type == "Gather"] == [indices]


def test_the_settings_say_how_late_it_is(tmp_path: Path) -> None:
    path = ct.export_onnx(narrow("denoiser/spectral"), tmp_path / "net.onnx")
    words = next(p.value for p in onnx.load(path).metadata_props if p.key == "centaurus")
    said = json.loads(words)
    assert (said["hop"], said["chunk"], said["delay"], said["latency"]) == (16, 16, 16, 32)
    del said["delay"]
    assert read_settings(json.dumps(said), "an older file").delay == 0
    for wrong in (-1, 1.5, True, "16"):
        with pytest.raises(ValueError, match=r"Expected `int`.* - at `\$\.delay`"):
            read_settings(json.dumps(said | {"delay": wrong}), "a damaged file")


def test_a_wrong_delay_is_detected(tmp_path: Path) -> None:
    path = ct.export_onnx(narrow("denoiser/spectral"), tmp_path / "net.onnx")
    model = onnx.load(path)
    entry = next(p for p in model.metadata_props if p.key == "centaurus")
    entry.value = json.dumps(json.loads(entry.value) | {"delay": 24})
    onnx.save(model, path)
    broken = [law.name for law in verify_file(path).laws if not law.holds]
    assert broken == ["delay is what the settings say, in samples"]


def test_whole_signals_come_out_aligned(tmp_path: Path) -> None:
    """The untrained network is close to the identity: a file comes out almost unchanged, with the same length."""
    torch.manual_seed(0)
    table = replace(narrow("denoiser/spectral").table, analysis=512, synthesis=256, hop=128)
    path = ct.export_onnx(denoiser(table), tmp_path / "net.onnx")
    x = (0.1 * np.random.default_rng(0).standard_normal((1, 5000))).astype(np.float32)
    job = Denoiser(path)
    y = np.concatenate([job.process(x[:, :777]), job.process(x[:, 777:]), job.flush()], axis=1)
    assert y.shape == x.shape
    assert np.abs(y - x).max() < 0.02
    assert job.latency == 256 / 16_000


def test_places_outside_an_axis_are_refused(tmp_path: Path) -> None:
    path = ct.export_onnx(narrow("denoiser/spectral"), tmp_path / "net.onnx")
    model = onnx.load(path)
    taken = next(node.input[1] for node in model.graph.node if node.op_type == "Gather")
    places = next(x for x in model.graph.initializer if x.name == taken)
    values = onnx.numpy_helper.to_array(places).copy()
    values[0] = 1000
    places.CopyFrom(onnx.numpy_helper.from_array(values, taken))
    onnx.save(model, path)
    with pytest.raises(ValueError, match=r"Gather.*not all within an axis"):
        Denoiser(path)
