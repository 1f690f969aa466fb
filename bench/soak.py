"""Stream for hours and compare every sample with the network in double precision: no drift, NaN or growing memory.

    python bench/soak.py [--kws-hours 24] [--denoise-hours 2] [--output out/soak.json]

The session runs in a separate process and gets pieces of random lengths; the reference is the torch network in fp64,
ten seconds at a time. Models are the shipped ones, or networks of the same kind with random weights if there are none.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 10  # seconds generated and compared at a time
WARM = 60  # seconds at the start whose peak of memory counts
GROWTH = 4e6  # bytes by which memory may differ between the first and the last part
TOLERANCE = 1e-3  # largest error over the largest value
STEADY = 3.0  # the second half's error over the first's above which there is drift
PARTS = 12  # of the stream, each with its worst error


@dataclass(frozen=True)
class Soak:
    """The report of a stream. Errors are the worst of each part over the largest value of the reference."""

    name: str
    trained: bool
    hours: float
    errors: list[float]
    not_finite: int
    frames: int
    memory_start: float
    memory_end: float
    seconds: float

    def described(self) -> dict[str, Any]:
        """Return the report as plain data, with the worst error and the faults."""
        return asdict(self) | {"worst": max(self.errors), "faults": self.faults}

    @property
    def faults(self) -> list[str]:
        """Descriptions of what is wrong; empty if nothing is."""
        half = len(self.errors) // 2
        first, last, worst = max(self.errors[: max(1, half)]), max(self.errors[half:]), max(self.errors)
        growth = self.memory_end - self.memory_start
        checks = [
            (self.not_finite > 0, f"{self.not_finite} values are not finite"),
            (not worst <= TOLERANCE, f"the error reaches {worst:.1e}"),
            (last > STEADY * first + 1e-6, f"the error drifts from {first:.1e} to {last:.1e}"),
            (growth > GROWTH, f"memory grows by {growth / 1e6:.1f} MB"),
            (self.frames == 0, "there is no output"),
        ]
        return [words for wrong, words in checks if wrong]


def memory() -> float:
    """Return the bytes of memory in use; on systems other than Linux their peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except OSError:
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
    return float(pages * resource.getpagesize())


def audio(number: int, rate: int) -> NDArray[np.float32]:
    """Return ten seconds of noise and a sweep at random levels, with silences, seeded by ``number``."""
    rng = np.random.default_rng(number)
    t = np.arange(BLOCK * rate) / rate
    noise = rng.standard_normal(len(t)) * 10 ** rng.uniform(-4, -0.5)
    sweep = np.sin(2 * np.pi * rng.uniform(50, 300) * t * (1 + t * rng.uniform(0, 1))) * 10 ** rng.uniform(-3, -0.5)
    gate = np.repeat(rng.random(2 * BLOCK) > 0.3, rate // 2)
    return np.where(gate, (noise + sweep).clip(-1, 1), 0.0).astype(np.float32)


class Aligned:
    """Compares two streams of frames that arrive in pieces of different lengths."""

    def __init__(self) -> None:
        self._waiting: list[NDArray[Any]] = [np.zeros((0, 0)), np.zeros((0, 0))]
        self.frames = self.not_finite = 0

    def compare(self, actual: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
        """Add frames to both streams; return the largest difference and expected value of the new pairs."""
        for k, new in enumerate((actual, expected)):
            self._waiting[k] = np.concatenate([self._waiting[k].reshape(len(new), -1), new], axis=1)
        count = min(x.shape[1] for x in self._waiting)
        a, b = (x[:, :count] for x in self._waiting)
        self._waiting = [x[:, count:] for x in self._waiting]
        self.frames += count
        self.not_finite += int(np.size(a) - np.isfinite(a).sum())
        return float(np.abs(a - b).max(initial=0)), float(np.abs(b).max(initial=0))


def stream(model: str, blocks: int, out: Connection) -> None:
    """Send the session's frames and the memory in use for every ten seconds; runs in a process without torch."""
    from centaurus.runtime import Session

    session, rng = Session(model), np.random.default_rng(0)
    for number in range(blocks):
        x = audio(number, session.settings.rate)
        cuts = np.sort(rng.integers(0, len(x), 50))
        pieces = [session.process(piece) for piece in np.split(x, cuts)]
        if number == blocks - 1:
            pieces.append(session.flush())
        out.send((np.concatenate([np.atleast_2d(y) for y in pieces], axis=1), memory()))


def soak(
    name: str, model: Path, net: Any, hours: float, trained: bool, tell: Callable[[str], object] = lambda line: None
) -> Soak:
    """Stream this many hours through a session and through the network, and compare."""
    import torch

    import centaurus as ct

    live, aligned = ct.Stream(net.double().eval()), Aligned()
    rate, blocks = int(net.settings["sample_rate"]), max(1, round(hours * 3600 / BLOCK))
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    process = get_context("spawn").Process(target=stream, args=(str(model), blocks, theirs), daemon=True)
    process.start()
    theirs.close()
    pairs, used, begin = [], [], time.perf_counter()
    for number in range(blocks):
        expected = live(torch.from_numpy(audio(number, rate)).double()[None, None])[0].numpy()
        if number == blocks - 1:
            expected = np.concatenate([expected, live.flush()[0].numpy()], axis=1)
        actual, bytes_used = ours.recv()
        pairs.append(aligned.compare(actual, expected))
        used.append(bytes_used)
        if number % max(1, blocks // PARTS) == 0:
            done = f"{number * BLOCK / 3600:6.2f} h  error {pairs[-1][0]:.1e}  {bytes_used / 1e6:.1f} MB"
            tell(f"{name:<14}{done}  after {time.perf_counter() - begin:.0f} s")
    process.join()
    largest = max(peak for _, peak in pairs)
    parts = np.array_split([difference for difference, _ in pairs], min(PARTS, blocks))
    errors = [float(part.max()) / max(largest, 1e-30) for part in parts]
    # The peaks of the first and of the last part: malloc returns memory and takes it again, megabytes at a time.
    part, spent = max(WARM // BLOCK + 1, blocks // PARTS), time.perf_counter() - begin
    start, end = max(used[:part]), max(used[-part:])
    return Soak(name, trained, hours, errors, aligned.not_finite, aligned.frames, start, end, spent)


def prepare(name: str, folder: Path) -> tuple[Path, Any, bool]:
    """Return the file of a shipped model, its network and True; or the same of random weights, and False."""
    import torch

    import centaurus as ct
    from centaurus.export import export_onnx
    from centaurus.models.io import shipped
    from centaurus.runtime.modelfile import find_model, shipped_models

    if name in shipped() and name in shipped_models():
        return find_model(name), ct.load(name), True
    torch.manual_seed(0)
    net = ct.denoiser("hybrid") if name.startswith("denoise") else ct.classifier("kws-hybrid-2", classes=31, window=62)
    return export_onnx(net.eval(), folder / f"{name}.onnx"), net, False


def main() -> int:
    """Stream through both models and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kws-hours", type=float, default=24.0)
    parser.add_argument("--denoise-hours", type=float, default=2.0)
    parser.add_argument("--output", type=Path, default=Path("out/soak.json"))
    chosen = parser.parse_args()
    reports = []
    with tempfile.TemporaryDirectory() as folder:
        for name, hours in (("kws-30", chosen.kws_hours), ("denoise-16k", chosen.denoise_hours)):
            if hours > 0:
                model, net, trained = prepare(name, Path(folder))
                reports.append(soak(name, model, net, hours, trained, lambda line: print(line, flush=True)))
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps([report.described() for report in reports], indent=2))
    for report in reports:
        weights = "" if report.trained else " (random weights)"
        growth = (report.memory_end - report.memory_start) / 1e6
        print(
            f"{report.name}{weights}: {report.hours:g} h, {report.frames:,} frames, "
            f"worst error {max(report.errors):.1e} (first part {report.errors[0]:.1e}, last {report.errors[-1]:.1e}), "
            f"{report.not_finite} not finite, "
            f"memory {growth:+.1f} MB, {report.seconds:.0f} s: {'; '.join(report.faults) or 'steady'}"
        )
    return 1 if any(report.faults for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
