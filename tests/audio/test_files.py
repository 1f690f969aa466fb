"""Reading and writing files: every format, any rate, in blocks; damage is reported; no partial file is left."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import soundfile

from centaurus import audio


def tone(frames: int = 12_345, channels: int = 1, rate: int = 16_000) -> np.ndarray:
    t = np.arange(frames) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * 300 * (c + 1) * t) for c in range(channels)]).astype(np.float32)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.aiff", "a.w64", "a.caf"])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_lossless_formats_return_what_was_written(tmp_path: Path, name: str, channels: int) -> None:
    x = tone(channels=channels)
    audio.write(tmp_path / name, x, 22_050)
    back = audio.read(tmp_path / name)
    assert back.rate == 22_050
    assert back.samples.dtype == np.float32
    np.testing.assert_allclose(back.samples, x, atol=1 / 32768)
    facts = audio.info(tmp_path / name)
    assert (facts.rate, facts.channels, facts.frames, facts.truncated) == (22_050, channels, x.shape[1], "")


@pytest.mark.parametrize(("name", "subtype"), [("a.ogg", None), ("a.ogg", "OPUS"), ("a.opus", "OPUS"), ("a.mp3", None)])
def test_lossy_formats_keep_length_and_sound(tmp_path: Path, name: str, subtype: str | None) -> None:
    x = tone(48_000)[0]
    audio.write(tmp_path / name, x, 16_000, subtype=subtype)
    back = audio.read(tmp_path / name).mono
    assert len(back) == len(x)
    assert np.corrcoef(x, back)[0, 1] > 0.99


def test_float_files_are_exact_and_values_beyond_one_are_clipped_in_pcm(tmp_path: Path) -> None:
    x = np.array([-3.0, -1.0, 0.1234567, 1.0, 3.0], np.float32)
    audio.write(tmp_path / "f.wav", x, 8000, subtype="FLOAT")
    np.testing.assert_array_equal(audio.read(tmp_path / "f.wav").samples[0], x)
    audio.write(tmp_path / "p.wav", x, 8000)
    np.testing.assert_allclose(audio.read(tmp_path / "p.wav").samples[0], np.clip(x, -1, 1), atol=1 / 16384)


@pytest.mark.parametrize("frames", [1, 7, 1000, 100_000])
def test_blocks_put_together_are_the_file(tmp_path: Path, frames: int) -> None:
    x = tone(3001, channels=2)
    audio.write(tmp_path / "a.wav", x, 16_000)
    pieces = list(audio.blocks(tmp_path / "a.wav", frames))
    assert all(piece.shape[1] == frames for piece in pieces[:-1])
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), audio.read(tmp_path / "a.wav").samples)


@pytest.mark.parametrize("name", ["a.mp3", "a.ogg", "a.opus"])
def test_blocks_of_a_coded_file_are_the_file(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A frame of MP3 begins with bits that earlier frames hold: a decoder that seeks between blocks loses them."""
    speech = audio.read(Path(str(files("centaurus"))) / "assets" / "demo.flac").samples
    audio.write(tmp_path / name, speech, 16_000)
    pieces = list(audio.blocks(tmp_path / name, 4_000))
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), audio.read(tmp_path / name).samples, atol=1e-6)
    assert "mpg123" not in capfd.readouterr().err


def test_reading_at_another_rate_is_reading_and_resampling(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", tone(44_100, channels=2, rate=44_100), 44_100)
    got = audio.read(tmp_path / "a.wav", rate=16_000)
    assert got.rate == 16_000
    assert got.samples.shape == (2, 16_000)
    np.testing.assert_allclose(got.samples[:, 500:-500], tone(16_000, 2)[:, 500:-500], atol=2e-4)


def test_an_empty_recording_is_read_as_no_frames(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", np.zeros(0, np.float32), 16_000)
    assert audio.read(tmp_path / "a.wav", rate=8000).samples.shape == (1, 0)
    assert list(audio.blocks(tmp_path / "a.wav", 10)) == []


def damaged(folder: Path) -> dict[str, Path]:
    """One file of each kind of damage."""
    x = np.random.default_rng(0).normal(0, 0.1, 50_000).astype(np.float32)
    cases = {}
    for name in ("cut.flac", "cut.mp3"):
        audio.write(folder / "whole.tmp", x, 16_000, format=name[4:].upper(), overwrite=True)
        data = (folder / "whole.tmp").read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])
        cases[name] = folder / name
    (folder / "zero.wav").write_bytes(b"")
    (folder / "text.wav").write_text("not a sound")
    (folder / "folder.wav").mkdir()
    soundfile.write(folder / "nan.wav", np.array([0.0, np.nan, 1.0]), 16_000, subtype="FLOAT")
    names = ("zero.wav", "text.wav", "folder.wav", "nan.wav", "missing.wav")
    return cases | {name: folder / name for name in names}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut.flac", "damaged"),
        ("cut.mp3", "truncated"),
        ("zero.wav", "0 bytes"),
        ("text.wav", "not a readable audio file"),
        ("folder.wav", "is a folder"),
        ("nan.wav", "NaN or infinite"),
        ("missing.wav", "no such file"),
    ],
)
def test_damage_is_named_with_the_file(tmp_path: Path, name: str, words: str) -> None:
    path = damaged(tmp_path)[name]
    with pytest.raises(audio.AudioError, match=words) as caught:
        audio.read(path)
    assert str(path) in str(caught.value)


def test_a_wav_shorter_than_its_header_says_is_known_as_truncated(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", tone(), 16_000)
    data = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "b.wav").write_bytes(data[: len(data) // 2])
    assert audio.info(tmp_path / "b.wav").truncated
    # A program that writes to a pipe does not know the length: the largest size is not damage.
    streamed = bytearray(data)
    at = data.index(b"data") + 4
    streamed[at : at + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "c.wav").write_bytes(bytes(streamed))
    assert not audio.info(tmp_path / "c.wav").truncated


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "a.wav"
    audio.write(target, tone(), 16_000)
    before = target.read_bytes()

    def interrupted() -> None:
        with audio.Writer(target, 16_000, overwrite=True) as file:
            file.write(tone(10))
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        interrupted()
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_an_unfinished_file_is_not_seen_under_its_name(tmp_path: Path) -> None:
    with audio.Writer(tmp_path / "a.flac", 16_000, 2) as file:
        file.write(tone(1000, 2))
        assert not (tmp_path / "a.flac").exists()
        file.write(tone(1000, 2)[:, ::2])
        assert file.frames == 1500
    assert audio.info(tmp_path / "a.flac").frames == 1500


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("a.wav", {"rate": 16_000}, "exists already"),
        ("no/a.wav", {"rate": 16_000}, "there is no folder"),
        ("b.xyz", {"rate": 16_000}, "unknown audio format"),
        ("b.wav", {"rate": 16_000, "subtype": "OPUS"}, "cannot have OPUS samples"),
        ("b.opus", {"rate": 44_100}, "Opus supports sample rates of 8,000"),
        ("b.ogg", {"rate": 200_001}, "Ogg Vorbis supports sample rates up to 192,000 Hz"),
        ("b.mp3", {"rate": 96_000}, "cannot be written"),
        ("x" * 300 + ".wav", {"rate": 16_000}, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_an_error_at_once(tmp_path: Path, name: str, arguments: dict, words: str) -> None:
    (tmp_path / "a.wav").write_bytes(b"mine")
    with pytest.raises(audio.OutputError, match=words) as caught:
        audio.write(tmp_path / name, tone(), **arguments)
    assert caught.value.path == tmp_path / name
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_a_writer_takes_only_the_channels_it_announced(tmp_path: Path) -> None:
    with pytest.raises(audio.AudioError, match="2 channels"), audio.Writer(tmp_path / "a.wav", 16_000, 2) as file:
        file.write(tone(channels=3))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files may not grow beyond 64 KB, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg"])
@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_an_error_with_the_path(tmp_path: Path, name: str) -> None:
    x = np.random.default_rng(0).normal(0, 0.1, 1_000_000).astype(np.float32)
    with pytest.raises(audio.OutputError, match=rf"{name}: could not be written"):
        audio.write(tmp_path / name, x, 16_000)
    assert list(tmp_path.iterdir()) == []
