"""A picture of what was done: spectrograms before and after, one above the other."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError, blocks, info
from centaurus.audio.spectrogram import save_png
from centaurus.runtime.outputs import OutputError

LONGEST = 60  # seconds: more would be a blur
SHORTEST = 1024  # samples: less has no spectrum


def before_and_after(
    before: str | os.PathLike[str], after: str | os.PathLike[str], path: str | os.PathLike[str], overwrite: bool = False
) -> None:
    """Write a PNG of the first minute of two sound files of one rate, the mean of their channels."""
    signals = {"before": _beginning(before), "after": _beginning(after)}
    try:
        save_png(path, signals, info(before).rate, overwrite=overwrite)
    except AudioError as error:
        raise OutputError(str(error)) from error


def _beginning(path: str | os.PathLike[str]) -> NDArray[np.float32]:
    pieces = [np.zeros(0, np.float32)]
    for block in blocks(path, info(path).rate):
        pieces.append(block.mean(axis=0, dtype=np.float32))
        if len(pieces) > LONGEST:
            break
    x = np.concatenate(pieces)
    return np.pad(x, (0, max(0, SHORTEST - len(x))))
