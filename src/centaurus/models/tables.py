"""The paper's tables of networks (appendix E), row by row, as data.

A row is a block: what kind of state-space layer, how its output is resampled, its channels and its states. Read this
beside the appendix; ``build.py`` turns a table into a network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SEPARABLE, SELECTIVE, POINTWISE, BOTTLENECK, FULL = "separable", "s6", "pointwise", "bottleneck", "full"
MAMBA = "mamba"
DC_BLOCK, MEL = "dc-block", "mel"


@dataclass(frozen=True)
class Row:
    """One line of a table; ``channels`` are those after resampling, ``times`` stacks the block.

    ``kind`` is a topology, ``s6``, or ``mamba``: the original block around an S6 of twice the channels. ``weighted`` is
    whether an ``s6`` has E, ``rank`` that of its Δ (0: the default), ``discretization`` that of every other layer.

    Two kinds without states may be the first row: ``dc-block``, and ``mel``, whose ``resample`` is the hop,
    ``channels`` the bands and ``window`` the samples of a frame.
    """

    kind: str
    resample: int = 1
    channels: int = 1
    states: int = 1
    substates: int = 1
    groups: int = 1
    times: int = 1
    complex: bool = False
    window: int = 0
    discretization: str = "simple"
    weighted: bool = True
    rank: int = 0


@dataclass(frozen=True)
class ClassifierTable:
    """Blocks one after another, each followed by average pooling; then a mean over time and two dense layers.

    The mean is over all frames so far, or over the last ``window``.
    """

    blocks: tuple[Row, ...]
    dropout: float = 0.1
    classes: int = 35
    window: int | None = None


@dataclass(frozen=True)
class DenoiserTable:
    """An hourglass: encoder rows shrink, decoder rows grow back, deepest first; ``conv`` taps come before each SSM.

    With ``level``, the hourglass works at a common level that falls to 1/e in this many hops (the paper has none);
    ``kept`` is the share of the input in the output, for a trained network that attenuates too much.
    """

    encoder: tuple[Row, ...]
    middle: tuple[Row, ...]
    decoder: tuple[Row, ...]
    output: tuple[Row, ...]
    conv: int = 0
    level: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True)
class RecognizerTable:
    """A backbone and a language head; ``module`` follows every block, ``gated`` last head blocks are macro-blocks.

    With ``pooled`` the blocks of the backbone are a keyword spotter's, which can be trained on words by themselves.
    """

    backbone: tuple[Row, ...]
    head: tuple[Row, ...]
    module: str = "none"
    gated: int = 0
    vocabulary: int = 30522
    characters: int = 32
    pooled: bool = False


@dataclass(frozen=True)
class SpectralTable:
    """Residual blocks on compressed spectra, which give a complex mask: a denoiser that is late by synthesis - hop.

    Frames of ``analysis`` samples every ``hop``; magnitudes over a level of ``release`` frames (from bin ``lowest`` on)
    to the power ``power``. Each row is a state-space layer and, with ``expansion``, an FFN that much wider.
    With ``taps`` above 1 the lowest ``low`` bins are filtered over this many frames instead of multiplied alone.
    """

    blocks: tuple[Row, ...]
    expansion: float = 2
    analysis: int = 512
    synthesis: int = 256
    hop: int = 128
    power: float = 0.3
    release: float = 375.0
    lowest: int = 2
    taps: int = 1
    low: int = 0


@dataclass(frozen=True)
class BandRow:
    """A convolution over mel bands and frames, with ``features`` in every band, and SiLU.

    ``kernel`` and ``stride`` are (bands, frames). Where it changes neither bands, frames nor features it is residual.
    """

    features: int
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class SpotterTable:
    """Residual blocks on mel frames, ``stack`` of them side by side; logits of the mean of the last ``window`` frames.

    The first row is ``mel``. The rows of ``bands`` come between it and the blocks. With ``release`` (frames) the bands
    are taken over a level that follows the signal; ``power`` is the exponent of magnitudes, 0 a logarithm.
    ``expansion`` is that of the FFN of each block, 0 none.
    """

    blocks: tuple[Row, ...]
    stack: int = 2
    expansion: float = 2
    power: float = 0.0
    release: float = 0.0
    low: float = 60.0
    high: float = 7800.0
    dropout: float = 0.0
    classes: int = 35
    window: int | None = 1
    bands: tuple[BandRow, ...] = ()


Table = ClassifierTable | SpotterTable | DenoiserTable | SpectralTable | RecognizerTable


# Keyword spotting: six blocks, channels w, 2w, … 32w, pooled by 4, 4, 2, 2, 2, 2.

POOLS = (4, 4, 2, 2, 2, 2)


def keywords(kinds: tuple[str, ...], channels: tuple[int, ...], states: tuple[int, ...]) -> ClassifierTable:
    """Return a line of the keyword-spotting table; the sub-states of a bottleneck are always 4."""
    rows = zip(kinds, POOLS, channels, states, strict=True)
    return ClassifierTable(tuple(Row(kind, r, c, n, 4 if kind == BOTTLENECK else 1) for kind, r, c, n in rows))


HYBRID = (FULL, FULL, BOTTLENECK, BOTTLENECK, POINTWISE, POINTWISE)
FOURS = (4, 4, 4, 4, 4, 4)

# fmt: off
CLASSIFIERS: dict[str, ClassifierTable | SpotterTable] = {
    "kws-separable-2":   keywords((SEPARABLE,) * 6,  (2, 4, 8, 16, 32, 64),       FOURS),
    "kws-separable-4":   keywords((SEPARABLE,) * 6,  (4, 8, 16, 32, 64, 128),     FOURS),
    "kws-separable-8":   keywords((SEPARABLE,) * 6,  (8, 16, 32, 64, 128, 256),   FOURS),
    "kws-separable-16":  keywords((SEPARABLE,) * 6,  (16, 32, 64, 128, 256, 512), FOURS),
    "kws-s6-2":          keywords((SELECTIVE,) * 6,  (2, 4, 8, 16, 32, 64),       FOURS),
    "kws-s6-4":          keywords((SELECTIVE,) * 6,  (4, 8, 16, 32, 64, 128),     FOURS),
    "kws-s6-8":          keywords((SELECTIVE,) * 6,  (8, 16, 32, 64, 128, 256),   FOURS),
    "kws-s6-16":         keywords((SELECTIVE,) * 6,  (16, 32, 64, 128, 256, 512), FOURS),
    "kws-pointwise-2":   keywords((POINTWISE,) * 6,  (2, 4, 8, 16, 32, 64),       (4, 8, 16, 32, 64, 128)),
    "kws-pointwise-4":   keywords((POINTWISE,) * 6,  (4, 8, 16, 32, 64, 128),     (8, 16, 32, 64, 128, 256)),
    "kws-pointwise-8":   keywords((POINTWISE,) * 6,  (8, 16, 32, 64, 128, 256),   (16, 32, 64, 128, 256, 512)),
    "kws-full-2":        keywords((FULL,) * 6,       (2, 4, 8, 16, 32, 64),       FOURS),
    "kws-full-4":        keywords((FULL,) * 6,       (4, 8, 16, 32, 64, 128),     FOURS),
    "kws-full-8":        keywords((FULL,) * 6,       (8, 16, 32, 64, 128, 256),   FOURS),
    "kws-bottleneck-2":  keywords((BOTTLENECK,) * 6, (2, 4, 8, 16, 32, 64),       (4, 8, 16, 32, 64, 128)),
    "kws-bottleneck-4":  keywords((BOTTLENECK,) * 6, (4, 8, 16, 32, 64, 128),     (8, 16, 32, 64, 128, 256)),
    "kws-bottleneck-8":  keywords((BOTTLENECK,) * 6, (8, 16, 32, 64, 128, 256),   (16, 32, 64, 128, 256, 512)),
    "kws-hybrid-2":      keywords(HYBRID,            (2, 4, 8, 16, 32, 64),       (4, 4, 16, 32, 64, 128)),
    "kws-hybrid-4":      keywords(HYBRID,            (4, 8, 16, 32, 64, 128),     (4, 4, 32, 64, 128, 256)),
    "kws-hybrid-8":      keywords(HYBRID,            (8, 16, 32, 64, 128, 256),   (4, 4, 64, 128, 256, 512)),
}
# fmt: on


def complex_blocks(table: ClassifierTable | SpotterTable) -> ClassifierTable | SpotterTable:
    """Return the same table with complex projections."""
    return replace(table, blocks=tuple(replace(row, complex=True) for row in table.blocks))


CLASSIFIERS |= {f"kws-hybrid-complex-{w}": complex_blocks(CLASSIFIERS[f"kws-hybrid-{w}"]) for w in (2, 4, 8)}

# The original Mamba block with its 16 states; the paper found that it does not train on waveforms.
CLASSIFIERS |= {
    "kws-mamba-2": keywords((MAMBA,) * 6, (2, 4, 8, 16, 32, 64), (16,) * 6),
    "kws-mamba-4": keywords((MAMBA,) * 6, (4, 8, 16, 32, 64, 128), (16,) * 6),
}

# Beyond the paper: mel frames of 10 ms in front, two of them side by side, then blocks at 50 frames a second.

# fmt: off
CLASSIFIERS |= {
    "mel-pointwise": SpotterTable(
        blocks=(
            #   kind        r  channels  states
            Row(MEL,      160,  48, window=512),
            Row(POINTWISE,  1,  96,  96, times=4),
        ),
    ),
    "wake-mel": SpotterTable(  # wake-computer: one phrase, 31 frames a second
        blocks=(
            Row(MEL,      256,  40, window=512),
            Row(POINTWISE,  1,  56,  64, times=3),
        ),
        expansion=1.5,
        high=7600.0,
    ),
    "kws-bands": SpotterTable(  # kws-30: 31 frames a second
        blocks=(
            Row(MEL,      256,  40, window=512),
            Row(POINTWISE,  1,  80,  96, times=3),
        ),
        stack=1,
        expansion=1.5,
        high=7600.0,
        #               features kernel  stride
        bands=(BandRow(16, (5, 3), (2, 1)), BandRow(24, (3, 3), (2, 2)), BandRow(24, (3, 3), (1, 1))),
    ),
    "kws-mel": SpotterTable(  # the blocks alone, as of commands
        blocks=(
            Row(MEL,      256,  40, window=512),
            Row(POINTWISE,  1,  80,  96, times=4),
        ),
        expansion=1.5,
        high=7600.0,
    ),
    "mel-pooled": ClassifierTable(
        blocks=(
            Row(MEL,      160,  48, window=512),
            Row(POINTWISE,  2,  64,  64),
            Row(POINTWISE,  1,  96,  96),
            Row(POINTWISE,  1, 128, 128),
        ),
    ),
}
# fmt: on


# Raw speech denoising: an hourglass.

# fmt: off
DENOISER = DenoiserTable(
    encoder=(
        #   kind        r  channels  states
        Row(FULL,       4,  16,  16),
        Row(FULL,       4,  32,   4),
        Row(BOTTLENECK, 2,  64, 128, 4),
        Row(BOTTLENECK, 2,  96, 128, 4),
        Row(POINTWISE,  2, 128, 256),
        Row(POINTWISE,  2, 256, 256),
    ),
    middle=(
        Row(POINTWISE,  1, 256, 256),
        Row(POINTWISE,  1, 256, 256),
    ),
    decoder=(
        Row(POINTWISE,  2, 128, 256),
        Row(POINTWISE,  2,  96, 256),
        Row(BOTTLENECK, 2,  64, 128, 4),
        Row(BOTTLENECK, 2,  32, 128, 4),
        Row(FULL,       4,  16,   4),
        Row(FULL,       4,   1,  16),
    ),
    output=(
        Row(FULL,       1,   1,  16),
        Row(FULL,       1,   1,  16),
    ),
)
# fmt: on


def homogeneous(kind: str, states: int, substates: int = 1, weighted: bool = True) -> DenoiserTable:
    """Return the denoiser's resampling factors and channels with one kind of block throughout."""

    def changed(rows: tuple[Row, ...]) -> tuple[Row, ...]:
        return tuple(replace(row, kind=kind, states=states, substates=substates, weighted=weighted) for row in rows)

    d = DENOISER
    return DenoiserTable(changed(d.encoder), changed(d.middle), changed(d.decoder), changed(d.output))


# Beyond the paper: a complex mask on compressed spectra, 125 frames a second, 16 ms of latency.

# fmt: off
SPECTRAL = SpectralTable(
    blocks=(
        #   kind        r  channels  states
        Row(POINTWISE,  1, 128, 192, times=4),
    ),
    expansion=2,
    analysis=512, synthesis=256, hop=128,
)
# Half as many frames of twice the network: the same operations a second, 32 ms of latency.
SPECTRAL_32 = SpectralTable(
    blocks=(
        #   kind        r  channels  states
        Row(POINTWISE,  1, 192, 256, times=5),
    ),
    expansion=1.8,
    analysis=512, synthesis=512, hop=256, release=188.0,
    taps=4, low=60,
)
# fmt: on

DENOISERS: dict[str, DenoiserTable | SpectralTable] = {
    "hybrid": DENOISER,
    "hybrid-slim": replace(DENOISER, middle=()),
    "hybrid-conv": replace(DENOISER, conv=4),
    "hybrid-slim-conv": replace(DENOISER, middle=(), conv=4),
    "separable": homogeneous(SEPARABLE, 64),
    "s6": homogeneous(SELECTIVE, 64),
    "s6-unweighted": homogeneous(SELECTIVE, 64, weighted=False),
    "mamba": homogeneous(MAMBA, 16),
    "pointwise": homogeneous(POINTWISE, 256),
    "bottleneck": homogeneous(BOTTLENECK, 256, 4),
    "full": homogeneous(FULL, 4),
    "spectral": SPECTRAL,
    "spectral-32": SPECTRAL_32,
}


# Speech recognition: a backbone of 12 blocks and a head of 6; only the first of a stack resamples.

# fmt: off
RECOGNIZER = RecognizerTable(
    backbone=(
        #   kind        r  channels  states
        Row(FULL,       5,  16,   64),
        Row(FULL,       4,  32,    4),
        Row(BOTTLENECK, 2,  64,  128, 4, times=2),
        Row(BOTTLENECK, 2, 128,  256, 4, times=2),
        Row(POINTWISE,  2, 256,  512, times=2),
        Row(POINTWISE,  2, 512, 1024, times=4),
    ),
    head=(
        Row(POINTWISE,  4, 512, 1024),
        Row(POINTWISE,  2, 512, 1024),
        Row(POINTWISE,  1, 512, 1024, times=4),
    ),
)
# fmt: on

RECOGNIZERS: dict[str, RecognizerTable] = {
    "base": RECOGNIZER,
    "ffn": replace(RECOGNIZER, module="ffn"),
    "conv": replace(RECOGNIZER, module="conv"),
    "mamba": replace(RECOGNIZER, module="conv", gated=4),
}
