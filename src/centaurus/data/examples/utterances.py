"""Examples for speech recognition: rows of whole utterances with their texts; of large corpora a share an epoch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError
from centaurus.audio.pack import RECOGNITION_ROW, Piece, assemble, pack_whole
from centaurus.data.cache import frames_at_rate
from centaurus.data.corpus import Corpus
from centaurus.data.examples.drawing import Group, draw, epoch_size
from centaurus.data.index import Index

Samples = NDArray[np.float32]
Item = dict[str, NDArray[np.generic]]
Encode = Callable[[str], Mapping[str, NDArray[np.generic]]]


class Utterances:
    """Rows of ``length`` frames filled with whole utterances, or with ``length=None`` each utterance by itself.

    Several corpora are put together, each with its share: ``[(librispeech, 1.0), (mls, 0.01)]``.
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
            raise ValueError(f"{silent.path}: clip {silent.id} has no transcript")
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
        """Rows in an epoch."""
        return epoch_size(self.groups)

    def draw(self, epoch: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the rows of an epoch, in order: every corpus's share, drawn anew."""
        return draw(self.groups, self.seed, epoch)

    def text(self, index: int) -> str:
        """Return the transcript of a row."""
        number, row = self.row(index)
        corpus = self.corpora[number][0]
        return " ".join(corpus[piece.recording].labels["transcript"] for piece in row)

    def samples(self, index: int) -> Samples:
        """Return the samples of a row, without the padding at its end."""
        number, row = self.row(index)
        corpus = self.corpora[number][0]

        def load(recording: int, start: int, frames: int) -> Samples:
            return corpus.load(recording, start, frames)

        return assemble(row, max(piece.at + piece.frames for piece in row), load)

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """Return ``audio`` (1, length), how many ``samples`` are not padding, and what ``encode`` makes of the text.

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
