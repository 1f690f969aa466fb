"""Keyword spotting: the hybrid classifier on words of one second, with other audio before them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from centaurus.data import Corpus, Keywords, Variation
from centaurus.data.keywords import NONE
from centaurus.models import Classifier, ClassifierTable, Row, classifier
from centaurus.models.network import Network
from centaurus.models.tables import CLASSIFIERS, DC_BLOCK
from centaurus.nn import Block
from centaurus.ssm import SSM
from centaurus.train.config import PAPER, Prepared, Preset, Reading, Recipe, hours, table_named
from centaurus.train.loop import Data
from centaurus.train.objectives import Classify
from centaurus.train.targets import answers_of

SMALL = ClassifierTable(
    (Row("full", 16, 4, 8), Row("full", 4, 24, 4), Row("pointwise", 2, 64, 64), Row("pointwise", 2, 96, 96))
)
TABLES = {"small": SMALL, **CLASSIFIERS}
LOWEST, HIGHEST = 60.0, 6000.0  # Hz, the band of speech, for the first block
SLOWEST = 3.0  # Hz, the lowest frequency of later blocks: the rate of syllables
TOP = 0.4  # the highest frequency of a block, as a share of its rate


@dataclass(frozen=True, kw_only=True)
class KeywordSettings(Reading):
    """Settings of keyword spotting: the network, the words, and the augmentation."""

    network: str = "kws-hybrid-8"
    """Table of the classifier, as centaurus models --networks lists them, or small."""
    states: int = 0
    """States of every state-space layer, in place of the table's; 0 keeps those."""
    dc_block: bool = False
    """Put a DC blocker before the network."""
    words: str = "all"
    """Words to learn: all, 10, 30, 35 or a list separated by commas."""
    background: float = 0.0
    """Examples of a further class for noise and other speech, as a share of the words; 0 for none."""
    noise: str = ""
    """A folder of noise, if the data folder has none."""
    tuned: int = 0
    """Number of first blocks whose modes are initialised over their input band."""
    dropout: float = 0.1
    """Probability of dropping a channel."""
    smoothing: float = 0.0
    """Label smoothing."""
    losses: str = "cross_entropy:1"
    """Losses with their weights, such as cross_entropy:1, taught:1."""
    teacher: str = ""
    """A model of the same classes for distillation, by the loss taught."""
    seconds: float = 1.0
    """Length of a word, in seconds."""
    before: float = 1.0
    """Seconds of other audio before each word, as in a stream."""
    speed: float = 0.0
    """Largest change of speed, as a share."""
    gain_db: float = 0.0
    """Largest change of level, in dB."""
    shift: float = 0.0
    """Largest shift in time, in seconds."""
    noisy: float = 0.0
    """Share of words with noise."""
    tone_db: float = 0.0
    """Largest change of the spectrum, in dB, as by another microphone."""
    mixed: float = 0.0
    """Share of words mixed with another word."""
    decode_once: bool = True


def configure(preset: Preset = "paper") -> KeywordSettings:
    """Return a preset. The paper: 200 epochs at 0.01, decay 0.05, 10 % of warm-up, batches of 512 clips of one second.

    Clips are not augmented and have no history. ``ours`` augments them to resemble a stream, spreads the initial
    modes over the band, and uses Muon and the EMA of the weights.
    """
    paper = KeywordSettings(**PAPER | {"warmup": 0.1}, epochs=200, lr=0.01, decay=0.05, batch=512, validations=200)
    paper = replace(paper, seconds=1.0, before=0.0, dropout=0.1)
    if preset == "paper":
        return paper
    varied = replace(paper, before=0.25, speed=0.1, gain_db=6.0, shift=0.1, noisy=0.5, tuned=2, dc_block=True)
    if preset == "ours":
        return replace(varied, tuned=4, tone_db=6.0, noisy=0.2, optimizer="muon", lr=5e-3, smoothing=0.02, ema=0.999)
    learnt = replace(varied, network="small", batch=32, lr=6e-3, warmup=0.05, ema=0.995, compile="false")
    return replace(learnt, epochs=4, validations=8, workers=1)


def prepare(settings: KeywordSettings, folder: Path) -> Prepared:
    """Return words and background noise of a folder, with its official split, and the network."""
    corpus = settings.find(folder, ("train", "val"))
    elsewhere = settings.find(settings.noise, kinds=("noise",)) if settings.noise else corpus
    noise = settings.read(elsewhere.where(kind="noise"))
    words = held_out(settings.read(corpus.where(kind="word")))
    speech = settings.read(corpus.where(kind="speech")) if settings.background else None
    train = Keywords(
        words.split("train"), _words(settings.words), noise_of(noise, "train"), settings.background, _varied(settings),
        settings.seconds, speech and speech.split("train"),
    )  # fmt: skip
    names = train.classes[:-1] if settings.background else train.classes
    check = Keywords(
        words.split("val"), names, noise_of(noise, "val"), settings.background, NONE, settings.seconds,
        speech and speech.split("val"),
    )  # fmt: skip
    notes = {"layout": corpus.name, "classes": list(train.classes), "train_examples": train.size()}
    notes |= {"val_examples": check.size(), "word_hours": hours(words), "noise_hours": hours(noise)}
    faults = {**corpus.faults.reasons, **words.faults.reasons, **noise.faults.reasons}
    teacher = answers_of(settings.teacher, train.classes) if settings.teacher else None
    objective = Classify(network(settings, train.classes), settings.losses, settings.smoothing, teacher)
    corpora = (words, noise) if speech is None else (words, noise, speech)
    return Prepared(objective, Data(train, check), notes, corpora, faults)


def network(settings: KeywordSettings, classes: Sequence[str]) -> Classifier:
    """Return the network, with a mean over as many frames as a word has: on one word that is the paper's mean."""
    table = replace(table_named(settings.network, TABLES, "keywords"), dropout=settings.dropout)
    table = replace(table, blocks=(Row(DC_BLOCK), *table.blocks)) if settings.dc_block else table
    hop = math.prod(row.resample for row in table.blocks)
    window = max(1, round(settings.seconds * settings.rate) // hop)
    kept = {"sample_rate": settings.rate}
    net = classifier(table, classes, states=settings.states or None, window=window, settings=kept)
    tune_blocks(net, settings.tuned, settings.rate)
    return net


def tune_blocks(net: Network, count: int, rate: float) -> None:
    """Spread the modes of the first blocks over their band: speech at first, slower changes in deeper blocks."""
    blocks = [block for block in net.modules() if isinstance(block, Block)]
    for k, block in enumerate(blocks[:count]):
        if isinstance(block.body, SSM):
            block.body.set_band(LOWEST if k == 0 else SLOWEST, min(HIGHEST, TOP * rate), rate)
        rate /= block.hop


def held_out(words: Corpus, every: int = 10) -> Corpus:
    """Return the words, with a tenth of each moved to ``val`` where ``val`` has none of it, as in a small folder."""
    checked = {clip.labels["word"] for clip in words if clip.labels["split"] == "val"}
    seen: Counter[str] = Counter()
    clips = []
    for clip in words:
        word = clip.labels["word"]
        if word not in checked:
            seen[word] += 1
            if seen[word] % every == min(2, every - 1):
                clip = replace(clip, labels={**clip.labels, "split": "val"})
        clips.append(clip)
    return words.of(clips)


def _words(text: str) -> int | list[str] | None:
    if text == "all":
        return None
    return int(text) if text.isdecimal() else [word.strip() for word in text.split(",") if word.strip()]


def noise_of(noise: Corpus, split: str) -> Corpus:
    """Return the clips of a split; those without one belong to every split."""
    return noise.of(clip for clip in noise if clip.labels.get("split", split) == split)


def _varied(s: KeywordSettings) -> Variation:
    names = ("speed", "gain_db", "shift", "tone_db", "noisy", "mixed", "before")
    return Variation(**{name: getattr(s, name) for name in names})


RECIPE = Recipe(configure, prepare)
