"""Draw diagrams and training curves of the documents and cut the README's picture: ``python scripts/pictures.py``."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from centaurus.system import plot_style

DOCS = Path(__file__).parent.parent / "docs"
OUT = DOCS / "images"
COLOURS = 32  # of the palette
LARGEST = 200_000  # bytes of a picture
INK, LINE, FILLS = "#222222", "#555555", ("#dce9f5", "#fdebd0", "#e3f0dd")  # input and output, computation, storage
BOX, GAP = 2.3, 0.55  # width of a box and between boxes
PAPER_OF_TEN = 0.9853  # accuracy of kws-hybrid-8 on SC10 in the paper

Step = tuple[str, str, int]  # title, text, fill

TRAINING: list[list[Step]] = [
    [
        ("corpus", "data.open_corpus:\nclips with labels", 2),
        ("cache", "data.prepared:\ndecoded once, int16", 2),
        ("examples", "data.keywords, data.rows:\ndrawn by (epoch, index)", 1),
        ("batches", "train.loop: order is a\nfunction of seed and step", 1),
    ],
    [
        ("network", "models: layers run whole,\ncontracted as planned", 1),
        ("objective", "train.objectives:\nweighted losses", 1),
        ("optimiser", "train.optim: AdamW or\nMuon, then the EMA", 1),
        ("run folder", "train.run: log, metrics,\ncheckpoints, best model", 2),
    ],
]
RUNTIME: list[list[Step]] = [
    [
        ("samples", "a file, pipe, microphone\nor array; any rate", 0),
        ("resample", "audio.signal: to the\nmodel's rate, streaming", 1),
        ("chunk", "runtime.session: buffers\n`chunk` samples", 1),
        ("step", "onnxruntime: audio and\nstates in and out", 1),
    ],
    [
        ("states", "bound in place: next.X\nis state.X of the next step", 2),
        ("frames", "delay removed, trimmed\nto the input's length", 1),
        ("task", "denoise: back to the rate\nspot, transcribe: decode", 1),
        ("result", "samples, keywords\nor words with times", 0),
    ],
]


def draw(rows: list[list[Step]], name: str) -> None:
    """Draw rows of boxes, joined by arrows from left to right and from row to row."""
    width = len(rows[0]) * (BOX + GAP)
    figure = Figure(figsize=(width * 0.82, 1.45 * len(rows)), layout="constrained")
    axes: Axes = figure.subplots()
    axes.set(xlim=(0, width), ylim=(-1.55 * len(rows) + 0.35, 0.35))
    axes.axis("off")
    for r, row in enumerate(rows):
        for k, (title, text, fill) in enumerate(row):
            x, y = k * (BOX + GAP) + 0.1, -1.55 * r - 1
            axes.add_patch(FancyBboxPatch((x, y), BOX, 1.1, boxstyle="round,pad=0.05", fc=FILLS[fill], ec=LINE, lw=0.8))
            axes.text(x + BOX / 2, y + 0.86, title, ha="center", va="center", color=INK, fontsize=10, fontweight="bold")
            axes.text(x + BOX / 2, y + 0.36, text, ha="center", va="center", color=INK, fontsize=8)
            arrow = {"arrowstyle": "->", "color": LINE, "lw": 1.2}
            if k + 1 < len(row):
                axes.annotate("", (x + BOX + GAP - 0.06, y + 0.55), (x + BOX + 0.06, y + 0.55), arrowprops=arrow)
            elif r + 1 < len(rows):
                axes.plot([x + BOX / 2, x + BOX / 2, 0.1 + BOX / 2], [y - 0.06, y - 0.25, y - 0.25], color=LINE, lw=1.2)
                axes.annotate(
                    "", (0.1 + BOX / 2, y - 0.42), (0.1 + BOX / 2, y - 0.25), arrowprops=arrow | {"shrinkA": 0}
                )
    figure.savefig(OUT / name, dpi=110)


def spectrogram_palette() -> Image.Image:
    """Return a palette of greys for text and axes and of even steps of the spectrograms' colours."""
    with matplotlib.style.context(plot_style()):
        steps = matplotlib.colormaps[matplotlib.rcParams["image.cmap"]](range(0, 256, 9), bytes=True)[:, :3]
    greys = [[level] * 3 for level in range(0, 256, 51)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([int(part) for colour in (*greys, *steps) for part in colour])
    return palette


def save_small(picture: Image.Image, path: Path, palette: int | Image.Image = COLOURS) -> None:
    """Write a picture with a palette, narrower by steps of a tenth until the file is small enough.

    ``palette`` is an image that has it, or how many colours to choose.
    """
    width = picture.width
    while True:
        size = (width, round(picture.height * width / picture.width))
        small = picture.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        if isinstance(palette, int):
            small = small.quantize(palette, dither=Image.Dither.NONE)
        else:
            small = small.quantize(palette=palette, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
        if path.stat().st_size <= LARGEST:
            return
        width = round(0.9 * width)


def before_after(model: str) -> None:
    """Cut the panels ``noisy`` and ``denoised`` and the axis of seconds out of a model's picture of three panels."""
    picture = Image.open(DOCS / "models" / f"{model}-1.png").convert("RGB")
    width, height = round(0.921 * picture.width), picture.height
    panels, axis = (
        picture.crop((0, 0, width, round(0.627 * height))),
        picture.crop((0, round(0.944 * height), width, height)),
    )
    cut = Image.new("RGB", (width, panels.height + axis.height), "white")
    cut.paste(panels, (0, 0))
    cut.paste(axis, (0, panels.height))
    save_small(cut, OUT / "before-after.png", spectrogram_palette())


def keyword_curve(file: Path, measured: str, lowest: int = 0, paper: float | None = None) -> None:
    """Draw a spotter's accuracy against updates; dotted lines are where a run ended, a dashed one is the paper's."""
    points = json.loads(file.read_text(encoding="utf-8"))
    figure = Figure(figsize=(6, 3.4))
    axes = figure.subplots()
    axes.plot([p["updates"] / 1000 for p in points], [100 * p["accuracy"] for p in points], "o-", markersize=3)
    for one, two in pairwise(points):
        if one.get("run") != two.get("run"):
            axes.axvline(one["updates"] / 1000, color="0.6", linestyle=":", linewidth=1)
    last = points[-1]
    axes.annotate(
        f"{100 * last['accuracy']:.1f}",
        (last["updates"] / 1000, 100 * last["accuracy"]),
        (0, 6 if paper is None else -13),
        textcoords="offset points",
        ha="center",
    )
    if paper is not None:
        axes.axhline(100 * paper, color="0.4", linestyle="--", linewidth=1)
        text = f"the paper's test set: {100 * paper:.2f}"
        axes.text(last["updates"] / 1000, 100 * paper, text, ha="right", va="bottom", color="0.4")
    axes.text(0.99, 0.03, "dotted: a new run", ha="right", color="0.4", transform=axes.transAxes)
    axes.set(
        xlabel="thousand updates of 32 words",
        ylabel=f"accuracy of {measured}, %",
        ylim=(lowest, 100 if paper is None else 101),
    )
    figure.savefig(file.with_name(file.stem + "s.png"))


def recogniser_curve(file: Path) -> None:
    """Draw the validation loss and error rates of an hour of training a recogniser of letters."""
    points = json.loads(file.read_text(encoding="utf-8"))["validation"]
    minutes = [p["seconds"] / 60 for p in points]
    figure = Figure(figsize=(9, 3.2))
    left, right = figure.subplots(1, 2)
    left.plot(minutes, [p["loss"] for p in points], "o-")
    left.set(xlabel="minutes of training", ylabel="CTC loss, held-out speaker")
    for key, name, marker in (("wer", "words", "s-"), ("cer", "letters", "o-")):
        rates = [100 * p[key] for p in points]
        right.plot(minutes, rates, marker)
        right.annotate(
            f"{name} {rates[-1]:.0f}", (minutes[-1], rates[-1]), (0, 7), textcoords="offset points", ha="right"
        )
    right.set(xlabel="minutes of training", ylabel="error rate, held-out speaker, %", ylim=(0, 125))
    figure.savefig(file.with_name(file.stem + "s.png"))


def main() -> None:
    """Draw and cut all of them."""
    OUT.mkdir(exist_ok=True)
    before_after("denoise-16k")
    with matplotlib.style.context(plot_style()):
        keyword_curve(DOCS / "models" / "kws-30-raw-curve.json", "31 classes, held-out speakers")
        keyword_curve(DOCS / "models" / "kws-10-raw-curve.json", "ten words, validation list", 70, PAPER_OF_TEN)
        recogniser_curve(DOCS / "models" / "asr-hour-curve.json")
    draw(TRAINING, "training-step.png")
    draw(RUNTIME, "runtime-chunk.png")


if __name__ == "__main__":
    main()
