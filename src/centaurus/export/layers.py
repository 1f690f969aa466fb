"""The operations of a step as nodes of an ONNX graph, in single precision and with a dynamic batch size.

Fourier transforms are two stages of small matrix products, without FFT operators. A frame of N = A · B samples is a
matrix of B rows and A columns. The first stage transforms the columns, giving for every r from 0 to B/2 a row of A
complex numbers; the second maps that row to the bins k with k mod B = ±r, by a small table for each r (a group).
Together they need a few per cent of the multiplications of one table (N, 2 · bins).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, singledispatchmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from centaurus.export.ssm import lower_s6, lower_ssm
from centaurus.export.step import Array, Signal, Target, array, inside, lower
from centaurus.layer import Layer
from centaurus.nn.containers import FLOOR, Gated, Leveled
from centaurus.nn.fused import EPS
from centaurus.nn.layers import AvgPool, BandConv, CausalConv, DCBlock, Delay, LayerNorm, RunningMean, WindowedMean
from centaurus.nn.spectral import (
    LEVEL_FLOOR,
    LOG_FLOOR,
    LOG_SCALE,
    RELATIVE_FLOOR,
    Analysis,
    Compress,
    Leveling,
    Mask,
    Mel,
    Synthesis,
    analysis_window,
    mel_filters,
    stages,
    synthesis_window,
)
from centaurus.ssm import S6, SSM

if TYPE_CHECKING:
    from centaurus.export.write import Graph


def bin_groups(window: int, length: int) -> list[list[int]]:
    """Return for every r from 0 to length/2 the bins k up to window/2 with k mod length = ±r."""
    bins = range(window // 2 + 1)
    return [[k for k in bins if k % length in (r, (length - r) % length)] for r in range(length // 2 + 1)]


def band_patches(layer: BandConv, frames: int) -> NDArray[np.int64]:
    """Return which (frame, band), counted together, an output band depends on: (frames · out bands · kernel,).

    The past comes first. The number after the last (frame, band) stands for a band beyond the ends.
    """
    across, taps = layer.kernel
    frame = np.arange(frames)[:, None, None, None] * layer.hop + np.arange(taps)[:, None]
    band = np.arange(layer.out_bands)[:, None, None] * layer.stride[0] + np.arange(across) - across // 2
    last = ((frames - 1) * layer.hop + taps) * layer.bands
    return np.where((band >= 0) & (band < layer.bands), frame * layer.bands + band, last).ravel()


def column_table(length: int) -> Array:
    """Return the real transform of a column, (2 · groups, length): real and imaginary part of each r in turn."""
    angle = 2 * np.pi * np.outer(np.arange(length // 2 + 1), np.arange(length)) / length
    return np.stack([np.cos(angle), -np.sin(angle)], 1).reshape(-1, length)


def bin_tables(window: int, columns: int) -> Array:
    """Return the second stage, (groups, 2 · columns, 2 · most): from the columns' values for an r to its bins.

    ``most`` is the number of bins in the largest group; both sides have real and imaginary parts.
    """
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
    """Return its inverse, (groups, 2 · most, 2 · columns): from the bins of an r to the columns' values for it."""
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
    """Return the inverse transform of a column, (rows, 2 · groups): from its values for each r to its last rows."""
    length = window // columns
    r, n = np.arange(length // 2 + 1), np.arange(length - rows, length)
    twice = np.where(r % (length // 2) == 0, 1, 2) / window
    angle = 2 * np.pi * np.outer(n, r) / length
    return np.stack([twice * np.cos(angle), -twice * np.sin(angle)], -1).reshape(rows, -1)


def bin_order(window: int, columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the position of each channel of a spectrum in the order of groups, and the channel of each position."""
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
    """Add the nodes of the short-time spectra of a signal of one channel."""
    x = _grouped_spectra(g, layer, u, name)
    y = g.node("Gather", x.name, g.constant(bin_order(layer.window, _columns(layer))[0]), axis=3)
    return Signal(y, x.frames, 2 * layer.bins)


def _columns(layer: Analysis) -> int:
    return stages(layer.window, layer.window)[0]


def _grouped_spectra(g: Graph, layer: Analysis, u: Signal, name: str) -> Signal:
    """Return spectra in the order of the second stage: the bins of a group together."""
    window, hop, frames = layer.window, layer.hop, u.frames // layer.hop
    columns, length = stages(window, window)
    state = g.state(name, 1, window - hop)
    x = g.concat(state, g.reshape(u.name, 1, u.frames), axis=2)
    g.keep(state, g.part(x, u.frames, u.frames + window - hop, 2))
    shape = array(analysis_window(window, hop))
    if frames > 1:  # gather overlapping frames, whole hops at a time if the window consists of them
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
    """Add the nodes of the overlap-add of the newest samples of every frame."""
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
    """Multiply each group by its own table (groups, in, out), all frames in one product."""
    groups, inner, _ = tables.shape
    if frames == 1:
        return g.matmul(g.reshape(x, groups, 1, inner), g.constant(tables))
    by_group = g.transpose(g.reshape(x, frames, groups, inner), 0, 2, 1, 3)
    return g.transpose(g.matmul(by_group, g.constant(tables)), 0, 2, 1, 3)


def _overlaps(frames: int, overlaps: int) -> Array:
    """Return a matrix (output hops, hops of the state + pieces) of ones where a piece is part of an output hop."""
    table = np.zeros((frames + overlaps - 1, overlaps - 1 + frames * overlaps))
    table[np.arange(overlaps - 1), np.arange(overlaps - 1)] = 1
    for frame in range(frames):
        for age in range(overlaps):
            table[frame + age, overlaps - 1 + frame * overlaps + age] = 1
    return table


def lower_compress(layer: Compress, g: Graph, u: Signal, name: str) -> Signal:
    """Add the nodes of compressed spectra."""
    relative, level = _over_level(g, layer, u, name)
    relative = g.add(relative, g.constant(RELATIVE_FLOOR))
    magnitude = _power(g, relative, layer.power / 2)
    size = g.node("Sqrt", relative if level is None else g.multiply(relative, level))
    scale = g.node("Div", magnitude, size)
    y = g.concat(magnitude, g.multiply(u.name, g.concat(scale, scale)))
    return Signal(y, u.frames, 3 * layer.bins)


def lower_mel(layer: Mel, g: Graph, u: Signal, name: str) -> Signal:
    """Add the nodes of mel bands."""
    relative, _ = _over_level(g, layer, u, name)
    filters = array(mel_filters(layer.bins, layer.bands, *layer.band)).T
    return _compressed_bands(g, layer, g.matmul(relative, g.constant(filters)), u.frames)


def lower_mel_of(g: Graph, analysis: Analysis, mel: Mel, u: Signal, name: str) -> Signal:
    """Add the nodes of mel bands of short-time spectra; the filters are permuted instead of the bins."""
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
    """Return x to a power for positive x, by exp and log, which onnxruntime vectorises."""
    return g.node("Exp", g.multiply(g.node("Log", x), g.constant(exponent)))


def _over_level(g: Graph, layer: Leveling, u: Signal, name: str) -> tuple[str, str | None]:
    """Return power divided by level, and the level (an exponential mean with bias correction) if there is one."""
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
    """Add the nodes of a delay line."""
    frames = int(layer.delay)
    state = g.state(name, 1, frames, u.channels)
    x = g.concat(state, u.name, axis=2)
    g.keep(state, g.part(x, u.frames, u.frames + frames, 2))
    return u._replace(name=g.part(x, 0, u.frames, 2))


NARROW, MANY = 8, 256  # most channels and fewest frames of a norm that is faster by products than by the operator
FEW = 8  # most frames of a convolution whose taps are one product and one sum
WIDTH = 32  # most channels × frames that such a norm takes in one row
LONGEST = 64  # frames of a DC blocker's leaky sum in one matrix
OPERATORS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"}
LEAVES: dict[type[Layer], Callable[[Any, Graph, Signal, str], Signal]] = {
    SSM: lower_ssm,
    S6: lower_s6,
    Analysis: lower_analysis,
    Synthesis: lower_synthesis,
    Compress: lower_compress,
    Mel: lower_mel,
    Delay: lower_delay,
}


class Nodes(Target):
    """The export to ONNX: adds the layers of a step to a graph."""

    format: ClassVar[str] = "ONNX"

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def product(self, u: Signal, table: Array, bias: Array | None = None) -> Signal:
        g = self.graph
        y = g.matmul(u.name, g.constant(table))
        return Signal(y if bias is None else g.add(y, g.constant(bias)), u.frames, table.shape[1])

    def reshape(self, u: Signal, frames: int, channels: int) -> Signal:
        return Signal(self.graph.reshape(u.name, 1, frames, channels), frames, channels)

    def add(self, x: Signal, y: Signal) -> Signal:
        return x._replace(name=self.graph.add(x.name, y.name))

    def map(self, u: Signal, function: str) -> Signal:
        if function in OPERATORS:
            return u._replace(name=self.graph.node(OPERATORS[function], u.name))
        return u._replace(name=self.graph.silu(u.name) if function == "silu" else self._gelu(u.name, function))

    def _gelu(self, x: str, function: str) -> str:
        """Return x · Φ(x), with Φ by the error function or by its tanh approximation."""
        g = self.graph
        if function == "gelu_tanh":
            cube = g.multiply(x, g.add(g.multiply(g.multiply(x, x), g.constant(0.044715)), g.constant(1.0)))
            bent = g.node("Tanh", g.multiply(cube, g.constant(np.sqrt(2 / np.pi))))
        else:
            bent = g.node("Erf", g.multiply(x, g.constant(np.sqrt(0.5))))
        return g.multiply(g.multiply(x, g.constant(0.5)), g.add(bent, g.constant(1.0)))

    def fuse(self, layers: list[Layer], u: Signal, name: str) -> Signal | None:
        match layers:
            case [Analysis() as analysis, Mel() as mel] if not mel.release:
                return lower_mel_of(self.graph, analysis, mel, u, name)
        return None

    @singledispatchmethod
    def leaf(self, layer: Layer, u: Signal, name: str) -> Signal:
        if type(layer) not in LEAVES:
            raise self.refusal(f"is a {type(layer).__name__}", name)
        return LEAVES[type(layer)](layer, self.graph, u, name)

    @leaf.register
    def _(self, layer: AvgPool, u: Signal, name: str) -> Signal:
        r, c = layer.hop, u.channels
        if r == 1:
            return u
        return self.product(self.reshape(u, u.frames // r, r * c), np.tile(np.eye(c), (r, 1)) / r)

    @leaf.register
    def _(self, layer: LayerNorm, u: Signal, name: str) -> Signal:
        g = self.graph
        if layer.weight is not None and layer.bias is not None:
            scale, bias = array(layer.weight), array(layer.bias)
            if u.channels <= NARROW and u.frames >= MANY:
                u = self._narrow_norm(u, scale, bias)
            else:
                y = g.node("LayerNormalization", u.name, g.constant(scale), g.constant(bias), axis=-1, epsilon=EPS)
                u = u._replace(name=y)
        return self.map(u, "silu") if layer.activate else u

    def _narrow_norm(self, u: Signal, scale: Array, bias: Array) -> Signal:
        """Return the norm of few channels by matrix products over several frames: the operator has a cost per frame."""
        g, c = self.graph, u.channels
        frames = max(m for m in range(1, WIDTH // c + 1) if u.frames % m == 0)
        every = np.eye(frames)
        x = g.reshape(u.name, 1, u.frames // frames, frames * c)
        x = g.matmul(x, g.constant(np.kron(every, np.eye(c) - 1 / c)))
        power = g.matmul(g.multiply(x, x), g.constant(np.kron(every, np.full((c, c), 1 / c))))
        x = g.node("Div", x, g.node("Sqrt", g.add(power, g.constant(EPS))))
        x = g.add(g.multiply(x, g.constant(np.tile(scale, frames))), g.constant(np.tile(bias, frames)))
        return u._replace(name=g.reshape(x, 1, u.frames, c))

    @leaf.register
    def _(self, layer: Gated, u: Signal, name: str) -> Signal:
        g = self.graph
        wide = lower(layer.into, self, lower(layer.norm, self, u, name), name)
        first, gate = g.split(wide.name, [layer.width, layer.width])
        x = lower(layer.conv, self, Signal(first, u.frames, layer.width), inside(name, "conv"))
        y = lower(layer.ssm, self, x, inside(name, "ssm"))
        passed = g.add(y.name, g.multiply(x.name, g.constant(array(layer.D)[:, 0])))
        gated = x._replace(name=g.multiply(passed, g.silu(gate)))
        return self.add(u, lower(layer.out, self, gated, name))

    @leaf.register
    def _(self, layer: Mask, u: Signal, name: str) -> Signal:
        g, bins, low, earlier = self.graph, layer.bins, layer.low, layer.taps - 1
        mask = lower(layer.body, self, u, inside(name, "body"))
        late = lower(layer.wait, self, u, inside(name, "wait"))
        real, imaginary, *factors = g.split(mask.name, [bins] * 2 + [low] * 2 * earlier)
        re, im = g.split(late.name, [bins, bins])
        y_re, y_im = _complex_product(g, g.add(real, g.constant(1.0)), imaginary, re, im)
        if not earlier:
            return u._replace(name=g.concat(y_re, y_im))
        lowest = Signal(g.concat(*(g.part(part, 0, low, 3) for part in (re, im))), u.frames, 2 * low)
        x = self._with_past(lowest, f"{name}.past", earlier)
        for age in range(1, earlier + 1):
            frames = g.part(x, earlier - age, earlier - age + u.frames, 2)
            more = _complex_product(g, *factors[2 * age - 2 : 2 * age], *g.split(frames, [low, low]))
            y_re, y_im = (_add_low(g, y, z, low, bins) for y, z in zip((y_re, y_im), more, strict=True))
        return u._replace(name=g.concat(y_re, y_im))

    @leaf.register
    def _(self, layer: CausalConv, u: Signal, name: str) -> Signal:
        g, (channels, kernel), weight = self.graph, layer.weight.shape, array(layer.weight)
        x = self._with_past(u, name, kernel - 1)
        if u.frames <= FEW:
            table = np.zeros((u.frames, u.frames + kernel - 1, channels))  # frame out, frame in
            for t in range(u.frames):
                table[t, t : t + kernel] = weight.T
            y = g.matmul(g.constant(np.ones((1, table.shape[1]))), g.multiply(x, g.constant(table)))
            y = g.reshape(y, 1, u.frames, channels) if u.frames > 1 else y
        else:
            taps = [g.multiply(g.part(x, k, k + u.frames, 2), g.constant(weight[:, k])) for k in range(kernel)]
            y = reduce(g.add, taps)
        return u._replace(name=y if layer.bias is None else g.add(y, g.constant(array(layer.bias))))

    @leaf.register
    def _(self, layer: BandConv, u: Signal, name: str) -> Signal:
        g, frames, taps = self.graph, u.frames // layer.hop, layer.kernel[1]
        x = self._with_past(u, name, taps - layer.hop)
        rows = g.reshape(x, (u.frames + taps - layer.hop) * layer.bands, layer.in_features)
        beyond = g.node("Mul", g.part(rows, 0, 1, 1), g.constant(0.0))  # a row of zeros for what is beyond the ends
        rows = g.concat(rows, beyond, axis=1)
        patches = g.node("Gather", rows, g.constant(band_patches(layer, frames)), axis=1)
        weight = array(layer.weight).transpose(2, 3, 1, 0).reshape(-1, layer.out_features)
        y = g.matmul(g.reshape(patches, frames * layer.out_bands, len(weight)), g.constant(weight))
        y = y if layer.bias is None else g.add(y, g.constant(array(layer.bias)))
        channels = layer.out_bands * layer.out_features
        return Signal(g.reshape(y, 1, frames, channels), frames, channels)

    def _with_past(self, u: Signal, name: str, frames: int) -> str:
        """Return a signal with the ``frames`` frames before it, which are kept in a state."""
        if frames == 0:
            return u.name
        g = self.graph
        state = g.state(name, 1, frames, u.channels)
        x = g.concat(state, u.name, axis=2)
        g.keep(state, g.part(x, u.frames, u.frames + frames, 2))
        return x

    @leaf.register
    def _(self, layer: RunningMean, u: Signal, name: str) -> Signal:
        g = self.graph
        mean = g.state(f"{name}.mean", 1, 1, u.channels)
        count = g.state(f"{name}.count", 1, 1, 1)
        counts = g.add(count, g.constant(np.arange(1.0, u.frames + 1)[:, None]))
        sums = g.matmul(g.constant(np.tri(u.frames)), g.node("Sub", u.name, mean))
        y = g.add(g.node("Div", sums, counts), mean)
        g.keep(mean, g.part(y, u.frames - 1, u.frames, 2))
        g.keep(count, g.part(counts, u.frames - 1, u.frames, 2))
        return u._replace(name=y)

    @leaf.register
    def _(self, layer: WindowedMean, u: Signal, name: str) -> Signal:
        g, frames, window = self.graph, u.frames, layer.window
        count = g.state(f"{name}.count", 1, 1, 1)
        x = self._with_past(u, f"{name}.past", window - 1)
        counts = g.add(count, g.constant(np.arange(1.0, frames + 1)[:, None]))
        counts = g.node("Min", counts, g.constant(float(window)))
        age = np.arange(frames)[:, None] + window - 1 - np.arange(frames + window - 1)
        band = ((age >= 0) & (age < window)).astype(float)
        y = g.node("Div", g.matmul(g.constant(band), x), counts)
        g.keep(count, g.part(counts, frames - 1, frames, 2))
        return u._replace(name=y)

    @leaf.register
    def _(self, layer: DCBlock, u: Signal, name: str) -> Signal:
        """Run in blocks: one matrix inside each, and one that carries the leaky sum from block to block."""
        g, pole = self.graph, layer.pole
        q = max(k for k in range(1, min(LONGEST, u.frames) + 1) if u.frames % k == 0)
        blocks = u.frames // q
        age = np.arange(q) - np.arange(q)[:, None]
        sums = _fall(pole, age)  # frame in, frame out
        inside = np.eye(q) - (1 - pole) * np.concatenate([np.zeros((q, 1)), sums[:, :-1]], 1)
        x = u.name if u.channels == 1 else g.transpose(u.name, 0, 3, 1, 2)
        x = g.reshape(x, u.channels, blocks, q)
        y, ends = g.split(g.matmul(x, g.constant(np.concatenate([inside, sums[:, -1:]], 1))), [q, 1])
        state = g.state(name, u.channels, 1, 1)
        steps = np.arange(blocks + 1) - np.arange(blocks + 1)[:, None]
        carry = _fall(pole**q, steps)  # state or a block's end, start of a block
        both = g.matmul(g.constant(carry.T), g.concat(state, ends, axis=2))
        starts, after = g.split(both, [blocks, 1], axis=2)
        g.keep(state, after)
        y = g.add(y, g.matmul(starts, g.constant(-(1 - pole) * pole ** np.arange(q)[None])))
        y = g.reshape(y, u.channels, 1, u.frames)
        y = g.reshape(y, 1, u.frames, 1) if u.channels == 1 else g.transpose(y, 0, 2, 3, 1)
        return u._replace(name=y)

    @leaf.register
    def _(self, layer: Leveled, u: Signal, name: str) -> Signal:
        """Divide by the level, run the body and multiply by the level again.

        The level is the largest of all hops so far, each decayed by its age.
        """
        g, hops, width = self.graph, u.frames // layer.hop, layer.hop * u.channels
        x = g.reshape(u.name, 1, hops, width)
        power = g.matmul(g.multiply(x, x), g.constant(np.full((width, 1), 1 / width)))
        loud = g.node("Sqrt", g.add(power, g.constant(FLOOR**2)))
        past = g.state(f"{name}.level", 1, 1, 1)
        age = np.arange(1, hops + 1)[:, None] - np.arange(hops + 1)  # of the state, then of every hop
        both = g.reshape(g.concat(past, loud, axis=2), 1, 1, hops + 1)
        levels = g.node("ReduceMax", g.multiply(both, g.constant(_fall(layer.decay, age))), axes=[3], keepdims=1)
        g.keep(past, g.part(levels, hops - 1, hops, 2))
        scaled = Signal(g.node("Div", x, levels), hops, width)
        y = lower(layer.body, self, self.reshape(scaled, u.frames, u.channels), inside(name, "body"))
        y_hops = g.multiply(g.reshape(y.name, 1, hops, width), levels)
        if layer.kept:
            y_hops = g.add(g.multiply(y_hops, g.constant(1 - layer.kept)), g.multiply(x, g.constant(layer.kept)))
        return self.reshape(Signal(y_hops, hops, width), y.frames, y.channels)


def _fall(decay: float, age: NDArray[np.int64]) -> Array:
    """Return decay^age, and zero for negative ages."""
    return np.where(age >= 0, decay ** np.maximum(age, 0.0), 0.0)


def _complex_product(g: Graph, a: str, b: str, re: str, im: str) -> tuple[str, str]:
    """Return the real and imaginary part of (a + ib)(re + i im)."""
    return (
        g.node("Sub", g.multiply(a, re), g.multiply(b, im)),
        g.add(g.multiply(a, im), g.multiply(b, re)),
    )


def _add_low(g: Graph, x: str, y: str, low: int, bins: int) -> str:
    """Return x with y added to the first ``low`` of its bins."""
    if low == bins:
        return g.add(x, y)
    first, rest = g.split(x, [low, bins - low])
    return g.concat(g.add(first, y), rest)
