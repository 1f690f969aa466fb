"""Whole networks as files: their contents, and that their outputs equal those of the networks."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import centaurus as ct
from centaurus.export import write
from centaurus.models import Network, Row, classifier, denoiser
from centaurus.runtime import Session, SessionError
from centaurus.runtime.onnxfile import OPERATORS
from tests.models.small import FAMILIES, narrow

TOLERANCE = 1e-4  # single precision against double through a whole network, of the largest value
_folder = TemporaryDirectory(prefix="centaurus-export-")


def network(name: str) -> Network:
    torch.manual_seed(11)
    return narrow(name).eval()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_as_a_file_equals_the_network(name: str, tmp_path: Path) -> None:
    net = network(name)
    made = write.export_and_compare(net, tmp_path / "net.onnx", chunk=2 * net.hop)
    assert made.difference < TOLERANCE


def shipped_like() -> Network:
    table = narrow("denoiser/hybrid").table
    torch.manual_seed(12)
    return denoiser(replace(table, encoder=(Row("dc-block"), *table.encoder), level=20.0)).eval()


def windowed() -> Network:
    table = narrow("kws-hybrid-2").table
    torch.manual_seed(13)
    return classifier(replace(table, blocks=(Row("dc-block"), *table.blocks)), classes=["a", "b"], window=9).eval()


@pytest.mark.parametrize("make", [shipped_like, windowed])
@pytest.mark.parametrize("hops", [1, 3, 8])
def test_rows_for_the_shipped_models(make: object, hops: int, tmp_path: Path) -> None:
    net = make()  # type: ignore[operator]
    assert write.export_and_compare(net, tmp_path / "net.onnx", hops * net.hop).difference < TOLERANCE


@cache
def exported(hops: int) -> tuple[Network, Path]:
    net = network("kws-hybrid-2")
    folder = Path(_folder.name)
    return net, ct.export_onnx(net, folder / f"{hops}.onnx", chunk=hops * net.hop)


@hypothesis_settings(max_examples=15)
@given(hops=st.sampled_from([1, 3, 8]), length=st.floats(0, 4), pieces=st.lists(st.floats(0, 3), max_size=6))
def test_any_chunk_in_any_pieces_is_the_whole(hops: int, length: float, pieces: list[float]) -> None:
    net, path = exported(hops)
    samples = 1 + int(length * hops * net.hop)
    audio = (0.1 * np.random.default_rng(samples).standard_normal(samples)).astype(np.float32)
    cuts = np.cumsum([int(piece * hops * net.hop) for piece in pieces], dtype=int)
    session = Session(path)
    actual = [session.process(piece) for piece in np.split(audio, np.minimum(cuts, samples))]
    streamed = np.concatenate([*actual, session.flush()], -1)
    with torch.no_grad():
        expected = net.double()(torch.from_numpy(audio).double()[None, None])[0].numpy()
    assert streamed.shape == expected.shape
    assert np.abs(streamed - expected).max(initial=0) <= TOLERANCE * np.abs(expected).max(initial=1e-9)


def test_what_is_in_a_file(tmp_path: Path) -> None:
    net = classifier("kws-hybrid-2", classes=["yes", "no"], settings={"card": "for tests"}).eval()
    path = ct.export_onnx(net, tmp_path / "two words.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert {node.op_type for node in model.graph.node} <= set(OPERATORS)
    assert model.opset_import[0].version == 17
    assert all(x.type.tensor_type.shape.dim[0].dim_param for x in (*model.graph.input, *model.graph.output))
    assert {x.data_type for x in model.graph.initializer} <= {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64}
    words = json.loads(next(p.value for p in model.metadata_props if p.key == "centaurus"))
    assert (words["task"], words["name"], words["rate"]) == ("classifier", "two words", 16_000)
    assert (words["hop"], words["chunk"], words["latency"], words["ratio"]) == (256, 2048, 2048, [1, 256])
    assert (words["classes"], words["tokens"], words["card"]) == (["yes", "no"], None, "for tests")
    named = [(x.name, [d.dim_value for d in x.type.tensor_type.shape.dim[1:]]) for x in model.graph.input[1:]]
    assert named == [(s["name"], s["shape"]) for s in words["states"]]


def test_the_denoiser_is_small() -> None:
    assert len(write.build(denoiser("hybrid").double().eval(), 256, "hybrid", None)) < 5_000_000


@pytest.mark.parametrize(
    ("name", "chunk"), [("denoiser/hybrid", 256), ("kws-hybrid-2", 2048), ("recognizer/base", 2560)]
)
def test_default_chunks(name: str, chunk: int) -> None:
    assert write.default_chunk(network(name)) == chunk


def test_characters_are_not_exported(tmp_path: Path) -> None:
    net = network("recognizer/base")
    assert Session(ct.export_onnx(net, tmp_path / "net.onnx")).settings.features == 5


def test_training_goes_on_after_an_export(tmp_path: Path) -> None:
    net = network("kws-hybrid-2").train()
    kept = {name: x.clone() for name, x in net.state_dict().items()}
    ct.export_onnx(net, tmp_path / "net.onnx")
    assert net.training
    assert next(net.parameters()).dtype == torch.float32
    assert all(torch.equal(kept[name], x) for name, x in net.state_dict().items())


def test_a_file_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("kws-hybrid-2")
    target = tmp_path / "net.onnx"
    target.write_bytes(b"what was there")
    torch.manual_seed(99)
    other = write.build(narrow("kws-hybrid-2").double().eval(), 2048, "net", None)
    monkeypatch.setattr(write, "build", lambda *given: other)
    with pytest.raises(write.ExportError, match=r"differs from the network by .* of the largest value"):
        ct.export_onnx(net, target, chunk=2048)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert target.read_bytes() == b"what was there"


def test_an_export_with_a_fixed_batch_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network("kws-hybrid-2")
    model = onnx.load_from_string(write.build(net.double(), 2048, "net", None))
    for x in model.graph.initializer:  # the zero in a reshape keeps the batch
        shape = onnx.numpy_helper.to_array(x)
        if shape.dtype == np.int64 and shape.size > 2 and shape[0] == 0:
            x.CopyFrom(onnx.numpy_helper.from_array(np.concatenate([[1], shape[1:]]), x.name))
    monkeypatch.setattr(write, "build", lambda *given: model.SerializeToString())
    with pytest.raises(SessionError, match=r"cannot be run|will not be run|failed"):
        ct.export_onnx(net, tmp_path / "net.onnx", chunk=2048)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("chunk", [0, -256, 100, 257])
def test_chunks_are_whole_hops(chunk: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"multiple of the hop 256, got {chunk}"):
        ct.export_onnx(network("kws-hybrid-2"), tmp_path / "net.onnx", chunk)
