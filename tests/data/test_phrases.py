"""Phrases assembled from words: places of the words, their text, and determinism."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centaurus.data import Corpus, Phrases, Phrasing, open_corpus, prepared
from centaurus.data.keywords import bounds
from tests import corpora

CLEAN = Phrasing(noisy=0.0, speed=0.0, whole=0.0)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder: Path = tmp_path_factory.mktemp("words")
    corpora.speech_commands(folder / "data", ("go", "left", "three"), clips=12, speakers=6)
    return prepared(open_corpus(folder / "data").where(kind="word"), folder / "cache")


def test_words_are_at_their_stated_places(words: Corpus) -> None:
    phrases = Phrases(words, how=CLEAN)
    lengths = set()
    for seed in range(20):
        x, said = phrases.phrase(0, np.random.default_rng(seed))
        lengths.add(len(said))
        voiced = np.zeros(len(x), bool)
        for spoken in said:
            voiced[spoken.start : spoken.end] = True
            assert np.abs(x[spoken.start : spoken.end]).max() > 0.02
        assert not x[~voiced].any()
        assert -35.1 <= 10 * np.log10(np.square(x).mean()) <= -14.9
    assert lengths == set(range(1, 8))


def test_a_fixed_list_is_the_same_every_time_and_others_differ(words: Corpus) -> None:
    fixed, other = Phrases(words, fixed=1), Phrases(words)
    one, two = (fixed.phrase(5, np.random.default_rng(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(one[0], two[0])
    assert one[1] == two[1]
    assert fixed.phrase(6, np.random.default_rng(0))[1] != one[1]
    assert len({len(other.phrase(5, np.random.default_rng(seed))[0]) for seed in range(5)}) > 1


def test_a_row_has_the_words_that_fit(words: Corpus) -> None:
    phrases = Phrases(words, how=Phrasing((7, 7)), length=24_000, encode=lambda text: {"text": np.array(text)})
    for seed in range(10):
        item, (x, said) = (make(0, np.random.default_rng(seed)) for make in (phrases.example, phrases.phrase))
        assert item["audio"].shape == (1, 24_000)
        assert int(item["samples"]) == len(x) <= 24_000
        assert 0 < len(said) < 7
        assert str(item["text"]) == " ".join(spoken.word for spoken in said)
        assert not item["audio"][0, len(x) :].any()


def test_some_rows_have_no_words(words: Corpus) -> None:
    phrases = Phrases(words, how=Phrasing(wordless=1.0), length=24_000, encode=lambda text: {"text": np.array(text)})
    for seed in range(5):
        item = phrases.example(0, np.random.default_rng(seed))
        assert str(item["text"]) == ""
        assert item["starts"].shape == item["ends"].shape == (0,)
        assert np.abs(item["audio"]).max() > 0.01


def test_one_speaker_says_a_phrase(words: Corpus) -> None:
    marked = Phrases(words, how=Phrasing((5, 5), one_speaker=1.0))
    for seed in range(10):
        chosen = marked._choice(np.random.default_rng(seed))
        assert len({words[index].labels["speaker"] for index in chosen}) == 1


def test_the_bounds_of_a_word_exclude_the_silence_around_it() -> None:
    x = np.zeros(16_000, np.float32)
    x[5_000:9_000] = 0.1
    start, end = bounds(x)
    assert 5_000 - 5 * 160 <= start <= 5_000
    assert 9_000 <= end <= 9_000 + 5 * 160
    assert bounds(np.zeros(16_000, np.float32)) == (0, 16_000)
    assert bounds(np.zeros(10, np.float32)) == (0, 10)


def test_a_word_with_its_silence_is_at_its_stated_place(words: Corpus) -> None:
    """Around the bounds of a word there may be sound of its own clip, but nothing as loud as within."""
    for seed in range(10):
        x, said = Phrases(words, how=Phrasing((3, 3), noisy=0.0, whole=1.0)).phrase(0, np.random.default_rng(seed))
        assert len(x) > said[-1].end
        for spoken in said:
            assert np.abs(x[spoken.start : spoken.end]).max() > 0.02
            assert 0 < spoken.end - spoken.start <= 18_000


def test_phrases_need_words(words: Corpus) -> None:
    with pytest.raises(ValueError, match="no clips with a word"):
        Phrases(words.of([]))
