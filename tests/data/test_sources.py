"""Public corpora: archives that were downloaded before are checked and unpacked; damaged ones are refused."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from centaurus.data import layouts
from centaurus.data.layouts import SOURCES, Archive, SourceError, get
from tests import corpora
from tests.cli.run import run


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of downloads with a small archive in the place of Speech Commands."""
    folder = corpora.speech_commands(tmp_path / "made", ("yes", "no"), clips=2, speakers=2)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    path = downloads / "speech_commands_v0.01.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, ".")
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    source = SOURCES["speech-commands-v1"]
    published = replace(source, archives=(Archive(source.archives[0].url, f"sha256:{sha}"),))
    monkeypatch.setitem(SOURCES, "speech-commands-v1", published)
    return downloads


def test_a_download_is_checked_and_laid_out(words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data" / "words"
    done = run(capsys, "data", "get", "speech-commands-v1", "--from", str(words), "-o", str(out))
    assert done.code == 0, done.err
    assert "layout speech-commands" in done.out
    assert {path.name for path in out.iterdir()} >= {"yes", "no"}
    assert [path.name for path in out.parent.iterdir()] == ["words"]
    with pytest.raises(SourceError, match="exists already"):
        get("speech-commands-v1", out, words)


def test_a_damaged_download_is_refused(words: Path, tmp_path: Path) -> None:
    path = next(words.iterdir())
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"damaged or not the published file: its sha256 is"):
        get("speech-commands-v1", tmp_path / "words", words)
    assert not (tmp_path / "words").exists()


def test_a_host_out_of_reach_says_what_to_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, timeout: float) -> None:
        raise layouts.URLError("no route")

    monkeypatch.setattr(layouts, "urlopen", refuse)
    with pytest.raises(SourceError, match=r"cannot be reached \(no route\): download https://.*clean_trainset.*--from"):
        get("voicebank-demand", tmp_path / "pairs", tmp_path)


def test_what_can_be_reached_is_downloaded(words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = next(words.iterdir()).read_bytes()
    monkeypatch.setattr(layouts, "urlopen", lambda url, timeout: io.BytesIO(data))
    read: list[float] = []
    assert get("speech-commands-v1", tmp_path / "words", moved=read.append) == "speech-commands"
    assert sum(read) == 2 * len(data)  # downloaded, then checked
    assert not list(tmp_path.glob("*.gz"))


def test_zips_and_the_folder_at_the_top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = corpora.speech_commands(tmp_path / "made", ("yes",), clips=1, speakers=1)
    (tmp_path / "a.zip").touch()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in made.rglob("*.wav"):
            archive.write(path, Path("Top") / path.relative_to(made))
    source = replace(SOURCES["voicebank-demand"], archives=(Archive("https://example.org/a.zip?x=1"),), top="Top")
    monkeypatch.setitem(SOURCES, "voicebank-demand", source)
    assert get("voicebank-demand", tmp_path / "out", tmp_path) == "speech-commands"
    (tmp_path / "a.zip").write_bytes(b"PK no zip")
    with pytest.raises(SourceError, match="cannot be unpacked"):
        get("voicebank-demand", tmp_path / "again", tmp_path)


def test_the_list_says_where_each_corpus_comes_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = run(capsys, "data", "get")
    assert all(name in done.out and source.page in done.out for name, source in SOURCES.items())
    assert max(map(len, done.out.splitlines())) <= 80
    assert set(run(capsys, "data", "get", "--json").json()) == set(SOURCES)
    wrong = run(capsys, "data", "get", "imagenet")
    assert wrong.code
    assert "there is no corpus 'imagenet'" in wrong.err
