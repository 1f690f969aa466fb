"""The C examples: compiled, run on real files, and correct to the last sample."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

import centaurus as ct
from centaurus.export import c as exporter
from centaurus.models import Network
from tests.models.small import narrow

EXAMPLES = Path(__file__).parents[2] / "examples"
FLAGS = ["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror"]
LADSPA = Path("/usr/include/ladspa.h")

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


@pytest.fixture(scope="module")
def net() -> Network:
    torch.manual_seed(6)
    return narrow("denoiser/spectral").eval()


@pytest.fixture(scope="module")
def folder(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """denoise.c, denoise.h and x.wav: three seconds that are not whole hops."""
    made = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "SECONDS", 0.1)
        ct.export_c(net, made / "denoise.c")
    x = 0.1 * np.random.default_rng(1).standard_normal(3 * 16_000 + 77)
    soundfile.write(made / "x.wav", x, 16_000)
    return made


def cleaned(net: Network, folder: Path) -> np.ndarray:
    """The network's output for x.wav followed by silence, with the network's delay."""
    x = torch.from_numpy(soundfile.read(folder / "x.wav", dtype="float32")[0])
    with torch.no_grad():
        return np.asarray(net(torch.nn.functional.pad(x, (0, 1024))[None, None])[0, 0].numpy())


@needs_gcc
def test_the_wav_filter_gives_every_sample_at_its_place(net: Network, folder: Path) -> None:
    command = ["gcc", *FLAGS, f"-I{folder}", str(EXAMPLES / "c" / "wavfilter.c"), "denoise.c", "-o", "wavfilter"]
    subprocess.run(command, cwd=folder, check=True)
    subprocess.run(["./wavfilter", "x.wav", "y.wav"], cwd=folder, check=True)
    y, rate = soundfile.read(folder / "y.wav")
    expected = cleaned(net, folder)[int(net.delay) :][: len(y)]
    assert (rate, len(y)) == (16_000, 3 * 16_000 + 77)
    assert np.abs(y - expected).max() < 1 / 32768
    assert subprocess.run(["./wavfilter", "denoise.h", "y.wav"], cwd=folder, capture_output=True).returncode == 1


@needs_gcc
@pytest.mark.skipif(not LADSPA.is_file() or shutil.which("applyplugin") is None, reason="ladspa-sdk is not installed")
def test_the_plug_in_runs_in_a_host_and_is_as_late_as_it_says(net: Network, folder: Path) -> None:
    source = str(EXAMPLES / "ladspa" / "denoise_ladspa.c")
    command = ["gcc", *FLAGS, "-fPIC", "-shared", f"-I{folder}", source, "denoise.c", "-o", "plugin.so"]
    subprocess.run(command, cwd=folder, check=True)
    ports = subprocess.run(["analyseplugin", "./plugin.so"], cwd=folder, capture_output=True, text=True, check=True)
    assert '"latency" output, control' in ports.stdout
    host = ["applyplugin", "x.wav", "z.wav", str(folder / "plugin.so"), "centaurus_denoise", "1"]
    subprocess.run(host, cwd=folder, check=True, capture_output=True)
    z, _ = soundfile.read(folder / "z.wav")
    expected = np.concatenate([np.zeros(net.hop), cleaned(net, folder)])[: len(z)]
    assert np.abs(z - expected).max() < 2 / 32768
