from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import centaurus
from tests.cli.run import run

COMMANDS = ["models", "count", "plan", "verify", "calibrate", "demo"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "--version")
    assert (done.code, done.out) == (0, f"centaurus {centaurus.__version__}\n")
    assert centaurus.__version__ == metadata.version("centaurus-ssm")


def test_help_names_every_command_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(capsys, "--help")
    assert done.code == 0
    assert all(command in done.out for command in COMMANDS)
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_print_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, command, "--help")
    assert done.code == 0
    assert "--json" in done.out


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "plain")
    assert done.code == 2
    assert "plain" in done.err


def test_public_names_are_there() -> None:
    assert set(centaurus.__all__) <= set(dir(centaurus))
    for name in centaurus.__all__:
        assert getattr(centaurus, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = centaurus.nothing


@pytest.mark.parametrize("use", ["centaurus.SSM", "centaurus.denoiser", "centaurus.load"])
def test_without_torch_the_error_names_the_extra(use: str) -> None:
    code = f"import sys; sys.modules['torch'] = None; import centaurus; {use}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "[torch]'" in done.stderr.splitlines()[-1]


def test_without_torch_a_command_says_so_in_one_line() -> None:
    block = "import sys; sys.modules['torch'] = None"
    code = f"{block}; from centaurus.cli.main import main; main(['count', 'denoiser/hybrid'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "[torch]'" in done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "centaurus", "models"], capture_output=True, text=True, check=True)
    assert "kws-30" in done.stdout
