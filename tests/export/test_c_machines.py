"""A step in C under other compilers, sanitizers and machines: no warnings, and the same output."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import centaurus as ct
from centaurus.export import c as exporter
from centaurus.export.c.layers import WEIGHTS
from centaurus.layer import Layer
from centaurus.native.build import find_compiler
from centaurus.nn import (
    AvgPool,
    BandConv,
    Block,
    CausalConv,
    DCBlock,
    Gated,
    Leveled,
    Lift,
    RunningMean,
    Serial,
    Up,
    WindowedMean,
)
from centaurus.nn.layers import Down
from centaurus.runtime.native import Native, compile_step
from centaurus.ssm import S6, SSM

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
STEPS = 12

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
int main(void) {
  float *in = malloc(4 * (size_t)net_hop), *out = malloc(4 * (size_t)(net_frames * net_outputs));
  void *state = malloc(net_state_bytes());
  net_init(state);
  while (fread(in, sizeof(float), (size_t)net_hop, stdin) == (size_t)net_hop) {
    net_step(state, in, out);
    fwrite(out, sizeof(float), (size_t)(net_frames * net_outputs), stdout);
  }
  free(in); free(out); free(state);
  return 0;
}
"""


def everything() -> Layer:
    """One network with a layer of almost every kind, at widths that fill no vector."""
    torch.manual_seed(4)
    inside = Serial(
        [
            Down(1, 5, 4, bias=True),
            Block(SSM("full", 5, 9, states=3), 9, resample=AvgPool(2)),
            Block(SSM("bottleneck", 9, 9, states=11, substates=3), 9, Serial()),
            Gated(9, 6, SSM("pointwise", 6, 6, states=5, complex=True)),
            Gated(9, 6, S6(6, states=5, weighted=False)),
            *(Lift(f) for f in (nn.GELU(), nn.GELU("tanh"), nn.Tanh(), nn.Sigmoid(), nn.ReLU())),
            CausalConv(9, 3),
            BandConv(3, 3, 3, (3, 2)),
            WindowedMean(9, 4),
            RunningMean(9),
            SSM("full", 9, 1, states=17),
            Up(1, 1, 8),
        ]
    )
    return Serial({"dc": DCBlock(), "level": Leveled(inside, 20.0, 0.1)}).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """net.c, net.h and a program that runs it from standard input to standard output."""
    made = tmp_path_factory.mktemp("step")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "SECONDS", 0.05)
        ct.export_c(everything(), made / "net.c", chunk=24)
    (made / "main.c").write_text(MAIN)
    return made


def signal() -> NDArray[np.float32]:
    generator = torch.Generator().manual_seed(2)
    return 0.1 * torch.randn(STEPS * 24, generator=generator).numpy()


def expected() -> NDArray[np.float64]:
    with torch.no_grad():
        return np.asarray(everything().double()(torch.from_numpy(signal()).double()[None, None])[0, 0].numpy())


def program(folder: Path, name: str, *command: str) -> Path:
    """The program compiled by a command; its messages are the failure."""
    target = folder / name
    done = subprocess.run([*command, "main.c", "net.c", "-o", str(target)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def output(*command: str) -> bytes:
    done = subprocess.run(command, input=signal().tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def off(data: bytes) -> float:
    actual, right = np.frombuffer(data, np.float32), expected()
    assert actual.shape == right.shape
    return float(np.abs(actual - right).max() / np.abs(right).max())


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if not shutil.which(tool)]
    return pytest.mark.skipif(bool(missing), reason=f"{' and '.join(missing)} not installed")


@pytest.mark.parametrize("plain", [[], ["-DCT_PLAIN"]], ids=["vectors", "plain"])
@pytest.mark.parametrize("compiler", [pytest.param(name, marks=needs(name)) for name in ("gcc", "clang")])
def test_a_strict_compiler_gives_no_warning(folder: Path, compiler: str, plain: list[str]) -> None:
    made = program(folder, f"{compiler}{len(plain)}", compiler, *STRICT, *plain, "-O2")
    data = output(str(made))
    assert off(data) < 2e-5
    assert data == output(str(made))


VECTORS = {"plain": ["-DCT_PLAIN"], "default": [], "native": ["-march=native"]}


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("compiler", [pytest.param(name, marks=needs(name)) for name in ("gcc", "clang")])
def test_every_format_of_weights_is_the_same_in_all_vectors(tmp_path: Path, compiler: str, weights: str) -> None:
    torch.manual_seed(5)
    net = Serial([Down(1, 21, 12), SSM("pointwise", 21, 37, states=19), Up(37, 1, 12)]).double()
    step = exporter.build(net, 24, weights, "net")
    (tmp_path / "net.c").write_text(step.source("net.h"))
    (tmp_path / "net.h").write_text(step.header())
    (tmp_path / "main.c").write_text(MAIN)
    outputs = [output(str(program(tmp_path, name, compiler, *STRICT, *VECTORS[name], "-O1"))) for name in VECTORS]
    first, *others = (np.frombuffer(data, np.float32) for data in outputs)
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-5 * np.abs(first).max())


@pytest.mark.parametrize("vectors", ["default", "native"])
@needs("gcc")
def test_sanitizers_find_nothing(folder: Path, vectors: str) -> None:
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *VECTORS[vectors]]
    assert off(output(str(program(folder, f"sanitized-{vectors}", "gcc", *flags)))) < 2e-5


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler here")
def test_silence_leaves_no_subnormal_number_in_the_state(folder: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    compile_step(folder / "net.c", folder / "net.so", compiler, "-O1")
    step = Native(folder / "net.so")
    piece, out = np.zeros((1, 24), np.float32), np.zeros((1, 24), np.float32)
    state = np.zeros((1, step.state_floats), np.float32)
    bound = step.io_binding()
    for key, array in {"audio": piece, "output": out, "state": state, "next": state}.items():
        bound.bind_input(key, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    seen = []
    for k, samples in enumerate(signal().reshape(STEPS, 24).repeat(40, 0)):
        piece[:] = samples if k < 40 else 1e-39 if k < 80 else 0.0
        step.run_with_iobinding(bound)
        seen.append(np.abs(state[state != 0]).min())
    assert min(seen) >= 1e-30
    assert np.isfinite(state).all()


MACHINES = {
    "arm": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
    "risc-v": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
}


@pytest.mark.parametrize("machine", [pytest.param(name, marks=needs(*MACHINES[name])) for name in MACHINES])
def test_another_machine_gives_the_same(folder: Path, machine: str) -> None:
    compiler, emulator = MACHINES[machine]
    made = program(folder, machine, compiler, *STRICT, "-O2", "-static")
    assert off(output(emulator, str(made))) < 2e-5


@needs("arm-none-eabi-gcc", "arm-none-eabi-size")
def test_a_microcontroller_needs_flash_for_the_weights_and_no_data(folder: Path) -> None:
    flags = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Os", "-ffreestanding"]
    command = ["arm-none-eabi-gcc", *STRICT, *flags, "-c", "net.c", "-o", "m4.o"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sizes = subprocess.run(["arm-none-eabi-size", "m4.o"], cwd=folder, capture_output=True, text=True).stdout
    text, data, bss = map(int, sizes.splitlines()[1].split()[:3])
    assert data == bss == 0
    assert text < 60_000
    undefined = subprocess.run(["arm-none-eabi-nm", "-u", "m4.o"], cwd=folder, capture_output=True, text=True).stdout
    assert set(undefined.split()) - {"U"} <= {"memcpy", "memset"}
