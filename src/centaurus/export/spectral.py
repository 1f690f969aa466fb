"""Spectral layers as nodes: transforms in two stages of small matrix products, without FFT operators.

A frame of N = A · B samples is a matrix of B rows and A columns. The first stage transforms the columns, giving for
every r from 0 to B/2 a row of A complex numbers; the second takes that row to the bins k with k mod B = ±r, one small
table for each r. Together they need a few per cent of the products of a plain N × 2 · bins table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from centaurus.export.graph import Graph, Signal, array
from centaurus.nn.layers import Delay
from centaurus.nn.spectral import (
    LEVEL_FLOOR,
    LOG_FLOOR,
    LOG_SCALE,
    RELATIVE_FLOOR,
    Analysis,
    Compress,
    Leveling,
    Mel,
    Synthesis,
    analysis_window,
    mel_filters,
    stages,
    synthesis_window,
)

Array = NDArray[np.float64]


def bin_groups(window: int, length: int) -> list[list[int]]:
    """For every r from 0 to length/2 the bins k up to window/2 with k mod length = ±r."""
    bins = range(window // 2 + 1)
    return [[k for k in bins if k % length in (r, (length - r) % length)] for r in range(length // 2 + 1)]


def column_table(length: int) -> Array:
    """(2 · groups, length): the real transform of a column, real and imaginary part of each r in turn."""
    angle = 2 * np.pi * np.outer(np.arange(length // 2 + 1), np.arange(length)) / length
    return np.stack([np.cos(angle), -np.sin(angle)], 1).reshape(-1, length)


def bin_tables(window: int, columns: int) -> Array:
    """(groups, 2 · columns, 2 · most): from the columns' values for an r to real and imaginary part of its bins."""
    length = window // columns
    groups = bin_groups(window, length)
    most = max(map(len, groups))
    table = np.zeros((len(groups), 2, columns, most, 2))
    for r, bins in enumerate(groups):
        for position, k in enumerate(bins):
            direct = k % length == r
            angle = 2 * np.pi * np.arange(columns) * (k if direct else window - k) / window
            sign = 1 if direct else -1  # X[k] is the conjugate of X[window - k]
            table[r, 0, :, position] = np.stack([np.cos(angle), -sign * np.sin(angle)], -1)
            table[r, 1, :, position] = np.stack([np.sin(angle), sign * np.cos(angle)], -1)
    return table.reshape(len(groups), 2 * columns, 2 * most)


def inverse_bin_tables(window: int, columns: int) -> Array:
    """(groups, 2 · most, 2 · columns): from the bins of an r back to the columns' values for it."""
    length, half = window // columns, window // 2
    groups = bin_groups(window, length)
    most = max(map(len, groups))
    table = np.zeros((len(groups), most, 2, 2, columns))
    for r, bins in enumerate(groups):
        for position, k in enumerate(bins):
            for other in {k, (window - k) % window}:
                if other % length != r:
                    continue
                sign = 1 if other == k else -1
                angle = 2 * np.pi * np.arange(columns) * other / window
                table[r, position, 0] += np.stack([np.cos(angle), np.sin(angle)])
                if k % half:  # the first and last bin are real
                    table[r, position, 1] += sign * np.stack([-np.sin(angle), np.cos(angle)])
    return table.reshape(len(groups), 2 * most, 2 * columns)


def inverse_column_table(window: int, columns: int, rows: int) -> Array:
    """(rows, 2 · groups): the last rows of samples of every column from its values for each r."""
    length = window // columns
    r, n = np.arange(length // 2 + 1), np.arange(length - rows, length)
    twice = np.where(r % (length // 2) == 0, 1, 2) / window
    angle = 2 * np.pi * np.outer(n, r) / length
    return np.stack([twice * np.cos(angle), -twice * np.sin(angle)], -1).reshape(rows, -1)


def bin_order(window: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of each channel of a spectrum among the groups, and the channel at each place of them."""
    groups = bin_groups(window, window // columns)
    most, bins = max(map(len, groups)), window // 2 + 1
    place, channel = np.zeros(2 * bins, np.int64), np.zeros(2 * most * len(groups), np.int64)
    for r, members in enumerate(groups):
        for position, k in enumerate(members):
            for part in range(2):
                at = (r * most + position) * 2 + part
                place[k + part * bins], channel[at] = at, k + part * bins
    return place, channel


def lower_analysis(layer: Analysis, g: Graph, u: Signal, name: str) -> Signal:
    """Nodes of the short-time spectra of a signal of one channel."""
    x = _grouped_spectra(g, layer, u, name)
    y = g.node("Gather", x.name, g.constant(bin_order(layer.window, _columns(layer))[0]), axis=3)
    return Signal(y, x.frames, 2 * layer.bins)


def _columns(layer: Analysis) -> int:
    return stages(layer.window, layer.window)[0]


def _grouped_spectra(g: Graph, layer: Analysis, u: Signal, name: str) -> Signal:
    """Spectra in the order in which the second stage gives them, bins of one group together."""
    window, hop, frames = layer.window, layer.hop, u.frames // layer.hop
    columns, length = stages(window, window)
    state = g.state(name, 1, window - hop)
    x = g.concat(state, g.reshape(u.name, 1, u.frames), axis=2)
    g.keep(state, g.part(x, u.frames, u.frames + window - hop, 2))
    shape = array(analysis_window(window, hop))
    if frames > 1:  # whole hops are copied, where frames are made of them
        step = hop if window % hop == 0 else 1
        hops = np.arange(frames)[:, None] * (hop // step) + np.arange(window // step)
        x = g.node("Gather", g.reshape(x, 1, -1, step), g.constant(hops), axis=2)
        shape = shape.reshape(-1, step)
    x = g.multiply(x, g.constant(shape))
    x = g.matmul(g.constant(column_table(length)), g.reshape(x, frames, length, columns))
    tables = bin_tables(window, columns)
    groups, most = len(tables), tables.shape[-1]
    x = _each_group(g, x, tables, frames)
    return Signal(g.reshape(x, 1, frames, groups * most), frames, groups * most)


def lower_synthesis(layer: Synthesis, g: Graph, u: Signal, name: str) -> Signal:
    """Nodes of the overlap-add of the newest samples of every frame."""
    window, synthesis, hop, frames = layer.window, layer.synthesis, layer.step_samples, u.frames
    columns, _ = stages(window, synthesis)
    tables = inverse_bin_tables(window, columns)
    groups = len(tables)
    x = g.node("Gather", u.name, g.constant(bin_order(window, columns)[1]), axis=3)
    x = g.reshape(_each_group(g, x, tables, frames), frames, 2 * groups, columns)
    x = g.matmul(g.constant(inverse_column_table(window, columns, synthesis // columns)), x)
    overlaps = synthesis // hop
    shape = array(synthesis_window(window, hop, synthesis)).reshape(overlaps, hop)
    pieces = g.multiply(g.reshape(x, frames, overlaps, hop), g.constant(shape))
    state = g.state(name, overlaps - 1, hop)
    if frames == 1 and overlaps == 2:
        now, later = g.split(g.reshape(pieces, 2, hop), [1, 1], axis=1)
        y = g.add(now, state)
        g.keep(state, later)
    else:
        both = g.concat(state, g.reshape(pieces, frames * overlaps, hop), axis=1)
        summed = g.matmul(g.constant(_overlaps(frames, overlaps)), both)
        y, later = g.split(summed, [frames, overlaps - 1], axis=1)
        g.keep(state, later)
    return Signal(g.reshape(y, 1, frames * hop, 1), frames * hop, 1)


def _each_group(g: Graph, x: str, tables: Array, frames: int) -> str:
    """Multiply each group of every frame by its own table (groups, in, out): all frames of a group in one product."""
    groups, inner, _ = tables.shape
    if frames == 1:
        return g.matmul(g.reshape(x, groups, 1, inner), g.constant(tables))
    by_group = g.transpose(g.reshape(x, frames, groups, inner), 0, 2, 1, 3)
    return g.transpose(g.matmul(by_group, g.constant(tables)), 0, 2, 1, 3)


def _overlaps(frames: int, overlaps: int) -> Array:
    """(hops out, hops waiting + pieces): which pieces add up to which hop."""
    table = np.zeros((frames + overlaps - 1, overlaps - 1 + frames * overlaps))
    table[np.arange(overlaps - 1), np.arange(overlaps - 1)] = 1
    for frame in range(frames):
        for age in range(overlaps):
            table[frame + age, overlaps - 1 + frame * overlaps + age] = 1
    return table


def lower_compress(layer: Compress, g: Graph, u: Signal, name: str) -> Signal:
    """Nodes of compressed spectra."""
    relative, level = _over_level(g, layer, u, name)
    relative = g.add(relative, g.constant(RELATIVE_FLOOR))
    magnitude = _power(g, relative, layer.power / 2)
    size = g.node("Sqrt", relative if level is None else g.multiply(relative, level))
    scale = g.node("Div", magnitude, size)
    y = g.concat(magnitude, g.multiply(u.name, g.concat(scale, scale)))
    return Signal(y, u.frames, 3 * layer.bins)


def lower_mel(layer: Mel, g: Graph, u: Signal, name: str) -> Signal:
    """Nodes of mel bands."""
    relative, _ = _over_level(g, layer, u, name)
    filters = array(mel_filters(layer.bins, layer.bands, *layer.band)).T
    return _compressed_bands(g, layer, g.matmul(relative, g.constant(filters)), u.frames)


def lower_mel_of(g: Graph, analysis: Analysis, mel: Mel, u: Signal, name: str) -> Signal:
    """Nodes of mel bands of short-time spectra, without putting the bins in order: the filters are in theirs."""
    x = _grouped_spectra(g, analysis, u, name)
    place, _ = bin_order(analysis.window, _columns(analysis))
    filters = np.zeros((x.channels, mel.bands))
    filters[place] = np.tile(array(mel_filters(mel.bins, mel.bands, *mel.band)).T, (2, 1))
    bands = g.matmul(g.multiply(x.name, x.name), g.constant(filters))
    return _compressed_bands(g, mel, bands, x.frames)


def _compressed_bands(g: Graph, layer: Mel, bands: str, frames: int) -> Signal:
    if layer.power:
        y = _power(g, g.add(bands, g.constant(RELATIVE_FLOOR)), layer.power / 2)
    else:
        y = g.multiply(g.node("Log", g.add(bands, g.constant(LOG_FLOOR))), g.constant(LOG_SCALE))
    return Signal(y, frames, layer.bands)


def _power(g: Graph, x: str, exponent: float) -> str:
    """x to a power, for positive x: by logarithms, which the runtime has for many numbers at once."""
    return g.node("Exp", g.multiply(g.node("Log", x), g.constant(exponent)))


def _over_level(g: Graph, layer: Leveling, u: Signal, name: str) -> tuple[str, str | None]:
    """Power over level, and the level where there is one: an exponential mean, corrected for its start."""
    square = g.multiply(u.name, u.name)
    power = g.add(*g.split(square, [layer.bins, layer.bins]))
    if not layer.release:
        return power, None
    decay, frames = layer.decay, u.frames
    counted = np.arange(2 * layer.bins) % layer.bins >= layer.lowest
    share = counted * (1 - decay) / (layer.bins - layer.lowest)
    total, weight = g.state(f"{name}.power", 1, 1, 1), g.state(f"{name}.weight", 1, 1, 1)
    new = g.matmul(square, g.constant(share[:, None]))
    kept = decay ** np.arange(1.0, frames + 1)[:, None]
    if frames > 1:
        age = np.arange(frames)[:, None] - np.arange(frames)
        new = g.matmul(g.constant(np.where(age >= 0, decay ** np.maximum(age, 0.0), 0.0)), new)
    totals = g.add(new, g.multiply(total, g.constant(kept)))
    weights = g.add(g.constant(1 - kept), g.multiply(weight, g.constant(kept)))
    for state, values in ((total, totals), (weight, weights)):
        g.keep(state, values if frames == 1 else g.part(values, frames - 1, frames, 2))
    level = g.add(g.node("Div", totals, weights), g.constant(LEVEL_FLOOR))
    return g.node("Div", power, level), level


def lower_delay(layer: Delay, g: Graph, u: Signal, name: str) -> Signal:
    """Nodes of a delay line."""
    frames = int(layer.delay)
    state = g.state(name, 1, frames, u.channels)
    x = g.concat(state, u.name, axis=2)
    g.keep(state, g.part(x, u.frames, u.frames + frames, 2))
    return u._replace(name=g.part(x, 0, u.frames, 2))
