"""Greedy CTC against the two-line definition, and any pieces against the whole."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus.decode import LATE, MARK_DELAY, REACH, Greedy, Style, Vocabulary, Words, greedy, join

PIECES = Vocabulary.of(["[PAD]", "[UNK]", "cen", "##tau", "##rus", "a"])
LETTERS = Vocabulary.of(["<blank>", " ", "a", "b", "c"])
WHOLE = Vocabulary.of(["<blank>", "stop", "go", "left"])
MARKED = Vocabulary.of(["<blank>", "stop", "go", "<start>"])
VOCABULARIES = [PIECES, LETTERS, WHOLE, MARKED]

paths = st.lists(st.integers(0, 3), max_size=30)


def logits(path: list[int], tokens: int, seed: int = 0) -> NDArray[np.float32]:
    """Random logits whose most probable tokens are the path."""
    x = np.random.default_rng(seed).standard_normal((tokens, len(path))).astype(np.float32)
    x[path, range(len(path))] = 5
    return x


def definition(path: list[int], vocabulary: Vocabulary) -> list[tuple[int, int, int]]:
    """Collapse, then drop blanks."""
    runs = [(index, [k for k, _ in run]) for index, run in groupby(enumerate(path), key=lambda x: x[1])]
    return [(index, run[0], run[-1] + 1) for index, run in runs if index != vocabulary.blank]


def test_the_style_of_a_vocabulary_is_inferred() -> None:
    assert [v.style for v in VOCABULARIES] == [Style.PIECES, Style.CHARACTERS, Style.WORDS, Style.WORDS]
    assert [v.blank for v in VOCABULARIES] == [0, 0, 0, 0]
    assert [v.mark for v in VOCABULARIES] == [None, None, None, 3]
    assert Vocabulary.of(["a", "b", "<blank>"]).blank == 2
    assert Vocabulary.of(["a", "b"], style="word").style is Style.WORDS


def test_bad_vocabularies_are_named() -> None:
    with pytest.raises(ValueError, match="list of strings"):
        Vocabulary.of([])
    with pytest.raises(ValueError, match="index 7"):
        Vocabulary.of(["a"], blank=7)


@settings(max_examples=50)
@given(paths, st.integers(0, 99))
def test_tokens_equal_a_plain_implementation(path: list[int], seed: int) -> None:
    collapse = Greedy(WHOLE)
    x = logits(path, 4, seed)
    tokens = collapse.push(x) + collapse.flush()
    assert [(t.index, t.start, t.end) for t in tokens] == definition(path, WHOLE)
    e = np.exp(x.astype(np.float64))
    p = e / e.sum(0)
    for t in tokens:
        assert t.confidence == pytest.approx(p[t.index, t.start : t.end].mean())


@settings(max_examples=50)
@given(paths, st.integers(0, 99), st.lists(st.integers(0, 30), max_size=6), st.sampled_from(VOCABULARIES))
def test_streaming_equals_offline(path: list[int], seed: int, cuts: list[int], vocabulary: Vocabulary) -> None:
    x = logits(path, len(vocabulary.tokens), seed)
    whole = greedy(x, vocabulary, 0.16)
    collapse, words = Greedy(vocabulary), Words(vocabulary, 0.16)
    for _ in range(2):  # the second time after a flush, as new
        result = []
        for piece in np.split(x, sorted(min(cut, len(path)) for cut in cuts), axis=1):
            result += words.push(collapse.push(piece))
        assert result + words.partial(collapse.open) == whole
        assert result + words.push(collapse.flush()) + words.flush() == whole


@pytest.mark.parametrize(
    ("vocabulary", "path", "text"),
    [
        (PIECES, [2, 2, 0, 3, 4, 0, 5, 0, 5], "centaurus a a"),
        (PIECES, [3, 4], "taurus"),
        (LETTERS, [1, 2, 3, 0, 3, 1, 1, 4, 1], "abb c"),
        (WHOLE, [1, 1, 0, 1, 2, 3], "stop stop go left"),
        (WHOLE, [0, 0], ""),
        (WHOLE, [], ""),
    ],
)
def test_words(vocabulary: Vocabulary, path: list[int], text: str) -> None:
    assert join(greedy(logits(path, len(vocabulary.tokens)), vocabulary, 0.16)) == text


def test_times_cover_the_frames_of_a_word() -> None:
    words = greedy(logits([0, 2, 3, 3, 4, 0, 5], 6), PIECES, 0.5)
    assert [(w.text, w.start, w.end) for w in words] == [("centaurus", 0.5, 2.5), ("a", 3.0, 3.5)]
    words = greedy(logits([2, 1, 1, 3], 5), LETTERS, 1.0)
    assert [(w.text, w.start, w.end) for w in words] == [("a", 0, 1), ("b", 3, 4)]


@pytest.mark.parametrize(
    ("path", "marks", "begins"),
    [
        ([0, 0, 1, 0, 0, 2], [-1, 9, -1, -1, 9, -1], [("stop", 0.5, 1.5), ("go", 2.0, 3.0)]),
        ([0, 0, 0, 1, 1, 0], [9, 9, -1, -1, -1, -1], [("stop", 0.0, 2.5)]),  # where a run of marks begins
        ([0, 0, 0, 0, 1, 0], [9, -1, 2, -1, -1, -1], [("stop", 1.0, 2.5)]),  # the later one counts
        ([0, 0, 0, 0, 1, 0], [-8, -1, -5, -2, -7, -9], [("stop", 0.5, 2.5)]),  # the least unlikely, if there is none
        ([0, 1, 0, 0, 2, 0], [9, 9, 9, -5, -4, -1], [("stop", 0.0, 1.0), ("go", 2.0, 2.5)]),  # a mark is used once
        ([1, 2, 0], [9, 9, 9], [("stop", 0.0, 0.5), ("go", 0.5, 1.0)]),
    ],
)
def test_a_mark_says_where_a_word_begins(
    path: list[int], marks: list[int], begins: list[tuple[str, float, float]]
) -> None:
    x = logits(path, 4)
    x[3] = marks
    earlier = [(text, max(0.0, start - MARK_DELAY), end) for text, start, end in begins]
    assert [(w.text, w.start, round(w.end + LATE, 6)) for w in greedy(x, MARKED, 0.5)] == earlier


def test_a_marked_word_never_ends_before_it_begins() -> None:
    x = logits([0, 1, 0], 4)
    x[3] = [-9, 9, -9]
    assert [(w.start, w.end) for w in greedy(x, MARKED, 0.024)] == [(0.024 - MARK_DELAY, 0.024 - MARK_DELAY)]


@pytest.mark.parametrize(("back", "begin"), [(REACH - 1, 50 - REACH + 1), (REACH, 49)])
def test_a_mark_reaches_back_only_so_far(back: int, begin: int) -> None:
    x = logits([0] * 50 + [1, 0], 4)
    x[3] = -9.0
    x[3, 49] = -1.0  # the least unlikely, where no mark is in reach
    x[3, 50 - back] = 9.0
    assert [w.start + MARK_DELAY for w in greedy(x, MARKED, 1.0)] == [begin]


def test_an_open_token_is_not_returned_twice() -> None:
    collapse = Greedy(WHOLE)
    assert collapse.push(logits([1, 1], 4)) == []
    assert [t.index for t in collapse.open] == [1]
    assert [(t.start, t.end) for t in collapse.push(logits([1, 0], 4))] == [(0, 3)]
    assert collapse.flush() == []


def test_logits_of_another_vocabulary_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(4, frames\).*\(3, 5\)"):
        Greedy(WHOLE).push(np.zeros((3, 5), np.float32))
