"""Denoising: the hourglass on speech mixed with noise, or on recorded pairs where a folder has those instead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from centaurus.data import Corpus, Mixing, Mixtures, Pairs
from centaurus.data.rows import READINGS
from centaurus.models import Denoiser, DenoiserTable, Row, denoiser
from centaurus.models.tables import DC_BLOCK, DENOISERS
from centaurus.train.config import PAPER, Prepared, Preset, Reading, Recipe, hours, table_named
from centaurus.train.loop import Data
from centaurus.train.objectives import Clean

# The hourglass at half its width: as deep, with the same 16 ms, at twice the speed.
SMALL = DenoiserTable(
    encoder=(
        Row("full", 4, 8, 16),
        Row("full", 4, 16, 4),
        Row("bottleneck", 2, 32, 64, 4),
        Row("bottleneck", 2, 48, 64, 4),
        Row("pointwise", 2, 64, 128),
        Row("pointwise", 2, 128, 128),
    ),
    middle=(Row("pointwise", 1, 128, 128),),
    decoder=(
        Row("pointwise", 2, 64, 128),
        Row("pointwise", 2, 48, 128),
        Row("bottleneck", 2, 32, 64, 4),
        Row("bottleneck", 2, 16, 64, 4),
        Row("full", 4, 8, 4),
        Row("full", 4, 1, 16),
    ),
    output=(Row("full", 1, 1, 16),),
)
TABLES = {"small": SMALL, **DENOISERS}
# Settings of training examples that are those of ``Mixing``; validation examples have none of them.
MIXED = ("time_masks", "frequency_masks", "variety", "silent_speech", "clean_input", "rumble", "residue")


@dataclass(frozen=True, kw_only=True)
class DenoiseSettings(Reading):
    """Settings of denoising: the network, the speech, and how it is mixed with noise."""

    network: str = "hybrid"
    """Table of the denoiser, as centaurus models --networks lists them, or small."""
    dc_block: bool = False
    """Put a DC blocker before the network."""
    level: float = 0.0
    """Release of the internal level normalisation, in hops; 0 for none."""
    sets: str = "all"
    """Sets of clean speech to use, separated by commas, or all."""
    losses: str = "smooth_l1:1, erb:0..1"
    """Losses with their weights; a range such as 0..1 rises over the run."""
    length: int = 2**17
    """Samples of a row."""
    cut: bool = False
    """Join all speech and cut it into rows; otherwise only recordings as long as a row are used."""
    snr_low: float = -5.0
    """Lowest signal-to-noise ratio, in dB."""
    snr_high: float = 15.0
    """Highest signal-to-noise ratio, in dB."""
    level_low: float = -35.0
    """Lowest level of the input, in dBFS."""
    level_high: float = -15.0
    """Highest level of the input, in dBFS."""
    time_masks: int = 2
    """Maximum number of time masks of an input."""
    frequency_masks: int = 2
    """Maximum number of frequency masks of an input."""
    variety: float = 0.0
    """Share of examples with babble, coloured noise, hum or another microphone."""
    silent_speech: float = 0.0
    """Share of examples that are noise alone."""
    clean_input: float = 0.0
    """Share of examples that are speech alone."""
    rumble: float = 0.0
    """Share of examples with noise below 60 Hz added."""
    residue: float = 0.0
    """Share of the noise that stays in the target: 0.1 is 20 dB less noise."""


def configure(preset: Preset = "paper") -> DenoiseSettings:
    """Return a preset. The paper: 500 epochs at 0.005, decay 0.02, 1 % of warm-up, batches of 192 rows of 2^17 samples.

    Its clean speech is VCTK and LibriVox of DNS4. ``ours`` is the spectral network with the losses and the
    optimiser of the denoiser that ships (scripts/denoise_16k.py).
    """
    paper = DenoiseSettings(**PAPER, epochs=500, lr=0.005, decay=0.02, batch=192, validations=500)
    paper = replace(paper, sets="vctk, librivox")
    if preset == "paper":
        return paper
    mixed = replace(paper, sets="all", snr_high=20.0, time_masks=0, frequency_masks=0, variety=0.5, silent_speech=0.03)
    mixed = replace(mixed, clean_input=0.1)
    if preset == "ours":
        learnt = replace(mixed, network="spectral", losses="residual:0.3, heard:4, perceptual:0..0.3")
        return replace(learnt, optimizer="muon", lr=3e-3, ema=0.999)
    rows = replace(mixed, length=2**14, cut=True, batch=8, residue=0.1, decode_once=True, workers=1, compile="false")
    learnt = replace(rows, network="small", dc_block=True, level=125.0, losses="residual:1, compressed:3")
    return replace(learnt, epochs=2, lr=3e-3, warmup=0.05, validations=10, validation_items=96, ema=0.998)


def prepare(settings: DenoiseSettings, folder: Path) -> Prepared:
    """Return mixtures of a folder's speech and noise, or its pairs if it has no noise, and the network."""
    kinds = ("speech", "noise", "noisy", "clean")
    corpus = settings.find(folder, ("train", "val"), kinds)
    names = ("speech", "noise") if corpus.where(kind="noise").clips else ("noisy", "clean")
    sounds = settings.read(_of_sets(corpus.where(kind=names), settings.sets))
    mixed = names[1] == "noise"
    train, check = (_examples(settings, sounds.split(split), mixed, split) for split in ("train", "val"))
    notes: dict[str, Any] = {"layout": corpus.name, "examples": "mixed" if mixed else "pairs"}
    notes |= {"train_examples": train.size(), "val_examples": check.size()}
    notes |= {f"{kind}_hours": hours(sounds.where(kind=kind)) for kind in names}
    faults = {**corpus.faults.reasons, **sounds.faults.reasons}
    return Prepared(Clean(network(settings), settings.losses), Data(train, check), notes, (sounds,), faults)


def _of_sets(sounds: Corpus, sets: str) -> Corpus:
    """Return the clips without the clean speech of other sets; all other clips stay."""
    chosen = {name.strip() for name in sets.split(",") if name.strip()}
    there = {clip.labels.get("set", "") for clip in sounds if clip.labels["kind"] == "speech"}
    if chosen == {"all"} or not there:
        return sounds
    if missing := sorted(chosen - there):
        raise ValueError(
            f"no clean speech of {', '.join(missing)} in this folder, which has {', '.join(sorted(there))}: "
            "give sets=all, or the names of some of them"
        )
    return sounds.of(c for c in sounds if c.labels["kind"] != "speech" or c.labels.get("set", "") in chosen)


def _examples(settings: DenoiseSettings, sounds: Corpus, mixed: bool, split: str) -> Mixtures | Pairs:
    """Return training examples, or validation examples: fixed and without masks."""
    learning = split == "train"
    if not mixed:
        return Pairs(sounds, settings.length if learning else None)
    speech = sounds.where(kind="speech")
    sets = {clip.labels.get("set", "") for clip in speech}
    readings = dict.fromkeys(sets, 1.0) if settings.cut or not learning else READINGS
    s = settings
    how = Mixing((s.snr_low, s.snr_high), (s.level_low, s.level_high), time_masks=0, frequency_masks=0)
    if learning:
        how = replace(how, **{name: getattr(s, name) for name in MIXED})
    return Mixtures(speech, sounds.where(kind="noise"), how, settings.length, readings, settings.seed)


def network(settings: DenoiseSettings) -> Denoiser:
    """Return the network, with a DC blocker and level normalisation if the settings ask for them."""
    table = table_named(settings.network, TABLES, "denoising")
    if isinstance(table, DenoiserTable):  # a spectral front end needs neither
        table = replace(table, level=settings.level)
        table = replace(table, encoder=(Row(DC_BLOCK), *table.encoder)) if settings.dc_block else table
    return denoiser(table, settings={"sample_rate": settings.rate})


RECIPE = Recipe(configure, prepare)
