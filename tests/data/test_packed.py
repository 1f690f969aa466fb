"""Packs: decoded once, cut where the index says, and every mistake in the index is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from centaurus import audio, data
from centaurus.audio import AudioError
from centaurus.data.corpus import read_index, save
from tests import corpora


def pack(folder: Path, suffix: str = ".flac") -> tuple[Path, np.ndarray]:
    """Three clips in two files, with quotes in a transcript."""
    folder.mkdir()
    x = np.random.default_rng(0).normal(0, 0.1, 30_000).astype(np.float32)
    subtype = "OPUS" if suffix == ".ogg" else None
    audio.write(folder / f"one{suffix}", x[:20_000], 16_000, subtype=subtype)
    audio.write(folder / f"two{suffix}", x[20_000:], 16_000, subtype=subtype)
    rows = [
        "file\tstart\tnsamples\tid\tspeaker\ttranscript\tsplit",
        f'one{suffix}\t0\t12000\ta\tp1\tshe said "no\ttrain',
        f"one{suffix}\t12000\t8000\tb\tp1\tit's\ttrain",
        f"two{suffix}\t0\t10000\tc\tp2\t\tval",
    ]
    (folder / "index.tsv").write_text("\n".join(rows) + "\n")
    return folder, x


@pytest.mark.parametrize("suffix", [".flac", ".ogg"])
def test_clips_are_where_the_index_says(tmp_path: Path, suffix: str, cache: Path) -> None:
    folder, x = pack(tmp_path / "pack", suffix)
    corpus = data.open_pack(folder)
    assert [clip.id for clip in corpus] == ["a", "b", "c"]
    assert corpus[0].labels["transcript"] == 'she said "no'
    assert corpus.values("split") == ("train", "val")
    assert corpus.values("kind") == ("speech",)
    decoded = np.concatenate([audio.read(folder / f"{name}{suffix}").mono for name in ("one", "two")])
    joined = np.concatenate([corpus.load(k) for k in range(3)])
    np.testing.assert_allclose(joined, decoded, atol=1 / 32768)
    if suffix == ".flac":
        np.testing.assert_allclose(joined, x, atol=1 / 32768)
    assert len(list(cache.iterdir())) == 2


def test_only_what_is_asked_for_is_decoded_and_only_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = pack(tmp_path / "pack")
    assert [clip.id for clip in data.open_pack(folder, splits=["val"])] == ["c"]
    assert [path.name.split("-")[0] for path in cache.iterdir()] == ["two"]
    data.open_pack(folder)
    monkeypatch.setattr(audio, "blocks", None)  # decoding again would fail
    assert len(data.open_pack(folder)) == 3
    assert len(data.open_pack(folder, kinds=["noise"])) == 0


def test_an_interrupted_decode_leaves_no_cache(tmp_path: Path) -> None:
    def pieces():  # type: ignore[no-untyped-def]
        yield np.zeros(10, np.int16)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "a.npy", pieces())
    assert list(tmp_path.iterdir()) == []
    assert save(tmp_path / "a.npy", iter([np.arange(3, dtype=np.int16), np.arange(1_000_000, dtype=np.int16)])) > 1e6
    assert np.load(tmp_path / "a.npy")[:5].tolist() == [0, 1, 2, 0, 1]


def test_damaged_files_and_impossible_clips_are_skipped_or_raised(tmp_path: Path) -> None:
    folder, _ = pack(tmp_path / "pack")
    with (folder / "index.tsv").open("a") as file:
        file.write("two.flac\t9000\t2000\td\tp2\t\tval\nthree.flac\t0\t10\te\tp2\t\tval\n")
    corpus = data.open_pack(folder)
    assert [clip.id for clip in corpus] == ["a", "b", "c"]
    report = str(corpus.faults)
    assert "clip d: frames 9000 … 11000 are not in a file of 10000 frames" in report
    assert "three.flac: no such file" in report
    with pytest.raises(AudioError, match="clip d"):
        data.open_pack(folder, on_fault="fail", splits=["val"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file\tstart\tid\n", "lacks the columns nsamples"),
        ("file\tstart\tnsamples\tid\na.flac\tx\t5\ta\n", "line 2 "),
        ("file\tstart\tnsamples\tid\na.flac\t0\t5\ta\na.flac\t0\n", "line 3 "),
        ("file\tstart\tnsamples\tid\na.flac\t0\t5\ta\tmore\n", "line 2 "),
    ],
)
def test_mistakes_in_the_index_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "index.tsv").write_text(text if text.count("\n") > 1 else text + "a\t0\t1\n")
    with pytest.raises(AudioError, match=words) as caught:
        read_index(tmp_path / "index.tsv")
    assert "index.tsv" in str(caught.value)


def test_a_pack_that_is_written_is_read_back(tmp_path: Path, folders: dict[str, Path]) -> None:
    corpus = data.open_corpus(folders["librispeech"])
    corpora.write_pack(corpus, tmp_path / "pack")
    again = data.open_corpus(tmp_path / "pack")
    assert again.name == "pack"
    assert {clip.id for clip in again} == {clip.id for clip in corpus}
    by_id = {clip.id: clip for clip in again}
    for clip in corpus:
        assert by_id[clip.id].labels["transcript"] == clip.labels["transcript"]
        np.testing.assert_allclose(again.load(by_id[clip.id]), corpus.load(clip), atol=1 / 32768)
