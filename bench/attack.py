"""Robustness test of every reader and writer: damaged files, damaged models, processes that are killed.

    python bench/attack.py [--inputs 100000] [--models 20000] [--kills 200] [--seed 0] [--output out/attack.json]

Damaged files are read in separate processes (tests/fuzz). Damaged ONNX files are read by our parser and by the onnx
package, which must agree. Training and denoising are killed at random moments: a run must then resume exactly, and a
result must be complete or absent. Needs a POSIX system; exits with 1 at the first fault and prints it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
# Inputs of each kind in per cent: models take longest to open.
SHARES = {"wav": 12, "pipe": 12, "flac": 10, "ogg": 10, "mp3": 10, "opus": 6, "aiff": 6, "w64": 6, "rf64": 6, "au": 6}
SHARES |= {"caf": 6, "saved": 4, "onnx": 3, "safetensors": 3}
NO_LIMIT = 1e9  # seconds
TRAINING_SHARE = 0.5  # of the kills; the others are while a file is denoised
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
SECONDS = 10  # of audio in a file


class FaultError(Exception):
    """A reader or writer that did not behave as documented."""


@dataclass(frozen=True)
class Count:
    """A kind of attack, the number of tries, and the seconds they took."""

    attack: str
    tries: int
    seconds: float


def fuzz(kind: str, inputs: int, seed: int, folder: Path) -> None:
    """Feed damaged files of one kind to their reader."""
    from tests.fuzz.test_fuzz import sample

    command = [sys.executable, "-m", "tests.fuzz.worker", kind, sample(kind, folder), seed, NO_LIMIT, inputs]
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
    seeds = done.stdout.split()
    if done.returncode or len(seeds) != inputs:
        last = seeds[-1] if seeds else "none"
        raise FaultError(f"{kind}, seed {last}: exit {done.returncode}\n{done.stderr[-2000:]}")


def compare_models(count: int, seed: int) -> None:
    """Read damaged ONNX files by our parser and by the onnx package, and compare."""
    import numpy as np

    from tests.fuzz.test_onnx import compare, damaged, small

    data = small()
    for number in range(seed, seed + count):
        try:
            compare(damaged(data, np.random.default_rng(number)))
        except AssertionError as error:
            raise FaultError(f"the two readers differ on the model of seed {number}: {error!s:.2000}") from error


def killed(work: Callable[[], object], delay: float) -> None:
    """Run work in a child process, which is killed after ``delay`` seconds if it has not ended."""
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            work()
        finally:  # the child must not continue with the parent's code
            os._exit(0)
    end = time.monotonic() + delay
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def kill_training(kills: int, rng: random.Random, folder: Path) -> None:
    """Kill runs several times each, and compare them in the end with an uninterrupted one."""
    import torch

    from centaurus.models import load
    from tests.train.toy import losses, new_run, settings, train

    config = settings(steps=24, validations=8)
    whole = new_run(folder / "whole", config)
    begin = time.monotonic()
    killed(lambda: train(whole, config), NO_LIMIT)
    duration = time.monotonic() - begin
    expected = losses(whole)
    if not expected:
        raise FaultError("training does not work at all")
    runs = 0
    while kills > 0:
        runs += 1
        run = new_run(folder / f"run-{runs}", config)
        for _ in range(min(kills, rng.randint(1, 6))):
            killed(lambda run=run: train(run, config), rng.uniform(0, duration))  # type: ignore[misc]
            kills -= 1
        killed(lambda run=run: train(run, config), NO_LIMIT)  # type: ignore[misc]
        if losses(run) != expected:
            raise FaultError(f"{run.folder} did not resume exactly")
        for file in ("best.safetensors", "last.safetensors"):
            first, second = (load(x.folder / file).state_dict() for x in (whole, run))
            if not all(torch.equal(x, second[name]) for name, x in first.items()):
                raise FaultError(f"{run.folder}/{file} has other weights")


def kill_writing(kills: int, rng: random.Random, folder: Path) -> None:
    """Kill processes that denoise files: a result must be complete or absent."""
    import numpy as np

    from centaurus import audio
    from centaurus.runtime.denoise import FileDenoiser, Options
    from centaurus.runtime.files import Job

    noise = 0.1 * np.random.default_rng(0).standard_normal(SECONDS * 16_000)
    audio.write(folder / "in.wav", noise, 16_000)

    def work(output: Path) -> None:
        FileDenoiser(Options()).run(Job(folder / "in.wav", output), overwrite=True)

    begin = time.monotonic()
    killed(lambda: work(folder / "whole.wav"), NO_LIMIT)
    duration = time.monotonic() - begin
    expected = audio.read(folder / "whole.wav").samples
    for number in range(kills):
        output = folder / f"out-{number}{SUFFIXES[number % len(SUFFIXES)]}"
        killed(lambda output=output: work(output), rng.uniform(0, 1.2 * duration))  # type: ignore[misc]
        if output.exists():
            written = audio.read(output).samples
            if written.shape[-1] < expected.shape[-1]:
                raise FaultError(f"{output} has {written.shape[-1]} of {expected.shape[-1]} frames")
            if output.suffix == ".wav" and not np.array_equal(written, expected):
                raise FaultError(f"{output} differs from what an uninterrupted process writes")


def attack(inputs: int, models: int, kills: int, seed: int, tell: Callable[[str], object]) -> list[Count]:
    """Run every kind of attack; ``tell`` gets a line for each. Raises ``FaultError`` at the first fault."""
    counts: list[Count] = []

    def take(name: str, tries: int, work: Callable[[Path], None]) -> None:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            work(Path(folder))
        counts.append(Count(name, tries, round(time.monotonic() - begin, 1)))
        tell(f"{name:<28}{tries:>8,}  in {counts[-1].seconds:,.0f} s")

    training = round(TRAINING_SHARE * kills)
    take("kills of training", training, lambda folder: kill_training(training, random.Random(seed), folder))
    take("kills of denoising", kills - training, lambda f: kill_writing(kills - training, random.Random(seed), f))
    take("damaged models, two readers", models, lambda folder: compare_models(models, seed))
    for kind, share in SHARES.items():
        part = inputs * share // sum(SHARES.values())
        take(f"damaged {kind}", part, lambda folder, kind=kind, part=part: fuzz(kind, part, seed, folder))  # type: ignore[misc]
    return counts


def main() -> int:
    """Attack and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--models", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("out/attack.json"))
    chosen = parser.parse_args()
    try:
        counts = attack(chosen.inputs, chosen.models, chosen.kills, chosen.seed, lambda line: print(line, flush=True))
    except FaultError as error:
        print(error)
        return 1
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps([asdict(count) for count in counts], indent=2), encoding="utf-8")
    print(f"{sum(count.tries for count in counts):,} attacks, no fault")
    return 0


if __name__ == "__main__":
    sys.exit(main())
