"""Models on the Hugging Face Hub, against a stand-in: the layout that its cache has on disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

import centaurus as ct
from centaurus.runtime import Session
from centaurus.system import download_model
from tests.cli.run import run
from tests.runtime.models import exported

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandIn:
    """What the library asks of ``HfApi``, writing into the cache as a download would leave it."""

    folder: Path

    def create_repo(self, name: str, private: bool, exist_ok: bool) -> None:
        assert exist_ok
        refs = self.folder / f"models--{name.replace('/', '--')}" / "refs"
        refs.mkdir(parents=True)
        (refs / "main").write_text(COMMIT)

    def upload_folder(self, repo_id: str, folder_path: str, commit_message: str) -> None:
        snapshot = self.folder / f"models--{repo_id.replace('/', '--')}" / "snapshots" / COMMIT
        shutil.copytree(folder_path, snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    StandIn.folder = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub, "HfApi", StandIn)
    result: Any = huggingface_hub.hf_hub_download

    def offline(repository: str, file: str, revision: str | None) -> str:
        return result(repository, file, revision=revision, cache_dir=StandIn.folder, local_files_only=True)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    return StandIn.folder


def test_a_model_that_was_pushed_is_loaded_by_its_name(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ct.save(ct.classifier("kws-hybrid-2", classes=3), tmp_path / "mine.safetensors")
    shutil.copyfile(exported("classifier"), tmp_path / "mine.onnx")
    (tmp_path / "mine.md").write_text("# mine\n")
    done = run(capsys, "push", str(tmp_path / "mine.safetensors"), "somebody/words")
    assert done.code == 0, done.err
    assert "README.md, model.onnx, model.safetensors" in done.out
    assert "hf:somebody/words" in done.out
    net = ct.load("hf:somebody/words")
    assert ct.count(net).parameters == ct.count(ct.load(tmp_path / "mine.safetensors")).parameters
    assert Session("hf:somebody/words").settings == Session(exported("classifier")).settings
    assert download_model(f"hf:somebody/words@{COMMIT}", ".onnx").name == "model.onnx"
    counted = run(capsys, "count", "hf:somebody/words")
    assert counted.code == 0, counted.err


def test_a_model_that_is_not_there_is_one_message(
    hub: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = run(capsys, "spot", str(tmp_path), "--model", "hf:nobody/nothing")
    assert done.code
    assert "hf:nobody/nothing: model.onnx could not be downloaded" in done.err
    assert done.err.count("\n") == 1
    with pytest.raises(FileNotFoundError, match=r"hf:no such name: model\.onnx"):
        download_model("hf:no such name", ".onnx")


def test_only_models_are_pushed(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "talk.wav").touch()
    done = run(capsys, "push", str(tmp_path / "talk.wav"), "somebody/words")
    assert done.code
    assert "a model is a .safetensors or .onnx file" in done.err
    assert not hub.exists()
    assert run(capsys, "push", "nowhere.onnx", "somebody/words").code == 4


def test_an_upload_that_fails_is_one_message(
    hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class ConnectError(Exception):
        """As an HTTP client has them: neither an OSError nor a ValueError."""

    def fail(*_: object, **__: object) -> None:
        raise ConnectError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", fail)
    done = run(capsys, "push", str(exported("classifier")), "somebody/words")
    assert done.code == 5
    assert done.err == "centaurus: hf:somebody/words: could not be uploaded: Name or service not known\n"


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"huggingface_hub is needed.*\[hub\]"):
        download_model("hf:somebody/words", ".onnx")
