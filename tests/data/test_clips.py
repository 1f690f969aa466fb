"""Clips are loaded as they are, in part or whole, at any rate; what is wrong is named, and skipped or raised."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from centaurus import audio, data
from centaurus.audio import AudioError
from centaurus.data import Clip, Corpus, Faults
from centaurus.data.corpus import frames_at_rate


def noise(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, frames).astype(np.float32)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A long recording at several rates, stereo at the last."""
    folder = tmp_path_factory.mktemp("rates")
    for rate in (16_000, 22_050, 44_100, 48_000):
        x = noise(2 * rate)
        audio.write(folder / f"{rate}.flac", np.stack([x, x / 2]) if rate == 48_000 else x, rate)
    return {rate: folder / f"{rate}.flac" for rate in (16_000, 22_050, 44_100, 48_000)}


@settings(max_examples=40)
@given(st.sampled_from([16_000, 22_050, 44_100, 48_000]), st.integers(0, 31_000), st.integers(1, 9000), st.booleans())
def test_a_part_equals_that_part_of_the_whole(
    recordings: dict[int, Path], rate: int, start: int, frames: int, mapped: bool
) -> None:
    clip = Clip(recordings[rate], "a")
    if mapped:
        path = recordings[rate].with_suffix(".npy")
        if not path.exists():
            np.save(path, data.corpus.to_int16(audio.read(recordings[rate]).mono))
        clip = Clip(path, "a", rate=rate)
    whole = data.load(clip, 16_000)
    assert len(whole) == 32_000
    part = data.load(clip, 16_000, start, frames)
    np.testing.assert_allclose(part, whole[start : start + frames], atol=2e-4)
    assert len(part) == len(whole[start : start + frames])


def test_a_clip_of_a_file_is_counted_at_the_rate_of_the_file(recordings: dict[int, Path]) -> None:
    clip = Clip(recordings[48_000], "a", start=3000, frames=9000, rate=48_000)
    whole = audio.read(recordings[48_000]).mono[3000:12_000]
    np.testing.assert_allclose(data.load(clip), whole, atol=1e-6)
    assert len(data.load(clip, 16_000)) == 3000
    assert len(data.load(clip, 16_000, 2900, 500)) == 100


def faulty(folder: Path) -> dict[str, Path]:
    """A good file and one of each fault."""
    audio.write(folder / "good.wav", noise(20_000), 16_000)
    whole = (folder / "good.wav").read_bytes()
    (folder / "cut.wav").write_bytes(whole[:20_000])
    audio.write(folder / "whole.flac", noise(20_000), 16_000)
    (folder / "damaged.flac").write_bytes((folder / "whole.flac").read_bytes()[:9000])
    (folder / "whole.flac").unlink()
    audio.write(folder / "empty.wav", np.zeros(0), 16_000)
    audio.write(folder / "silent.wav", np.zeros(20_000), 16_000)
    audio.write(folder / "low.wav", noise(10_000), 8000)
    (folder / "text.wav").write_text("no sound at all")
    return {path.stem: path for path in folder.iterdir()} | {"absent": folder / "absent.wav"}


FAULTS = {
    "cut": "shorter than its header",
    "damaged": "damaged|truncated",
    "empty": "is empty",
    "silent": "is silent",
    "low": "8000 Hz, too low for 16000 Hz",
    "text": "not a readable audio file",
    "absent": "no such file",
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named(tmp_path: Path, name: str) -> None:
    path = faulty(tmp_path)[name]
    with pytest.raises(AudioError, match=FAULTS[name]) as caught:
        data.checked(Clip(path, name), 16_000)
    assert str(path) in str(caught.value)


def test_faults_are_skipped_and_reported_or_raised(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    paths = faulty(tmp_path / "in")
    corpus = Corpus("mine", tuple(Clip(path, name) for name, path in sorted(paths.items())))
    ready = data.prepared(corpus)
    assert [clip.id for clip in ready] == ["good"]
    np.testing.assert_allclose(ready.load(0), audio.read(paths["good"]).mono, atol=1e-6)
    assert sorted(ready.faults.reasons) == sorted(str(paths[name]) for name in FAULTS)
    assert "7 files skipped" in str(ready.faults)
    strict = Corpus("mine", corpus.clips, faults=Faults("fail"))
    with pytest.raises(AudioError):
        data.prepared(strict)
    with pytest.raises(ValueError, match="'skip' or 'fail'"):
        Faults("ignore")  # type: ignore[arg-type]


def test_measuring_finds_what_headers_tell(tmp_path: Path) -> None:
    paths = faulty(tmp_path)
    corpus = data.measured(Corpus("mine", tuple(Clip(path, name) for name, path in sorted(paths.items()))))
    assert [(clip.id, clip.frames) for clip in corpus] == [("damaged", 20_000), ("good", 20_000), ("silent", 20_000)]
    assert len(corpus.faults) == 5


def test_in_place_of_a_clip_that_cannot_be_read_comes_the_next(tmp_path: Path) -> None:
    paths = faulty(tmp_path)
    corpus = Corpus("mine", (Clip(paths["text"], "text"), Clip(paths["absent"], "absent"), Clip(paths["good"], "good")))
    clip, x = corpus.take(0)
    assert clip.id == "good"
    assert len(x) == 20_000
    assert len(corpus.faults) == 2
    with pytest.raises(ValueError, match="no clip of the mine corpus can be read"):
        corpus.of(corpus.clips[:2]).take(1)


def test_the_cache_is_reused_until_a_source_changes(tmp_path: Path, cache: Path) -> None:
    audio.write(tmp_path / "a.wav", noise(48_000), 48_000)
    corpus = Corpus("mine", (Clip(tmp_path / "a.wav", "a", labels={"split": "train"}),))
    first = data.prepared(corpus)
    assert frames_at_rate(first) == [16_000]
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert data.prepared(corpus).clips == first.clips
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    assert data.prepared(first) is first
    audio.write(tmp_path / "a.wav", noise(24_000, 1), 48_000, overwrite=True)
    assert frames_at_rate(data.prepared(corpus)) == [8000]
    assert not [path for path in cache.iterdir() if path.name.endswith(".part")]


def test_corpora_are_chosen_from_and_travel_to_workers(tmp_path: Path) -> None:
    clips = [Clip(tmp_path / f"{k}.wav", str(k), labels={"split": s, "word": w}) for k, (s, w) in enumerate(SPLITS)]
    corpus = Corpus("mine", tuple(clips))
    assert [clip.id for clip in corpus.split("val", "test")] == ["1", "2"]
    assert [clip.id for clip in corpus.where(word=("b", "c"), split="train")] == ["3"]
    assert corpus.values("word") == ("a", "b")
    assert copy.deepcopy(corpus).clips == corpus.clips
    with pytest.raises(ValueError, match="no clips in dev; splits: test, train, val"):
        corpus.split("dev")


SPLITS = [("train", "a"), ("val", "a"), ("test", "b"), ("train", "b")]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have names of text only")
def test_a_file_whose_name_is_not_utf8_is_cached(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.wav"))
    audio.write(path, np.full(1600, 0.1, np.float32), 16_000)
    ready = data.prepared(data.Corpus("x", (data.Clip(path, "a"),)), tmp_path / "cache")
    assert [clip.frames for clip in ready] == [1600]
