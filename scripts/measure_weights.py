"""Measure what each format of weights in C costs in quality and takes in memory: the table of docs/devices.md.

    python scripts/measure_weights.py MODEL CORPUS [--split val] [--count 300]

MODEL is a shipped name or a safetensors file. A keyword spotter is measured on clips of words, a denoiser on pairs of
noisy and clean recordings. Flash and RAM of a Cortex-M4F are given where arm-none-eabi-gcc is installed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from measure_keywords import accuracy
from numpy.typing import NDArray

from centaurus.audio import pesq
from centaurus.data import Corpus, open_corpus, pairs
from centaurus.export.c import export_c
from centaurus.export.c.layers import WEIGHTS
from centaurus.models import load
from centaurus.runtime import Denoiser, Session

CORTEX = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Os", "-ffreestanding", "-std=c99"]
HEAD = "| `--weights` | weights KB | flash KB | RAM KB | against fp32 | quality |\n|---|---|---|---|---|---|"


def flash(source: Path) -> int | None:
    """Return the bytes of code and constants for a Cortex-M4F, or None without its compiler."""
    if shutil.which("arm-none-eabi-gcc") is None or shutil.which("arm-none-eabi-size") is None:
        return None
    made = source.with_suffix(".o")
    subprocess.run(["arm-none-eabi-gcc", *CORTEX, "-c", str(source), "-o", str(made)], check=True)
    sizes = subprocess.run(["arm-none-eabi-size", str(made)], check=True, capture_output=True, text=True).stdout
    return int(sizes.splitlines()[1].split()[0])


def quality(session: Session, corpus: Corpus, count: int) -> str:
    """Return the accuracy of a spotter, or the mean PESQ of a denoiser."""
    if session.settings.task == "classifier":
        shares = accuracy(session, corpus, count)
        return f"{100 * shares['accuracy']:.1f} % of {shares['clips']}"
    scores = []
    for noisy, clean in pairs(corpus)[:count]:
        denoiser = Denoiser(session, corpus.rate)
        cleaned = np.concatenate([denoiser.process(corpus.load(noisy)), denoiser.flush()])
        scores.append(pesq(cleaned, corpus.load(clean), corpus.rate))
    return f"{np.mean(scores):.3f} of {len(scores)}"


def main() -> None:
    """Export every format, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("corpus")
    parser.add_argument("--split")
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args()
    net, corpus = load(options.model), open_corpus(options.corpus)
    corpus = corpus.split(options.split) if options.split else corpus
    exact: NDArray[np.float32] | None = None
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for weights in WEIGHTS:
            made = export_c(net, Path(folder) / f"{weights}.c", weights=weights)
            session = Session(made.source, engine="c")
            output, code = response(session), flash(made.source)
            cells = [
                f"`{weights}`",
                f"{made.weight_bytes / 1e3:.0f}",
                "–" if code is None else f"{code / 1e3:.0f}",
                f"{made.state_bytes / 1e3:.1f}",
                "–" if exact is None else f"{ratio(exact, output):.1f} dB",
                quality(session, corpus, options.count),
            ]
            exact = output if exact is None else exact
            print(f"| {' | '.join(cells)} |", flush=True)


def response(session: Session) -> NDArray[np.float32]:
    """Return the outputs for two seconds of noise."""
    x = 0.1 * np.random.default_rng(0).standard_normal(2 * session.settings.rate)
    session.reset()
    return session.process(x.astype(np.float32))


def ratio(exact: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the signal-to-error ratio in dB."""
    return float(10 * np.log10(np.square(exact).sum() / np.square(exact - other).sum()))


if __name__ == "__main__":
    main()
