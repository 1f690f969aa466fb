"""The base install: a virtual environment without torch, into which the package is installed as a user would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.runtime.models import exported

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment with the base install alone."""
    folder = tmp_path_factory.mktemp("base") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-c", str(ROOT / "constraints.txt"), str(ROOT)], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "noisy.wav"
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal((22_050, 2)), 22_050)
    return path


def run(base: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run([str(base / "centaurus"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_commands_without_torch(base: Path, sound: Path, tmp_path: Path) -> None:
    missing = subprocess.run([str(base / "python"), "-c", "import torch"], capture_output=True, check=False)
    assert missing.returncode, "torch is in the base install"
    clean = tmp_path / "clean.wav"
    run(base, "denoise", str(sound), "-o", str(clean), "--model", str(exported("denoiser")))
    assert soundfile.info(clean).frames == 22_050
    assert soundfile.info(clean).channels == 2
    run(base, "spot", str(sound), "--model", str(exported("classifier")))
    run(base, "transcribe", str(sound), "--model", str(exported("recognizer")))
    assert json.loads(run(base, "verify", str(exported("denoiser")), "--json"))["holds"]
    data = json.loads(run(base, "bench", str(exported("classifier")), "--seconds", "0.1", "--json"))
    assert [row["name"].split(" ", 1)[1] for row in data["runs"]] in (["thread"], ["thread", "threads"])
    told = run(base, "export", "denoiser/hybrid", "-o", str(tmp_path / "x.onnx"), code=2)
    assert f"pip install '{ROOT}[export]'" in told
