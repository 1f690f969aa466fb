"""From a table to a network: the blocks of its rows, and the keyword spotters, denoisers and recognizers they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple, TypeVar, cast, final

from torch import Tensor
from torch.nn.functional import pad
from torch.nn.init import normal_

from centaurus import nn
from centaurus.layer import Layer, State
from centaurus.models.network import SAMPLE_RATE, Network
from centaurus.models.tables import (
    CLASSIFIERS,
    DC_BLOCK,
    DENOISERS,
    MAMBA,
    MEL,
    RECOGNIZERS,
    SELECTIVE,
    SEPARABLE,
    BandRow,
    ClassifierTable,
    DenoiserTable,
    RecognizerTable,
    Row,
    SpectralTable,
    SpotterTable,
    Table,
)
from centaurus.ssm import S6, SSM
from centaurus.ssm.layer import Discretization, TopologyName

T = TypeVar("T")
SomeTable = TypeVar("SomeTable", bound=Table)

FEW_FEATURES = 4  # channels are dropped only where there are more
# Norms bring every inner signal to about one, however quiet the speech. Initialising the upsampling at a tenth lets the
# skips dominate: the untrained network is close to the identity instead of 17 dB above it.
QUIET = 0.1
UNTRAINED_MASK = 1e-3  # standard deviation of the weights that give a mask, which starts close to one
MODULES: dict[str, Callable[[int], Layer] | None] = {"none": None, "ffn": nn.feed_forward, "conv": nn.conv_module}


def state_space(row: Row, in_channels: int, out_channels: int) -> Layer:
    """Return the row's state-space layer. S6 gates channels by channels: with one channel it is ``separable`` instead.

    A Mamba block keeps its channels; where a row changes them a projection follows it.
    """
    if row.kind == MAMBA:
        wide = 2 * in_channels
        block = nn.Gated(in_channels, wide, S6(wide, states=row.states, rank=row.rank or None, weighted=False))
        if in_channels == out_channels:
            return block
        return nn.Serial({"mamba": block, "project": nn.Pointwise(in_channels, out_channels, bias=False)})
    if row.kind == SELECTIVE and in_channels > 1:
        return S6(in_channels, out_channels, row.states, row.rank or None, row.weighted)
    kind = SEPARABLE if row.kind == SELECTIVE else row.kind
    name = cast(TopologyName, kind)
    rule = cast(Discretization, row.discretization)
    return SSM(name, in_channels, out_channels, row.states, row.substates, row.groups, row.complex, rule)


def front(rows: Sequence[Row]) -> tuple[list[Layer], list[Row]]:
    """Return the DC blocker or mel bands of the first row, if it is one, and the rows of blocks."""
    first: list[Layer] = []
    if rows and rows[0].kind == DC_BLOCK:
        first = [nn.DCBlock()]
    elif rows and rows[0].kind == MEL:
        first = [mel_bands(rows[0])]
    blocks = list(rows[len(first) :])
    if not blocks:
        raise ValueError(f"a network needs at least one block, got {len(rows)} rows without any")
    return first, blocks


def mel_bands(
    row: Row, power: float = 0.0, release: float = 0.0, low: float = 60.0, high: float = 7800.0, rate: int = 16_000
) -> nn.Serial:
    """Return the layers of a ``mel`` row: short-time spectra and mel bands."""
    analysis = nn.Analysis(row.window, row.resample)
    bands = nn.Mel(analysis.bins, row.channels, rate, low, high, power, release)
    return nn.Serial({"analysis": analysis, "mel": bands})


def residual_blocks(rows: Sequence[Row], expansion: float, dropout: float = 0.0) -> tuple[nn.Serial, int]:
    """Return pre-norm residual blocks of one rate and width, and that width: a state-space layer, then an FFN.

    The last weights of the FFN are initialised to zero, so that each block starts as its state-space layer alone.
    """
    blocks: list[Layer] = []
    width = rows[0].channels if rows else 0
    for row in [same for stacked in rows for same in [stacked] * stacked.times]:
        if row.resample != 1 or row.channels != width:
            raise ValueError(f"residual blocks should have resample=1 and {width} channels, got {row}")
        inside = {"norm": nn.LayerNorm(width), "ssm": state_space(row, width, width), "silu": nn.SiLU()}
        block = {"mixer": nn.Residual(nn.Serial(inside | ({"dropout": nn.Dropout1d(dropout)} if dropout else {})))}
        if expansion:
            hidden = round(expansion * width)
            wide, narrow = nn.Pointwise(width, hidden), nn.Pointwise(hidden, width)
            narrow.weight.data.zero_()
            inside = {"norm": nn.LayerNorm(width), "wide": wide, "silu": nn.SiLU(), "narrow": narrow}
            block["ffn"] = nn.Residual(nn.Serial(inside))
        blocks.append(nn.Serial(block))
    return nn.Serial(blocks), width


def changed(table: SomeTable, states: int | None, **sizes: int | None) -> SomeTable:
    """Return a table with this many states in every row, and with these sizes; ``None`` leaves one unchanged."""
    changes: dict[str, Any] = {name: size for name, size in sizes.items() if size is not None}
    if states is not None:
        rows = {f.name: getattr(table, f.name) for f in fields(table) if f.type == "tuple[Row, ...]"}
        changes |= {name: tuple(replace(row, states=states) for row in stack) for name, stack in rows.items()}
    return replace(table, **changes)


def lookup(tables: Mapping[str, T], name: str, task: str) -> T:
    """Return a table by its name, with or without the task before it."""
    short = name.removeprefix(f"{task}/")
    if short not in tables:
        raise ValueError(f"there is no {task} named {name!r}; there are {', '.join(tables)}")
    return tables[short]


@final
class Dense(nn.Composite):
    """Two dense layers on the mean. Costs are counted for one evaluation a second, as for a one-second clip."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.channels, self.classes = channels, classes
        first, last = nn.Pointwise(channels, channels), nn.Pointwise(channels, classes)
        self.layers = nn.Serial({"first": first, "silu": nn.SiLU(), "last": last})

    def parts(self) -> list[nn.Part]:
        return [nn.Part("layers", self.layers, Fraction(1), hertz=Fraction(1))]

    def init_state(self, batch: int) -> State:
        return self.layers.init_state(batch)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        return self.layers.run(u, state, keep)


@final
class Classifier(Network):
    """Logits (batch, classes, frames) of the mean of all frames so far, or of the last ``window`` frames.

    A ``ClassifierTable`` gives the paper's blocks with pooling, a ``SpotterTable`` residual blocks on mel frames.
    """

    task = "classifier"
    tables = (ClassifierTable, SpotterTable)
    named: ClassVar[Mapping[str, Table]] = CLASSIFIERS

    def __init__(self, table: ClassifierTable | SpotterTable, settings: Mapping[str, Any] | None = None) -> None:
        rate = int((settings or {}).get("sample_rate", SAMPLE_RATE))
        body = pooled(table) if isinstance(table, ClassifierTable) else on_mel_frames(table, rate)
        super().__init__(table, body, settings)


def pooled(table: ClassifierTable) -> nn.Serial:
    """Return the paper's keyword spotter: blocks with pooling, a mean over time and two dense layers."""
    first, rows = front(table.blocks)
    start = table.blocks[0].channels if table.blocks[0].kind == MEL else 1
    blocks, channels = pooled_blocks(rows, table.dropout, start)
    head = Dense(channels, table.classes)
    return nn.Serial({"blocks": nn.Serial([*first, *blocks]), "mean": _mean(channels, table.window), "head": head})


def on_mel_frames(table: SpotterTable, rate: int) -> nn.Serial:
    """Return residual blocks on stacked mel frames, with logits for every frame.

    Parameters: ``bands.K`` (convolutions), ``into`` (stacked bands to channels), ``norm``,
    ``blocks.K.mixer.body.{norm,ssm}``, ``blocks.K.ffn.body.{norm,wide,narrow}``, ``last`` (a norm) and ``out``.
    """
    if not table.blocks or table.blocks[0].kind != MEL:
        raise ValueError(f"a spotter on mel frames starts with a row of kind 'mel', got {table.blocks[:1]}")
    mel, *rows = table.blocks
    blocks, channels = residual_blocks(rows, table.expansion, table.dropout)
    if not rows:
        raise ValueError("a network needs at least one block, got a mel row alone")
    parts: dict[str, Layer] = {
        "front": mel_bands(mel, table.power, table.release, table.low, table.high, rate),
    }
    width = mel.channels
    if table.bands:
        parts["bands"], width = band_convolutions(table.bands, mel.channels)
    parts |= {
        "into": nn.Down(width, channels, table.stack, bias=True),
        "norm": nn.LayerNorm(channels),
        "blocks": blocks,
        "last": nn.LayerNorm(channels),
    }
    if table.window != 1:
        parts["mean"] = _mean(channels, table.window)
    return nn.Serial(parts | {"out": nn.Pointwise(channels, table.classes)})


def band_convolutions(rows: Sequence[BandRow], bands: int) -> tuple[nn.Serial, int]:
    """Return convolutions over mel bands and frames with SiLU, and the number of channels after them."""
    layers: list[Layer] = []
    features = 1
    for row in rows:
        conv = nn.BandConv(features, row.features, bands, row.kernel, row.stride)
        active = nn.Serial({"conv": conv, "silu": nn.SiLU()})
        same = row.stride == (1, 1) and row.features == features
        layers.append(nn.Residual(active) if same else active)
        bands, features = conv.out_bands, row.features
    return nn.Serial(layers), bands * features


def _mean(channels: int, window: int | None) -> Layer:
    return nn.RunningMean(channels) if window is None else nn.WindowedMean(channels, window)


def pooled_blocks(rows: Sequence[Row], dropout: float, channels: int = 1) -> tuple[list[Layer], int]:
    """Return the blocks and their output channels. All but a first one of one channel have a projection as skip."""
    blocks: list[Layer] = []
    for row in [same for stacked in rows for same in [stacked] * stacked.times]:
        body = state_space(row, channels, row.channels)
        skip = nn.Pointwise(channels, row.channels, bias=False) if blocks or channels > 1 else None
        drop = dropout if row.channels > FEW_FEATURES else 0.0
        blocks.append(nn.Block(body, row.channels, skip, drop, resample=nn.AvgPool(row.resample)))
        channels = row.channels
    return blocks, channels


def classifier(
    table: str | ClassifierTable | SpotterTable,
    classes: int | Sequence[str] | None = None,
    states: int | None = None,
    window: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Classifier:
    """Return an untrained classifier, by name (``kws-hybrid-8``) or from a table of your own.

    ``classes`` is their number or their names, ``states`` replaces the states of every row, ``window`` averages over
    the last ``window`` frames instead of all, ``settings`` are saved with the network (``sample_rate`` …).
    """
    table = lookup(CLASSIFIERS, table, "classifier") if isinstance(table, str) else table
    chosen = dict(settings or {})
    if classes is not None and not isinstance(classes, int):
        chosen["classes"] = list(classes)
        classes = len(classes)
    return Classifier(changed(table, states, classes=classes, window=window), chosen)


@final
class Denoiser(Network):
    """Clean samples (batch, 1, samples) from noisy ones, ``delay`` samples late.

    A ``DenoiserTable`` gives the paper's hourglass on the waveform (delay 0), a ``SpectralTable`` a mask on spectra.
    """

    task = "denoiser"
    tables = (DenoiserTable, SpectralTable)
    named: ClassVar[Mapping[str, Table]] = DENOISERS

    def __init__(self, table: DenoiserTable | SpectralTable, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(table, on_waveform(table) if isinstance(table, DenoiserTable) else on_spectra(table), settings)


def on_waveform(table: DenoiserTable) -> nn.Serial:
    """Return the paper's hourglass, with its level normalised where the table has one."""
    first, encoder = front(table.encoder)
    _check_mirror(encoder, table.decoder)
    deepest = encoder[-1].channels
    middle = nn.Serial([_block(row, deepest, table.conv) for row in table.middle for _ in range(row.times)])
    glass = _hourglass(encoder, table.decoder, middle, table.conv)
    output = [row for row in table.output for _ in range(row.times)]
    last = [_block(row, 1, table.conv, silent=k == len(output) - 1) for k, row in enumerate(output)]
    inside: dict[str, Layer] = {"hourglass": glass, "output": nn.Serial(last)}
    if table.kept and not table.level:
        raise ValueError(f"kept={table.kept} needs a level: set level as well")
    if table.level:
        inside = {"level": nn.Leveled(nn.Serial(inside), table.level, table.kept)}
    return nn.Serial({"first": nn.Serial(first), **inside})


def on_spectra(table: SpectralTable) -> nn.Serial:
    """Return analysis, a mask from residual blocks on compressed spectra, synthesis; untrained close to the identity.

    Parameters: under ``mask.body`` there are ``into`` (3 · bins to channels), ``norm``,
    ``blocks.K.mixer.body.{norm,ssm}``, ``blocks.K.ffn.body.{norm,wide,narrow}``, ``last`` (a norm) and
    ``out`` (channels to 2 · bins: the real parts of the mask less one, then its imaginary parts).
    """
    analysis = nn.Analysis(table.analysis, table.hop)
    blocks, channels = residual_blocks(table.blocks, table.expansion)
    if not channels:
        raise ValueError("a network needs at least one block, got none")
    out = nn.Pointwise(channels, 2 * (analysis.bins + (table.taps - 1) * table.low))
    normal_(out.weight, std=UNTRAINED_MASK)
    body = {
        "compress": nn.Compress(analysis.bins, table.power, table.release, table.lowest),
        "into": nn.Pointwise(3 * analysis.bins, channels),
        "norm": nn.LayerNorm(channels),
        "blocks": blocks,
        "last": nn.LayerNorm(channels),
        "out": out,
    }
    synthesis = nn.Synthesis(table.analysis, table.synthesis, table.hop)
    mask = nn.Mask(nn.Serial(body), analysis.bins, table.taps, table.low)
    return nn.Serial({"analysis": analysis, "mask": mask, "synthesis": synthesis})


def _block(row: Row, channels: int, conv: int, silent: bool = False) -> nn.Block:
    """Return [conv →] SSM → norm → SiLU with an identity skip; without the activation if ``silent``."""
    if row.channels != channels and row.resample == 1:
        raise ValueError(f"a row that does not resample should have {channels} channels, got {row}")
    ssm = state_space(row, channels, channels)
    body = nn.with_conv(ssm, channels, conv) if conv else ssm
    return nn.Block(body, channels, nn.Serial(), activation=nn.Activation.NONE if silent else nn.Activation.BEFORE_SKIP)


def _hourglass(encoder: Sequence[Row], decoder: Sequence[Row], middle: Layer, conv: int) -> Layer:
    """Return the nested hourglasses, built from the inside out: one for each encoder row and its decoder row."""
    inside, channels = middle, [1, *(row.channels for row in encoder)]
    for k, (down, up) in enumerate(zip(reversed(encoder), decoder, strict=True)):
        high, low = channels[-2 - k], channels[-1 - k]
        shrink, grow = nn.Down(high, low, down.resample), nn.Up(low, high, up.resample, QUIET)
        inside = nn.Hourglass(_block(down, high, conv), shrink, inside, grow, _block(up, high, conv))
    return inside


def _check_mirror(encoder: Sequence[Row], decoder: Sequence[Row]) -> None:
    """Raise ValueError unless the decoder mirrors the rates and channels of the encoder, deepest first."""
    channels = [1, *(row.channels for row in encoder)]
    expected = [(row.resample, high) for row, high in zip(encoder, channels, strict=False)][::-1]
    actual = [(row.resample, row.channels) for row in decoder]
    if expected != actual or any(row.times != 1 for row in (*encoder, *decoder)):
        raise ValueError(
            f"the decoder should mirror the encoder: resampling and channels {expected} with times=1, got {actual}"
        )


def denoiser(
    table: str | DenoiserTable | SpectralTable = "hybrid",
    states: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Denoiser:
    """Return an untrained denoiser, by name (``hybrid``, ``spectral``) or from a table of your own.

    ``states`` replaces the states of every row; ``settings`` are saved with the network (``sample_rate`` …).
    """
    table = lookup(DENOISERS, table, "denoiser") if isinstance(table, str) else table
    return Denoiser(changed(table, states), settings)


class Heads(NamedTuple):
    """Logits of both heads: tokens (batch, vocabulary, frames) and, eight times as often, characters."""

    tokens: Tensor
    characters: Tensor


@final
class Recognizer(Network):
    """Token logits (batch, vocabulary, frames); ``heads`` gives the characters as well, for training.

    A ``RecognizerTable`` gives the paper's backbone and heads, a ``SpotterTable`` residual blocks on mel frames whose
    classes are the tokens, without a head for characters.
    """

    task = "recognizer"
    tables = (RecognizerTable, SpotterTable)
    named: ClassVar[Mapping[str, Table]] = RECOGNIZERS

    def __init__(self, table: RecognizerTable | SpotterTable, settings: Mapping[str, Any] | None = None) -> None:
        if isinstance(table, SpotterTable):
            rate = int((settings or {}).get("sample_rate", SAMPLE_RATE))
            super().__init__(table, on_mel_frames(table, rate), settings)
            self.characters = nn.Serial()
            return
        if table.module not in MODULES:
            raise ValueError(f"there is no module {table.module!r}; there are {', '.join(MODULES)}")
        first, rows = front(table.backbone)
        module = MODULES[table.module]
        backbone, channels = pooled_blocks(rows, 0.0) if table.pooled else _blocks(_unstack(rows), 1, module)
        plain = _unstack(table.head)
        kept = len(plain) - table.gated
        head, wide = _blocks(plain[:kept], channels, module)
        head += [_gated(row, wide) for row in plain[kept:]]
        vocabulary = nn.Pointwise(wide, table.vocabulary)
        body = nn.Serial(
            {"backbone": nn.Serial([*first, *backbone]), "head": nn.Serial(head), "vocabulary": vocabulary}
        )
        super().__init__(table, body, settings)
        dense, last = nn.Pointwise(channels, channels), nn.Pointwise(channels, table.characters)
        self.characters = nn.Serial({"first": dense, "silu": nn.SiLU(), "last": last})

    def parts(self) -> list[nn.Part]:
        if isinstance(self.table, SpotterTable):
            return super().parts()
        backbone, head, vocabulary = super().parts()
        characters = nn.Part("characters", self.characters, head.ratio, counted=False)
        return [backbone, head, vocabulary._replace(counted=False), characters]

    def heads(self, u: Tensor) -> Heads:
        """Return the logits of both heads for a whole signal, padded and cut as in ``forward``."""
        if isinstance(self.table, SpotterTable):
            raise ValueError("a recognizer on mel frames has no head for characters: train it with losses of tokens")
        samples = u.shape[-1]
        backbone, head, vocabulary = self.body.layers()
        features, _ = backbone.run(pad(u, (0, -samples % self.hop)), None, False)
        tokens = vocabulary(head(features))[..., : self.frames(samples)]
        return Heads(tokens, self.characters(features)[..., : backbone.frames(samples)])


def _unstack(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each block: of repeated rows only the first resamples."""
    single = []
    for row in rows:
        single += [replace(row, times=1), *[replace(row, times=1, resample=1)] * (row.times - 1)]
    return single


def _blocks(rows: Sequence[Row], channels: int, module: Callable[[int], Layer] | None) -> tuple[list[Layer], int]:
    """Return the blocks with their modules, and their output channels."""
    blocks: list[Layer] = []
    for row in rows:
        body = state_space(row, channels, channels)

        resample: Layer | None = None
        if row.resample > 1 or row.channels != channels:
            conv = nn.Down(channels, row.channels, row.resample, bias=True)
            resample = nn.Serial({"conv": conv, "norm": nn.LayerNorm(row.channels, activate=True)})
        block = nn.Block(body, channels, nn.Serial(), resample=resample)
        channels = row.channels
        blocks.append(block if module is None else nn.Serial({"block": block, "module": module(channels)}))
    return blocks, channels


def _gated(row: Row, channels: int) -> nn.Gated:
    """Return the Mamba macro-block at twice the channels, around the row's state-space layer."""
    if row.resample != 1 or row.channels != channels:
        raise ValueError(f"a gated block should have resample=1 and {channels} channels, got {row}")
    return nn.Gated(channels, 2 * channels, state_space(row, 2 * channels, 2 * channels))


def recognizer(
    table: str | RecognizerTable | SpotterTable = "base",
    vocabulary: int | None = None,
    characters: int | None = None,
    states: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Recognizer:
    """Return an untrained recognizer, by name (``base``) or from a table of your own.

    ``vocabulary`` and ``characters`` are the sizes of the two heads, ``states`` replaces the states of every row,
    ``settings`` are saved with the network (``sample_rate``, ``tokens`` …).
    """
    table = lookup(RECOGNIZERS, table, "recognizer") if isinstance(table, str) else table
    if isinstance(table, SpotterTable):
        return Recognizer(changed(table, states, classes=vocabulary), settings)
    return Recognizer(changed(table, states, vocabulary=vocabulary, characters=characters), settings)


NETWORKS: dict[str, type[Any]] = {kind.task: kind for kind in (Classifier, Denoiser, Recognizer)}
"""The network of each task: a class that takes one of its ``tables`` and settings."""


def names() -> list[str]:
    """Return the name of every network that ``build`` knows, with the task as prefix for all but classifiers."""
    return [row if kind is Classifier else f"{task}/{row}" for task, kind in NETWORKS.items() for row in kind.named]


def build(name: str) -> Network:
    """Return an untrained network by any name that ``names()`` lists: ``kws-hybrid-8``, ``denoiser/hybrid`` …"""
    task, _, row = name.rpartition("/")
    kind = NETWORKS.get(task or Classifier.task)
    if kind is None:
        raise ValueError(f"there is no network named {name!r}; there are {', '.join(names())}")
    net: Network = kind(lookup(kind.named, row, kind.task))
    return net
