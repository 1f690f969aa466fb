"""The index of utterances: the same clips, leaks and rows as the corpus gives, built in parts and reused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from centaurus import audio, data
from centaurus.audio import AudioError
from centaurus.data import Utterances, index
from centaurus.data.index import _WORD as WORD
from centaurus.data.index import HeldOut

WORDS = (
    "the",
    "a",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "it's",
    "we",
    "saw",
    "Often",
    "D_2",
    "naïve",
)


def readings(root: Path, count: int = 24, seed: int = 0) -> Path:
    """An MLS-like folder: utterances of 0.1 to 0.6 s and texts of one to nine words."""
    rng = np.random.default_rng(seed)
    lines = []
    for k in range(count):
        name = f"{k % 3}_{k % 2}_{k:06d}"
        path = root / "train" / "audio" / f"{k % 3}" / f"{k % 2}" / f"{name}.flac"
        path.parent.mkdir(parents=True, exist_ok=True)
        audio.write(path, 0.1 * rng.standard_normal(int(rng.integers(1600, 9600))).astype(np.float32), 16_000)
        lines.append(f"{name}\t{' '.join(rng.choice(WORDS, int(rng.integers(1, 10))))}")
    (root / "train" / "transcripts.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return readings(tmp_path / "mls")


def test_an_index_is_the_corpus(folder: Path) -> None:
    corpus = data.measured(data.open_corpus(folder, ["train"]))
    held = [corpus[k] for k in (3, 11)]
    readings = index.open_index(folder, [c.labels["transcript"] for c in held], 9600, processes=1, shard_bytes=1 << 20)
    kept, leaks = data.without_leaks(corpus, held)
    assert [(c.path, c.id, c.labels) for c in readings] == [(c.path.absolute(), c.id, c.labels) for c in corpus]
    assert readings.facts.leaks == len(leaks) >= 2
    ours, theirs = Utterances([(readings, 0.5)], 9600, seed=3), Utterances([(kept, 0.5)], 9600, seed=3)
    assert readings.seconds == pytest.approx(kept.seconds)
    assert len(ours) == len(theirs)
    assert ours.draw(1, np.random.default_rng(0)).tolist() == theirs.draw(1, np.random.default_rng(0)).tolist()
    for k in range(len(ours)):
        assert ours.text(k) == theirs.text(k)
        np.testing.assert_array_equal(ours.samples(k), theirs.samples(k))
    assert sorted(readings.texts()) == sorted(c.labels["transcript"] for c in kept)


def test_shards_hold_every_utterance_once(folder: Path) -> None:
    readings = index.open_index(folder, [], 9600, processes=1, shard_bytes=200)
    assert len(readings._columns) > 3
    assert [clip.id for clip in readings] == [clip.id for clip in data.open_corpus(folder)]
    recordings = [piece.recording for row in readings.rows for piece in row]
    assert sorted(recordings) == list(range(24))
    with pytest.raises(IndexError):
        readings.rows[len(readings.rows)]


def test_an_index_is_reused_and_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Path] = []

    def measure(path: Path) -> tuple[int, int]:
        measured.append(path)
        if len(measured) == 20:
            raise KeyboardInterrupt
        return index.header_length(path)

    def opened(length: int = 9600, held: tuple[str, ...] = ()) -> index.Index:
        return index.open_index(folder, held, length, processes=1, measure=measure, shard_bytes=200)

    monkeypatch.setattr(index, "READERS", 1)
    with pytest.raises(KeyboardInterrupt):
        opened()
    first = len(opened().rows)
    assert 24 < len(measured) < 40  # whole shards were kept, the interrupted one was done again
    del measured[20:]
    assert len(opened().rows) == first
    assert len(opened(4800).rows) != first
    assert opened(held=("the quick brown fox",)).facts.utterances == 24
    assert len(measured) == 20  # lengths were not read again
    texts = folder / "train" / "transcripts.txt"
    os.utime(texts, (0, 0))
    opened()
    assert len(measured) == 20 + 24


def test_processes_build_what_one_builds(folder: Path, tmp_path: Path) -> None:
    alone = index.open_index(folder, ["a quick brown fox"], 9600, processes=1, cache=tmp_path / "one", shard_bytes=400)
    many = index.open_index(folder, ["a quick brown fox"], 9600, processes=2, cache=tmp_path / "two", shard_bytes=400)
    assert list(alone.rows) == list(many.rows)
    assert alone.facts == many.facts


def test_unreadable_files_are_named(folder: Path, tmp_path: Path) -> None:
    broken = folder / "train" / "audio" / "0" / "0" / "0_0_000000.flac"
    broken.write_bytes(b"not sound")
    readings = index.open_index(folder, [], 9600, processes=1)
    assert list(readings.faults.reasons) == [str(broken.absolute())]
    assert readings.facts.unreadable == 1
    assert all(piece.recording != 0 for row in readings.rows for piece in row)
    texts = folder / "train" / "transcripts.txt"
    texts.write_text("0_0_000000\tfine\nno tab here\n")
    with pytest.raises(AudioError, match="line at byte 16 is not a name, a tab and a text"):
        index.open_index(folder, [], 9600, processes=1)
    with pytest.raises(ValueError, match="rows of 9600 frames, not of 100"):
        Utterances([(readings, 1.0)], 100)


@pytest.mark.parametrize("seed", range(4))
def test_the_filter_misses_no_leak_and_proposes_few_others(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def text() -> str:
        ends = rng.choice(["", ".", " -- ", "!"], 1)
        return " ".join(rng.choice(WORDS[:8] if seed % 2 else WORDS, int(rng.integers(0, 9)))) + ends[0]

    held = HeldOut([text() for _ in range(6)], 0.5)
    texts = [text() for _ in range(60)]
    encoded = [t.encode() for t in texts]
    letters = np.frombuffer(b"\t".join(encoded), np.uint8)
    lengths = np.array([len(t) for t in encoded])
    starts = np.cumsum(lengths + 1) - lengths - 1
    leaks = [k for k, t in enumerate(texts) if held.closest(t)[1] >= 0.5]
    assert held.leaks(letters, starts, starts + lengths) == leaks
    ascii_long = [k for k, t in enumerate(texts) if t.isascii() and len(WORD.findall(t)) >= 4]
    proposed = set(held.candidates(letters, starts, starts + lengths).tolist())
    assert all((k in proposed) == (held.closest(texts[k])[1] > 0) for k in ascii_long)
