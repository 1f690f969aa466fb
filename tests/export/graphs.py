"""Run the nodes of one layer in onnxruntime, piece by piece."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from centaurus.export.step import Signal
from centaurus.export.write import Graph, after

Lowered = Callable[[Graph, Signal], Signal]


def run_pieces(lowered: Lowered, u: NDArray[np.float64], frames: int) -> NDArray[np.float64]:
    """A signal (batch, channels, time) through nodes made for pieces of this many frames, from zero states."""
    batch, channels, length = u.shape
    g = Graph()
    audio = g.transpose(g.reshape("audio", channels, frames, 1), 0, 3, 2, 1)
    y = lowered(g, Signal(audio, frames, channels))
    output = g.transpose(g.reshape(y.name, y.frames, y.channels), 0, 2, 1)
    model = g.model("audio", frames * channels, output, [y.channels, y.frames], {})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    states = {s.name: np.zeros((batch, *s.shape), np.float32) for s in g.states}
    names = [state.name for state in g.states]
    result = []
    for start in range(0, length, frames):
        piece = u[..., start : start + frames].reshape(batch, 1, -1).astype(np.float32)
        got, *new = session.run(["output", *map(after, names)], {"audio": piece} | states)
        result.append(got)
        states = dict(zip(names, new, strict=True))
    return np.concatenate(result, -1)


def error(actual: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())
