"""Hints on what to install work for every kind of installation; errors say which file and why."""

from __future__ import annotations

import json
import os
import pickle
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from centaurus import system
from centaurus.audio import AudioError
from centaurus.data.layouts import SourceError
from centaurus.export.write import ExportError
from centaurus.models.io import ModelError, ModelNotFoundError
from centaurus.runtime import SessionError
from centaurus.system import (
    FileError,
    MissingModelError,
    OutputError,
    choose_threads,
    install_command,
    replacing,
    what_to_install,
)
from centaurus.train.run import RunError

FILE_ERRORS = (
    *(AudioError, ExportError, MissingModelError, ModelError, ModelNotFoundError, OutputError, RunError, SessionError),
    SourceError,
)


def installed(monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, Any] | None) -> None:
    text = None if direct_url is None else json.dumps(direct_url)
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=lambda file: text))


def test_the_command_follows_the_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, None)
    assert install_command("mic") == "pip install 'centaurus-ssm[mic]'"
    folder = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    installed(monkeypatch, folder)
    assert install_command("train") == "pip install torch safetensors accelerate tensorboard tokenizers"  # it is gone
    (tmp_path / "pyproject.toml").touch()
    assert install_command("mic") == f"pip install -e '{tmp_path}[mic]'"
    installed(monkeypatch, {"url": "https://example.org/c.git", "vcs_info": {"vcs": "git"}})
    assert install_command("hub") == "pip install 'centaurus-ssm[hub] @ git+https://example.org/c.git'"


def test_the_extra_is_that_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    missing = ModuleNotFoundError("no torch", name="torch.nn")
    assert what_to_install(missing).endswith("[torch]'")
    assert what_to_install(missing, preferred="train").endswith("[train]'")
    assert what_to_install(missing, preferred="spot").endswith("[torch]'")
    assert what_to_install(ModuleNotFoundError("no onnx", name="onnx"), preferred="train").endswith("[export]'")
    assert what_to_install(ModuleNotFoundError("no such thing", name="other")) == "no such thing"


def test_threads_are_chosen_where_the_environment_does_not_say() -> None:
    environment: dict[str, str] = {}
    words = choose_threads(environment)
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert words.startswith(environment["OMP_NUM_THREADS"])
    assert words.endswith("passive while waiting")
    own = {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE"}
    assert choose_threads(own) == "3 threads, active while waiting"
    assert own == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "ACTIVE"}


@pytest.mark.parametrize("kind", FILE_ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_about_a_file_carries_path_and_reason_also_between_processes(kind: type[FileError]) -> None:
    error = kind("is damaged", "folder/file.wav")
    assert (error.reason, error.path) == ("is damaged", Path("folder/file.wav"))
    assert str(error) == ("is damaged" if issubclass(kind, MissingModelError) else "folder/file.wav: is damaged")
    assert kind("no file at all").path is None
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copy), str(copy), copy.reason, copy.path) == (kind, str(error), error.reason, error.path)


@pytest.mark.parametrize("attempts", [2, 100])
def test_a_file_that_is_open_elsewhere_is_replaced_a_little_later_on_windows(
    attempts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Path] = []
    rename = os.replace

    def refuse(source: Path, target: Path) -> None:
        tries.append(source)
        if len(tries) <= attempts:
            raise PermissionError(13, "Access is denied", str(source))
        rename(source, target)

    monkeypatch.setattr(system, "WINDOWS", True)
    monkeypatch.setattr(system, "RENAME_PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(os, "replace", refuse)
    target = tmp_path / "a.txt"
    target.write_text("old", encoding="utf-8")
    if attempts < 4:
        with replacing(target) as temporary:
            temporary.write_text("new", encoding="utf-8")
    else:
        with pytest.raises(OutputError, match="Access is denied"), replacing(target) as temporary:
            temporary.write_text("new", encoding="utf-8")
    assert target.read_text(encoding="utf-8") == ("new" if attempts < 4 else "old")
    assert len(tries) == min(attempts + 1, 4)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
