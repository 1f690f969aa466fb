"""Measure each format of weights in C, for docs/speed/devices.json: memory, error, quality and time of a step.

    python scripts/measure_weights.py MODEL --corpus FOLDER [--split val] [--count 300]
    python scripts/measure_weights.py MODEL --time

MODEL is a shipped name. A keyword spotter is measured on clips of words, a denoiser on pairs of noisy and clean
recordings. Flash of a Cortex-M4F is measured where arm-none-eabi-gcc is installed. Times need an x86 processor without
other work; docs/devices.md shows all of these figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure_keywords import accuracy
from numpy.typing import NDArray

from centaurus.audio import pesq
from centaurus.data import Corpus, open_corpus, pairs
from centaurus.export.c import ExportedC, export_c
from centaurus.export.c.layers import WEIGHTS
from centaurus.models import load
from centaurus.runtime import Denoiser, Session

RESULTS = Path(__file__).parent.parent / "docs" / "speed" / "devices.json"
CORTEX = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Os", "-ffreestanding", "-std=c99"]
FLAGS = {"native": ["-march=native"], "avx2": ["-mavx2", "-mfma", "-mf16c"], "sse2": []}
SECONDS, ROUNDS = 20, 5  # of audio in a round; the fastest round counts
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "step.h"
int main(void) {
    void *state = malloc(step_state_bytes());
    float *noise = malloc(sizeof(float) * step_rate), *in = malloc(sizeof(float) * step_hop);
    float *out = malloc(sizeof(float) * step_frames * step_outputs), best = 1e9f;
    unsigned random = 1;
    for (int i = 0; i < step_rate; i++) {
        random = random * 1664525u + 1013904223u;
        noise[i] = 0.1f * ((random >> 8) / 8388608.0f - 1.0f);
    }
    step_init(state);
    int steps = SECONDS * step_rate / step_hop;
    for (int k = 0; k < ROUNDS; k++) {
        clock_t begin = clock();
        for (int j = 0; j < steps; j++) {
            int place = (int)((long)j * step_hop % (step_rate - step_hop));
            for (int i = 0; i < step_hop; i++) in[i] = noise[place + i];
            step_step(state, in, out);
        }
        float taken = (float)(clock() - begin) / CLOCKS_PER_SEC / SECONDS;
        if (taken < best) best = taken;
    }
    printf("%.6f\\n", best);
    return 0;
}
"""


def flash(source: Path) -> int | None:
    """Return the bytes of code and constants for a Cortex-M4F, or None without its compiler."""
    if shutil.which("arm-none-eabi-gcc") is None or shutil.which("arm-none-eabi-size") is None:
        return None
    made = source.with_suffix(".o")
    subprocess.run(["arm-none-eabi-gcc", *CORTEX, "-c", str(source), "-o", str(made)], check=True)
    sizes = subprocess.run(["arm-none-eabi-size", str(made)], check=True, capture_output=True, text=True).stdout
    return int(sizes.splitlines()[1].split()[0])


def quality(session: Session, corpus: Corpus, count: int) -> dict[str, float]:
    """Return the accuracy of a spotter, or the mean PESQ of a denoiser, and over how many clips or pairs."""
    if session.settings.task == "classifier":
        shares = accuracy(session, corpus, count)
        return {"accuracy": shares["accuracy"], "n": shares["clips"]}
    scores = []
    for noisy, clean in pairs(corpus)[:count]:
        denoiser = Denoiser(session, corpus.rate)
        cleaned = np.concatenate([denoiser.process(corpus.load(noisy)), denoiser.flush()])
        scores.append(pesq(cleaned, corpus.load(clean), corpus.rate))
    return {"pesq": round(float(np.mean(scores)), 4), "n": len(scores)}


def response(session: Session) -> NDArray[np.float32]:
    """Return the outputs for two seconds of noise."""
    x = 0.1 * np.random.default_rng(0).standard_normal(2 * session.settings.rate)
    session.reset()
    return session.process(x.astype(np.float32))


def ratio(exact: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the signal-to-error ratio in dB."""
    return float(10 * np.log10(np.square(exact).sum() / np.square(exact - other).sum()))


def step_times(source: Path) -> dict[str, float]:
    """Return the processor seconds that a second of audio takes in a C program, for each set of compiler flags."""
    main, program = source.with_name("main.c"), source.with_suffix("")
    main.write_text(MAIN, encoding="utf-8")
    defines = [f"-DSECONDS={SECONDS}", f"-DROUNDS={ROUNDS}"]
    times = {}
    for name, flags in FLAGS.items():
        subprocess.run(["gcc", "-O3", "-std=gnu99", *flags, *defines, main, source, "-o", program], check=True)
        times[name] = float(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
    return times


def onnxruntime_time(model: str) -> float:
    """Return the processor seconds that a second of audio takes in onnxruntime, in the chunks of the shipped file."""
    session = Session(model)
    noise = 0.1 * np.random.default_rng(0).standard_normal(SECONDS * session.settings.rate).astype(np.float32)
    chunks = np.split(noise, range(session.settings.chunk, len(noise), session.settings.chunk))
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        for chunk in chunks:
            session.process(chunk)
        best = min(best, (time.process_time() - begin) / SECONDS)
    return round(best, 6)


def memory(made: ExportedC) -> dict[str, Any]:
    """Return what weights, flash and state take, in kB."""
    size = {"weights_kb": made.weight_bytes, "flash_kb": flash(made.source), "ram_kb": made.state_bytes}
    return {name: count if count is None else round(count / 1000, 1) for name, count in size.items()}


def main() -> None:
    """Export every format, measure, and update the model's figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--corpus")
    parser.add_argument("--split")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    net, corpus = load(options.model), open_corpus(options.corpus) if options.corpus else None
    corpus = corpus.split(options.split) if corpus and options.split else corpus
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    figures = results.setdefault(options.model, {})
    exact: NDArray[np.float32] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for weights in WEIGHTS:
            source = Path(folder) / weights / "step.c"
            source.parent.mkdir()
            made = export_c(net, source, weights=weights)
            row = figures.setdefault(weights, {})
            if options.time:
                row["rtf"] = step_times(made.source)
            if corpus:
                session = Session(made.source, engine="c")
                output = response(session)
                error = None if exact is None else round(ratio(exact, output), 1)
                row |= memory(made) | {"snr_db": error} | quality(session, corpus, options.count)
                exact = output if exact is None else exact
            print(options.model, weights, json.dumps(row), flush=True)
    if options.time:
        figures["onnxruntime"] = {"rtf": onnxruntime_time(options.model)}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
