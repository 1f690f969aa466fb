"""``centaurus spot`` and ``transcribe``: tables, JSON lines, captions, live text, microphones and what they lack."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import soundfile

from centaurus.cli import audio
from centaurus.decode import Keyword, join
from centaurus.runtime import spot, transcribe
from tests.cli.run import Result, run
from tests.runtime.models import exported
from tests.runtime.test_listen import KEEN, bursts

Cli = Callable[..., Result]
KEENLY = ("--threshold", "0.34", "--release", "0.33", "--smooth", "0.03", "--refractory", "0.05")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    model = {"spot": exported("classifier"), "transcribe": exported("recognizer")}
    return lambda name, *words: run(capsys, name, "--model", str(model[name]), *map(str, words))


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    soundfile.write(path, bursts(3), 16_000, "FLOAT")
    return path


def test_keywords_as_json_lines_and_as_a_table(cli: Cli, wav: Path) -> None:
    expected = spot(bursts(3), 16_000, exported("classifier"), KEEN)
    lines = [json.loads(line) for line in cli("spot", wav, "--jsonl", *KEENLY).out.splitlines()]
    assert [(line["keyword"], line["time"]) for line in lines] == [(k.word, round(k.time, 3)) for k in expected]
    table = cli("spot", wav, *KEENLY).out.splitlines()
    assert table[0].split() == ["time", "keyword", "confidence"]
    assert [row.split()[1] for row in table[1:]] == [k.word for k in expected]
    assert table[1].startswith("00:00:0")


def test_the_format_follows_the_name(cli: Cli, wav: Path, tmp_path: Path) -> None:
    assert cli("transcribe", wav, "-o", tmp_path / "talk.srt").code == 0
    assert (tmp_path / "talk.srt").read_text().startswith("1\n00:00:00,")
    assert cli("transcribe", wav, "-o", tmp_path / "talk.json", "--format", "vtt").code == 0
    assert (tmp_path / "talk.json").read_text().startswith("WEBVTT")
    assert cli("spot", wav, "-o", tmp_path / "talk.jsonl", *KEENLY).code == 0
    assert json.loads((tmp_path / "talk.jsonl").read_text().splitlines()[0])["keyword"]


@pytest.mark.parametrize("name", ["spot", "transcribe"])
@pytest.mark.parametrize("out", ["all.txt", "all.jsonl", "all.srt", "there"])
def test_several_inputs_need_a_folder(name: str, out: str, cli: Cli, wav: Path, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    done = cli(name, wav, wav.rename(tmp_path / "other.wav"), "-o", tmp_path / out)
    assert done.code == 5
    assert "is one file for several results: name a folder with -o" in done.err


def test_a_file_without_keywords_is_reported_and_not_an_error(cli: Cli, wav: Path) -> None:
    done = cli("spot", wav, "--threshold", "0.99")
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert "no keyword" in done.err


def test_with_more_caution_fewer_keywords_are_found(cli: Cli, wav: Path) -> None:
    found, fewer = (cli("spot", wav, *KEENLY, "--caution", caution).out.count("\n") for caution in ("0", "20"))
    assert found > fewer == 1  # the line of titles


def test_a_transcript_in_every_format(cli: Cli, wav: Path) -> None:
    words = transcribe(bursts(3), 16_000, exported("recognizer"))
    data = cli("transcribe", wav, "--format", "json").json()
    assert data["text"] == join(words)
    assert [word["start"] for word in data["words"]] == [round(word.start, 3) for word in words]
    assert cli("transcribe", wav, "--format", "vtt").out.startswith("WEBVTT\n\n00:00:00.")
    assert cli("transcribe", wav, "--format", "srt").out.startswith("1\n00:00:00,")
    text = cli("transcribe", wav).out
    assert " ".join(line.partition("]  ")[2] for line in text.splitlines()) == join(words)


def test_live_text_equals_the_transcript(cli: Cli, wav: Path) -> None:
    words = transcribe(bursts(3), 16_000, exported("recognizer"))
    lines = cli("transcribe", wav, "--live").out.splitlines()
    full = [line for line, after in zip(lines, [*lines[1:], ""], strict=True) if not after.startswith(line)]
    assert " ".join(full) == join(words)
    data = [json.loads(line) for line in cli("transcribe", wav, "--live", "--format", "json").out.splitlines()]
    assert [item["word"] for item in data if "word" in item] == [word.text for word in words]
    assert any("partial" in item for item in data)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["spot"], 2),
        (["spot", "a.wav", "--mic"], 2),
        (["spot", "a.wav", "--raw", "s16le", "--rate", "8000"], 2),
        (["spot", "none.wav"], 3),
        (["spot", "none.wav", "--threshold", "3"], 2),
        (["transcribe", "none.wav", "--live", "--format", "srt"], 2),
        (["transcribe", "none.wav"], 3),
    ],
)
def test_faults(words: list[str], code: int, cli: Cli) -> None:
    assert cli(*words).code == code


class FakeStream:
    """A microphone that records a second; then the user presses Ctrl-C."""

    def __init__(self, samplerate: int, callback: Any, blocksize: int, **rest: Any) -> None:
        self.callback, self.size = callback, blocksize
        self.recorded = bursts(1).reshape(-1, 1)
        assert (samplerate, rest["channels"], rest["dtype"]) == (16_000, 1, "float32")

    def __enter__(self) -> None:
        for k in range(0, len(self.recorded), self.size):
            self.callback(self.recorded[k : k + self.size], self.size, None, 0)
        self.callback(Interrupt(), 0, None, 0)

    def __exit__(self, *error: object) -> None:
        pass


class Interrupt:
    """A block at which Ctrl-C is pressed, when its turn comes."""

    @property
    def T(self) -> Interrupt:
        return self

    def copy(self) -> Interrupt:
        return self

    @property
    def ndim(self) -> int:
        raise KeyboardInterrupt


def module(**names: Any) -> ModuleType:
    made = ModuleType("sounddevice")
    made.__dict__.update({"PortAudioError": type("PortAudioError", (Exception,), {}), **names})
    return made


def test_a_microphone_until_ctrl_c(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", module(InputStream=FakeStream))
    done = cli("transcribe", "--mic", "--format", "json")
    assert done.code == 0, done.err
    assert done.json()["text"] == join(transcribe(bursts(1), 16_000, exported("recognizer"))) != ""


@pytest.mark.parametrize("command", ["spot", "transcribe"])
def test_no_device_is_code_6(command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    made = module()

    def refuse(**rest: Any) -> None:
        raise made.PortAudioError("Error querying device -1")

    made.InputStream = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", made)
    done = cli(command, "--mic", "--device", "USB")
    assert done.code == 6
    assert "no microphone 'USB' can be opened at 16000 Hz: Error querying device -1" in done.err


def test_no_sounddevice_is_code_6_and_names_the_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    done = cli("spot", "--mic")
    assert done.code == 6
    assert "[mic]'" in done.err


def test_no_portaudio_is_code_6_and_names_the_library(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    done = cli("spot", "--mic")
    assert done.code == 6
    assert "libportaudio2" in done.err


def test_a_command_runs_on_every_keyword(cli: Cli, wav: Path, tmp_path: Path) -> None:
    reported = tmp_path / "reported"
    script = f"import os; open({str(reported)!r}, 'a').write(os.environ['KEYWORD'] + '\\n')"
    command = f'{sys.executable} -c "{script}"'
    lines = cli("spot", wav, *KEENLY, "--jsonl", "--exec", command).out.splitlines()
    words = sorted(json.loads(line)["keyword"] for line in lines)
    assert words
    assert sorted(reported.read_text().split()) == words


def test_a_command_on_windows_keeps_its_backslashes(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def start(command: object, env: dict[str, str]) -> SimpleNamespace:
        started.append(command)
        return SimpleNamespace(poll=lambda: 0, wait=lambda: 0)

    monkeypatch.setattr(audio.output, "WINDOWS", True)
    monkeypatch.setattr(audio.subprocess, "Popen", start)
    command = r'"C:\my tools\say.exe" hello'
    audio.Launcher(command)(Keyword("yes", 1.0, 0.9))
    assert started == [command]


def test_words_restrict_the_report(cli: Cli, wav: Path) -> None:
    every = [json.loads(line)["keyword"] for line in cli("spot", wav, *KEENLY, "--jsonl").out.splitlines()]
    kept = every[0]
    some = cli("spot", wav, *KEENLY, "--jsonl", "--words", kept).out.splitlines()
    assert {json.loads(line)["keyword"] for line in some} == {kept}
    assert cli("spot", wav, "--words", "nonsense").code != 0
