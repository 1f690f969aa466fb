"""No part of a file is lost silently: lengths agree with ffmpeg's, and truncated files are refused."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from centaurus import audio
from centaurus.audio import files
from centaurus.runtime.io import Layout, from_file, open_writer
from tests.programs import FFMPEG, needs_ffmpeg

RATE = 44_100
DECODER_DELAY = (
    529  # samples that an MP3 decoder adds in front; libsndfile drops them, ffmpeg keeps them without a header
)


def tone(seconds: float = 2.0, rate: int = RATE) -> NDArray[np.float32]:
    """A tone that rises: every second sounds different, and variable bit rates vary."""
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).standard_normal(len(t)) * np.linspace(0, 0.3, len(t)) ** 2
    return (0.3 * np.sin(2 * np.pi * (300 + 400 * t) * t) + noise).astype(np.float32)


def ffmpeg(*words: str | Path, data: bytes | None = None) -> bytes:
    assert FFMPEG is not None
    return subprocess.run(
        [FFMPEG, "-loglevel", "error", "-y", *map(str, words)], input=data, capture_output=True, check=True
    ).stdout


def decoded_length(path: Path) -> int:
    """Frames that ffmpeg decodes."""
    return len(ffmpeg("-i", path, "-f", "s16le", "-ac", "1", "-")) // 2


def encoded(folder: Path, *options: str, name: str) -> Path:
    """A file that ffmpeg writes."""
    soundfile.write(folder / "source.wav", tone(), RATE)
    ffmpeg("-i", folder / "source.wav", *options, folder / name)
    return folder / name


MP3 = ("-c:a", "libmp3lame")
WRITTEN: dict[str, tuple[tuple[str, ...], int]] = {
    "a.wav": ((), 0),
    "a.flac": ((), 0),
    "a.ogg": (("-c:a", "libvorbis"), 0),
    "a.opus": (("-c:a", "libopus"), 0),
    "a.aiff": ((), 0),
    "a.au": ((), 0),
    "a.w64": ((), 0),
    "a.caf": ((), 0),
    "vbr.mp3": ((*MP3, "-q:a", "4"), 0),
    "vbr-without-xing.mp3": ((*MP3, "-q:a", "4", "-write_xing", "0"), DECODER_DELAY),
    "cbr-without-xing.mp3": ((*MP3, "-b:a", "64k", "-write_xing", "0"), DECODER_DELAY),
    "mpeg2.mp3": ((*MP3, "-ar", "22050", "-q:a", "6", "-write_xing", "0"), DECODER_DELAY),
    "mono-untagged.mp3": ((*MP3, "-ac", "1", "-q:a", "9", "-write_xing", "0", "-id3v2_version", "0"), DECODER_DELAY),
}


@needs_ffmpeg
@pytest.mark.parametrize("name", WRITTEN)
def test_lengths_are_those_of_an_independent_decoder(name: str, tmp_path: Path) -> None:
    options, delay = WRITTEN[name]
    path = encoded(tmp_path, *options, name=name)
    expected = decoded_length(path) - delay
    assert audio.info(path).frames == expected
    assert audio.read(path).samples.shape[-1] == expected
    assert sum(block.shape[-1] for block in from_file(path).blocks) == expected


@needs_ffmpeg
def test_flac_of_unknown_length_is_read_whole(tmp_path: Path) -> None:
    whole = encoded(tmp_path, name="whole.flac")
    for count in (1, 4608, 4609, 2 * RATE):  # one frame, whole blocks, a block of another size at the end
        soundfile.write(tmp_path / "x.wav", tone()[:count], RATE)
        path = tmp_path / f"{count}.flac"
        path.write_bytes(ffmpeg("-i", tmp_path / "x.wav", "-f", "flac", "-"))
        assert audio.read(path).samples.shape[-1] == count
    np.testing.assert_array_equal(audio.read(path).samples, audio.read(whole).samples)
    tagged = tmp_path / "tagged.flac"
    tagged.write_bytes(b"ID3\4\0\0\0\0\0\x0a" + bytes(10) + path.read_bytes())
    np.testing.assert_array_equal(audio.read(tagged).samples, audio.read(whole).samples)
    cut = tmp_path / "cut.flac"
    cut.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(audio.AudioError, match="truncated"):
        audio.read(cut)


@needs_ffmpeg
@pytest.mark.parametrize("name", ["a.mp3", "a.ogg", "a.opus"])
def test_recordings_joined_into_one_file_are_all_read(name: str, tmp_path: Path) -> None:
    options = {"a.mp3": MP3, "a.ogg": ("-c:a", "libvorbis"), "a.opus": ("-c:a", "libopus")}[name]
    path = encoded(tmp_path, *options, name=name)
    single = audio.read(path).samples
    joined = tmp_path / f"joined{path.suffix}"
    joined.write_bytes(3 * path.read_bytes())
    both = audio.read(joined).samples
    assert both.shape[-1] == audio.info(joined).frames == 3 * single.shape[-1]
    np.testing.assert_allclose(both[:, single.shape[-1] : 2 * single.shape[-1]], single, atol=1e-6)
    with files.opened(joined) as file:  # a window over the seam, as training reads it
        file.seek(single.shape[-1] - 100)
        np.testing.assert_allclose(file.read(200), both[:, single.shape[-1] - 100 : single.shape[-1] + 100], atol=1e-4)


@pytest.mark.parametrize("kind", ["flac", "au", "caf", "w64"])
def test_files_concatenated_are_all_read(kind: str, tmp_path: Path) -> None:
    lengths, joined = (20_000, 30_000, 7_000), tmp_path / f"joined.{kind}"
    for k, length in enumerate(lengths):
        soundfile.write(tmp_path / f"{k}.{kind}", tone()[:length], RATE)
    files = [(tmp_path / f"{k}.{kind}") for k in range(3)]
    joined.write_bytes(b"".join(path.read_bytes() for path in files))
    expected = np.concatenate([audio.read(path).samples for path in files], axis=-1)
    np.testing.assert_array_equal(audio.read(joined).samples, expected)
    joined.write_bytes(joined.read_bytes()[:-2000])
    with pytest.raises(audio.AudioError, match=r"truncated|damaged"):
        audio.read(joined)


def test_flac_with_more_samples_than_its_header_says_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, tone(), RATE)
    whole, data = audio.read(path).samples, bytearray(path.read_bytes())
    data[22:26] = struct.pack(">I", RATE // 2)
    path.write_bytes(data)
    np.testing.assert_array_equal(audio.read(path).samples, whole)


@needs_ffmpeg
def test_chains_of_different_rates_are_refused(tmp_path: Path) -> None:
    one = encoded(tmp_path, "-c:a", "libvorbis", name="one.ogg").read_bytes()
    other = encoded(tmp_path, "-c:a", "libvorbis", "-ar", "22050", name="other.ogg").read_bytes()
    (tmp_path / "chain.ogg").write_bytes(one + other)
    with pytest.raises(audio.AudioError, match="parts differ in rate"):
        audio.read(tmp_path / "chain.ogg")


KINDS = ("wav", "aiff", "au", "w64", "caf", "ogg", "opus", "mp3", "flac", "rf64", "nist", "svx")


@pytest.mark.parametrize("name", [f"a.{kind}" for kind in KINDS])
@pytest.mark.parametrize("lost", [1, 100, 0.5])
def test_truncated_files_are_refused(name: str, lost: float, tmp_path: Path) -> None:
    path = tmp_path / name
    audio.write(path, tone(1, 16_000), 16_000)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * lost) if lost < 1 else -int(lost)])
    with pytest.raises(audio.AudioError) as caught:
        audio.read(path)
    assert caught.value.path == path
    with pytest.raises(audio.AudioError):
        for _ in from_file(path).blocks:
            pass


@pytest.mark.parametrize("size", [0x80000000, 0x90000000, 0xF0000000])
def test_a_cut_wav_that_should_have_gigabytes_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    audio.write(path, tone(0.1), RATE)
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4], data[4:8] = struct.pack("<I", size), struct.pack("<I", size + 36)
    path.write_bytes(data)
    with pytest.raises(audio.AudioError, match="bytes of samples are missing"):
        audio.read(path)


@pytest.mark.parametrize("length", [0, 0x7FFFF000, 0xFFFFFFFF])
def test_wav_whose_length_was_never_written_is_read_to_its_end(length: int, tmp_path: Path) -> None:
    """As left by a recorder process that was killed."""
    path, x = tmp_path / "a.wav", tone(0.1)
    audio.write(path, x, RATE, subtype="FLOAT")
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    path.write_bytes(data[:at] + struct.pack("<I", length) + data[at + 4 :])
    np.testing.assert_array_equal(audio.read(path).samples[0], x)
    assert sum(block.shape[-1] for block in from_file(path).blocks) == len(x)


@pytest.mark.parametrize("length", [0, 0x7FFFF000, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("gigabytes", [3, 5])
def test_wav_that_outgrew_its_header_is_read_to_its_end(length: int, gigabytes: int, tmp_path: Path) -> None:
    """As arecord, sox and ffmpeg write them into a pipe; the file is sparse, so that it takes no space."""
    path = tmp_path / "a.wav"
    audio.write(path, tone(0.1), RATE)
    data = path.read_bytes()
    at = data.index(b"data") + 4
    with path.open("wb") as file:
        file.write(data[:at] + struct.pack("<I", length) + data[at + 4 :])
        file.truncate(at + 4 + (gigabytes << 30))
    about = audio.info(path)
    assert (about.frames, about.truncated) == (gigabytes << 29, "")
    with files.opened(path) as file:
        np.testing.assert_allclose(file.read(4410)[0], tone(0.1), atol=1e-4)
        file.seek(about.frames - 5)
        assert file.read(100).shape == (1, 5)


def test_wav_without_samples_before_other_chunks_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    audio.write(path, tone(0.0), RATE)
    note = b"LIST" + struct.pack("<I", 5) + b"hello"
    for rest in (b"", note, note + b"\0", note + b"\0" + note):
        path.write_bytes(path.read_bytes()[: path.read_bytes().index(b"data") + 8] + rest)
        assert audio.read(path).samples.shape == (1, 0)


def test_encodings_that_cannot_be_sought_are_read_whole(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone(1, 8000), 8000, subtype="GSM610")
    samples = audio.read(tmp_path / "a.wav").samples
    assert 0 <= samples.shape[-1] - 8000 <= 320  # a GSM block
    np.testing.assert_array_equal(np.concatenate(list(from_file(tmp_path / "a.wav", 0.3).blocks), axis=1), samples)


def test_recordings_of_unknown_length_may_outgrow_a_wav_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = tone(1)
    for limit, magic in ((files.PLAIN_WAV_BYTES, b"RIFF"), (1000, b"RF64")):
        monkeypatch.setattr(files, "PLAIN_WAV_BYTES", limit)
        path = tmp_path / f"{limit}.wav"
        with open_writer(path, Layout(RATE, 1)) as sink:
            sink.write(x[None])
        assert path.read_bytes()[:4] == magic
        assert audio.info(path).frames == len(x)
        np.testing.assert_allclose(audio.read(path).samples[0], x, atol=1e-4)
    if FFMPEG:
        assert decoded_length(tmp_path / "1000.wav") == len(x)


FULL = """
import resource, sys, numpy as np
from centaurus import audio
x = np.random.default_rng(0).normal(0, 0.1, 200_000).astype(np.float32)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    audio.write(sys.argv[1], x, 16_000)
except audio.OutputError as error:
    sys.exit(5)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file sizes are limited through resource")
@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.opus", "a.mp3"])
def test_a_disk_that_fills_while_a_file_is_closed_publishes_nothing(name: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(0, 0.1, 200_000).astype(np.float32)
    audio.write(tmp_path / name, x, 16_000)
    size = (tmp_path / name).stat().st_size
    (tmp_path / name).unlink()
    for missing in (1, 300):
        done = subprocess.run([sys.executable, "-c", FULL, tmp_path / name, str(size - missing)], check=False)
        assert done.returncode == 5, f"{missing} bytes too few"
        assert list(tmp_path.iterdir()) == []


def test_rates_that_crash_an_encoder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(audio.OutputError, match="up to 192,000 Hz, got 384,000 Hz"):
        audio.write(tmp_path / "a.ogg", np.zeros(100), 384_000)
    with pytest.raises(audio.OutputError, match="Opus supports sample rates of 8,000"):
        audio.write(tmp_path / "a.opus", np.zeros(100), 44_100)
    assert not list(tmp_path.iterdir())


def test_opus_files_hold_opus(tmp_path: Path) -> None:
    audio.write(tmp_path / "a.opus", tone(1, 48_000), 48_000)
    assert audio.info(tmp_path / "a.opus").subtype == "OPUS"
    assert audio.info(tmp_path / "a.opus").frames == 48_000


def test_long_single_writes_of_ogg(tmp_path: Path) -> None:
    """In a process of its own: libsndfile ends it with a segmentation fault where blocks are too long."""
    code = (
        "import sys, numpy as np; from centaurus import audio; "
        "audio.write(sys.argv[1], np.zeros(8_000_000, np.float32), 48_000); print(audio.info(sys.argv[1]).frames)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.ogg"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "8000000")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes, links and names")
class TestFolders:
    """What a written file looks like from outside."""

    def test_modes_follow_the_umask_and_the_input(self, tmp_path: Path) -> None:
        def mode(path: Path) -> int:
            return stat.S_IMODE(path.stat().st_mode)

        before = os.umask(0o027)
        try:
            audio.write(tmp_path / "a.wav", tone(0.1), RATE)
            assert mode(tmp_path / "a.wav") == 0o640
            (tmp_path / "a.wav").chmod(0o600)
            with open_writer(tmp_path / "b.wav", Layout(RATE, 1), like=tmp_path / "a.wav") as sink:
                sink.write(tone(0.1)[None])
            assert mode(tmp_path / "b.wav") == 0o600  # a private recording stays private
            (tmp_path / "b.wav").chmod(0o604)
            audio.write(tmp_path / "b.wav", tone(0.1), RATE, overwrite=True)
            assert mode(tmp_path / "b.wav") == 0o604
        finally:
            os.umask(before)

    def test_links_stay_links(self, tmp_path: Path) -> None:
        link = tmp_path / "link.wav"
        link.symlink_to(tmp_path / "nowhere.wav")
        with pytest.raises(audio.OutputError, match="exists already"):
            audio.write(link, tone(0.1), RATE)
        audio.write(link, tone(0.1), RATE, overwrite=True)
        assert link.is_symlink()
        assert audio.info(tmp_path / "nowhere.wav").frames == RATE // 10

    def test_names_that_are_not_text(self, tmp_path: Path) -> None:
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.wav"))
        audio.write(path, tone(0.1), RATE)
        assert audio.read(path).samples.shape == (1, RATE // 10)

    def test_names_as_long_as_they_may_be(self, tmp_path: Path) -> None:
        path = tmp_path / ("n" * 251 + ".wav")
        audio.write(path, tone(0.1), RATE)
        assert audio.info(path).frames == RATE // 10

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
    def test_pipes_and_devices_do_not_block(self, make: Callable[[Path], None], tmp_path: Path) -> None:
        make(tmp_path / "a.wav")
        with pytest.raises(audio.AudioError, match="not a regular file"):
            audio.info(tmp_path / "a.wav")


def test_a_chunk_that_is_longer_than_any_file_ends_the_search(tmp_path: Path) -> None:
    x = np.zeros(100)
    soundfile.write(tmp_path / "a.w64", x, 16_000)
    data = bytearray((tmp_path / "a.w64").read_bytes())
    data[40 + 16 : 40 + 24] = (2**64 - 1).to_bytes(8, "little")
    (tmp_path / "a.w64").write_bytes(data)
    with pytest.raises(audio.AudioError, match=r"a\.w64"):
        audio.read(tmp_path / "a.w64")
