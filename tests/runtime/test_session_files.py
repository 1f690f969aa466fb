"""Files that a session refuses: of other programs, damaged, hostile, or not what they say they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from centaurus.runtime import Session, SessionError
from centaurus.runtime import session as session_module
from centaurus.runtime.modelfile import find_model, shipped_models
from tests.runtime.models import exported

Model = onnx.ModelProto


def words(model: Model) -> dict[str, Any]:
    return json.loads(model.metadata_props[0].value)


def saying(**changes: Any) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.metadata_props[0].value = json.dumps(words(model) | changes)

    return change


def text(value: str) -> Callable[[Model], None]:
    def change(model: Model) -> None:
        model.metadata_props[0].value = value

    return change


def external(model: Model) -> None:
    x = model.graph.initializer[0]
    x.data_location = TensorProto.EXTERNAL
    x.ClearField("raw_data")
    x.external_data.add(key="location", value="../../../etc/passwd")


def loop(model: Model) -> None:
    model.graph.node.append(helper.make_node("Loop", [], ["x"], body=model.graph))


def foreign(model: Model) -> None:
    model.graph.node.append(helper.make_node("Run", [], ["x"], domain="com.evil"))


def huge(model: Model) -> None:
    model.graph.node.append(helper.make_node("ConstantOfShape", ["s"], ["x"]))


def attribute(model: Model) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(2))))


def sparse(model: Model) -> None:
    model.graph.sparse_initializer.add()


def function(model: Model) -> None:
    model.functions.add(name="f", domain="")


def integers(model: Model) -> None:
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64


def fixed_batch(model: Model) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1


def renamed(model: Model) -> None:
    model.graph.input[0].name = "sound"


def no_states(model: Model) -> None:
    del model.graph.output[1:]


def unconnected(model: Model) -> None:
    model.graph.node[3].input[0] = "nothing"


def subgraph(model: Model) -> None:
    model.graph.node[0].attribute.append(helper.make_attribute("body", model.graph))


def doubled(model: Model) -> None:
    """2 kB of nodes that would make 2^40 numbers."""
    last = model.graph.input[0].name
    for k in range(32):
        model.graph.node.append(helper.make_node("Concat", [last, last], [f"double{k}"], axis=-1))
        last = f"double{k}"


def endless(model: Model) -> None:
    """Products of a constant that is small in the file and take minutes."""
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 4096), np.float32), "row"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4096, 1), np.float32), "column"))
    model.graph.node.append(helper.make_node("MatMul", ["column", "row"], ["square"]))
    for k in range(8):
        model.graph.node.append(helper.make_node("MatMul", ["square", "square"], [f"power{k}"]))


def lying(model: Model) -> None:
    model.graph.output[1].type.tensor_type.shape.dim[-1].dim_value += 1


def computed_shape(model: Model) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array([1 << 40]), "size"))
    model.graph.node.append(helper.make_node("Add", ["size", "size"], ["sum"]))
    model.graph.node.append(helper.make_node("Reshape", ["audio", "sum"], ["x"]))


def hollow(model: Model) -> None:
    model.graph.initializer.append(TensorProto(name="x", dims=[1 << 40], data_type=TensorProto.FLOAT))


def redefined(model: Model) -> None:
    model.graph.node.append(helper.make_node("Identity", ["audio"], [model.graph.node[0].output[0]]))


STATES = [{"name": "state.x", "shape": [1 << 20, 1 << 20]}]
FAULTS: dict[str, tuple[Callable[[Model], None], str]] = {
    "external data": (external, "will not be run: one constant in it has data in another file"),
    "control flow": (loop, "operator 'Loop'"),
    "a graph in a node": (subgraph, "one attribute in it has a graph"),
    "memory": (doubled, "a step would take"),
    "time": (endless, "a step would take"),
    "other outputs": (lying, "of shape"),
    "a shape that is computed": (computed_shape, "input 1 should be an integer constant"),
    "a constant without data": (hollow, "a constant of shape .* has 0 bytes"),
    "made twice": (redefined, "exists already"),
    "two metadata": (lambda m: m.metadata_props.append(m.metadata_props[0]), "metadata have 'centaurus' twice"),
    "another opset": (lambda m: m.opset_import.add(domain="com.evil", version=1), "operators of one version"),
    "another domain": (foreign, r"operator 'com\.evil\.Run', which no file written by centaurus does"),
    "an operator of its own": (huge, "operator 'ConstantOfShape'"),
    "a tensor in a node": (attribute, "one attribute in it has a tensor"),
    "sparse": (sparse, "sparse constants"),
    "functions": (function, "functions of its own"),
    "no metadata": (lambda m: m.ClearField("metadata_props"), "not one written by centaurus"),
    "no JSON": (text("{"), "settings are not JSON"),
    "deep JSON": (text("[" * 100_000), "settings are not JSON"),
    "a list": (text("[]"), r"Expected `object`, got `array`"),
    "another version": (saying(version=2), "format 2, this centaurus reads format 1"),
    "no rate": (saying(rate=None), r"Expected `int`, got `null` - at `\$\.rate`"),
    "rate of true": (saying(rate=True), r"Expected `int`, got `bool` - at `\$\.rate`"),
    "rate as text": (saying(rate="16000"), "Expected `int`, got `str`"),
    "huge chunk": (saying(chunk=1 << 40), r"Expected `int` <= 16777216 - at `\$\.chunk`"),
    "another chunk": (saying(chunk=512), r"input 'audio' of shape .* should be 'audio' of shape"),
    "crooked chunk": (saying(chunk=257), "chunk 257 should be a multiple of hop 256"),
    "ratio": (saying(ratio=[1, 0]), r"Expected `int` >= 1 - at `.*\[1\]`"),
    "fractional frames": (saying(ratio=[1, 257]), "should give whole frames"),
    "task": (saying(task="translator"), "task should be one of denoiser, classifier, recognizer"),
    "classes": (saying(classes=[1, 2]), r"Expected `str`, got `int` - at `\$\.classes\[0\]`"),
    "too many classes": (saying(classes=["a"] * 9), "9 classes for 1 features"),
    "card": (saying(card=7), r"Expected `str`, got `int` - at `\$\.card`"),
    "huge states": (saying(states=STATES), "more than"),
    "negative state": (
        saying(states=[{"name": "x", "shape": [-1]}]),
        r">= 0 - at `\$\.states\[0\]\.shape\[0\]`",
    ),
    "nameless state": (saying(states=[{"shape": [1]}]), r"missing required field `name` - at `\$\.states\[0\]`"),
    "twice": (saying(states=[{"name": "x", "shape": [1]}] * 2), "two states have one name"),
    "no states": (saying(states=[]), "its settings say 1"),
    "integers": (integers, "should be of single precision"),
    "a fixed batch": (fixed_batch, "of shape"),
    "renamed": (renamed, "should be 'audio'"),
    "fewer outputs": (no_states, "has 1 outputs"),
    "unconnected": (unconnected, "reads 'nothing', which no earlier node produces"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_with_a_fault_is_refused(name: str, tmp_path: Path) -> None:
    change, message = FAULTS[name]
    model = onnx.load(exported("denoiser"))
    change(model)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SessionError, match=message) as caught:
        Session(path)
    assert caught.value.path == path
    assert caught.value.reason
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    assert len(str(caught.value)) < 1000


def wide_tag(field: int, high: int) -> bytes:
    """A tag in five bytes. Protobuf drops the bits above 32, here ``high``; other readers see another field."""
    return bytes([field << 3 | 2 | 0x80, 0x80, 0x80, 0x80, high << 4])


@pytest.mark.parametrize("high", [0, 1, 7])
def test_a_field_hidden_from_other_readers_is_seen(high: int, tmp_path: Path) -> None:
    model = onnx.load(exported("denoiser"))
    node = helper.make_node("Loop", [], ["x"]).SerializeToString()
    graph = model.graph.SerializeToString() + wide_tag(1, high) + bytes([len(node)]) + node
    model.ClearField("graph")
    data = model.SerializeToString() + b"\x3a" + length(graph) + graph
    with pytest.raises(Exception, match=r"Required attribute 'body' is missing|Loop"):  # the runtime sees it
        onnxruntime.InferenceSession(data)
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(SessionError, match="there is no field" if high else "operator 'Loop'"):
        Session(path)


def length(data: bytes) -> bytes:
    """A length as a varint."""
    n, out = len(data), b""
    while n > 127:
        n, out = n >> 7, out + bytes([n & 127 | 128])
    return out + bytes([n])


def test_fields_that_protobuf_would_merge_are_refused(tmp_path: Path) -> None:
    model = onnx.load(exported("denoiser"))
    value = model.graph.input.pop(0)
    merged = (
        value.SerializeToString() + b"\x12" + length(value.type.SerializeToString()) + value.type.SerializeToString()
    )
    assert len(onnx.ValueInfoProto.FromString(merged).type.tensor_type.shape.dim) == 6
    graph = model.graph.SerializeToString() + b"\x5a" + length(merged) + merged
    model.ClearField("graph")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString() + b"\x3a" + length(graph) + graph)
    with pytest.raises(SessionError, match="type twice"):
        Session(path)


def test_the_bytes_that_were_checked_are_the_ones_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(exported("denoiser").read_bytes())
    original = session_module._check_fit

    def exchange(*words: Any) -> None:
        path.write_bytes(b"another file by now")
        original(*words)

    monkeypatch.setattr(session_module, "_check_fit", exchange)
    assert Session(path).process(np.zeros(256, np.float32)).shape == (256,)


@pytest.mark.parametrize("data", [b"", b"\x00", b"RIFF....WAVE", b"\xff" * 64, b"\x3a\x05\x0a", b"{}"])
def test_a_file_that_is_not_onnx_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(SessionError, match=r"not an ONNX file, or a damaged one"):
        Session(path)


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    data = exported("denoiser").read_bytes()
    path = tmp_path / "model.onnx"
    for length in np.linspace(1, len(data) - 1, 40, dtype=int):
        path.write_bytes(data[:length])
        with pytest.raises(SessionError):
            Session(path)


def test_too_many_streams() -> None:
    with pytest.raises(SessionError, match="state numbers"):
        Session(exported("denoiser"), batch=1 << 30)


def test_models_are_found_by_path_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_model(str(exported("denoiser"))) == exported("denoiser")
    with pytest.raises(SessionError, match="no model file 'nowhere', and no shipped"):
        find_model("nowhere")
    with pytest.raises(SessionError, match="no model file"):
        find_model(tmp_path)
    for name in shipped_models():
        assert find_model(name).is_file()
