"""Speech recognition: rows of whole utterances, CTC of word pieces, characters from a teacher or by CTC.

Connected words are trained on phrases assembled from clips of single words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from centaurus.data import Clip, Corpus, Index, Phrases, Phrasing, Utterances, open_index, recognise, without_leaks
from centaurus.models import Recognizer, RecognizerTable, Row, SpotterTable, recognizer
from centaurus.models.tables import CLASSIFIERS, DC_BLOCK, RECOGNIZERS
from centaurus.recipes.kws import held_out, noise_of, tune_blocks
from centaurus.train.config import PAPER, Prepared, Preset, Reading, Recipe, hours, table_named
from centaurus.train.loop import Data, Examples, Item
from centaurus.train.objectives import Recognise, text_bytes
from centaurus.train.targets import Precomputed, Tokens, Wav2Vec2, characters, read_tokens

SMALL = RecognizerTable(
    backbone=(Row("full", 160, 128, 16), Row("pointwise", 2, 160, 192), Row("pointwise", 1, 160, 192, times=2)),
    head=(Row("pointwise", 2, 192, 256, times=3),),
)
# A keyword spotter's blocks, which may start from its weights (start=kws-30-raw), and a head for letters; 16 ms frames.
SPELT = RecognizerTable(
    backbone=CLASSIFIERS["kws-hybrid-4"].blocks, head=(Row("pointwise", 1, 160, 256, times=3),), pooled=True
)
TABLES = {"small": SMALL, "letters": SPELT, **RECOGNIZERS}


@dataclass(frozen=True, kw_only=True)
class RecognitionSettings(Reading):
    """Settings of speech recognition: the network, its tokens, and a teacher."""

    network: str = "base"
    """Table of the recogniser, as centaurus models --networks lists them."""
    dc_block: bool = False
    """Put a DC blocker before the network."""
    losses: str = "tokens:1, distillation:1"
    """Losses with their weights: tokens is CTC, distillation learns from the teacher."""
    vocabulary: str = ""
    """A WordPiece file, used:FILE for those of its tokens that occur, characters or words."""
    teacher: str = ""
    """A wav2vec2 model's folder, or a folder of logits computed before."""
    mls: str = ""
    """A folder of Multilingual LibriSpeech to add."""
    mls_share: float = 0.01
    """Share of mls that is drawn for every epoch."""
    length: int = 327_680
    """Samples of the longest utterance."""
    leak_limit: float = 0.5
    """Training texts that share more than this with a held-out text are left out."""


def configure(preset: Preset = "paper") -> RecognitionSettings:
    """Return a preset. The paper: 100 epochs at 0.02, decay 0.1, 1 % of warm-up, 32 rows on each of 8 devices.

    ``ours`` has a DC blocker in front and averages the weights.
    """
    paper = RecognitionSettings(**PAPER, epochs=100, lr=0.02, decay=0.1, batch=32 * 8, validations=100)
    if preset == "paper":
        return paper
    if preset == "ours":
        return replace(paper, dc_block=True, ema=0.999)
    rows = replace(paper, losses="tokens:1, characters:0.3", vocabulary="characters", decode_once=True, dc_block=True)
    learnt = replace(rows, network="small", epochs=10, lr=0.005, warmup=0.05, batch=4, ema=0.99, compile="false")
    return replace(learnt, workers=1, validations=10, validation_items=48)


def prepare(settings: RecognitionSettings, folder: Path) -> Prepared:
    """Return utterances with their texts and the network; texts that resemble a held-out one are left out."""
    opened = settings.find(folder, kinds=("speech",))
    spoken = settings.read(opened.of(clip for clip in opened if clip.labels.get("transcript")))
    held = [clip for clip in spoken if clip.labels["split"] != "train"]
    everything = spoken.split("train")
    cleaned = without_leaks(everything, held, settings.leak_limit)[0]
    corpora: list[tuple[Corpus | Index, float]] = [(cleaned, 1.0)]
    leaks = len(everything) - len(cleaned)
    if settings.mls:
        more, leaked = _more_readings(settings, held)
        corpora.append((more, settings.mls_share))
        leaks += leaked
    tokens = _tokens(settings, [corpus for corpus, _ in corpora])
    encode = Encode(tokens)
    train = Utterances(corpora, settings.length, encode, settings.seed)
    check = Utterances(spoken.split("val"), None, encode)
    objective, taught = _objective(settings, tokens, train)
    notes = {"layout": opened.name, "train_rows": train.size(), "val_examples": check.size()}
    notes |= {"tokens": len(tokens.names), "speech_hours": sum(hours(corpus) for corpus, _ in corpora)}
    notes |= {"leaks_removed": leaks, "too_long": train.discarded}
    used = (*(corpus for corpus, _ in corpora if isinstance(corpus, Corpus)), spoken.split("val"))
    faults = {**opened.faults.reasons, **spoken.faults.reasons}
    return Prepared(objective, Data(taught, check), notes, used, faults)


def _more_readings(settings: RecognitionSettings, held: Sequence[Clip]) -> tuple[Corpus | Index, int]:
    """Return the training utterances of ``mls`` without leaks, and the number of leaks.

    In the layout of Multilingual LibriSpeech they may be millions: an index is built once and shared.
    """
    if recognise(settings.mls) == "mls":
        texts = [clip.labels["transcript"] for clip in held]
        index = open_index(
            settings.mls, texts, settings.length, rate=settings.rate, limit=settings.leak_limit,
            cache=settings.cache or None, on_fault=settings.on_fault,
        )  # fmt: skip
        return index, index.facts.leaks
    more = settings.read(settings.find(settings.mls, ("train",), ("speech",)))
    kept, leaks = without_leaks(more, held, settings.leak_limit)
    return kept, len(leaks)


def _tokens(settings: RecognitionSettings, corpora: Sequence[Corpus | Index]) -> Tokens:
    if not settings.vocabulary:
        raise ValueError(
            "give vocabulary=FILE, a WordPiece vocabulary such as BERT's vocab.txt; or used:FILE, characters or words"
        )
    return read_tokens(settings.vocabulary, (text for corpus in corpora for text in _texts(corpus)))


def _texts(corpus: Corpus | Index) -> Iterable[str]:
    return corpus.texts() if isinstance(corpus, Index) else (clip.labels["transcript"] for clip in corpus)


@dataclass(frozen=True)
class Encode:
    """A transcript as the arrays of an example."""

    tokens: Tokens

    def __call__(self, text: str) -> dict[str, np.ndarray[Any, Any]]:
        pieces, letters = np.array(self.tokens.encode(text), np.int64), np.array(characters(text), np.int64)
        lengths = {"tokens_length": np.array(len(pieces)), "letters_length": np.array(len(letters))}
        return {"tokens": pieces, "letters": letters, "text": text_bytes(text), **lengths}


def _objective(settings: RecognitionSettings, tokens: Tokens, train: Utterances) -> tuple[Recognise, Examples]:
    """Return the losses with their teacher, and the training examples, with its logits if they were computed before."""
    distils = "distillation" in settings.losses
    if distils != bool(settings.teacher):
        raise ValueError(
            "the distillation loss and a teacher go together: give teacher=FOLDER, or leave the loss out "
            "(losses=tokens:1,characters:1)"
        )
    path = Path(settings.teacher)
    local = distils and (path / "config.json").is_file()
    objective = Recognise(network(settings, tokens), settings.losses, Wav2Vec2(path) if local else None)
    return objective, Taught(train, Precomputed(path)) if distils and not local else train


class Taught:
    """Rows of utterances with a teacher's logits beside them."""

    def __init__(self, rows: Utterances, teacher: Precomputed) -> None:
        self.rows, self.teacher = rows, teacher

    def size(self) -> int:
        """Return the number of rows in an epoch."""
        return self.rows.size()

    def draw(self, epoch: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Return the rows of an epoch, in order."""
        return self.rows.draw(epoch, rng)

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return a row with ``teacher`` (characters, frames)."""
        item = self.rows.example(index, rng)
        number, row = self.rows.row(index)
        corpus = self.rows.corpora[number][0]
        if int(item["samples"]) != max(piece.at + piece.frames for piece in row):
            raise ValueError(f"an utterance of row {index} ({corpus[row[0].recording].id} …) cannot be read")
        placed = [(piece.at, corpus[piece.recording].id) for piece in row]
        return {**item, "teacher": self.teacher.logits(placed, item["audio"].shape[-1])}


def network(
    settings: RecognitionSettings, tokens: Tokens, tables: Mapping[str, RecognizerTable | SpotterTable] = TABLES
) -> Recognizer:
    """Return the network of the settings' table for this vocabulary."""
    table = table_named(settings.network, tables, "speech")
    if settings.dc_block and isinstance(table, RecognizerTable):  # mel bands leave out the lowest frequencies
        table = replace(table, backbone=(Row(DC_BLOCK), *table.backbone))
    kept = {"sample_rate": settings.rate, "tokens": list(tokens.names)}
    return recognizer(table, vocabulary=len(tokens.names), settings=kept)


RECIPE = Recipe(configure, prepare)


# Blocks on mel frames, 32 ms a frame: those of `commands`, and with the convolutions over bands of kws-30 before them.
SPOTTER, BANDED = CLASSIFIERS["kws-mel"], CLASSIFIERS["kws-bands"]
assert isinstance(SPOTTER, SpotterTable)
assert isinstance(BANDED, SpotterTable)
WIDE = replace(SPOTTER, blocks=(SPOTTER.blocks[0], Row("pointwise", 1, 144, 160, times=7)))
WIDE_BANDED = replace(BANDED, blocks=(BANDED.blocks[0], Row("pointwise", 1, 144, 160, times=6)))
# The spotter's blocks on raw samples, as for letters, but a frame of the head is 32 ms.
RAW = replace(SPELT, head=(Row("pointwise", 2, 160, 256), Row("pointwise", 1, 160, 256, times=2)))
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
COMMAND_TABLES: dict[str, RecognizerTable | SpotterTable]
COMMAND_TABLES = {
    "commands": WIDE,
    "commands-bands": WIDE_BANDED,
    "raw": RAW,
    "letters": SPELT,
    "narrow": NARROW,
    **RECOGNIZERS,
}


@dataclass(frozen=True, kw_only=True)
class CommandSettings(RecognitionSettings):
    """Settings of connected words: phrases assembled from clips of words."""

    network: str = "commands"
    losses: str = "tokens:1"
    vocabulary: str = "words"
    length: int = 4 * 16_000
    phrases: int = 8192
    """Phrases of an epoch."""
    most: int = 7
    """Maximum number of words in a phrase."""
    speed: float = 0.1
    """Largest change of speed, as a share."""
    noisy: float = 0.7
    """Share of phrases with noise."""
    wordless: float = 0.0
    """Share of examples without words: noise and other speech."""
    tuned: int = 4
    """Number of first blocks whose modes are initialised over their input band."""
    noise: str = ""
    """A folder of noise, if the data folder has none."""
    decode_once: bool = True


def configure_commands(preset: Preset = "ours") -> CommandSettings:
    """Return a preset for two cores, which is not in the paper; ``small`` has fewer phrases."""
    whole = CommandSettings(epochs=40, lr=4e-3, decay=0.05, warmup=0.05, batch=8, dc_block=True, validation_items=200)
    return replace(whole, epochs=2, validations=8, workers=1, ema=0.995) if preset == "small" else whole


def prepare_commands(settings: CommandSettings, folder: Path) -> Prepared:
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
    net = network(settings, tokens, COMMAND_TABLES)
    tune_blocks(net, settings.tuned, settings.rate)
    notes = {"layout": corpus.name, "words": list(words.values("word")), "tokens": len(tokens.names)}
    notes |= {"word_hours": hours(words), "noise_hours": hours(noise), "val_examples": check.size()}
    faults = {**corpus.faults.reasons, **words.faults.reasons, **noise.faults.reasons}
    corpora = (words, noise) if speech is None else (words, noise, speech)
    return Prepared(Recognise(net, settings.losses), Data(train, check), notes, corpora, faults)


COMMANDS = Recipe(configure_commands, prepare_commands, ("ours", "small"))
