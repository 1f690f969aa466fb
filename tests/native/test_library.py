"""Compiling once, and without a compiler: a missing, failing or disabled one changes nothing but the speed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from centaurus.native import build
from centaurus.native.build import status
from tests.cli.run import run


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CENTAURUS_NATIVE", "1")
    build._load.cache_clear()
    yield
    build._load.cache_clear()


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_the_status_says_that_there_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert build.library() is None
    assert "no C compiler" in status().reason


def test_the_status_has_the_message_of_a_failing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", fake_compiler(tmp_path, "echo 'vector.h: no such machine' >&2; exit 1"))
    assert build.library() is None
    assert "no such machine" in status().reason
    assert not list(tmp_path.glob("centaurus/native/*"))


def test_the_status_reports_a_file_that_is_not_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = 'while [ "$1" != "-o" ]; do shift; done; echo no library > "$2"'
    monkeypatch.setenv("CC", fake_compiler(tmp_path, script))
    assert build.library() is None
    assert status().reason


def test_the_status_reports_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    script = 'while [ "$1" != "-o" ]; do shift; done; : > "$2"'
    monkeypatch.setenv("CC", fake_compiler(tmp_path, script))
    assert build.library() is None
    assert "cannot be kept" in status().reason


def test_the_switch_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENTAURUS_NATIVE", "0")
    assert build.library() is None
    assert "CENTAURUS_NATIVE=0" in status().reason


@pytest.mark.skipif(build.find_compiler() is None, reason="no C compiler")
def test_a_library_is_compiled_once_and_again_for_another_source(tmp_path: Path) -> None:
    compiler = build.find_compiler()
    assert compiler is not None
    source = tmp_path / "one.c"
    source.write_text("int one(void) { return 1; }\n")
    first = build.build_library([source], [], ["-shared", "-fPIC"], compiler)
    made = os.stat(first).st_mtime_ns
    assert build.build_library([source], [], ["-shared", "-fPIC"], compiler) == first
    assert os.stat(first).st_mtime_ns == made
    source.write_text("int one(void) { return 2; }\n")
    assert build.build_library([source], [], ["-shared", "-fPIC"], compiler) != first


def test_the_command_line_tells_whether_they_are_used(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CENTAURUS_NATIVE", "0")
    data = run(capsys, "bench", "--environment", "--json").json()
    assert data["native"]["used"] is False
    assert "CENTAURUS_NATIVE=0" in run(capsys, "bench", "--environment").out
    assert run(capsys, "bench").code == 2
