"""The paper's comparison of topologies from runs of one's own: error against size and work at equal training time.

    python bench/ablation.py DATA [--minutes 5] [--seeds 1] [--networks NAME,NAME] [--out out/ablation] [key=value ...]

DATA is a folder of words. One cell is one network with one seed; cells run one after the other, each in a run folder of
its own. Stop whenever you like: the same command goes on with the cell that was interrupted. Writes ablation.json,
ablation.png and ablation.md; of several seeds the median counts and the spread is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import centaurus as ct
from centaurus.recipes import kws, launch
from centaurus.train.config import override
from centaurus.train.run import Run

FAMILIES = ("hybrid", "pointwise", "full", "bottleneck", "separable", "s6", "hybrid-complex")
WIDTHS = (2, 4)
# One validation, at the end. With AdamW such minutes are too few: kws-hybrid-4 has 70 % errors after six of them.
SETTINGS = replace(
    kws.configure("small"), words="10", dc_block=True, tuned=4, before=0.0, noisy=0.2, batch=16, lr=3e-3, warmup=0.1,
    optimizer="muon", validations=1, workers=0,
)  # fmt: skip


def cell(network: str, seed: int, settings: kws.KeywordSettings, data: Path, out: Path) -> dict[str, Any]:
    """Train one network with one seed, or go on with it, or read what it did."""
    folder = out / "cells" / f"{network}-{seed}"
    result = folder / "result.json"
    if result.is_file():
        done: dict[str, Any] = json.loads(result.read_text())
        return done
    settings = replace(settings, network=network, seed=seed)
    if (folder / "config.json").is_file():
        run = Run.existing(folder)
    else:
        run = launch.start("kws", settings, data, folder)
    launch.train(run, "kws", settings, data)
    records = [record for record in run.records() if record["kind"] == "validation"]
    counted = ct.count(ct.load(folder / "last.safetensors"))
    found = {
        "network": network,
        "seed": seed,
        "minutes": settings.minutes,
        "steps": records[-1]["step"],
        "error": 1 - records[-1]["accuracy"],
        "parameters": counted.parameters,
        "flops": counted.flops_per_second,
    }
    run.write_json(result.name, found)
    return found


def together(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of each network as one row: the median error with the smallest and the largest."""
    rows = []
    for name in dict.fromkeys(cell["network"] for cell in cells):
        own = [cell for cell in cells if cell["network"] == name]
        errors = [cell["error"] for cell in own]
        steps = round(statistics.median(cell["steps"] for cell in own))
        spread = {"error": statistics.median(errors), "low": min(errors), "high": max(errors)}
        rows.append({**own[0], **spread, "steps": steps, "seeds": len(own)})
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Error against parameters and against FLOPs, a line for every family."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, constrained_layout=True)
    for axis, key, scale, label in zip(
        axes, ("parameters", "flops"), (1e3, 1e6), ("thousand parameters", "MFLOPs a second of audio"), strict=True
    ):
        for family in FAMILIES:
            own = [row for row in rows if row["network"].removeprefix("kws-").rpartition("-")[0] == family]
            if own:
                errors = [
                    [100 * (row["error"] - row["low"]) for row in own],
                    [100 * (row["high"] - row["error"]) for row in own],
                ]
                sizes, middle = [row[key] / scale for row in own], [100 * row["error"] for row in own]
                axis.errorbar(sizes, middle, errors, marker="o", capsize=3, label=family)
        axis.set(xscale="log", xlabel=label)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("validation error, %")
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = "| network | parameters | MFLOPs/s | updates | error, % | spread | seeds |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row['network']} | {row['parameters']:,} | {row['flops'] / 1e6:.1f} | {row['steps']:,} | "
        f"{100 * row['error']:.1f} | {100 * row['low']:.1f}–{100 * row['high']:.1f} | {row['seeds']} |\n"
        for row in rows
    )


def main() -> None:
    """Run what is missing, draw what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--networks", default=",".join(f"kws-{f}-{w}" for w in WIDTHS for f in FAMILIES))
    parser.add_argument("--out", type=Path, default=Path("out/ablation"))
    parser.add_argument("settings", nargs="*")
    chosen = parser.parse_intermixed_args()
    settings = override(override(SETTINGS, [f"minutes={chosen.minutes}"]), chosen.settings)
    chosen.out.mkdir(parents=True, exist_ok=True)
    cells = []
    for seed in range(chosen.seeds):
        for network in chosen.networks.split(","):
            cells.append(cell(network, seed, settings, chosen.data, chosen.out))
            print(f"{network:<22} seed {seed}  error {100 * cells[-1]['error']:.1f} %", flush=True)
            rows = together(cells)
            (chosen.out / "ablation.json").write_text(json.dumps(rows, indent=2))
            (chosen.out / "ablation.md").write_text(table(rows))
            plot(rows, chosen.out / "ablation.png")


if __name__ == "__main__":
    main()
