"""How commands end: exit codes as docs/runtime.md has them, one line of error, and never a traceback."""

from __future__ import annotations

import io
import ntpath
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path, PureWindowsPath

import numpy as np
import pytest
import soundfile

from centaurus import system
from centaurus.cli import output
from centaurus.system import is_reserved
from tests.cli.run import run

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
COMMAND = f"{sys.executable} -m centaurus"


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash in which ``centaurus`` is the command."""
    return subprocess.run(
        ["bash", "-c", f"centaurus() {{ {COMMAND} \"$@\"; }}; {line}"],
        cwd=folder, env={**os.environ, **environment}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def noise(tmp_path: Path) -> Path:
    """A second of noise in a file."""
    soundfile.write(tmp_path / "a.wav", 0.1 * np.random.default_rng(0).standard_normal(16_000), 16_000)
    return tmp_path / "a.wav"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("count", "nowhere.safetensors"), 4, "no model file"),
        (("count", "damaged.safetensors"), 4, "not a complete safetensors file"),
        (("verify", "damaged.safetensors"), 4, "not a complete safetensors file"),
        (("eval", "damaged.safetensors", "--data", "."), 4, "not a complete safetensors file"),
        (("export", "kws-hybrid-2", "-o", "nowhere/x.onnx"), 5, "there is no folder nowhere"),
        (("export", "kws-hybrid-2", "-o", "damaged.safetensors"), 5, "exists already"),
        (("denoise", "a.wav", "-o", f"{'x' * 300}.wav"), 5, "File name too long"),
        (("denoise", "nowhere.wav"), 3, "no such file"),
        (("denoise", "a.wav", "--model", "x" * 300), 4, "no model file"),
        (("plan", "x" * 300), 2, "there is no"),
        (("denoise", "a.wav", "-o", "loop.wav", "-f"), 5, "is a symbolic link loop"),
        (("demo", "--out", "a.wav"), 5, "cannot be created as a folder"),
        (("train", "kws", "--data", "nowhere"), 3, "no such folder"),
        (("train", "--resume", "nowhere"), 4, "is not a run folder"),
        (("eval", "kws-30", "--data", "nowhere"), 3, "no such folder"),
        (("spot", "a.wav", "--smooth", "1e9"), 2, "window should be 0 to 60 seconds"),
        (("spot", "a.wav", "--smooth", "nan"), 2, "should be greater than or equal to 0"),
        (("plan", "bottleneck", "--sizes", "i=99999999999999999999"), 2, "too many to plan for"),
        (("plan", "bit,ni,nt,jn->bjt", "--sizes", "i=99999999999,n=999999,j=1"), 2, "too many to plan for"),
        (("plan", "bottleneck", "--sizes", "i=999999,n=99999"), 0, ""),
        (("plan", "bottleneck", "--batch", "99999999999999999999", "--sizes", "i=4"), 2, "--batch"),
    ],
)
def test_codes_and_messages(
    capsys: pytest.CaptureFixture[str],
    noise: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(noise.parent)
    Path("damaged.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    if os.name == "posix":
        os.symlink("loop.wav", "loop.wav")
    result = run(capsys, *arguments)
    assert result.code == code, result.err
    assert message in " ".join(result.err.split())


BIG = "9" * 30
TYPED = [
    ("plan", "->"), ("plan", "bit->bjt"), ("plan", ""), ("plan", "bit,ni,nt,jn->bjt", "--sizes", "i=0,n=1,j=1"),
    ("plan", "bit,ni,nt,jn->bjt", "--sizes", "i=-1"), ("plan", "full", "--length", BIG), ("denoise", ""),
    ("denoise", "\0"), ("denoise", "/dev/zero"), ("denoise", "a.wav", "-o", "\0"), ("denoise", "a.wav", "-o", ""),
    ("denoise", "a.wav", "--model", "deep.json"), ("denoise", "a.wav", "--model", "\0"),
    ("denoise", "a.wav", "--model", "."), ("denoise", "a.wav", "--mix", "nan"), ("spot", "a.wav", "--threshold", "nan"),
    ("spot", "a.wav", "--words", "\0"), ("spot", "a.wav", "--exec", "'"),
    ("spot", "-", "--raw", "s16le", "--rate", BIG),
    ("spot", "-", "--raw", "s16le", "--rate", "16000", "--channels", BIG), ("transcribe", "a.wav", "--model", "kws-30"),
    ("train", "kws", "epochs=nan"), ("train", "kws", "="), ("train", "kws", f"batch={BIG}"),
    ("train", "--resume", "\0"), ("train", "kws", f"seed={BIG}", "--data", "."), ("train", "kws", "seed=-1", "--show"),
    ("serve", "--port", "99999"), ("serve", "--denoise", "deep.json"), ("", ), ("\0", ), ("--wat", ),
]  # fmt: skip


@pytest.mark.parametrize("arguments", TYPED, ids=repr)
def test_whatever_is_typed_is_an_error_of_its_own(
    capsys: pytest.CaptureFixture[str], noise: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(noise.parent)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(bytes(100)), encoding="utf-8"))
    Path("deep.json").write_text("[" * 100_000, encoding="utf-8")
    result = run(capsys, *arguments)
    assert result.code in (2, 3, 4, 5)
    assert result.err
    assert sorted(os.listdir()) == ["a.wav", "deep.json"]


@POSIX
@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("centaurus models | true; exit ${PIPESTATUS[0]}", 141, b"standard output was closed by its reader"),
        ("centaurus models >&-", 5, b"standard output: is closed"),
        ("centaurus denoise a.wav -o b.wav >&- 2>&-; test $? = 5 -a -s b.wav", 0, b""),
        ("centaurus denoise - -o c.wav <&-", 3, b"standard input: is empty"),
        ("centaurus denoise a.wav -o - >&-", 5, b"standard output: is closed"),
        ("centaurus models 2>&- >/dev/full", 5, b""),
    ],
)
def test_closed_streams(noise: Path, line: str, code: int, message: bytes) -> None:
    done = shell(line, noise.parent)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert b"Traceback" not in done.stderr


@POSIX
def test_a_console_that_cannot_encode_an_arrow(noise: Path) -> None:
    done = shell("centaurus denoise a.wav -o b.wav && centaurus models", noise.parent, PYTHONIOENCODING="cp1252")
    assert done.returncode == 0, done.stderr
    assert (noise.parent / "b.wav").exists()
    assert b"denoise-16k" in done.stdout


@POSIX
def test_names_that_are_not_utf8_and_names_of_full_length(noise: Path) -> None:
    odd = os.fsencode(noise.parent) + b"/caf\xe9.wav"
    shutil.copy(noise, odd)
    long = noise.parent / f"{'n' * 251}.wav"
    shutil.copy(noise, long)
    done = subprocess.run(
        [sys.executable, "-m", "centaurus", "denoise", odd, long, "-o", "clean/"],
        cwd=noise.parent, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = sorted(os.listdir(os.fsencode(noise.parent / "clean")))
    assert written == [b"caf\xe9.wav", os.fsencode(long.name)]


@POSIX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_is_not_a_traceback_at_any_time(tmp_path: Path, number: int, code: int) -> None:
    """Also during the imports of the command line and of torch."""
    for delay in (0.1, 0.4, 0.8):
        process = subprocess.Popen(
            [sys.executable, "-c", "from centaurus.cli import start; print(flush=True); start()", "verify", "kws-30"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(number)
        error = process.communicate(timeout=60)[1]
        early = number == signal.SIGTERM and process.returncode == -number  # the system's own way to end
        assert process.returncode == code or early, error
        assert b"Traceback" not in error


@POSIX
def test_an_interrupted_recording_is_kept_and_has_the_code_of_its_signal(tmp_path: Path) -> None:
    layout = ["--raw", "s16le", "--rate", "16000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "centaurus", "denoise", "-", "-o", "r.wav", *layout],
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"\1\0" * 16_000)
    process.stdin.flush()
    while not list(tmp_path.glob(".*.part")):
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 143, error
    assert soundfile.info(tmp_path / "r.wav").frames == 16_000


DEVICES = (r"C:\takes\nul.wav", "D:con", "com1.tar.gz", "Aux .flac", "COM¹.wav", "conout$", r"\\host\share\PRN.wav")
FILES = (r"C:\takes\console.wav", "D:com10.wav", "x.con", r"\\?\C:\takes\a.wav", "C:", "nul-1.wav", "com0.wav")


def test_names_of_devices_and_streams_are_known_behind_any_drive() -> None:
    def reserved(path: str) -> bool:
        return is_reserved(PureWindowsPath(path).name)

    assert [path for path in (*DEVICES, r"C:\takes\a.wav:b", "a.wav::$DATA") if not reserved(path)] == []
    assert [path for path in FILES if reserved(path)] == []
    known = getattr(ntpath, "isreserved", None)  # of Python 3.13 and newer
    if known is not None:
        assert all(map(known, DEVICES))
        assert not any(map(known, FILES))


def test_names_of_devices_are_refused_on_windows(
    capsys: pytest.CaptureFixture[str], noise: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "WINDOWS", True)
    for name in ("nul.wav", "a.wav:b.wav"):
        done = run(capsys, "denoise", str(noise), "-o", str(noise.with_name(name)))
        assert done.code == 5
        assert "name of a device or a stream" in done.err
    assert [path.name for path in noise.parent.iterdir()] == ["a.wav"]


def test_windows_reports_a_closed_pipe_as_an_invalid_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, bad_name = OSError(22, "Invalid argument"), OSError(22, "Invalid argument", "a?.wav")
    assert [output.exit_code(error) for error in (closed, bad_name)] == [2, 2]
    monkeypatch.setattr(output, "WINDOWS", True)
    assert [output.exit_code(error) for error in (closed, bad_name)] == [141, 2]


@pytest.mark.parametrize("windows", [False, True])
def test_files_on_windows_get_every_character(windows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    monkeypatch.setattr(output, "WINDOWS", windows)
    monkeypatch.setattr(output.sys, "stdout", io.TextIOWrapper(data, encoding="cp1252", write_through=True))
    output.prepare_streams()
    output.show_line("→")
    assert data.getvalue().rstrip() == ("→".encode() if windows else b"?")


def test_a_full_disk_and_missing_memory_have_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from centaurus.cli import networks

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    interrupted = ImportError("initialization failed")
    interrupted.__cause__ = KeyboardInterrupt()
    assert output.exit_code(interrupted) == 130
    monkeypatch.setattr(networks.output, "show_json", full)
    assert run(capsys, "models", "--json").code == 5
    assert output.exit_code(OSError(28, "No space left on device")) == 5

    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(networks.output, "show_json", greedy)
    result = run(capsys, "models", "--json")
    assert result.code == 1
    assert result.err == "centaurus: out of memory\n"


@POSIX
def test_an_interrupt_during_the_import_of_torch_ends_at_once(tmp_path: Path) -> None:
    """There an exception would abort the process; elsewhere it is raised as usual."""
    lines = [
        "import os, signal, sys, types, centaurus.cli as cli",
        "signal.signal(signal.SIGINT, cli._interrupt)",
        "torch = sys.modules['torch'] = types.ModuleType('torch')",
        "torch.__spec__ = types.SimpleNamespace(_initializing=sys.argv[1] == 'early')",
        "try: os.kill(os.getpid(), signal.SIGINT)",
        "except BaseException as error: sys.exit(type(error).__name__)",
    ]
    for when, code, message in (("early", 130, b"centaurus: interrupted\n"), ("late", 1, b"KeyboardInterrupt\n")):
        done = subprocess.run(
            [sys.executable, "-c", "\n".join(lines), when], cwd=tmp_path, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (code, message)
