"""Score checkpoints of a denoiser's training on the validation speakers, and draw the curves of all its runs.

    python scripts/denoiser_curve.py VOICEBANK CURVE.json [RUN TITLE NETWORK CHECKPOINT ...]

VOICEBANK is the corpus with its training pairs, of which p286 and p287 validate. CURVE.json holds runs by name; with
RUN, its checkpoints (`checkpoint.pt` of denoise_16k.py, kept under other names) are scored and added to it under that
name. NETWORK is a table, or a model with the same structure. The plot is CURVES.png next to the JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import torch
from matplotlib.figure import Figure
from pictures import save_small
from PIL import Image

import centaurus as ct
from centaurus import audio
from centaurus.data import Corpus, open_corpus, pairs
from centaurus.models.tables import DENOISERS
from centaurus.system import plot_style

SPEAKERS, PAIRS, SEED = ("p286", "p287"), 120, 7
BLUE = "#0072b2"


def validation(voicebank: Path) -> tuple[Corpus, list[tuple[Any, Any]]]:
    """The corpus and the (noisy, clean) pairs to score, drawn at random and the same every time."""
    corpus = open_corpus(voicebank)
    every = [pair for pair in pairs(corpus) if pair[0].id.startswith(SPEAKERS)]
    chosen = np.random.default_rng(SEED).permutation(len(every))[:PAIRS]
    return corpus, [every[int(k)] for k in chosen]


@torch.no_grad()
def scores(net: ct.nn.Layer, corpus: Corpus, chosen: list[tuple[Any, Any]]) -> dict[str, float]:
    """Mean PESQ, STOI and SI-SDR of a network's output."""
    late, rows = int(net.delay), []
    for noisy, clean in chosen:
        x, target = corpus.load(noisy), corpus.load(clean)
        whole = torch.nn.functional.pad(torch.from_numpy(x)[None, None], (0, late + (-len(x) - late) % net.hop))
        y = net(whole)[0, 0, late : late + len(x)].numpy()
        rows.append((audio.pesq(y, target), audio.stoi(y, target), audio.si_sdr(y, target)))
    return dict(zip(("pesq", "stoi", "si_sdr"), np.round(np.mean(rows, 0), 4).tolist(), strict=True))


def curve(network: str, checkpoints: list[Path], voicebank: Path) -> list[dict[str, float]]:
    """Updates, CPU-minutes and scores of each checkpoint, in the order of training."""
    corpus, chosen = validation(voicebank)
    net = (ct.denoiser(network) if network in DENOISERS else ct.load(network)).eval()
    points = []
    for path in checkpoints:
        kept = torch.load(path, weights_only=True)
        net.load_state_dict(kept["average"])
        points.append({"updates": kept["step"], "minutes": round(kept["spent"] / 60, 1)} | scores(net, corpus, chosen))
        print(points[-1], flush=True)
    return sorted(points, key=lambda point: point["minutes"])


def draw(runs: dict[str, Any], path: Path) -> None:
    """PESQ and SI-SDR against CPU time, a row for each run."""
    with matplotlib.style.context(plot_style()):
        _draw(runs, path)


def _draw(runs: dict[str, Any], path: Path) -> None:
    figure = Figure(figsize=(9, 2.6 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), 2, squeeze=False)
    for (name, run), axes in zip(runs.items(), rows, strict=True):
        minutes = [point["minutes"] for point in run["curve"]]
        for ax, key, label in zip(axes, ("pesq", "si_sdr"), ("PESQ (wide band)", "SI-SDR, dB"), strict=True):
            values = [point[key] for point in run["curve"]]
            ax.plot(minutes, values, "o-", color=BLUE)
            rises = values[-1] >= values[-2]  # the label goes to the side where the line is not
            offset = (0, 5 if rises else -14)
            ax.annotate(f"{values[-1]:.2f}", (minutes[-1], values[-1]), offset, textcoords="offset points", ha="center")
            ax.margins(y=0.15)
            ax.set(xlabel="CPU-minutes of this run", ylabel=label)
        axes[0].set_title(f"{name}: {run.get('title', '')}, {run['pairs']} pairs", loc="left", fontsize=10)
    figure.savefig(path, dpi=100)
    save_small(Image.open(path), path)


def main(voicebank: Path, file: Path, *run: str) -> None:
    """Add a run to the curves, and draw them."""
    runs = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if run:
        name, title, network, *checkpoints = run
        points = curve(network, [Path(path) for path in checkpoints], voicebank)
        runs[name] = {"title": title, "pairs": PAIRS, "speakers": SPEAKERS, "curve": points}
        file.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    draw(runs, file.with_name(file.stem + "s.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
