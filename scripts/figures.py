"""Reproduce the paper's scaling figures of keyword spotting: test error against parameters and FLOPs.

    python scripts/figures.py DATA [--figure scaling|complex|s6|sc10] [--seeds 10] [--gpus 8] [--out FOLDER] [key=value]
    python scripts/figures.py DATA --small [--minutes 5] [--networks NAME,NAME] [--out FOLDER] [key=value]

DATA is Speech Commands. A figure has the networks of the paper's, every width, at the paper's settings (``centaurus
train kws``): 35 words, 200 epochs, ten seeds; the error is that on the test split. ``sc10`` is the paper's largest
network on ten words, as in its table of other state-space models. ``--small`` compares the topologies
with what two CPU cores allow: ten words, some minutes for each network, the error on the validation split.

One cell is one network with one seed; cells run one after the other, each in its own run folder. It may be interrupted:
the same command resumes with the interrupted cell. ``--gpus N`` runs N cells at a time, one on each GPU;
``--part K/N`` does every N-th cell, for several machines with one shared folder. Writes figures.json, .png and .md; of
several seeds the median counts and the spread is shown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch

import centaurus as ct
from centaurus.data import Keywords
from centaurus.data.keywords import NONE
from centaurus.recipes import kws, launch
from centaurus.system import plot_style
from centaurus.train.config import override
from centaurus.train.loop import validation
from centaurus.train.run import Run


class Kind(NamedTuple):
    """A network by its table, and the states of every row and the words if not those of table and settings."""

    network: str
    states: int = 0
    words: str = ""

    @property
    def name(self) -> str:
        """Its name in folders and tables."""
        states, words = f"-n{self.states}" if self.states else "", f"-sc{self.words}" if self.words else ""
        return f"{self.network}{states}{words}"


def kinds(families: dict[str, tuple[int, ...]], states: int = 0) -> list[Kind]:
    """Return every width of some families."""
    return [Kind(f"kws-{family}-{width}", states) for family, widths in families.items() for width in widths]


THREE, FOUR = (2, 4, 8), (2, 4, 8, 16)  # the widths of the paper's table
S6_STATES = (8, 16)  # beside the table's 4: the paper says that it varied them, not how
ALL = {"hybrid": THREE, "pointwise": THREE, "full": THREE, "bottleneck": THREE, "separable": FOUR, "s6": FOUR}
FIGURES = {
    "scaling": kinds(ALL),
    "complex": kinds({"hybrid": THREE, "hybrid-complex": THREE}),
    "s6": kinds({"hybrid": THREE, "s6": FOUR}) + [kind for n in S6_STATES for kind in kinds({"s6": FOUR}, n)],
    "sc10": [Kind("kws-hybrid-8", words="10")],
}
SMALL = kinds(dict.fromkeys((*ALL, "hybrid-complex"), (2, 4)))
PAPER_SEEDS = 10
MARKERS = "osD^vPX"  # of the families, for grey print
PAPER = {"fc": "white", "ec": "none", "pad": 0.5, "alpha": 0.8}  # under a name, where lines cross it
SPLITS = {"val": "validation", "test": "test"}
PAPER_SETTINGS = replace(kws.configure("paper"), words="35")
# One validation, at the end. With AdamW such minutes are too few: kws-hybrid-4 has 70 % errors after six of them.
SMALL_SETTINGS = replace(
    kws.configure("small"), words="10", dc_block=True, tuned=4, before=0.0, noisy=0.2, batch=16, lr=3e-3, warmup=0.1,
    optimizer="muon", validations=1, workers=0,
)  # fmt: skip


def cell(kind: Kind, seed: int, settings: kws.KeywordSettings, data: Path, out: Path, split: str) -> dict[str, Any]:
    """Train one network with one seed, resume it, or read its stored result."""
    folder = out / "cells" / f"{kind.name}-{seed}"
    result = folder / "result.json"
    if result.is_file():
        done: dict[str, Any] = json.loads(result.read_text())
        return done
    words = kind.words or settings.words
    settings = replace(settings, network=kind.network, states=kind.states, words=words, seed=seed)
    if (folder / "config.json").is_file():
        run = Run.existing(folder)
    else:
        run = launch.start("kws", settings, data, folder)
    launch.train(run, "kws", settings, data)
    records = [record for record in run.records() if record["kind"] == "validation"]
    counted = ct.count(ct.load(folder / "last.safetensors"))
    error = (
        1 - records[-1]["accuracy"]
        if split == "val"
        else split_error(folder / "last.safetensors", settings, data, split)
    )
    measured = {
        "network": kind.name,
        "seed": seed,
        "split": split,
        "epochs": settings.epochs,
        "minutes": settings.minutes,
        "steps": records[-1]["step"],
        "error": error,
        "parameters": counted.parameters,
        "flops": counted.flops_per_second,
    }
    run.write_json(result.name, measured)
    return measured


@torch.no_grad()
def split_error(model: Path, settings: kws.KeywordSettings, data: Path, split: str) -> float:
    """Return the share of a split's clips whose most probable class is not their word."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = ct.load(model).to(device).eval()
    words = settings.read(settings.find(data, (split,)).where(kind="word"))
    clips = Keywords(words.split(split), net.settings["classes"], None, 0.0, NONE, settings.seconds)
    wrong = total = 0
    for batch in validation(clips, settings.batch, 0, 0, 1, settings.workers):
        answers = net(batch["audio"].to(device))[..., -1].argmax(1).cpu()
        wrong += int((answers != batch["label"]).sum())
        total += len(answers)
    return wrong / total


def summarise(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each network: the median error over its seeds, with the smallest and the largest."""
    rows = []
    for name in dict.fromkeys(cell["network"] for cell in cells):
        own = [cell for cell in cells if cell["network"] == name]
        errors = [cell["error"] for cell in own]
        steps = round(statistics.median(cell["steps"] for cell in own))
        spread = {"error": statistics.median(errors), "low": min(errors), "high": max(errors)}
        rows.append({**own[0], **spread, "steps": steps, "seeds": len(own)})
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the error against parameters and against FLOPs, a line with its name for every family."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    scales = {"parameters": (1e3, "thousand parameters"), "flops": (1e6, "MFLOPs a second of audio")}
    families = dict.fromkeys(family_of(row["network"]) for row in rows)
    with plt.style.context(plot_style()):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
        for axis, (key, (scale, label)) in zip(axes, scales.items(), strict=True):
            for family, marker in zip(families, cycle(MARKERS), strict=False):
                own = sorted((row for row in rows if family_of(row["network"]) == family), key=lambda row: row[key])
                sizes, middle = [row[key] / scale for row in own], [100 * row["error"] for row in own]
                sides = ([row["error"] - row["low"] for row in own], [row["high"] - row["error"] for row in own])
                spread = [[100 * size or math.nan for size in side] for side in sides]  # no bar for a single seed
                line = axis.errorbar(sizes, middle, spread, marker=marker, capsize=3)
                place = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 8, "bbox": PAPER}
                axis.annotate(family, (sizes[-1], middle[-1]), color=line[0].get_color(), **place)
            axis.set(xscale="log", xlabel=label)
            axis.margins(x=0.22)  # room for the names
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.xaxis.set_minor_formatter(NullFormatter())
        axes[0].set_ylabel(f"{SPLITS[rows[0]['split']]} error, %")
        figure.savefig(path)
        plt.close(figure)


def family_of(name: str) -> str:
    """Return the family of a network: ``kws-s6-4-n16`` is ``s6, 16 states``."""
    plain, _, states = name.removeprefix("kws-").partition("-sc")[0].partition("-n")
    family = plain.rpartition("-")[0]
    return f"{family}, {states} states" if states else family


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    head = "| network | parameters | MFLOPs/s | updates | error, % | spread | seeds |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row['network']} | {row['parameters']:,} | {row['flops'] / 1e6:.1f} | {row['steps']:,} | "
        f"{100 * row['error']:.1f} | {100 * row['low']:.1f}–{100 * row['high']:.1f} | {row['seeds']} |\n"
        for row in rows
    )


def write(cells: list[dict[str, Any]], out: Path, name: str) -> None:
    """Write the results so far as JSON, plot and table."""
    rows = summarise(cells)
    (out / f"{name}.json").write_text(json.dumps(rows, indent=2))
    (out / f"{name}.md").write_text(table(rows))
    plot(rows, out / f"{name}.png")


def on_gpus(count: int) -> list[int]:
    """Run this command on every GPU, each with its part of the cells; return the exit codes."""
    arguments = [word for word in sys.argv[1:] if not word.startswith("--gpus")]
    if "--gpus" in sys.argv:
        arguments.remove(sys.argv[sys.argv.index("--gpus") + 1])
    running = [
        subprocess.Popen(
            [sys.executable, __file__, *arguments, "--part", f"{k + 1}/{count}"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": str(k)},
        )
        for k in range(count)
    ]
    return [process.wait() for process in running]


def part_of(text: str) -> tuple[int, int]:
    """Return the part and the number of parts: ``3/8`` is (2, 8)."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} should be K/N with 1 <= K <= N, such as 3/8")
    return int(number) - 1, int(count)


def main() -> None:
    """Train the missing cells and plot all results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--figure", choices=FIGURES, default="scaling")
    parser.add_argument("--small", action="store_true", help="minutes on a CPU instead of the paper's settings")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each network, with --small")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--networks", help="names with commas, in place of the figure's")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--part", type=part_of, default=(0, 1))
    parser.add_argument("--out", type=Path)
    parser.add_argument("settings", nargs="*")
    chosen = parser.parse_intermixed_args()
    name = "ablation" if chosen.small else chosen.figure
    out = chosen.out or Path("out") / ("ablation" if chosen.small else "figures")
    out.mkdir(parents=True, exist_ok=True)
    base = override(SMALL_SETTINGS, [f"minutes={chosen.minutes}"]) if chosen.small else PAPER_SETTINGS
    settings = override(base, chosen.settings)
    networks = SMALL if chosen.small else FIGURES[chosen.figure]
    if chosen.networks:
        networks = [Kind(network) for network in chosen.networks.split(",")]
    seeds = chosen.seeds or (1 if chosen.small else PAPER_SEEDS)
    if chosen.gpus and any(on_gpus(chosen.gpus)):
        sys.exit("a cell failed: the same command resumes with the missing ones")
    first, step = chosen.part
    cells = []
    for kind, seed in [(kind, seed) for seed in range(seeds) for kind in networks][first::step]:
        cells.append(cell(kind, seed, settings, chosen.data, out, "val" if chosen.small else "test"))
        print(f"{kind.name:<22} seed {seed}  error {100 * cells[-1]['error']:.1f} %", flush=True)
        if step == 1:
            write(cells, out, name)


if __name__ == "__main__":
    main()
