"""Smoke test for a GPU: results equal those of the CPU, training does not wait for the host. Takes a few minutes.

    python scripts/gpu_smoke.py [--device cuda] [--compile]

Every check prints a line with what it measured and what is allowed; the exit code is the number of checks that failed.
docs/gpu.md says what each is for. With ``--device cpu`` the same checks run without a GPU, to try the script itself.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import centaurus as ct
from centaurus.kernels.calibrate import measure_gpu
from centaurus.models import classifier, denoiser, recognizer
from centaurus.planner import Device
from centaurus.ssm import SSM
from centaurus.train.loop import allow_versions
from centaurus.train.objectives import Batch, Classify, Clean, Objective, Recognise
from centaurus.train.targets import CHARACTERS

LENGTH = 4096
LAYERS = {
    "depthwise": SSM("depthwise", 8, states=4),
    "separable": SSM("separable", 8, 4, states=4),
    "pointwise": SSM("pointwise", 8, 16, states=16),
    "bottleneck": SSM("bottleneck", 8, 16, states=16, substates=4),
    "full": SSM("full", 4, 8, states=4),
    "S6": ct.S6(8, 8, states=8),
}
EXACT = 5e-6  # of the largest value: single precision, sums of a few thousand terms
GRADIENTS = 5e-5
ROUNDED = 5e-3  # TF32 in projections; three digits
HALF = 0.05  # bf16 in projections and convolutions of a network's gradient
STEPS = 8


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    measured: float
    allowed: float

    @property
    def holds(self) -> bool:
        """Whether the measured value is within what is allowed."""
        return self.measured <= self.allowed


def difference(x: Tensor, y: Tensor) -> float:
    """Return the largest difference over the largest value."""
    return float((x.double().cpu() - y.double().cpu()).abs().max() / y.double().abs().max().clamp(min=1e-12))


def gradients(layer: nn.Module, u: Tensor) -> Tensor:
    """Return every gradient of a layer in one vector."""
    layer.zero_grad(set_to_none=True)
    layer(u).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None])


def layers(device: str) -> list[Check]:
    """Compare every topology in single precision and with TF32 with double precision on the CPU."""
    checks = []
    for name, layer in LAYERS.items():
        torch.manual_seed(0)
        u = torch.randn(2, layer.in_channels, LENGTH)
        exact = layer.double()
        expected, slope = exact(u.double()).detach(), gradients(exact, u.double())
        moved = layer.float().to(device)
        checks.append(Check(f"{name}: values", difference(moved(u.to(device)).detach(), expected), EXACT))
        checks.append(Check(f"{name}: gradients", difference(gradients(moved, u.to(device)), slope), GRADIENTS))
        streamed = torch.cat(steps(moved, u.to(device)), -1)
        checks.append(Check(f"{name}: streaming", difference(streamed, expected), EXACT))
        torch.set_float32_matmul_precision("high")
        projects = isinstance(layer, SSM) and bool([*layer.topology.before(), *layer.topology.after()])
        allowed = ROUNDED if projects or name == "S6" else EXACT
        checks.append(Check(f"{name}: values with TF32", difference(moved(u.to(device)).detach(), expected), allowed))
        torch.set_float32_matmul_precision("highest")
    return checks


@torch.no_grad()
def steps(layer: ct.SSM | ct.S6, u: Tensor) -> list[Tensor]:
    """Return the outputs of a stream in pieces of 160 samples."""
    outputs, state = [], None
    for piece in u.split(160, -1):
        y, state = layer.step(piece, state)
        outputs.append(y)
    return outputs


RATE = {"sample_rate": 16_000}
WORDS = [f"word{k}" for k in range(35)]
TOKENS = {**RATE, "tokens": ["<blank>", *(f"token{k}" for k in range(999))]}
# torch's CTC always waits for the lengths of its rows: its waits are shown, but do not count as failures.
TASKS: dict[str, tuple[Callable[[], Objective], int, int]] = {
    "kws-hybrid-8": (lambda: Classify(classifier("kws-hybrid-8", WORDS, settings=RATE)), 64, 16_000),
    "denoiser/hybrid": (lambda: Clean(denoiser("hybrid", settings=RATE)), 8, 2**15),
    "recognizer/base": (
        lambda: Recognise(recognizer("base", vocabulary=1000, settings=TOKENS), "distillation:1"), 4, 2**16,
    ),
    "recognizer/base with CTC": (
        lambda: Recognise(recognizer("base", vocabulary=1000, settings=TOKENS), "tokens:1, characters:1"), 4, 2**16,
    ),
}  # fmt: skip


def batch_of(rows: int, samples: int, device: str) -> Batch:
    """Return a batch of noise with arbitrary labels, texts and teacher logits, for every task."""

    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=torch.long)

    sound, few = 0.1 * torch.randn(rows, 1, samples), ones(rows)
    texts = {"tokens": ones(rows, 8), "tokens_length": 8 * few, "letters": ones(rows, 20), "letters_length": 20 * few}
    teacher = torch.randn(rows, len(CHARACTERS), samples // 320)
    batch = {"audio": sound, "clean": 0.5 * sound, "samples": samples * few, "label": few, "teacher": teacher, **texts}
    return {name: x.to(device) for name, x in batch.items()}


def networks(device: str, compiled: bool) -> list[Check]:
    """Compare gradients in bf16 and compiled with single precision, and count waits of the host."""
    checks = []
    for name, (build, rows, samples) in TASKS.items():
        torch.manual_seed(0)
        task = build().to(device).eval()
        batch = batch_of(rows, samples, device)
        count = waits(task, batch)
        if name.endswith("CTC"):
            print(f"  {name}: {count} waits in a step", flush=True)
            continue
        checks.append(Check(f"{name}: waits in a step", count, 0))
        expected = step_gradients(task, batch)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            checks.append(Check(f"{name}: gradient in bf16", 1 - cosine(step_gradients(task, batch), expected), HALF))
        print(f"  {name}: {throughput(task, batch):.0f} audio-seconds a second", flush=True)
        if compiled:
            torch.compiler.reset()
            allow_versions(task)
            task.compile()
            checks.append(Check(f"{name}: compiled gradient", 1 - cosine(step_gradients(task, batch), expected), 1e-4))
            for fewer in (rows // 2, rows // 4):  # recompile_limit of them would raise, see main
                step_gradients(task, {key: x[:fewer] for key, x in batch.items()})
            print(f"  {name}, compiled: {throughput(task, batch):.0f} audio-seconds a second", flush=True)
    return checks


def step_gradients(task: Objective, batch: Batch) -> Tensor:
    """Return every gradient of a training step in one vector."""
    task.zero_grad(set_to_none=True)
    task(batch, torch.full((), 0.5, device=batch["audio"].device))["loss"].backward()
    return torch.cat([p.grad.flatten() for p in task.parameters() if p.grad is not None])


def cosine(x: Tensor, y: Tensor) -> float:
    """Return the cosine between two gradients."""
    return float(nn.functional.cosine_similarity(x.double().flatten(), y.double().flatten(), 0))


def waits(task: Objective, batch: Batch) -> int:
    """Return how often a training step makes the host wait for the GPU."""
    if batch["audio"].device.type != "cuda":
        return 0
    step_gradients(task, batch)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            step_gradients(task, batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waiting = [warning for warning in seen if "synchronizing" in str(warning.message)]
    for warning in waiting:
        print(f"  {warning.filename}:{warning.lineno}: {warning.message}", flush=True)
    return len(waiting)


def throughput(task: Objective, batch: Batch) -> float:
    """Return the seconds of audio trained in a second."""
    audio = batch["audio"]

    def wait() -> None:
        if audio.device.type == "cuda":
            torch.cuda.synchronize()

    step_gradients(task, batch)
    wait()
    start = time.perf_counter()
    count = STEPS if audio.device.type == "cuda" else 1
    for _ in range(count):
        step_gradients(task, batch)
    wait()
    return count * audio.numel() / 16_000 / (time.perf_counter() - start)


def main() -> None:
    """Run every check and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="also compile the networks: takes minutes")
    parser.add_argument("--only", choices=("calibrate", "layers", "networks"))
    chosen = parser.parse_args()
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        print("torch finds no GPU here: install a build of torch for it, or try --device cpu")
        sys.exit(1)
    checks: list[Check] = []
    if chosen.only in (None, "calibrate") and chosen.device == "cuda":
        measured = measure_gpu()
        measured.write(Device.path("cuda"))
        rates = f"GEMM {measured.gemm / 1e12:.1f} TFLOP/s, FFT {measured.fft / 1e12:.2f} TFLOP/s"
        print(f"{measured.name}: {rates}", flush=True)
    if chosen.only in (None, "layers"):
        checks += layers(chosen.device)
    if chosen.only in (None, "networks"):
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        checks += networks(chosen.device, chosen.compile)
    for check in checks:
        verdict = "ok    " if check.holds else "FAILED"
        print(f"{verdict} {check.name:<44} {check.measured:.1e}  (at most {check.allowed:.0e})")
    failed = sum(not check.holds for check in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks hold")
    sys.exit(failed)


if __name__ == "__main__":
    main()
