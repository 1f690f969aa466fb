"""A picture of what was done: spectrograms before and after, one above the other."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError, blocks, info, replacing
from centaurus.audio.stft import stft
from centaurus.runtime.outputs import OutputError

LONGEST = 60.0  # seconds: more would be a blur
WIDTH = 1200  # columns, at most
SIZE = 512
FLOOR = 80.0  # dB below the loudest


def before_and_after(
    before: str | os.PathLike[str], after: str | os.PathLike[str], path: str | os.PathLike[str], overwrite: bool = False
) -> None:
    """Write a PNG of the first minute of two sound files, the mean of their channels, on one scale of dB."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heard = [_beginning(name) for name in (before, after)]
    pictures = [_decibels(x) for x, _ in heard]
    loudest = max(picture.max() for picture in pictures)
    figure = Figure(figsize=(10, 5.4), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 1, sharex=True)
    for axis, picture, (x, rate), title in zip(axes, pictures, heard, ("before", "after"), strict=True):
        image = axis.imshow(
            picture.T,
            origin="lower",
            aspect="auto",
            cmap="magma",
            vmin=loudest - FLOOR,
            vmax=loudest,
            extent=(0.0, max(1, len(x)) / rate, 0.0, rate / 2000),
            interpolation="nearest",
        )
        axis.set_ylabel("kHz")
        axis.set_title(title, loc="left", fontsize=10)
    axes[1].set_xlabel("seconds")
    figure.colorbar(image, ax=axes, label="dB", pad=0.01)
    try:
        with replacing(path, overwrite) as temporary:
            figure.savefig(temporary, format="png")
    except AudioError as error:
        raise OutputError(str(error)) from error


def _beginning(path: str | os.PathLike[str]) -> tuple[NDArray[np.float32], int]:
    rate = info(path).rate
    pieces = []
    for block in blocks(path, rate):
        pieces.append(block.mean(axis=0, dtype=np.float32))
        if len(pieces) >= LONGEST:
            break
    return np.concatenate([np.zeros(0, np.float32), *pieces]), rate


def _decibels(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """(columns, frequencies) in dB."""
    hop = next(hop for hop in (64, 128, 256) if len(x) / hop <= 4 * WIDTH or hop == 256)
    power = np.square(np.abs(stft(x, SIZE, hop)))
    group = -(-len(power) // WIDTH)
    power = power[: max(1, len(power) // group) * group].reshape(-1, group, power.shape[1]).mean(axis=1)
    found: NDArray[np.float32] = 10 * np.log10(power + 1e-12).astype(np.float32)
    return found
