"""Connected words: a recogniser of phrases that are put together from clips of single words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from centaurus.data import Phrases, Phrasing
from centaurus.models import RecognizerTable, Row, SpotterTable
from centaurus.models.tables import CLASSIFIERS, RECOGNIZERS
from centaurus.recipes.asr import SPELT, Encode, RecognitionSettings, network
from centaurus.recipes.kws import held_out, noise_of, tune_blocks
from centaurus.recipes.recipe import Prepared, Preset, Recipe, hours
from centaurus.train.loop import Data
from centaurus.train.objectives import Recognise
from centaurus.train.targets import read_tokens

# Seven blocks on mel frames like the four of kws-30, with a wider FFN, 32 ms a frame.
SPOTTER = CLASSIFIERS["kws-mel"]
assert isinstance(SPOTTER, SpotterTable)
DEEPER = replace(SPOTTER, blocks=(*SPOTTER.blocks[:-1], replace(SPOTTER.blocks[-1], times=7)), expansion=1.5)
# The spotter's blocks on raw samples, as for letters, but a frame of the head is 32 ms.
HEARD = replace(SPELT, head=(Row("pointwise", 2, 160, 256), Row("pointwise", 1, 160, 256, times=2)))
# The recogniser's rows, narrow: 20 ms a frame of the backbone, 40 ms a frame of the head.
NARROW = RecognizerTable(
    backbone=(
        Row("full", 5, 8, 16),
        Row("full", 4, 16, 4),
        Row("bottleneck", 2, 32, 64, 4),
        Row("bottleneck", 2, 64, 128, 4),
        Row("pointwise", 2, 96, 128),
        Row("pointwise", 2, 128, 192),
    ),
    head=(Row("pointwise", 2, 192, 256), Row("pointwise", 1, 192, 256, times=2)),
)
TABLES: dict[str, RecognizerTable | SpotterTable] = {
    "commands": DEEPER,
    "raw": HEARD,
    "letters": SPELT,
    "narrow": NARROW,
    **RECOGNIZERS,
}


@dataclass(frozen=True, kw_only=True)
class CommandSettings(RecognitionSettings):
    """Settings of connected words: phrases that are put together from clips of words."""

    network: str = "commands"
    losses: str = "tokens:1"
    vocabulary: str = "words"
    length: int = 4 * 16_000
    phrases: int = 8192
    """Phrases of an epoch."""
    most: int = 7
    """Words of a phrase, at most."""
    speed: float = 0.1
    """Largest change of speed, as a share."""
    noisy: float = 0.7
    """Share of phrases with noise."""
    wordless: float = 0.0
    """Share of examples without words: noise and other speech."""
    tuned: int = 4
    """First blocks whose modes start spread over the band that they get."""
    noise: str = ""
    """A folder of noise, if the data folder has none."""
    decode_once: bool = True


def configure(preset: Preset = "ours") -> CommandSettings:
    """Return a preset for two cores, which is not in the paper; ``small`` sees fewer phrases."""
    whole = CommandSettings(epochs=40, lr=4e-3, decay=0.05, warmup=0.05, batch=8, dc_block=True, validation_items=200)
    return replace(whole, epochs=2, validations=8, workers=1, ema=0.995) if preset == "small" else whole


def prepare(settings: CommandSettings, folder: Path) -> Prepared:
    """Return phrases of words of the training speakers, fixed phrases of the others, and the network."""
    corpus = settings.find(folder, ("train", "val"))
    words = held_out(settings.read(corpus.where(kind="word")))
    noise = settings.read((settings.find(settings.noise) if settings.noise else corpus).where(kind="noise"))
    tokens = read_tokens(settings.vocabulary, words.values("word"))
    encode, how = Encode(tokens), Phrasing((1, settings.most), speed=settings.speed, noisy=settings.noisy)
    speech = settings.read(corpus.where(kind="speech")) if settings.wordless else None
    train = Phrases(
        words.split("train"), noise_of(noise, "train"), replace(how, wordless=settings.wordless), settings.phrases,
        encode, settings.length, speech=speech and speech.split("train"),
    )  # fmt: skip
    check = Phrases(words.split("val"), noise_of(noise, "val"), replace(how, speed=0.0), 400, encode, fixed=1)
    net = network(settings, tokens, TABLES)
    tune_blocks(net, settings.tuned, settings.rate)
    notes = {"layout": corpus.name, "words": list(words.values("word")), "tokens": len(tokens.names)}
    notes |= {"word_hours": hours(words), "noise_hours": hours(noise), "val_examples": check.size()}
    faults = {**corpus.faults.found, **words.faults.found, **noise.faults.found}
    corpora = (words, noise) if speech is None else (words, noise, speech)
    return Prepared(Recognise(net, settings.losses), Data(train, check), notes, corpora, faults)


RECIPE = Recipe(configure, prepare, ("ours", "small"))
