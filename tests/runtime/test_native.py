"""A compiled step in place of onnxruntime: the same results, the same methods."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

import centaurus as ct
from centaurus.export import c as exporter
from centaurus.native.build import find_compiler
from centaurus.runtime import Session, SessionError, native
from centaurus.runtime.denoise import FileDenoiser, Job, Options
from centaurus.runtime.native import Native
from tests.models.small import narrow

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A keyword spotter as model.onnx, model.safetensors and step.c, and a cache of its own."""
    made = tmp_path_factory.mktemp("native")
    torch.manual_seed(3)
    net = narrow("kws-hybrid-2").eval()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "SECONDS", 0.1)
        ct.export_onnx(net, made / "model.onnx", chunk=2 * net.hop)
        ct.export_c(net, made / "step.c", chunk=2 * net.hop)
    ct.save(net, made / "model.safetensors")
    return made


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("CC", raising=False)
    return folder / "cache"


def noise(*shape: int) -> np.ndarray:
    return (0.1 * np.random.default_rng(1).standard_normal(shape)).astype(np.float32)


@needs_compiler
def test_a_compiled_step_gives_what_onnxruntime_gives(folder: Path, cache: Path) -> None:
    x = noise(3, 5000)
    by_onnx = Session(folder / "model.onnx", batch=3)
    by_c = Session(folder / "model.onnx", batch=3, engine="c", hops=2)
    assert (by_onnx.engine, by_c.engine) == ("onnxruntime", "c")
    for start in (0, 1700, 3000):
        piece = x[:, start : start + 1700]
        np.testing.assert_allclose(by_c.process(piece), by_onnx.process(piece), rtol=0, atol=1e-5)
    assert len(list(cache.rglob("*.so"))) == 1


@needs_compiler
def test_a_compiled_session_is_saved_restored_and_joined(folder: Path) -> None:
    x = noise(2, 6000)
    session = Session(folder / "step.c", batch=2, engine="c")
    session.process(x[:, :2000])
    saved = session.save()
    rest = session.process(x[:, 2000:])
    again = Session(folder / "step.c", batch=2, engine="c")
    again.restore(saved)
    np.testing.assert_array_equal(again.process(x[:, 2000:]), rest)
    again.reset([1])
    alone = Session(folder / "step.c", engine="c")
    again.reset()
    np.testing.assert_array_equal(again.process(x)[1:], alone.process(x[1:]))


class AtOnce(ThreadPoolExecutor):
    """Another thread that is always as far ahead as it may be."""

    def submit(self, *arguments: Any) -> Future[Any]:
        future = super().submit(*arguments)
        wait([future])
        return future


@needs_compiler
@pytest.mark.parametrize("name", ["denoiser/spectral-32", "denoiser/hybrid", "kws-hybrid-2"])
def test_two_threads_give_what_one_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit-exact, for any split of the signal and from any state."""
    monkeypatch.setattr(exporter, "SECONDS", 0.05)
    torch.manual_seed(6)
    net = narrow(name).eval()
    ct.export_c(net, tmp_path / "step.c", chunk=2 * net.hop)
    one, two = (Session(tmp_path / "step.c", 2, threads, "c") for threads in (1, 2))
    monkeypatch.setattr(native, "ThreadPoolExecutor", AtOnce)
    runs: list[int] = []
    by_two = Native.run_steps
    monkeypatch.setattr(Native, "run_steps", lambda self, *args: runs.append(args[-1]) or by_two(self, *args))
    chunk = one.settings.chunk
    x = noise(2, 61 * chunk + 5)
    ends = [3, 9 * chunk + 1, 9 * chunk + 7, 10 * chunk, 27 * chunk + 2, x.shape[1]]
    for start, end in pairwise([0, *ends]):
        np.testing.assert_array_equal(two.process(x[:, start:end]), one.process(x[:, start:end]))
        one.restore(two.save())
    np.testing.assert_array_equal(two.flush(), one.flush())
    np.testing.assert_array_equal(two.process(x), one.process(x))
    assert runs == [9, 17, 34, 61]


@needs_compiler
def test_a_step_without_halves_runs_on_one_thread(folder: Path, tmp_path: Path) -> None:
    """As written by earlier versions."""
    source = (folder / "step.c").read_text(encoding="utf-8")
    (tmp_path / "step.c").write_text(source.replace("#define CT_HALVES\n", ""), encoding="utf-8")
    (tmp_path / "step.h").write_bytes((folder / "step.h").read_bytes())
    x = noise(20_000)
    old, new = (Session(path / "step.c", threads=2, engine="c") for path in (tmp_path, folder))
    np.testing.assert_array_equal(old.process(x), new.process(x))


def test_without_a_compiler_it_is_onnxruntime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert Session(folder / "model.onnx", engine="c").engine == "onnxruntime"


def test_without_a_source_it_is_onnxruntime(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes((folder / "model.onnx").read_bytes())
    assert Session(tmp_path / "other.onnx", engine="c").engine == "onnxruntime"


@needs_compiler
def test_a_c_file_beside_a_model_is_not_run(folder: Path, tmp_path: Path) -> None:
    """It is a program, and whoever names a model does not ask for one."""
    (tmp_path / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    (tmp_path / "model.h").write_bytes((folder / "step.h").read_bytes())
    program = f'__attribute__((constructor)) static void run(void) {{ fclose(fopen("{tmp_path / "run"}", "w")); }}'
    source = (folder / "step.c").read_text(encoding="utf-8").replace('"step.h"', '"model.h"')
    (tmp_path / "model.c").write_text(f"#include <stdio.h>\n{source}\n{program}\n", encoding="utf-8")
    assert Session(tmp_path / "model.onnx", engine="c").engine == "onnxruntime"
    assert not (tmp_path / "run").exists()
    assert Session(tmp_path / "model.c", engine="c").engine == "c"
    assert (tmp_path / "run").exists()  # so the file would have done it


@needs_compiler
def test_weights_of_another_model_beside_it_are_not_run(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    net = ct.load(folder / "model.safetensors")
    ct.save(net, tmp_path / "model.safetensors")
    assert Session(tmp_path / "model.onnx", engine="c").engine == "c"
    with torch.no_grad():
        next(net.parameters()).mul_(1.01)
    ct.save(net, tmp_path / "model.safetensors")
    assert Session(tmp_path / "model.onnx", engine="c").engine == "onnxruntime"


@needs_compiler
def test_a_file_that_is_not_a_step_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int main(void) { return 0; }\n")
    with pytest.raises(SessionError, match="not a C file written by centaurus"):
        Session(tmp_path / "x.c", engine="c")
    with pytest.raises(SessionError, match="engine should be one of onnxruntime, c, got 'cuda'"):
        Session(tmp_path / "x.c", engine="cuda")
    step = '{"prefix": "x", "inputs": 1, "state_floats": 1}'
    faults = {"{" + "[" * 100_000 + "}": "not JSON", '{"prefix": "x"}': "`inputs`", step: "settings cannot be used"}
    for text, message in faults.items():
        (tmp_path / "x.c").write_text(f"/* centaurus: {text} */\n")
        with pytest.raises(SessionError, match=message):
            Session(tmp_path / "x.c", engine="c")


@needs_compiler
def test_a_long_file_is_denoised_by_a_compiled_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streaming is offline for both engines: a file gives what one signal gives, in whichever steps."""
    torch.manual_seed(4)
    net = narrow("denoiser/hybrid").eval()
    monkeypatch.setattr(exporter, "SECONDS", 0.1)
    ct.export_onnx(net, tmp_path / "model.onnx")
    ct.save(net, tmp_path / "model.safetensors")
    x = noise(48_000)
    soundfile.write(tmp_path / "x.wav", x, 16_000, subtype="FLOAT")
    module = sys.modules[FileDenoiser.__module__]
    monkeypatch.setattr(module, "LONG", 0.5)
    monkeypatch.setattr(module, "TWO", 2)
    pipelines: list[object] = []
    by_two = Native.run_steps
    monkeypatch.setattr(Native, "run_steps", lambda *arguments: pipelines.append(arguments) or by_two(*arguments))
    made = {}
    for name, engine, threads in (("auto", "auto", None), ("one", "auto", 1), ("onnxruntime", "onnxruntime", None)):
        job = Job(tmp_path / "x.wav", tmp_path / f"{name}.wav")
        FileDenoiser(Options(str(tmp_path / "model.onnx"), threads=threads, engine=engine)).run(job)
        made[name] = soundfile.read(job.output)[0]
        assert len(pipelines) == 1  # by the first
    np.testing.assert_array_equal(made["auto"], made["one"])
    with torch.no_grad():
        whole = net(torch.from_numpy(x)[None, None])[0, 0].numpy()
    assert made["auto"].shape == whole.shape
    assert np.abs(made["auto"] - whole).max() < 1e-5
    assert np.abs(made["auto"] - made["onnxruntime"]).max() < 1e-5
    assert (made["auto"] != made["onnxruntime"]).any()  # the engines round differently: both were used
