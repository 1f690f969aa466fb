"""A model file gives back the same network, or one clear error; nothing in it is ever run."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from centaurus import system
from centaurus.models import Network, denoiser, io, load, save
from centaurus.nn import Stream
from centaurus.nn.stream import unpack
from tests.models.small import narrow

TASKS = ["kws-hybrid-2", "denoiser/hybrid-conv", "recognizer/mamba"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save(narrow("denoiser/hybrid-slim"), path)
    return path


def rewrite(source: Path, target: Path, drop: str = "", **words: str) -> Path:
    """The same file with other words, or without one of its tensors."""
    tensors, old = unpack(source.read_bytes())
    tensors.pop(drop, None)
    save_file(tensors, target, {name: text for name, text in (old | words).items() if text})
    return target


def table_of(path: Path) -> dict:
    return json.loads(unpack(path.read_bytes())[1]["table"])


@pytest.mark.parametrize("name", TASKS)
def test_a_network_comes_back(name: str, tmp_path: Path) -> None:
    net = narrow(name)
    net.settings |= {"classes": ["yes", "nö"], "nested": {"rate": 0.5}}
    save(net, tmp_path / "net.safetensors")
    back = load(tmp_path / "net.safetensors")
    assert (type(back), back.table, back.settings) == (type(net), net.table, net.settings)
    assert not back.training
    u = torch.randn(1, 1, net.hop + 3)
    assert torch.equal(back(u), net.eval()(u))


def test_double_precision_stays_double(tmp_path: Path) -> None:
    net = narrow("denoiser/hybrid-slim").double()
    save(net, tmp_path / "net.safetensors")
    u = torch.randn(1, 1, 300, dtype=torch.float64)
    assert torch.equal(load(str(tmp_path / "net.safetensors"))(u), net(u))


def test_loading_leaves_the_random_numbers_alone(written: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load(written)
    assert torch.equal(torch.rand(3), expected)


def test_the_file_is_ordinary_safetensors_with_json(written: Path) -> None:
    assert load_file(written).keys() == load(written).state_dict().keys()
    assert table_of(written)["encoder"][0]["kind"] == "full"
    assert stat.S_IMODE(written.stat().st_mode) & 0o600 == 0o600


@pytest.mark.parametrize("kept", [0, 3, 8, 100, -1])
def test_a_truncated_file(kept: int, written: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(written.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"cut\.safetensors: is not a complete safetensors file"):
        load(path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "other.bin"
    for data in (b"\x80\x04\x95payload" * 40, b"RIFF" + bytes(300), os.urandom(4096)):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"other\.bin: is not a complete safetensors file"):
            load(path)


def test_a_foreign_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    for words in (None, {"format": "pt"}):
        save_file({"x": torch.zeros(2)}, path, words)
        with pytest.raises(ValueError, match=r"foreign\.safetensors: is a safetensors file but not a centaurus model"):
            load(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"version": "3"}, "has format '3', this centaurus reads formats 1 and 2"),
        ({"version": "2"}, "lacks tree"),
        ({"version": "x"}, "has format 'x'"),
        ({"table": ""}, "lacks table"),
        ({"table": "{"}, "its table is not JSON"),
        ({"table": "[" * 100_000}, "its table is not JSON"),
        ({"settings": '{"a":' * 100_000}, "its settings is not JSON"),
        ({"table": '{"encoder": ' + "9" * 10_000 + "}"}, "cannot be built"),
        ({"table": "[]"}, "its table should be a mapping"),
        ({"table": "{}"}, r"lacks \['encoder'"),
        ({"settings": "3"}, "its settings should be a mapping"),
        ({"task": "chess"}, "one of classifier, denoiser, recognizer, got 'chess'"),
        ({"task": "classifier"}, "unknown fields"),
    ],
)
def test_words_that_do_not_fit(words: dict[str, str], message: str, written: Path, tmp_path: Path) -> None:
    path = rewrite(written, tmp_path / "odd.safetensors", **words)
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert "odd.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kind", "__import__('os').abort()", "unknown topology"),
        ("kind", 3, "kind should be of type str, got 3"),
        ("states", "4", "states should be of type int, got '4'"),
        ("states", True, "states should be of type int, got True"),
        ("states", -4, "-4"),
        ("states", 2**63, "states should be a number up to 1,048,576"),
        ("states", 1e300, "states should be of type int"),
        ("times", 10**9, "times should be a number up to 1,048,576"),
        ("times", 10**6, "should stack at most 4096 blocks"),
        ("colour", 1, r"unknown fields \['colour'\]"),
        ("states", 7, "does not fit its own table: .* has shape"),
    ],
)
def test_rows_that_do_not_fit(field: str, value: object, message: str, written: Path, tmp_path: Path) -> None:
    table = table_of(written)
    table["encoder"][0][field] = value
    path = rewrite(written, tmp_path / "rows.safetensors", table=json.dumps(table))
    with pytest.raises(ValueError, match=message) as caught:
        load(path)
    assert "rows.safetensors" in str(caught.value)


def test_a_missing_tensor(written: Path, tmp_path: Path) -> None:
    gone = sorted(load_file(written))[0]
    with pytest.raises(ValueError, match=rf"does not fit its own table: missing \['{gone}'\]"):
        load(rewrite(written, tmp_path / "less.safetensors", drop=gone))


def test_no_such_model() -> None:
    with pytest.raises(FileNotFoundError, match="no model file 'nowhere', and no shipped model"):
        load("nowhere")


def test_a_shipped_model_by_its_name(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "tiny.safetensors").write_bytes(written.read_bytes())
    monkeypatch.setattr(system, "files", lambda package: tmp_path)
    assert io.shipped() == ["tiny"]
    assert load("tiny").table == load(written).table


def test_a_failed_write_leaves_the_old_file(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(written.read_bytes())

    def full(source: str, target: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        save(narrow("kws-hybrid-2"), path)
    assert path.read_bytes() == written.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]


def test_only_layers_are_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="save takes a centaurus layer or network, got Linear"):
        save(torch.nn.Linear(1, 1), tmp_path / "x.safetensors")


CONTINUE = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
from centaurus.models import load
from centaurus.nn import Stream

folder = Path(sys.argv[1])
live = Stream(load(folder / "net.safetensors"), batch=2)
live.restore((folder / "live.bin").read_bytes())
u = load_file(folder / "rest.safetensors")["u"]
save_file({"y": torch.cat([live(u), live.flush()], dim=-1)}, folder / "out.safetensors")
"""


def test_a_saved_stream_continues_exactly_in_another_process(tmp_path: Path) -> None:
    net: Network = denoiser(narrow("denoiser/hybrid").table)
    save(net, tmp_path / "net.safetensors")
    u = torch.randn(2, 1, 2000)
    live = Stream(load(tmp_path / "net.safetensors"), batch=2)
    live(u[..., :999])
    live.reset([1])
    (tmp_path / "live.bin").write_bytes(live.save())
    save_file({"u": u[..., 999:].contiguous()}, tmp_path / "rest.safetensors")
    expected = torch.cat([live(u[..., 999:]), live.flush()], dim=-1)
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    subprocess.run([sys.executable, "-c", CONTINUE, str(tmp_path)], check=True, env=environment)
    assert torch.equal(load_file(tmp_path / "out.safetensors")["y"], expected)
