"""Rows of speech: mixtures with noise, recorded pairs, and utterances with their texts; and which ones an epoch has.

An epoch has all rows of some groups and a different share of the others: a function of seed and epoch, so that
any number of workers and processes sees the same data.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError, augment
from centaurus.audio.augment import DENOISING_ROW, RECOGNITION_ROW, Piece, assemble, pack_cut, pack_whole
from centaurus.audio.signal import mix
from centaurus.data.corpus import Clip, Corpus, frames_at_rate
from centaurus.data.index import Index
from centaurus.data.layouts import pairs
from centaurus.system import ContentError

Samples = NDArray[np.float32]
Item = dict[str, NDArray[np.generic]]
Encode = Callable[[str], Mapping[str, NDArray[np.generic]]]

# What ``Mixing.variety`` draws from, which the paper does not have. Levels are relative to the first noise.
RECORDED, BABBLE, COLOURED = 0.68, 0.82, 0.95  # cumulative shares of the kinds of noise; the rest is hum
VOICES = (3, 8)  # speakers of babble
SECOND_NOISES = {"recorded": (0.3, (-15, 3)), "coloured": (0.25, (-25, 0)), "hum": (0.1, (-20, 0))}  # share, dB
EQUALISED, SPEECH_TONE, NOISE_TONE = 0.5, 4, 6  # share that is equalised, and by how many dB at most
RUMBLE_LEVEL = (-12, 12)  # dB relative to the noise
CLEAN_SNR = (30, 60)  # dB SNR of inputs that count as clean
READINGS = {"librivox": 0.1}  # long recordings: joined and cut; a tenth of the rows in an epoch


@dataclass(frozen=True)
class Group:
    """``count`` items, of which an epoch has a ``share``: 1 for all of them, 0.01 for one in a hundred."""

    count: int
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"a share should be above 0 and up to 1, got {self.share}")

    @property
    def size(self) -> int:
        """Items in an epoch, at least one of a group that has any."""
        return min(self.count, max(1, round(self.count * self.share)))


def epoch_size(groups: Sequence[Group]) -> int:
    """Return the number of items in an epoch, which is the same for every epoch."""
    return sum(group.size for group in groups)


def draw(groups: Sequence[Group], seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the items of an epoch in random order, numbered consecutively over all groups.

    Epochs take their share of a group one after the other from one shuffled sequence, then from another: 100 epochs of
    1 % see every item once.
    """
    parts, offset = [], 0
    for number, group in enumerate(groups):
        first = epoch * group.size
        places = np.arange(first, first + group.size)
        cycles = places // max(1, group.count)
        part = np.empty(group.size, np.int64)
        for cycle in np.unique(cycles):
            chosen = cycles == cycle
            part[chosen] = _shuffled(group.count, seed, number, int(cycle))[places[chosen] % group.count]
        parts.append(part + offset)
        offset += group.count
    items = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return np.random.default_rng([seed, 1, epoch]).permutation(items)


@lru_cache(maxsize=8)
def _shuffled(count: int, seed: int, group: int, cycle: int) -> NDArray[np.int32]:
    """Return numpy's int64 permutation as int32, in half the memory."""
    return np.random.default_rng([seed, 0, group, cycle]).permutation(np.arange(count, dtype=np.int32))


def evenly_spaced(count: int, limit: int) -> list[int]:
    """Return all indices below ``count``, or ``limit`` of them evenly spaced if 0 < limit < count."""
    return [k * count // limit for k in range(limit)] if 0 < limit < count else list(range(count))


class Utterances:
    """Rows of ``length`` frames filled with whole utterances, or with ``length=None`` each utterance by itself.

    Several corpora are combined, each with its share: ``[(librispeech, 1.0), (mls, 0.01)]``.
    An ``Index`` has its rows already.
    """

    def __init__(
        self,
        corpora: Corpus | Sequence[tuple[Corpus | Index, float]],
        length: int | None = RECOGNITION_ROW,
        encode: Encode | None = None,
        seed: int = 0,
    ) -> None:
        self.corpora = [(corpora, 1.0)] if isinstance(corpora, Corpus) else list(corpora)
        self.length, self.encode, self.seed = length, encode, seed
        self.groups: list[Group] = []
        self.discarded = 0
        self._rows: list[Sequence[tuple[Piece, ...]]] = []
        self._ends: list[int] = []
        for corpus, share in self.corpora:
            rows = self._indexed(corpus) if isinstance(corpus, Index) else self._packed(corpus)
            self._rows.append(rows)
            self._ends.append(len(rows) + (self._ends[-1] if self._ends else 0))
            self.groups.append(Group(len(rows), share))
        if not len(self):
            raise ValueError(f"there are no utterances; {self.discarded} are longer than a row of {length} frames")

    def _indexed(self, corpus: Index) -> Sequence[tuple[Piece, ...]]:
        if corpus.length != self.length:
            raise ValueError(f"the index has rows of {corpus.length} frames, not of {self.length}")
        self.discarded += corpus.facts.discarded
        return corpus.rows

    def _packed(self, corpus: Corpus) -> Sequence[tuple[Piece, ...]]:
        if silent := next((clip for clip in corpus if "transcript" not in clip.labels), None):
            raise ContentError(f"clip {silent.id} has no transcript", silent.path)
        frames = frames_at_rate(corpus)
        if self.length is None:
            return tuple((Piece(i, 0, count, 0),) for i, count in enumerate(frames))
        packing = pack_whole(frames, self.length)
        self.discarded += len(packing.discarded)
        return packing.rows

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def row(self, index: int) -> tuple[int, tuple[Piece, ...]]:
        """Return the number of a row's corpus, and its utterances."""
        number = bisect_right(self._ends, index)
        return number, self._rows[number][index - (self._ends[number - 1] if number else 0)]

    def size(self) -> int:
        """Return the number of rows in an epoch."""
        return epoch_size(self.groups)

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows of an epoch, in order: every corpus's share, drawn for this epoch."""
        return draw(self.groups, self.seed, epoch)

    def text(self, index: int) -> str:
        """Return the transcript of a row."""
        number, row = self.row(index)
        corpus = self.corpora[number][0]
        return " ".join(corpus[piece.recording].labels["transcript"] for piece in row)

    def samples(self, index: int) -> Samples:
        """Return the samples of a row, without the padding at its end."""
        number, row = self.row(index)
        return assemble(row, max(piece.at + piece.frames for piece in row), self.corpora[number][0].load)

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` (1, length), how many ``samples`` are not padding, and what ``encode`` returns for the text.

        In place of a row with a clip that cannot be read, the next one that can.
        """
        index, x = self._readable(index)
        audio = x if self.length is None else np.pad(x, (0, self.length - len(x)))
        words = self.encode(self.text(index)) if self.encode else {}
        return {"audio": audio[None], "samples": np.array(len(x)), **words}

    def _readable(self, index: int) -> tuple[int, Samples]:
        for step in range(len(self)):
            row = (index + step) % len(self)
            try:
                return row, self.samples(row)
            except AudioError as error:
                self.corpora[self.row(row)[0]][0].faults.add(error)
        raise ValueError("no row of utterances can be read")


@dataclass(frozen=True)
class Mixing:
    """How speech and noise are mixed, by default as in the paper; ``variety`` extends it."""

    snr: tuple[float, float] = (-5.0, 15.0)
    level: tuple[float, float] = (-35.0, -15.0)
    time_masks: int = 2
    frequency_masks: int = 2
    variety: float = 0.0
    """The share of examples with more than one recorded noise: babble, coloured noise, hum, another microphone."""
    silent_speech: float = 0.0
    """The share of examples that are noise alone."""
    clean_input: float = 0.0
    """The share of examples with an SNR of 30 to 60 dB."""
    rumble: float = 0.0
    """The share of examples with rumble added to their noise, up to 12 dB louder than it."""
    residue: float = 0.0
    """The noise left in the target: 0.1 is 20 dB less noise, which distorts speech less than removing all of it."""


class Mixtures:
    """Rows of speech mixed with noise. The lengths of all clips must be known (``prepared`` or ``measured``)."""

    def __init__(
        self,
        speech: Corpus,
        noise: Corpus,
        mixing: Mixing = Mixing(),  # noqa: B008, it is frozen
        length: int = DENOISING_ROW,
        readings: Mapping[str, float] = READINGS,
        seed: int = 0,
    ) -> None:
        if not len(speech) or not len(noise):
            raise ValueError(f"{len(speech)} clips of speech and {len(noise)} of noise: both are needed")
        self.speech, self.noise, self.mixing, self.length, self.seed = speech, noise, mixing, length, seed
        self.discarded: list[Clip] = []
        self.rows: list[tuple[Piece, ...]] = []
        self.groups: list[Group] = []
        self._pack(readings)
        lengths = np.maximum(frames_at_rate(noise), 1).astype(float)
        # A long recording is more varied than a short one, but not in proportion.
        self._odds = np.cumsum(np.sqrt(lengths)) / np.sqrt(lengths).sum()
        self._frames = frames_at_rate(noise)

    def _pack(self, readings: Mapping[str, float]) -> None:
        """Cut long readings to rows and pack other recordings whole; those longer than a row are discarded."""
        frames = frames_at_rate(self.speech)
        names = [clip.labels.get("set", "") for clip in self.speech]
        for name in sorted(set(names) & set(readings)):
            members = [i for i, other in enumerate(names) if other == name]
            self._add(members, pack_cut([frames[i] for i in members], self.length).rows, readings[name])
        members = [i for i, name in enumerate(names) if name not in readings]
        packing = pack_whole([frames[i] for i in members], self.length)
        self.discarded = [self.speech[members[i]] for i in packing.discarded]
        self._add(members, packing.rows, 1.0)
        if not self.rows:
            longest = f"all {len(self.discarded)} clips of speech are longer than a row of {self.length} frames"
            raise ValueError(f"{longest}: choose a longer row, or name their set among the readings to cut them")

    def _add(self, members: Sequence[int], rows: Sequence[Sequence[Piece]], share: float) -> None:
        if rows:
            self.groups.append(Group(len(rows), share))
            self.rows += [tuple(Piece(members[p.recording], p.start, p.frames, p.at) for p in row) for row in rows]

    def size(self) -> int:
        """Return the number of rows in an epoch."""
        return epoch_size(self.groups)

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows of an epoch, in order."""
        return draw(self.groups, self.seed, epoch)

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` noisy and ``clean``, each (1, length), and how many ``samples`` are not padding."""
        noisy, clean = self.mixture(index, rng)
        used = max(piece.at + piece.frames for piece in self.rows[index])
        return {"audio": noisy[None], "clean": clean[None], "samples": np.array(used)}

    def mixture(self, index: int, rng: np.random.Generator) -> tuple[Samples, Samples]:
        """Return the noisy and the target signal of a row."""
        how, speech = self.mixing, self._speech(index)
        varied = rng.random() < how.variety
        noise = self._varied_noise(rng) if varied else self._recorded(rng)
        if how.rumble and rng.random() < how.rumble:
            low = augment.rumble(rng, self.length, self.speech.rate)
            noise = augment.combine(noise, (low, rng.uniform(*RUMBLE_LEVEL)))
        if varied and rng.random() < EQUALISED:
            speech = augment.equalised(rng, speech, SPEECH_TONE, rate=self.speech.rate)
        kind, snr, level = rng.random(), rng.uniform(*how.snr), rng.uniform(*how.level)
        if kind < how.silent_speech:
            speech = np.zeros_like(speech)
        elif kind < how.silent_speech + how.clean_input:
            snr = rng.uniform(*CLEAN_SNR)
        noisy, clean = augment.limited(*mix(speech, noise, snr, level))
        return self._masked(noisy, rng), clean + np.float32(how.residue) * (noisy - clean)

    def _speech(self, index: int) -> Samples:
        def load(recording: int, start: int, frames: int) -> Samples:
            try:
                return self.speech.load(recording, start, frames)
            except AudioError as error:
                self.speech.faults.add(error)
                return np.zeros(frames, np.float32)

        return assemble(self.rows[index], self.length, load)

    def _masked(self, noisy: Samples, rng: np.random.Generator) -> Samples:
        how = self.mixing
        if how.frequency_masks:
            noisy = augment.mask_frequency(rng, noisy, how.frequency_masks, rate=self.speech.rate)
        return augment.mask_time(rng, noisy, how.time_masks) if how.time_masks else noisy

    def _recorded(self, rng: np.random.Generator) -> Samples:
        """Return a random place in a random recording, repeated if it is short."""
        index = int(np.searchsorted(self._odds, rng.random()))
        frames = self._frames[index]
        if frames > self.length:
            start = int(rng.integers(0, frames - self.length + 1))
            return self.noise.take(index, start, self.length)[1][: self.length]
        return augment.looped(rng, self.noise.take(index)[1], self.length)

    def _voice(self, rng: np.random.Generator) -> Samples:
        return self._speech(int(rng.integers(len(self.rows))))

    def _varied_noise(self, rng: np.random.Generator) -> Samples:
        rate, kind = self.speech.rate, rng.random()
        makers: dict[str, Callable[[], Samples]] = {
            "recorded": lambda: self._recorded(rng),
            "coloured": lambda: augment.coloured(rng, self.length, rate=rate),
            "hum": lambda: augment.hum(rng, self.length, rate=rate),
        }
        if RECORDED <= kind < BABBLE:
            low, high = VOICES
            noise = augment.babble([self._voice(rng) for _ in range(int(rng.integers(low, high + 1)))])
        else:
            noise = makers["recorded" if kind < RECORDED else "coloured" if kind < COLOURED else "hum"]()
        others: list[tuple[Samples, float]] = []
        for name, (share, levels) in SECOND_NOISES.items():
            if rng.random() < share:
                others.append((makers[name](), rng.uniform(*levels)))
        noise = augment.combine(noise, *others)
        return augment.equalised(rng, noise, NOISE_TONE, rate=rate) if rng.random() < EQUALISED else noise


class Pairs:
    """Recorded pairs, whole or as random rows: VoiceBank+DEMAND."""

    def __init__(self, corpus: Corpus, length: int | None = None) -> None:
        self.corpus, self.length = corpus, length
        self.pairs = pairs(corpus)
        if not self.pairs:
            raise ValueError(f"the {corpus.name} corpus has no pairs of noisy and clean clips")

    def size(self) -> int:
        """Return the number of pairs in an epoch."""
        return len(self.pairs)

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return all pairs in random order."""
        return rng.permutation(len(self.pairs))

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` noisy and ``clean``, each (1, t), and how many ``samples`` are not padding."""
        noisy, clean = (self.corpus.load(clip) for clip in self.pairs[index])
        count = min(len(noisy), len(clean))
        start, length = 0, count
        if self.length is not None:
            start, length = int(rng.integers(0, max(0, count - self.length) + 1)), self.length
        used = min(count, length)
        noisy, clean = (np.pad(x[start : start + used], (0, length - used)) for x in (noisy, clean))
        return {"audio": noisy[None], "clean": clean[None], "samples": np.array(used)}
