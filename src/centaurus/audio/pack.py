"""Pack recordings of different lengths into rows of one length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DENOISING_ROW = 2**17  # samples: 8.2 s at 16 kHz, the training rows of the paper's denoiser
RECOGNITION_ROW = 327_680  # samples: 20.48 s at 16 kHz, those of its recognisers
CLASSES = 4096  # of free room, among which rows are sorted


@dataclass(frozen=True, slots=True)
class Piece:
    """Frames ``start … start + frames`` of a recording, put at ``at`` in its row."""

    recording: int
    start: int
    frames: int
    at: int


@dataclass(frozen=True)
class Packing:
    """Rows of pieces, and the recordings that are left out: those longer than a row, and empty ones."""

    length: int
    rows: tuple[tuple[Piece, ...], ...]
    discarded: tuple[int, ...] = ()

    @property
    def fill(self) -> float:
        """The share of the rows that is audio and not padding."""
        used = sum(piece.frames for row in self.rows for piece in row)
        return used / (self.length * len(self.rows)) if self.rows else 0.0


def pack_cut(frames: Sequence[int], length: int) -> Packing:
    """Concatenate recordings and cut them into rows; only the last row is padded. For long readings."""
    _check(frames, length)
    rows: list[list[Piece]] = []
    position = 0
    for recording, count in enumerate(frames):
        start = 0
        while start < count:
            row, at = divmod(position, length)
            if row == len(rows):
                rows.append([])
            taken = min(count - start, length - at)
            rows[row].append(Piece(recording, start, taken, at))
            start, position = start + taken, position + taken
    return Packing(length, tuple(map(tuple, rows)))


def pack_whole(frames: Sequence[int], length: int) -> Packing:
    """Pack recordings without splitting any, each into the fullest row that has room, longest first.

    Those longer than a row are discarded, as are empty ones.
    """
    _check(frames, length)
    counts = np.asarray(frames, np.int64)
    rows = fill_rows(counts, length)
    discarded = np.flatnonzero((counts < 1) | (counts > length))
    return Packing(length, tuple(rows), tuple(discarded.tolist()))


class Rows(Sequence[tuple[Piece, ...]]):
    """Rows as arrays, which may be memory-mapped: row k has the recordings ``offsets[k] … offsets[k + 1]``."""

    def __init__(self, offsets: NDArray[np.int64], recordings: NDArray[np.int32], frames: NDArray[Any]) -> None:
        self.offsets, self.recordings, self.frames = offsets, recordings, frames

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """Return one row, with its recordings concatenated."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        pieces, at = [], 0
        for recording in self.recordings[self.offsets[index] : self.offsets[index + 1]].tolist():
            count = int(self.frames[recording])
            pieces.append(Piece(recording, 0, count, at))
            at += count
        return tuple(pieces)


def fill_rows(frames: NDArray[Any], length: int) -> Rows:
    """Return the rows of ``pack_whole`` as arrays; recordings that are empty or longer than a row are in none."""
    order = np.argsort(-frames.astype(np.int64), kind="stable")
    order = order[(frames[order] > 0) & (frames[order] <= length)]
    rooms, rows, row_of = _Rooms(length), 0, []
    for count in frames[order].tolist():
        room, row = rooms.take(count) or (length, rows)
        rows += row == rows
        row_of.append(row)
        rooms.add(room - count, row)
    numbers = np.array(row_of, np.int64)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=rows))]).astype(np.int64)
    return Rows(offsets, order[np.argsort(numbers, kind="stable")].astype(np.int32), frames)


class _Rooms:
    """Rows by the room they have left, sorted within classes of room: fast with millions of rows."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.classes: list[list[tuple[int, int]]] = [[] for _ in range(CLASSES + 1)]
        self.filled = 0  # a bit for every class that has rows

    def add(self, room: int, row: int) -> None:
        number = room * CLASSES // self.length
        if number:  # else it is as good as full
            insort(self.classes[number], (room, row))
            self.filled |= 1 << number

    def take(self, count: int) -> tuple[int, int] | None:
        """Remove and return the row with the least room that fits this many frames."""
        number = count * CLASSES // self.length
        place = bisect_left(self.classes[number], (count, -1))
        if place == len(self.classes[number]):
            above = self.filled >> (number + 1)
            if not above:
                return None
            number, place = number + (above & -above).bit_length(), 0
        taken = self.classes[number].pop(place)
        if not self.classes[number]:
            self.filled ^= 1 << number
        return taken


def assemble(
    row: Sequence[Piece], length: int, load: Callable[[int, int, int], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return a row as samples; ``load(recording, start, frames)`` gives those of a piece, padding is zero."""
    samples = np.zeros(length, np.float32)
    for piece in row:
        samples[piece.at : piece.at + piece.frames] = load(piece.recording, piece.start, piece.frames)
    return samples


def _check(frames: Sequence[int], length: int) -> None:
    if length < 1:
        raise ValueError(f"a row needs at least one frame, not {length}")
    for recording, count in enumerate(frames):
        if count < 0:
            raise ValueError(f"recording {recording} has unknown length: measure it first")
