"""Containers by ffmpeg: audio in and out, pictures kept, and errors that say what is missing."""

from __future__ import annotations

import io
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from centaurus.audio import AudioError
from centaurus.audio.containers import survey
from centaurus.runtime import files
from centaurus.runtime.denoise import FileDenoiser, Options
from centaurus.runtime.files import Job, plan_jobs
from centaurus.runtime.io import Layout
from centaurus.system import OutputError
from tests.fuzz.mutate import mutate
from tests.programs import FFMPEG, needs_ffmpeg
from tests.runtime.test_denoise import echo

__all__ = ["echo"]


@pytest.fixture
def on_path(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """A PATH that has ffmpeg."""
    folder = tmp_path_factory.mktemp("bin")
    assert FFMPEG is not None
    (folder / "ffmpeg").symlink_to(FFMPEG)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return str(folder / "ffmpeg")


@pytest.fixture
def no_ffmpeg(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))


def tone(path: Path, program: str, *more: str) -> Path:
    """Half a second of a tone, by ffmpeg."""
    made = ["-f", "lavfi", "-i", "sine=frequency=440:sample_rate=44100:duration=0.5"]
    subprocess.run([program, "-loglevel", "error", *made, *more, str(path)], check=True)
    return path


@needs_ffmpeg
@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("suffix", [".m4a", ".mka", ".webm"])
def test_audio_comes_back_in_its_container(suffix: str, on_path: str, tmp_path: Path) -> None:
    source = tone(tmp_path / f"talk{suffix}", on_path)
    [job], _ = plan_jobs([source])
    assert job.output.name == f"talk.denoised{suffix}"
    report = FileDenoiser(Options()).run(job)
    assert report.seconds == pytest.approx(0.5, abs=0.1)  # codecs add a little at the ends
    assert files.seconds(job.output) == pytest.approx(0.5, abs=0.1)
    before, after = (np.concatenate(list(files.from_container(p).blocks), 1) for p in (source, job.output))
    assert np.std(after) == pytest.approx(np.std(before) / 2, rel=0.1)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"talk.denoised{suffix}", source.name]


@needs_ffmpeg
@pytest.mark.usefixtures("echo")
def test_a_video_keeps_its_pictures(on_path: str, tmp_path: Path) -> None:
    pictures = ["-f", "lavfi", "-i", "testsrc=size=64x64:rate=10:duration=0.5", "-shortest"]
    source = tone(tmp_path / "talk.mp4", on_path, *pictures)
    FileDenoiser(Options()).run(Job(source, tmp_path / "clean.mkv"))
    streams = [hashes(on_path, path) for path in (source, tmp_path / "clean.mkv")]
    assert streams[0] == streams[1]
    FileDenoiser(Options()).run(Job(source, tmp_path / "clean.wav"))
    assert soundfile.info(tmp_path / "clean.wav").subtype == "PCM_16"


@needs_ffmpeg
@pytest.mark.usefixtures("echo")
@pytest.mark.parametrize("name", ["clean.mp4", "clean.mkv"])
def test_sound_that_starts_late_stays_with_its_pictures(name: str, on_path: str, tmp_path: Path) -> None:
    pictures = ["-f", "lavfi", "-i", "testsrc=size=64x64:rate=10:duration=1.5"]
    late = ["-itsoffset", "0.7", "-f", "lavfi", "-i", "sine=frequency=440:sample_rate=16000:duration=0.5"]
    subtitles = tmp_path / "words.srt"
    subtitles.write_text("1\n00:00:00,100 --> 00:00:01,000\nhello\n")
    source = tmp_path / "talk.mp4"
    streams = ["-map", "0:v", "-map", "1:a", "-map", "2:s", "-c:s", "mov_text", "-metadata", "title=A talk"]
    command = [on_path, "-loglevel", "error", *pictures, *late, "-i", str(subtitles), *streams, str(source)]
    subprocess.run(command, check=True)
    FileDenoiser(Options()).run(Job(source, tmp_path / name))
    x = np.concatenate(list(files.from_container(tmp_path / name).blocks), 1)[0]
    assert np.flatnonzero(np.abs(x) > 0.02)[0] / 16_000 == pytest.approx(0.7, abs=0.1)  # an encoder's delay
    told = subprocess.run([on_path, "-hide_banner", "-i", str(tmp_path / name)], capture_output=True, text=True).stderr
    kinds = ["Video", "Audio", "Subtitle"]
    assert [kind for line in told.splitlines() for kind in kinds if f": {kind}:" in line] == kinds
    assert "A talk" in told


def hashes(program: str, path: Path) -> str:
    """The checksum of the pictures as they are stored."""
    command = [program, "-loglevel", "error", "-i", str(path), "-map", "0:v", "-c", "copy", "-f", "streamhash", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs_ffmpeg
def test_what_holds_no_audio_is_refused(on_path: str, tmp_path: Path) -> None:
    broken = tmp_path / "talk.mp4"
    broken.write_bytes(b"this is not a film" * 100)
    with pytest.raises(AudioError, match=r"talk\.mp4: no audio could be decoded: (moov atom|.*[Ii]nvalid)"):
        files.from_container(broken)
    silent = tmp_path / "silent.mp4"
    picture = ["-f", "lavfi", "-i", "testsrc=size=64x64:rate=10:duration=0.2"]
    subprocess.run([on_path, "-loglevel", "error", *picture, str(silent)], check=True)
    with pytest.raises(AudioError, match=r"silent\.mp4: no audio could be decoded: it has no audio track"):
        files.from_container(silent)
    with (
        pytest.raises(OutputError, match=r"could not be written by ffmpeg: Only VP8"),
        files.ContainerSink(tmp_path / "x.webm", Layout(16_000, 1), silent) as sink,
    ):
        sink.write(np.zeros((1, 16_000), np.float32))
    playlist = tmp_path / "list.mp4"
    playlist.write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(AudioError, match="no audio could be decoded"):
        files.from_container(playlist)


MUTATIONS = int(os.environ.get("CENTAURUS_FUZZ_INPUTS", "200"))
CONTAINERS = ("m4a", "mp4", "mov", "mka", "mkv", "webm", "avi", "wma", "aac")


@needs_ffmpeg
@pytest.mark.parametrize("suffix", CONTAINERS)
@pytest.mark.parametrize("lost", [1, 100, 0.5])
def test_truncated_containers_are_refused(suffix: str, lost: float, on_path: str, tmp_path: Path) -> None:
    """The index of an MP4 file is put in front, as on the web: otherwise it is missing and ffmpeg sees that."""
    path = tone(tmp_path / f"talk.{suffix}", on_path, "-movflags", "+faststart")
    assert sum(block.shape[1] for block in files.from_container(path).blocks) > 20_000
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * lost) if lost < 1 else -int(lost)])
    with pytest.raises(AudioError, match="is truncated"):
        files.from_container(path)


@needs_ffmpeg
@pytest.mark.parametrize("suffix", CONTAINERS)
def test_a_damaged_file_neither_crashes_nor_hangs(suffix: str, on_path: str, tmp_path: Path) -> None:
    data = tone(tmp_path / f"talk.{suffix}", on_path, "-movflags", "+faststart").read_bytes()
    begin = time.process_time()
    for seed in range(MUTATIONS):
        damaged = mutate(data, seed)
        survey(io.BytesIO(damaged), len(damaged))
    assert time.process_time() - begin < 0.02 * MUTATIONS


@needs_ffmpeg
@pytest.mark.skipif(os.name != "posix", reason="needs bash")
@pytest.mark.parametrize("suffix", CONTAINERS)
def test_a_disk_that_fills_publishes_nothing(suffix: str, on_path: str, tmp_path: Path) -> None:
    """ffmpeg may end with 0 although the disk is full: what it wrote is cut."""
    assert FFMPEG is not None
    Path(on_path).unlink()
    program = f"""\
#!/bin/bash
"{FFMPEG}" "$@"
last="${{@: -1}}"
[[ $last == *.part ]] && truncate -s -100 "${{last#file:}}"
exit 0
"""
    Path(on_path).write_text(program, encoding="utf-8")
    Path(on_path).chmod(0o755)
    sink = files.ContainerSink(tmp_path / f"x.{suffix}", Layout(16_000, 1))
    sink.write(np.zeros((1, 16_000), np.float32))
    with pytest.raises(OutputError, match="is the disk full"):
        sink.__exit__(None, None, None)
    assert not list(tmp_path.glob("*"))


@needs_ffmpeg
@pytest.mark.usefixtures("on_path")
def test_a_pipe_that_breaks_as_on_windows_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(data: bytes) -> None:
        raise OSError(22, "Invalid argument")

    sink = files.ContainerSink(tmp_path / "x.m4a", Layout(16_000, 1))
    monkeypatch.setattr(sink._process, "stdin", SimpleNamespace(write=break_off, close=sink._process.stdin.close))
    sink._process.kill()
    with pytest.raises(OutputError, match="could not be written by ffmpeg"), sink:
        sink.write(np.zeros((1, 16_000), np.float32))
    assert not list(tmp_path.iterdir())


@needs_ffmpeg
@pytest.mark.usefixtures("on_path")
def test_a_result_that_fails_is_not_there(tmp_path: Path) -> None:
    def interrupted() -> None:
        with files.ContainerSink(tmp_path / "x.m4a", Layout(16_000, 1)) as sink:
            sink.write(np.zeros((1, 16_000), np.float32))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())
    (tmp_path / "x.m4a").write_bytes(b"mine")
    with pytest.raises(OutputError, match="exists already"):
        files.ContainerSink(tmp_path / "x.m4a", Layout(16_000, 1))


@pytest.mark.usefixtures("no_ffmpeg")
def test_without_ffmpeg_the_error_names_it(tmp_path: Path) -> None:
    for name in ("talk.m4a", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    soundfile.write(tmp_path / "talk.wav", np.zeros(100), 16_000)
    with pytest.raises(AudioError, match=r"talk\.m4a: \.m4a files need the ffmpeg program, which is not on the PATH"):
        files.from_container(tmp_path / "talk.m4a")
    jobs, skipped = plan_jobs([tmp_path], str(tmp_path / "out"))
    assert [job.source.name for job in jobs] == ["talk.wav"]
    reasons = {path.name: why for path, why in skipped.items()}
    assert reasons == {"talk.m4a": "needs ffmpeg, which is not on the PATH", "notes.txt": "not audio"}


def test_one_file_for_several_results_is_an_error(tmp_path: Path) -> None:
    for name in ("a.wav", "b.mp3"):
        (tmp_path / name).write_bytes(b"x")
    paths = [tmp_path / "a.wav", tmp_path / "b.mp3"]
    with pytest.raises(OutputError, match=r"out\.wav: is one file for several results"):
        plan_jobs(paths, str(tmp_path / "out.wav"))
    with pytest.raises(OutputError, match="is one file for several results"):
        plan_jobs([tmp_path], str(tmp_path / "out.wav"))
    assert [job.output.name for job in plan_jobs(paths)[0]] == ["a.denoised.wav", "b.denoised.mp3"]
    assert {job.output.parent.name for job in plan_jobs([tmp_path])[0]} == {tmp_path.name + ".denoised"}
    with pytest.raises(AudioError, match=r"net\.onnx: is a model, not audio: give it with --model"):
        plan_jobs([tmp_path / "net.onnx"])
