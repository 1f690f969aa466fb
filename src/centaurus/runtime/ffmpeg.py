"""Formats that libsndfile does not know (m4a, mp4, mkv, webm …), by the ffmpeg program if it is on the PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError
from centaurus.audio.containers import survey
from centaurus.runtime.io import Encoding, Layout, Reader, Source, encode
from centaurus.system import OutputError, replacing

# ffmpeg's name of each container, by suffix.
AUDIO = {".m4a": "ipod", ".aac": "adts", ".wma": "asf", ".mka": "matroska"}
VIDEO = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".avi": "avi"}
CONTAINERS = AUDIO | VIDEO
AAC = ("-c:a", "aac")  # for Matroska, where ffmpeg's own choice is an encoder that not every build has
# Silence where the audio of a video starts late or has gaps: times are those of the pictures.
ON_TIME = ("-af", "aresample=async=1:first_pts=0")
QUIET = ("-nostdin", "-hide_banner", "-loglevel", "error")
LOCAL = ("-protocol_whitelist", "file,pipe")  # a playlist may name other places: those are not read
CODEC_SLACK = 0.25  # seconds by which a codec's last frame may fall short of the samples
_DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)")
_TIME = re.compile(r"time=(\d+):(\d\d):(\d\d(?:\.\d+)?)")


def is_container(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one for ffmpeg, by its suffix."""
    return Path(path).suffix.lower() in CONTAINERS


def program(path: str | os.PathLike[str]) -> str:
    """Return the path of ffmpeg; the error without one names the file."""
    executable = shutil.which("ffmpeg")
    if executable is None:
        raise AudioError(f"{Path(path).suffix} files need the ffmpeg program, which is not on the PATH", path)
    return executable


def is_available() -> bool:
    """Whether ffmpeg is on the PATH."""
    return shutil.which("ffmpeg") is not None


def seconds(path: str | os.PathLike[str]) -> float:
    """Return the length that a file states, in seconds; 0 where it does not."""
    return _told(path, _DURATION)


def _told(path: str | os.PathLike[str], time: re.Pattern[str], *more: str) -> float:
    """The seconds that ffmpeg prints about a file; 0 if none."""
    command = [program(path), "-nostdin", "-hide_banner", *LOCAL, "-i", _file(path), *more]
    told = subprocess.run(command, capture_output=True, check=False).stderr.decode(errors="replace")
    times = time.findall(told)
    hours, minutes, rest = times[-1] if times else (0, 0, 0.0)
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def _cut(path: str | os.PathLike[str]) -> str:
    """What is missing of a file, "" if nothing is: ffmpeg would take the rest without a word."""
    with open(path, "rb") as file:
        return survey(file, os.fstat(file.fileno()).st_size).cut


def from_container(path: str | os.PathLike[str]) -> Source:
    """The first audio track of a file, decoded as it is read; from a video at the times of its pictures.

    One that is cut short is an error.
    """
    if not Path(path).is_file():
        raise AudioError("no such file", path)
    if cut := _cut(path):
        raise AudioError(f"is cut short: {cut}", path)
    times = ON_TIME if Path(path).suffix.lower() in VIDEO else ()
    decoded = ["-map", "0:a:0", *times, "-c:a", "pcm_f32le", "-f", "wav", "-"]
    command = [program(path), *QUIET, *LOCAL, "-i", _file(path), *decoded]
    complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process' blocks)
    process: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints)
    assert process.stdout is not None
    try:
        reader = Reader(cast(BinaryIO, process.stdout), name=str(path))
    except AudioError as error:
        process.stdout.close()
        process.wait()
        raise AudioError(f"no audio could be decoded: {_reason(complaints)}", path) from error
    return Source(str(path), Layout(reader.layout.rate, reader.layout.channels), _blocks(reader, process, complaints))


def _blocks(reader: Reader, process: subprocess.Popen[bytes], complaints: Any) -> Iterator[NDArray[np.float32]]:
    assert process.stdout is not None
    try:
        yield from reader
        if process.wait():
            raise AudioError(f"could not be decoded to its end: {_reason(complaints)}", reader.name)
    finally:
        process.stdout.close()
        process.kill()
        process.wait()
        complaints.close()


class ContainerSink:
    """Audio into a container that ffmpeg writes: ``original`` with its audio replaced, if that is one as well.

    Video is copied, and so are title and tags; subtitles too, or converted for another kind of container. The file
    appears whole or not at all.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Layout,
        original: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path, self.layout, self.frames = Path(path), layout, 0
        kind = CONTAINERS[self.path.suffix.lower()]
        raw = ["-f", "f32le", "-ar", str(layout.rate), "-ac", str(layout.channels), "-i", "pipe:0"]
        codec = AAC if kind == "matroska" else ()
        self._stack = ExitStack()
        self._complaints = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._temporary = self._stack.enter_context(replacing(self.path, overwrite, original))
        inputs, video, subtitles = _kept(original, self.path)
        audio = ["-map", f"{1 if inputs else 0}:a", *codec]
        target = ["-f", kind, "-y", _file(self._temporary)]
        command = [program(path), *QUIET[1:], *inputs, *raw, *video, *audio, *subtitles, *target]
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._complaints
        )

    def write(self, x: NDArray[np.float32]) -> None:
        """Append a block (channels, n)."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(x, Encoding.F32))
        except BrokenPipeError as error:
            raise self._failure() from error
        self.frames += x.shape[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        failure: BaseException | None = error
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            failure = failure or self._failure()
        if error is not None:
            self._process.kill()
        if self._process.wait() and failure is None:
            failure = self._failure()
        if failure is None and not self._is_whole():
            failure = OutputError("could not be written whole; is the disk full?", self.path)
        # An error leaves through the stack, so that the temporary file is removed and nothing takes its name.
        self._stack.__exit__(type(failure) if failure else None, failure, None)
        if failure is not None and error is None:
            raise failure

    def _is_whole(self) -> bool:
        """Whether all that was written is on the disk: ffmpeg may end with 0 although it is full."""
        try:
            with self._temporary.open("rb+") as file:
                os.fsync(file.fileno())
        except OSError:
            return False
        there = _told(self._temporary, _TIME, "-map", "0:a:0", "-c", "copy", "-f", "null", "-")
        return not _cut(self._temporary) and there > self.frames / self.layout.rate - CODEC_SLACK

    def _failure(self) -> OutputError:
        self._process.wait()
        return OutputError(f"could not be written by ffmpeg: {_reason(self._complaints)}", self.path)


def _kept(original: str | os.PathLike[str] | None, path: Path) -> tuple[list[str], list[str], list[str]]:
    """Options of ffmpeg for what ``path`` takes over from ``original``: the input, its video and its subtitles."""
    if original is None or not is_container(original):
        return [], [], []
    inputs = [*LOCAL, "-i", _file(original)]
    before, after = Path(original).suffix.lower(), path.suffix.lower()
    if before != after and not (before in VIDEO and after in VIDEO):
        return inputs, [], []
    copied = ["-c:s", "copy"] if CONTAINERS[before] == CONTAINERS[after] else []
    return inputs, ["-map", "0:v?", "-c:v", "copy"], ["-map", "0:s?", *copied]


def _file(path: str | os.PathLike[str]) -> str:
    """Return an absolute file name: ffmpeg takes names such as ``concat:…`` for something else."""
    return f"file:{Path(path).absolute()}"


def _reason(complaints: Any) -> str:
    """The first thing that ffmpeg complained about, without the part of it that did; the others follow from it."""
    complaints.seek(0)
    first = complaints.read().decode(errors="replace").strip().partition("\n")[0]
    if "matches no streams" in first:
        return "it has no audio track"
    return re.sub(r"^\[[^]]*\] ", "", first)[:200] or "ffmpeg does not say why"
