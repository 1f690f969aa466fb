"""Streams of words: labels are where words end, other speech has none, and the same index gives the same stream."""

from __future__ import annotations

import numpy as np
import pytest

from centaurus.data import open_corpus
from centaurus.data.corpus import Corpus
from centaurus.data.keywords import Streaming, Streams, reverberant
from tests import corpora

FRAME, CLASSES = 512, ("yes", "no", "background")
CLEAN = Streaming(negative=0.0, alone=0.0, partial=0.0, noisy=0.0, room=0.0, tone_db=0.0)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = corpora.speech_commands(tmp_path_factory.mktemp("words"), ("yes", "no", "up"), clips=6, speakers=3)
    return open_corpus(folder, None, ("word",))


def test_labels_follow_the_ends_of_words(words: Corpus) -> None:
    streams = Streams(words, CLASSES, FRAME, how=CLEAN)
    item = streams.example(0, np.random.default_rng(0))
    audio, labels, weights = item["audio"][0], item["labels"], item["weights"]
    assert audio.shape == (streams.length,)
    assert labels.shape == weights.shape == (streams.length // FRAME,)
    assert {0, 1} & set(labels.tolist())
    starts = np.flatnonzero(np.diff((labels != 2).astype(int)) == 1) + 1
    power = np.square(audio).reshape(-1, FRAME).mean(1)
    for start in starts[starts > 8]:
        assert power[start - 6 : start + 2].max() > 1e-5  # the word itself
        assert weights[start - 1] == 0
        assert weights[start] == 1


def test_negatives_and_parts_of_words_have_no_label(words: Corpus) -> None:
    parts = Streams(words, CLASSES, FRAME, how=Streaming(negative=0.0, partial=1.0))
    assert np.all(parts.example(0, np.random.default_rng(0))["labels"] == 2)
    talk = Streams(
        words, ("yes", "background"), FRAME, how=Streaming(negative=1.0, alone=0.0), speech=words.where(word="up")
    )
    assert 0 < len(talk.others) < len(words)
    assert np.abs(talk.example(0, np.random.default_rng(0))["audio"]).max() > 0


def test_noise_alone_is_background_as_loud_as_speech(words: Corpus) -> None:
    streams = Streams(words, CLASSES, FRAME, how=Streaming(alone=1.0, level=(-20.0, -20.0)))
    item = streams.example(0, np.random.default_rng(0))
    assert np.all(item["labels"] == 2)
    assert np.all(item["weights"] == 1)
    assert 10 * np.log10(np.square(item["audio"]).mean()) == pytest.approx(-20.0, abs=0.1)


def test_fixed_streams_are_the_same_every_time(words: Corpus) -> None:
    streams = Streams(words, CLASSES, FRAME, count=4, fixed=7)
    first, again = (streams.example(2, np.random.default_rng(seed)) for seed in (0, 1))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["audio"], streams.example(3, np.random.default_rng(0))["audio"])
    with pytest.raises(ValueError, match="maybe"):
        Streams(words, ("maybe", "background"), FRAME)


def test_reverberation_keeps_the_direct_sound() -> None:
    x = np.zeros(1600, np.float32)
    x[0] = 1.0
    y = reverberant(np.random.default_rng(0), x, 16_000)
    assert y[0] == pytest.approx(1.0, abs=1e-5)
    assert 0.1 < np.square(y[1:]).sum() < 1.1
