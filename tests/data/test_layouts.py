"""Every public layout is recognised and read with the same labels; what is missing or odd is named."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from centaurus import audio, data
from centaurus.audio import AudioError
from centaurus.data import layouts
from tests import corpora

COUNTS = {
    "speech-commands": {("word", "train"): 24, ("word", "val"): 8, ("word", "test"): 8, ("noise", None): 3},
    "voicebank": {
        ("clean", "train"): 5,
        ("noisy", "train"): 5,
        ("clean", "val"): 1,
        ("noisy", "val"): 1,
        ("clean", "test"): 2,
        ("noisy", "test"): 2,
    },
    "dns": {("speech", "train"): 10, ("speech", "val"): 2, ("noise", "train"): 4, ("noise", "val"): 1},
    "librispeech": {("speech", "train"): 9, ("speech", "val"): 3, ("speech", "test"): 2},
    "mls": {("speech", "train"): 9, ("speech", "val"): 3, ("speech", "test"): 2},
}


@pytest.mark.parametrize("layout", COUNTS)
def test_a_layout_is_recognised_and_read(folders: dict[str, Path], layout: str) -> None:
    assert data.recognise(folders[layout]) == layout
    corpus = data.open_corpus(folders[layout])
    assert corpus.name == layout
    assert Counter((clip.labels["kind"], clip.labels.get("split")) for clip in corpus) == COUNTS[layout]
    assert len(corpus.faults) == 0
    assert len({(clip.id, clip.path) for clip in corpus}) == len(corpus)
    for clip in corpus:
        x = corpus.load(clip)
        assert x.dtype == np.float32
        assert 1000 < len(x) <= 160_000
        assert audio.dbfs(x) > -70
    train, held = ({c.labels.get("speaker") for c in corpus.split(s)} for s in ("train", "val"))
    assert layout == "dns" or not train & held, "no speaker is both trained and validated on"


@pytest.mark.parametrize("layout", COUNTS)
def test_splits_and_kinds_are_chosen_when_opening(folders: dict[str, Path], layout: str) -> None:
    whole = data.open_corpus(folders[layout])
    kind = whole[-1].labels["kind"]
    some = data.open_corpus(folders[layout], splits=["val"], kinds=[kind])
    assert [clip.id for clip in some] == [clip.id for clip in whole.where(kind=kind, split="val")]
    assert len(some)


def test_background_noise_belongs_to_every_split(folders: dict[str, Path]) -> None:
    for split in ("train", "test"):
        assert len(data.open_corpus(folders["speech-commands"], splits=[split], kinds=["noise"])) == 3


def test_an_unknown_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder"):
        data.recognise(tmp_path / "none")
    (tmp_path / "things").mkdir()
    with pytest.raises(ValueError, match="layout is not known") as caught:
        data.recognise(tmp_path)
    assert all(name in str(caught.value) for name in data.LAYOUTS)


def test_a_folder_of_packs_is_one_corpus(tmp_path: Path, folders: dict[str, Path]) -> None:
    for layout in ("librispeech", "speech-commands"):
        corpus = data.open_corpus(folders[layout])
        corpora.write_pack(corpus.of(clip for clip in corpus if "split" in clip.labels), tmp_path / "all" / layout)
    both = data.open_corpus(tmp_path / "all")
    assert Counter(clip.labels["set"] for clip in both) == {"librispeech": 14, "speech-commands": 40}
    assert set(both.values("kind")) == {"speech", "word"}


def test_speech_commands_tasks_and_lists(folders: dict[str, Path], tmp_path: Path) -> None:
    assert [len(words) for words in layouts.SUBSETS.values()] == [10, 30, 35]
    result = layouts.WORDS_30
    assert layouts.subset(10, result) == layouts.COMMANDS
    assert layouts.subset(["bed", "no"], result) == ("bed", "no")
    with pytest.raises(ValueError, match=r"backward, follow, forward, learn, visual .* version 1 .* has 30 words"):
        layouts.subset(35, result)
    with pytest.raises(ValueError, match="not of 12"):
        layouts.subset(12, result)
    listed = (folders["speech-commands"] / "testing_list.txt").read_text().split()
    corpus = data.open_corpus(folders["speech-commands"])
    assert sorted(clip.id for clip in corpus.split("test")) == sorted(listed)
    # Without the lists a clip's speaker alone decides.
    shutil.copytree(folders["speech-commands"], tmp_path / "own", ignore=shutil.ignore_patterns("*_list.txt"))
    own = data.open_corpus(tmp_path / "own")
    speakers: dict[str, set[str]] = {}
    for clip in own.where(kind="word"):
        speakers.setdefault(clip.labels["speaker"], set()).add(clip.labels["split"])
    assert all(len(splits) == 1 for splits in speakers.values())


def test_the_rule_of_the_official_lists() -> None:
    train, val = ("00176480", "004ae714", "0132a06d", "016e2c6d"), ("099d52ad", "16db1582", "1942abd7", "23ad12d8")
    assert {layouts.hashed_split(name) for name in train} == {"train"}
    assert {layouts.hashed_split(name) for name in val} == {"val"}
    many = Counter(layouts.hashed_split(f"{k:08x}") for k in range(4000))
    assert many["val"] == pytest.approx(400, abs=60)
    assert many["test"] == pytest.approx(400, abs=60)


def test_pairs_have_the_same_name(folders: dict[str, Path], tmp_path: Path) -> None:
    corpus = data.open_corpus(folders["voicebank"])
    pairs = data.pairs(corpus)
    assert len(pairs) == 8
    for noisy, clean in pairs:
        assert noisy.path.name == clean.path.name
        x, y = corpus.load(noisy), corpus.load(clean)
        assert len(x) == len(y) == 16_000, "48 kHz is loaded at 16"
        assert -1 < audio.si_sdr(x, y) < 20
    shutil.copytree(folders["voicebank"], tmp_path / "odd")
    unpaired = next((tmp_path / "odd" / "clean_testset_wav").iterdir())
    (tmp_path / "odd" / "noisy_testset_wav" / unpaired.name).unlink()
    odd = data.open_corpus(tmp_path / "odd")
    assert len(odd) == 14
    assert f"{unpaired}: has no partner" in str(odd.faults)


def test_speakers_are_read_from_file_names() -> None:
    assert layouts.speaker_of(Path("x/book_00000_chp_0009_reader_06709_0_seg_1.wav")) == "06709"
    assert layouts.speaker_of(Path("x/p226_001_mic1.flac")) == "p226"
    assert layouts.speaker_of(Path("anna/hello.wav")) == "anna"


def test_dns_sets_are_labelled(folders: dict[str, Path]) -> None:
    corpus = data.open_corpus(folders["dns"], kinds=["speech"])
    assert Counter(clip.labels["set"] for clip in corpus) == {"vctk": 6, "librivox": 6}


def test_texts_and_files_that_do_not_agree_are_named(folders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(folders["librispeech"], tmp_path / "read")
    lost = next((tmp_path / "read").rglob("*.flac"))
    lost.unlink()
    corpus = data.open_corpus(tmp_path / "read")
    assert len(corpus) == 13
    assert f"{lost}: no such file, though" in str(corpus.faults)
    with pytest.raises(AudioError, match="no such file"):
        data.open_corpus(tmp_path / "read", on_fault="fail")
    shutil.copytree(folders["mls"], tmp_path / "many")
    with (tmp_path / "many" / "dev" / "transcripts.txt").open("a") as file:
        file.write("no text here\n")
    with pytest.raises(AudioError, match="line 4 is not a name and a text"):
        data.open_corpus(tmp_path / "many")


def test_librispeech_is_found_from_any_of_its_folders(folders: dict[str, Path]) -> None:
    root = folders["librispeech"]
    assert len(data.open_corpus(root / "LibriSpeech")) == 14
    assert len(data.open_corpus(root / "LibriSpeech" / "dev-clean")) == 3
    corpus = data.open_corpus(root)
    assert corpus.values("subset") == ("dev-clean", "test-clean", "train-clean-100")


@pytest.mark.parametrize("make", [corpora.speech_commands, corpora.librispeech, corpora.voicebank])
def test_the_same_seed_writes_the_same_corpus(tmp_path: Path, make: object) -> None:
    small = {"words": ("yes",), "clips": 2} if make is corpora.speech_commands else {"train": 2, "test": 1}

    def files(name: str, seed: int) -> dict[str, bytes]:
        root = make(tmp_path / name, **small, seed=seed)  # type: ignore[operator]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    first = files("a", 0)
    assert files("b", 0) == first
    assert files("c", 1) != first


@pytest.mark.parametrize("name", ["../1_2_3", "..\\1_2_3"])
def test_an_utterance_is_not_a_path(name: str, tmp_path: Path) -> None:
    texts = tmp_path / "train" / "transcripts.txt"
    (texts.parent / "audio" / "1" / "2").mkdir(parents=True)
    (texts.parent / "audio" / "1" / "2" / "1_2_3.flac").touch()
    texts.write_text(f"{name}\ta text\n", encoding="utf-8")
    with pytest.raises(AudioError, match="line 1 is not a name and a text"):
        data.open_corpus(tmp_path)
    with pytest.raises(AudioError, match="is not a name, a tab and a text"):
        data.open_index(tmp_path, (), 1000, cache=tmp_path / "cache", processes=1)


def held(groups: dict[str, int], share: float) -> dict[str, int]:
    """How many clips of each group are held out."""
    clips = [
        data.Clip(Path(f"{name}/{k}.wav"), f"{name}/{k}", labels={"by": name})
        for name, n in groups.items()
        for k in range(n)
    ]
    split = layouts.hold_out(clips, lambda clip: clip.labels["by"], share)
    assert [clip.id for clip in split] == [clip.id for clip in clips]
    return {name: sum(c.labels["split"] == "val" for c in split if c.labels["by"] == name) for name in groups}


def test_speakers_are_held_out_as_a_whole() -> None:
    speakers = {f"s{k}": 10 for k in range(20)}
    counts = held(speakers, 0.2)
    assert sorted(counts.values()) == [0] * 16 + [10] * 4


@pytest.mark.parametrize("groups", [{"all": 100}, {"talk": 760, "kept": 180}, {"a": 50, "b": 50}])
def test_a_folder_with_most_of_the_clips_is_not_held_out_as_a_whole(groups: dict[str, int]) -> None:
    counts = held(groups, 0.2)
    assert 0.1 * sum(groups.values()) < sum(counts.values()) < 0.4 * sum(groups.values())
    largest = max(groups, key=lambda name: groups[name])
    assert 0 < counts[largest] < 0.4 * groups[largest]


def test_one_clip_is_for_training() -> None:
    assert held({"a": 1}, 0.2) == {"a": 0}


@pytest.mark.parametrize(
    ("path", "speaker"),
    [
        ("x/reader_012_3.wav", "012"),
        ("x/p234_001.wav", "p234"),
        ("x/1088-134315-0000.flac", "1088"),
        ("anna/2024-05-01.wav", "anna"),
        ("anna/hello.wav", "anna"),
    ],
)
def test_the_speaker_of_a_file(path: str, speaker: str) -> None:
    assert layouts.speaker_of(Path(path)) == speaker
