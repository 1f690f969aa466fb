"""The shipped models as WebAssembly: built again where clang is present, and run by Node."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from centaurus.audio import read
from centaurus.export.c import export_wasm, find_clang
from centaurus.models import load
from centaurus.runtime import Session
from tests.export.test_networks import network

MODELS = Path(str(files("centaurus") / "pretrained"))
NAMES = sorted(path.stem for path in MODELS.glob("*.wasm"))
MOST_BYTES = {"kws-30": 300_000, "denoise-16k": 3_000_000}  # compressed
RUN = Path(__file__).parent / "run_wasm.mjs"
WEB = Path(__file__).parent.parent.parent / "bench" / "web.mjs"
ORT_WEB = os.environ.get("CENTAURUS_ORT_WEB", "")  # a node_modules folder
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_clang = pytest.mark.skipif(find_clang() is None, reason="clang and lld are not installed")


def run_module(module: Path, x: NDArray[np.float32]) -> tuple[dict[str, object], NDArray[np.float32]]:
    """A module's settings, and its output (outputs, frames) for whole steps of a signal."""
    done = subprocess.run(["node", str(RUN), str(module)], input=x.tobytes(), capture_output=True, check=True)
    line, _, data = done.stdout.partition(b"\n")
    about = json.loads(line)
    return about, np.frombuffer(data, np.float32).reshape(-1, about["outputs"]).T


def off(model: Path, session: Session, seconds: float) -> float:
    x = read(MODELS.parent / "assets" / "demo.flac").mono[: round(seconds * session.settings.rate) // 4096 * 4096]
    about, actual = run_module(model, x)
    assert about["rate"] == session.settings.rate
    assert about["settings"]["classes"] == (
        None if session.settings.classes is None else list(session.settings.classes)
    )
    expected = session.process(x).reshape(session.settings.features, -1)
    frames = min(actual.shape[1], expected.shape[1])
    assert frames > 0.9 * expected.shape[1]
    return float(np.abs(actual[:, :frames] - expected[:, :frames]).max() / np.abs(expected).max())


@needs_node
@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_module_is_the_shipped_model(name: str) -> None:
    assert off(MODELS / f"{name}.wasm", Session(name), 3.0) < 1e-4


@pytest.mark.parametrize("name", [*MOST_BYTES, "commands"])
def test_a_shipped_module_is_small(name: str) -> None:
    size = len(gzip.compress((MODELS / f"{name}.wasm").read_bytes(), 9))
    assert size < MOST_BYTES.get(name, 3_000_000)


@needs_node
@pytest.mark.skipif(not ORT_WEB, reason="CENTAURUS_ORT_WEB is not set: `make bench-web` fetches it")
@pytest.mark.parametrize("name", ["denoise-16k", "kws-30"])
def test_a_shipped_module_is_faster_than_onnxruntime_web(name: str) -> None:
    paths = [str(MODELS / f"{name}.{suffix}") for suffix in ("wasm", "onnx")]
    done = subprocess.run(["node", str(WEB), ORT_WEB, *paths], capture_output=True, check=True)
    spent = json.loads(done.stdout)
    assert spent["module"] < spent["onnxruntime_web"]


@needs_clang
def test_a_module_is_built_again(tmp_path: Path) -> None:
    export_wasm(load("kws-30"), tmp_path / "kws-30.wasm", name="kws-30")
    again, shipped_one = (tmp_path / "kws-30.wasm").read_bytes(), (MODELS / "kws-30.wasm").read_bytes()
    assert abs(len(again) - len(shipped_one)) < 4096  # another clang writes other code, but the same tables


@needs_clang
@needs_node
def test_a_network_as_a_module_equals_the_network(tmp_path: Path) -> None:
    import torch

    net = network("denoiser/hybrid")
    export_wasm(net, tmp_path / "net.wasm", weights="fp32")
    x = 0.1 * torch.randn(1, 1, 20 * net.hop, generator=torch.Generator().manual_seed(1))
    _, actual = run_module(tmp_path / "net.wasm", x.numpy())
    with torch.no_grad():
        expected = net.double()(x.double())[0].numpy()
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()
