"""Every command of the README and the documents: its options exist, and it runs with a terminal of 80 columns and none.

All are parsed, with the settings of recipes; those that need no microphone, network, compiler or long training run.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import sys
import termios
import threading
from importlib.resources import files
from pathlib import Path

import click
import numpy as np
import pytest
import soundfile
import typer

import centaurus as ct
from centaurus.cli.main import app, main
from centaurus.recipes import launch
from centaurus.train.config import override
from tests.cli.run import run
from tests.runtime.models import exported

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.name != "architecture.md"),
]
COMMAND = re.compile(r"^    .*?\bcentaurus (?=[a-z])(?P<words>.*?)(?:\s{2,}.*|\s[|#&].*)?$", re.MULTILINE)
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
WIDTH = 80
# What runs: a beginning of a documented command.
RUNS = (
    *("denoise talk", "spot talk", "spot meeting", "transcribe talk", "models", "data get", "train kws --small --show"),
    *("verify", "export model.safetensors", "export runs"),
)
NEEDS = ("talk.mp4", "models --networks", "data get speech", "data get mini")  # ffmpeg, seconds, or a network


def documented() -> list[str]:
    texts = [re.sub(r"\\\n\s+", "", page.read_text(encoding="utf-8")) for page in PAGES]  # a command on several lines
    return list(dict.fromkeys(match["words"].strip() for text in texts for match in COMMAND.finditer(text)))


def runnable() -> list[str]:
    return [c for c in documented() if c.startswith(RUNS) and not any(need in c for need in NEEDS)]


def test_documented_commands_are_extracted() -> None:
    assert len(documented()) >= 45
    assert len(runnable()) >= 15


@pytest.mark.parametrize("words", documented())
def test_a_documented_command_is_one(words: str) -> None:
    arguments = shlex.split(words.replace("$port", "9000"))
    command: click.Command = typer.main.get_command(app)
    context: click.Context | None = None
    name = "centaurus"
    while isinstance(command, click.Group):
        context = command.make_context(name, list(arguments), parent=context)
        result, inner, arguments = command.resolve_command(context, arguments)
        assert inner is not None, f"there is no command {words}"
        command, name = inner, result or ""
    context = command.make_context(name, list(arguments), parent=context)
    if name == "train":
        preset = "small" if context.params["small"] else context.params["preset"]
        override(launch.configure(context.params["recipe"], preset), context.params["settings"] or [])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the documents mention."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    clip, rate = soundfile.read(str(files("centaurus") / "assets" / "demo.clean.flac"), dtype="float32")
    for name in ("talk.wav", "talk.mp3", "meeting.wav", "talks/one.wav", "talks/two.wav"):
        Path(name).parent.mkdir(exist_ok=True)
        soundfile.write(name, np.asarray(clip[: 2 * rate]), rate)
    Path("runs/kws-1").mkdir(parents=True)
    net = ct.classifier("kws-hybrid-2", classes=["yes", "no"])
    for name in ("model.safetensors", "runs/kws-1/best.safetensors"):
        ct.save(net, name)
    shutil.copyfile(exported("classifier"), "yes-no.onnx")
    return tmp_path


@pytest.mark.parametrize("words", runnable())
def test_a_documented_command_runs(words: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(words)
    plain = run(capsys, *arguments)
    assert plain.code == 0, plain.err
    assert "\x1b" not in plain.out + plain.err, "control codes without a terminal"
    again = arguments + (["-f"] if arguments[0] in ("denoise", "spot", "transcribe", "export") else [])
    code, screen = on_a_terminal(again)
    assert code == 0, screen
    wide = [line for line in screen if len(line) > WIDTH]
    assert not wide, f"wider than {WIDTH} columns"
    assert not any("Traceback" in line for line in screen)


def test_progress_is_shown_on_a_terminal_only(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, screen = on_a_terminal(["verify", "yes-no.onnx"])
    assert any("verifying yes-no.onnx" in line for line in screen)
    assert "verifying" not in run(capsys, "verify", "yes-no.onnx").err


def on_a_terminal(arguments: list[str]) -> tuple[int, list[str]]:
    """Run a command with a terminal of 80 columns as its output; its code and the lines that stay on the screen."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    shown = bytearray()
    reader = threading.Thread(target=read_all, args=(master, shown))
    reader.start()
    before = sys.stdout, sys.stderr
    code = 0
    with open(slave, "w", encoding="utf-8") as terminal:
        sys.stdout = sys.stderr = terminal
        try:
            main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.stdout, sys.stderr = before
    reader.join()
    os.close(master)
    text = ESCAPE.sub("", shown.decode()).replace("\r\n", "\n")
    return code, [line.rpartition("\r")[2] for line in text.splitlines()]


def read_all(file: int, into: bytearray) -> None:
    """Read a terminal until it has no writer any more."""
    while True:
        try:
            data = os.read(file, 1 << 16)
        except OSError:  # as Linux ends a terminal
            return
        if not data:
            return
        into.extend(data)
