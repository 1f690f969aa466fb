"""Time ``FileDenoiser`` on one long file, as ``centaurus denoise`` runs it, on one thread and on two.

    python bench/long_file.py [--minutes 30] [--rounds 5] [--out docs/speed/long-file.json]

The file is noisy speech, repeated, as mono WAV. The model is compiled before anything is timed. Both run in every
round, and the fastest round counts: other work on the machine only adds time.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from importlib.resources import as_file, files
from pathlib import Path

import onnxruntime
import soundfile

from centaurus.audio import read
from centaurus.runtime.denoise import FileDenoiser, Options
from centaurus.runtime.files import Job

RATE = 16_000
THREADS = (1, 2)
WARM = 0.5  # minutes of a first file, which is not timed: the model is compiled for it


def write(minutes: float, path: Path) -> None:
    """Write the demo's noisy speech, repeated up to this length."""
    with as_file(files("centaurus") / "assets" / "demo.flac") as demo:
        once = read(demo, RATE).mono
    left = round(60 * minutes * RATE)
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        while left:
            file.write(once[:left])
            left -= len(once[:left])


def measure(denoiser: FileDenoiser, folder: Path) -> dict[str, float]:
    """Return wall-clock and CPU seconds of denoising the file, including reading and writing."""
    clock, processor = time.perf_counter(), time.process_time()
    report = denoiser.run(Job(folder / "noisy.wav", folder / "clean.wav"), overwrite=True)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    return {"seconds": clock, "processor_seconds": processor, "times_real_time": report.seconds / clock}


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("docs/speed/long-file.json"))
    options = parser.parse_args()
    rounds: dict[int, list[dict[str, float]]] = {threads: [] for threads in THREADS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        denoisers = {threads: FileDenoiser(Options(threads=threads, engine="c")) for threads in THREADS}
        write(WARM, folder / "noisy.wav")
        for threads in THREADS:
            measure(denoisers[threads], folder)
        write(options.minutes, folder / "noisy.wav")
        for _ in range(options.rounds):
            for threads in THREADS:
                rounds[threads].append(measure(denoisers[threads], folder))
                print(threads, rounds[threads][-1], flush=True)
    fastest = {str(threads): min(rounds[threads], key=lambda one: one["seconds"]) for threads in THREADS}
    machine = {"onnxruntime": onnxruntime.__version__, "cores": os.cpu_count(), "load": os.getloadavg()}
    about = {"minutes": options.minutes, "rate": RATE, "rounds": options.rounds, "machine": machine, "threads": fastest}
    options.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
