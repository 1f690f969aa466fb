"""Greedy CTC against the two-line definition, and any pieces against the whole."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus.decode import MARK_DELAY, REACH, Greedy, Style, Vocabulary, Words, greedy, join

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
    collapse = Greedy(WHOLE, 0.032)
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
    collapse, words = Greedy(vocabulary, 0.16), Words(vocabulary, 0.16)
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


FRAME = 0.032  # seconds
SPOKEN = [9.0, 9.0, 9.0]  # a start mark of three frames


def marked(path: list[int], begins: dict[int, list[float]], otherwise: float = -9.0) -> list[tuple[str, float]]:
    """Return the words of a path with their first frames, where the mark's logits begin at these frames."""
    x = logits(path, 4)
    x[3] = otherwise
    for frame, values in begins.items():
        x[3, frame : frame + len(values)] = values
    return [(w.text, round((w.start + MARK_DELAY) / FRAME, 6)) for w in greedy(x, MARKED, FRAME)]


@pytest.mark.parametrize(
    ("begins", "begin"),
    [
        ({10: SPOKEN}, 10),
        ({10: SPOKEN, 24: SPOKEN}, 10),  # a second mark inside the word is too late
        ({10: SPOKEN, 18: [12.0] * 3}, 10),  # 6 frames before the token cost 6 logits, 14 cost none
        ({10: SPOKEN, 18: [18.0] * 3}, 18),  # unless it is much surer
        ({0: SPOKEN, 12: SPOKEN}, 12),
        ({12: [9.0], 5: SPOKEN}, 5),  # a mark of one frame is less sure than one of three
        ({11: [-3.0] * 3}, 11),  # the least unlikely, if there is none
    ],
)
def test_a_mark_says_where_a_word_begins(begins: dict[int, list[float]], begin: int) -> None:
    assert marked([0] * 25 + [1, 1, 0], begins) == [("stop", begin)]


def test_a_mark_belongs_to_one_word() -> None:
    path = [0] * 15 + [1, 1] + [0] * 13 + [2, 0]
    assert marked(path, {2: SPOKEN, 17: SPOKEN}) == [("stop", 2), ("go", 17)]
    assert marked(path, {2: [9.0] * 16, 20: SPOKEN}) == [("stop", 2), ("go", 20)]  # on until after the word: its own
    assert marked([0] * 15 + [1, 2, 0], {2: SPOKEN}) == [("stop", 2), ("go", 16)]  # no frame is left between them


def test_a_start_does_not_depend_on_the_frame_rate() -> None:
    x = logits([0] * 50 + [1, 0], 4)
    x[3] = -9.0
    x[3, 24:30] = 9.0
    (word,) = greedy(x, MARKED, FRAME / 2)
    assert word.start + MARK_DELAY == pytest.approx(12 * FRAME)


def test_a_marked_word_never_ends_before_it_begins() -> None:
    x = logits([0, 0, 0, 1, 0], 4)
    x[3] = [-99, -99, -99, 99, -99]
    ((start, end),) = [(w.start, w.end) for w in greedy(x, MARKED, 0.024)]
    assert start == end == 3 * 0.024 - MARK_DELAY


@pytest.mark.parametrize(("back", "is_found"), [(round(REACH / FRAME) - 1, True), (round(REACH / FRAME), False)])
def test_a_mark_reaches_back_only_so_far(back: int, is_found: bool) -> None:
    ((_, begin),) = marked([0] * 50 + [1, 0], {50 - back: [99.0]}, otherwise=-99.0)
    assert (begin == 50 - back) == is_found


def test_an_open_token_is_not_returned_twice() -> None:
    collapse = Greedy(WHOLE, 0.032)
    assert collapse.push(logits([1, 1], 4)) == []
    assert [t.index for t in collapse.open] == [1]
    assert [(t.start, t.end) for t in collapse.push(logits([1, 0], 4))] == [(0, 3)]
    assert collapse.flush() == []


def test_logits_of_another_vocabulary_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(4, frames\).*\(3, 5\)"):
        Greedy(WHOLE, 0.032).push(np.zeros((3, 5), np.float32))
