"""Rows hold every recording once, whole or cut, nothing overlaps, and the longest are left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centaurus.audio import Packing, assemble, pack_cut, pack_whole

LENGTHS = st.lists(st.integers(0, 60), max_size=30)


def check_rows(packing: Packing) -> None:
    for row in packing.rows:
        ends = 0
        for piece in row:
            assert piece.at == ends, "pieces follow each other without a gap"
            ends += piece.frames
        assert ends <= packing.length


@settings(max_examples=100)
@given(LENGTHS, st.integers(1, 40))
def test_whole_recordings_are_never_split(lengths: list[int], length: int) -> None:
    packing = pack_whole(lengths, length)
    check_rows(packing)
    pieces = [piece for row in packing.rows for piece in row]
    assert all(piece.start == 0 and piece.frames == lengths[piece.recording] for piece in pieces)
    assert sorted([p.recording for p in pieces] + list(packing.discarded)) == list(range(len(lengths)))
    assert list(packing.discarded) == [i for i, count in enumerate(lengths) if not 0 < count <= length]
    # No two rows could have been one.
    used = sorted(sum(piece.frames for piece in row) for row in packing.rows)
    assert len(used) < 2 or used[0] + used[1] > length


@settings(max_examples=100)
@given(LENGTHS, st.integers(1, 40))
def test_cut_rows_put_together_are_the_recordings_end_to_end(lengths: list[int], length: int) -> None:
    sounds = [np.arange(count, dtype=np.float32) + 100 * i for i, count in enumerate(lengths)]
    packing = pack_cut(lengths, length)
    check_rows(packing)
    rows = [assemble(row, length, lambda i, start, n: sounds[i][start : start + n]) for row in packing.rows]
    joined = np.concatenate([np.zeros(0, np.float32), *sounds])
    assert len(rows) == -(-len(joined) // length)
    flat = np.concatenate([np.zeros(0, np.float32), *rows])
    np.testing.assert_array_equal(flat[: len(joined)], joined)
    assert not flat[len(joined) :].any()


def test_known_rows() -> None:
    packing = pack_whole([3, 5, 9, 4, 2], 8)
    assert packing.discarded == (2,)
    assert [[piece.recording for piece in row] for row in packing.rows] == [[1, 0], [3, 4]]
    assert packing.fill == 14 / 16


def test_what_cannot_be_packed_is_an_error() -> None:
    with pytest.raises(ValueError, match="recording 1 has unknown length"):
        pack_whole([3, -1], 8)
    with pytest.raises(ValueError, match="at least one frame"):
        pack_cut([3], 0)
