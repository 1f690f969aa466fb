"""Speech denoising: from a table to an hourglass on the waveform, or to a mask on spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, final

from torch import nn

from centaurus.layer import Layer
from centaurus.models.network import Network
from centaurus.models.rows import front, lookup, residual_blocks, state_space, with_states
from centaurus.models.tables import DENOISERS, DenoiserTable, Row, SpectralTable
from centaurus.nn import (
    Activation,
    Analysis,
    Block,
    Compress,
    Down,
    Hourglass,
    LayerNorm,
    Leveled,
    Mask,
    Part,
    Pointwise,
    Serial,
    Synthesis,
    Up,
    with_conv,
)

# Inside, the norms bring every signal to about one, however quiet the speech. Starting the way up at a tenth lets the
# skips speak first: the untrained network is close to the identity instead of 17 dB of its own making above it.
QUIET = 0.1
UNTRAINED_MASK = 1e-3  # standard deviation of the weights that give a mask, which starts close to one


@final
class Denoiser(Network):
    """Clean samples (batch, 1, samples) from noisy ones, ``delay`` samples late.

    A ``DenoiserTable`` gives the paper's hourglass on the waveform (delay 0), a ``SpectralTable`` a mask on spectra.
    """

    task: ClassVar[str] = "denoiser"

    def __init__(self, table: DenoiserTable | SpectralTable, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(table, on_waveform(table) if isinstance(table, DenoiserTable) else on_spectra(table), settings)

    def parts(self) -> list[Part]:
        return self.body.parts()


def on_waveform(table: DenoiserTable) -> Serial:
    """The paper's hourglass, at a level of its own where the table asks for it."""
    first, encoder = front(table.encoder)
    _check_mirror(encoder, table.decoder)
    deepest = encoder[-1].channels
    middle = Serial([_block(row, deepest, table.conv) for row in table.middle for _ in range(row.times)])
    glass = _hourglass(encoder, table.decoder, middle, table.conv)
    output = [row for row in table.output for _ in range(row.times)]
    last = [_block(row, 1, table.conv, silent=k == len(output) - 1) for k, row in enumerate(output)]
    inside: dict[str, Layer] = {"hourglass": glass, "output": Serial(last)}
    if table.kept and not table.level:
        raise ValueError(f"a share of the input ({table.kept}) is kept only where there is a level")
    if table.level:
        inside = {"level": Leveled(Serial(inside), table.level, table.kept)}
    return Serial({"first": Serial(first), **inside})


def on_spectra(table: SpectralTable) -> Serial:
    """Analysis, a mask made by residual blocks on compressed spectra, synthesis. Untrained it is close to the identity.

    Parameters: under ``mask.body`` there are ``into`` (3 · bins to channels), ``norm``,
    ``blocks.K.mixer.body.{norm,ssm}``, ``blocks.K.ffn.body.{norm,wide,narrow}``, ``last`` (a norm) and
    ``out`` (channels to 2 · bins: the real parts of the mask less one, then its imaginary parts).
    """
    analysis = Analysis(table.analysis, table.hop)
    blocks, channels = residual_blocks(table.blocks, table.expansion)
    if not channels:
        raise ValueError("a network needs at least one block, got none")
    out = Pointwise(channels, 2 * analysis.bins)
    nn.init.normal_(out.weight, std=UNTRAINED_MASK)
    body = {
        "compress": Compress(analysis.bins, table.power, table.release, table.lowest),
        "into": Pointwise(3 * analysis.bins, channels),
        "norm": LayerNorm(channels),
        "blocks": blocks,
        "last": LayerNorm(channels),
        "out": out,
    }
    synthesis = Synthesis(table.analysis, table.synthesis, table.hop)
    return Serial({"analysis": analysis, "mask": Mask(Serial(body), analysis.bins), "synthesis": synthesis})


def _block(row: Row, channels: int, conv: int, silent: bool = False) -> Block:
    """[conv →] SSM → norm → SiLU around an identity skip; a silent one has no activation."""
    if row.channels != channels and row.resample == 1:
        raise ValueError(f"a row that does not resample keeps its {channels} channels: {row}")
    ssm = state_space(row, channels, channels)
    body = with_conv(ssm, channels, conv) if conv else ssm
    return Block(body, channels, Serial(), activation=Activation.NONE if silent else Activation.BEFORE_SKIP)


def _hourglass(encoder: Sequence[Row], decoder: Sequence[Row], middle: Layer, conv: int) -> Layer:
    """From the inside out: each pair of an encoder row and a decoder row wraps what is already there."""
    inside, channels = middle, [1, *(row.channels for row in encoder)]
    for k, (down, up) in enumerate(zip(reversed(encoder), decoder, strict=True)):
        high, low = channels[-2 - k], channels[-1 - k]
        shrink, grow = Down(high, low, down.resample), Up(low, high, up.resample, QUIET)
        inside = Hourglass(_block(down, high, conv), shrink, inside, grow, _block(up, high, conv))
    return inside


def _check_mirror(encoder: Sequence[Row], decoder: Sequence[Row]) -> None:
    """The decoder must come back through the encoder's rates and channels, deepest first."""
    channels = [1, *(row.channels for row in encoder)]
    wanted = [(row.resample, high) for row, high in zip(encoder, channels, strict=False)][::-1]
    given = [(row.resample, row.channels) for row in decoder]
    if wanted != given or any(row.times != 1 for row in (*encoder, *decoder)):
        raise ValueError(
            f"the decoder should mirror the encoder: resampling and channels {wanted} with times=1, got {given}"
        )


def denoiser(
    table: str | DenoiserTable | SpectralTable = "hybrid",
    states: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Denoiser:
    """A denoiser by name (``hybrid``) or from a table of your own; ``states`` replaces the states of every row."""
    found = lookup(DENOISERS, table, "denoiser") if isinstance(table, str) else table
    if isinstance(found, SpectralTable):
        return Denoiser(replace(found, blocks=with_states(found.blocks, states)), settings)
    found = replace(
        found,
        encoder=with_states(found.encoder, states),
        middle=with_states(found.middle, states),
        decoder=with_states(found.decoder, states),
        output=with_states(found.output, states),
    )
    return Denoiser(found, settings)
