"""Input and output files: formats that libsndfile lacks, by ffmpeg, and the names of results.

m4a, mp4, mkv, webm … need the ffmpeg program on the PATH. The names of all results are known before anything is
computed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError, Writer
from centaurus.audio.containers import survey
from centaurus.audio.files import EXTENSIONS
from centaurus.runtime.io import Encoding, Layout, Reader, Source, encode, from_file, open_writer
from centaurus.runtime.modelfile import CHECKPOINTS, SUFFIX, WEIGHTS
from centaurus.system import AnyPath, OutputError, replacing

# ffmpeg's name of each container, by suffix.
AUDIO = {".m4a": "ipod", ".aac": "adts", ".wma": "asf", ".mka": "matroska"}
VIDEO = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".avi": "avi"}
CONTAINERS = AUDIO | VIDEO
AAC = ("-c:a", "aac")  # for Matroska, for which ffmpeg's default is an encoder that not every build has
# Insert silence where the audio of a video starts late or has gaps, to stay in sync.
ON_TIME = ("-af", "aresample=async=1:first_pts=0")
QUIET = ("-nostdin", "-hide_banner", "-loglevel", "error")
LOCAL = ("-protocol_whitelist", "file,pipe")  # a playlist may name URLs: those are not read
CODEC_SLACK = 0.25  # seconds by which a codec's last frame may fall short of the samples
_DURATION = re.compile(r"Duration: (\d+):(\d\d):(\d\d(?:\.\d+)?)")
_TIME = re.compile(r"time=(\d+):(\d\d):(\d\d(?:\.\d+)?)")
TEXTS = {".txt", ".json", ".jsonl", ".srt", ".vtt", ".csv"}


def is_container(path: AnyPath) -> bool:
    """Return whether a file is decoded by ffmpeg, by its suffix."""
    return Path(path).suffix.lower() in CONTAINERS


def program(path: AnyPath) -> str:
    """Return the path of ffmpeg; the error without one names the file."""
    executable = shutil.which("ffmpeg")
    if executable is None:
        raise AudioError(f"{Path(path).suffix} files need the ffmpeg program, which is not on the PATH", path)
    return executable


def is_available() -> bool:
    """Return whether ffmpeg is on the PATH."""
    return shutil.which("ffmpeg") is not None


def seconds(path: AnyPath) -> float:
    """Return the length that a file states, in seconds; 0 where it does not."""
    return _printed_time(path, _DURATION)


def _printed_time(path: AnyPath, time: re.Pattern[str], *more: str) -> float:
    """Return the last time that ffmpeg prints about a file, in seconds; 0 if none."""
    command = [program(path), "-nostdin", "-hide_banner", *LOCAL, "-i", _file(path), *more]
    messages = subprocess.run(command, capture_output=True, check=False).stderr.decode(errors="replace")
    times = time.findall(messages)
    hours, minutes, rest = times[-1] if times else (0, 0, 0.0)
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def _cut(path: AnyPath) -> str:
    """Return what is missing of a file, "" if nothing is: ffmpeg decodes a truncated file without an error."""
    with open(path, "rb") as file:
        return survey(file, os.fstat(file.fileno()).st_size).cut


def from_container(path: AnyPath) -> Source:
    """Open the first audio track of a file, decoded as it is read; that of a video in sync with its frames.

    A truncated file is an error.
    """
    if not Path(path).is_file():
        raise AudioError("no such file", path)
    if cut := _cut(path):
        raise AudioError(f"is truncated: {cut}", path)
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

    Video, title and tags are copied; so are subtitles, converted if the container needs it. The file is written
    atomically.
    """

    def __init__(self, path: AnyPath, layout: Layout, original: AnyPath | None = None, overwrite: bool = False) -> None:
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
        except OSError as error:  # a broken pipe, which Windows calls an invalid argument
            raise self._failure() from error
        self.frames += x.shape[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._process.stdin is not None
        failure: BaseException | None = error
        try:
            self._process.stdin.close()
        except OSError:
            failure = failure or self._failure()
        if error is not None:
            self._process.kill()
        if self._process.wait() and failure is None:
            failure = self._failure()
        if failure is None and not self._is_whole():
            failure = OutputError("could not be written completely; is the disk full?", self.path)
        # An error unwinds the stack, which removes the temporary file instead of renaming it.
        self._stack.__exit__(type(failure) if failure else None, failure, None)
        if failure is not None and error is None:
            raise failure

    def _is_whole(self) -> bool:
        """Return whether the file on disk is complete: ffmpeg may exit with 0 although the disk is full."""
        try:
            with self._temporary.open("rb+") as file:
                os.fsync(file.fileno())
        except OSError:
            return False
        there = _printed_time(self._temporary, _TIME, "-map", "0:a:0", "-c", "copy", "-f", "null", "-")
        return not _cut(self._temporary) and there > self.frames / self.layout.rate - CODEC_SLACK

    def _failure(self) -> OutputError:
        self._process.wait()
        return OutputError(f"could not be written by ffmpeg: {_reason(self._complaints)}", self.path)


def _kept(original: AnyPath | None, path: Path) -> tuple[list[str], list[str], list[str]]:
    """Return options of ffmpeg for what ``path`` keeps of ``original``: the input, its video and its subtitles."""
    if original is None or not is_container(original):
        return [], [], []
    inputs = [*LOCAL, "-i", _file(original)]
    before, after = Path(original).suffix.lower(), path.suffix.lower()
    if before != after and not (before in VIDEO and after in VIDEO):
        return inputs, [], []
    copied = ["-c:s", "copy"] if CONTAINERS[before] == CONTAINERS[after] else []
    return inputs, ["-map", "0:v?", "-c:v", "copy"], ["-map", "0:s?", *copied]


def _file(path: AnyPath) -> str:
    """Return an absolute file name: ffmpeg takes names such as ``concat:…`` for something else."""
    return f"file:{Path(path).absolute()}"


def _reason(complaints: Any) -> str:
    """Return ffmpeg's first error message, without the name of its component; later ones follow from it."""
    complaints.seek(0)
    first = complaints.read().decode(errors="replace").strip().partition("\n")[0]
    if "matches no streams" in first:
        return "it has no audio track"
    return re.sub(r"^\[[^]]*\] ", "", first)[:200] or "ffmpeg gives no reason"


@dataclass(frozen=True)
class Job:
    """One file to read and one to write."""

    source: Path
    output: Path


@dataclass
class Inputs:
    """Audio files in order, each with its name below the input that it came from, and files that were skipped."""

    files: list[tuple[Path, Path, Path]] = field(default_factory=list)  # file, input it came from, name below that
    skipped: dict[Path, str] = field(default_factory=dict)


def find_inputs(inputs: Sequence[AnyPath], output: AnyPath | None = None) -> Inputs:
    """Return the audio files among files and folders, except those below ``output``.

    Other files of a folder are listed as skipped. A file given by its own name must be audio.
    """
    located = Inputs()
    if any(os.fspath(path) == "" for path in inputs):
        raise AudioError("the name of an input is empty")  # as a path it would be the whole current folder
    for path in map(Path, inputs):
        if os.path.isdir(path):
            _walk(path, located, None if output is None else Path(output).resolve())
        else:
            if path.suffix.lower() in (SUFFIX, WEIGHTS, *CHECKPOINTS):
                raise AudioError("is a model, not audio: give it with --model", path)
            located.files.append((path, path, Path(path.name)))
    return located


def _walk(folder: Path, located: Inputs, output: Path | None) -> None:
    before = len(located.files)
    for path in sorted(folder.rglob("*")):
        below = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in below.parts)
        inside = output is not None and output != folder.resolve() and path.resolve().is_relative_to(output)
        if not path.is_file() or hidden or inside:
            continue
        if path.suffix.lower() in EXTENSIONS or (is_container(path) and is_available()):
            located.files.append((path, folder, below))
        else:
            located.skipped[path] = "needs ffmpeg, which is not on the PATH" if is_container(path) else "not audio"
    if len(located.files) == before:
        kinds = ", ".join(sorted({*EXTENSIONS, *(CONTAINERS if is_available() else ())}))
        raise AudioError(f"contains no audio files ({kinds})", folder)


def plan_jobs(
    inputs: Sequence[AnyPath],
    output: str | None = None,
    overwrite: bool = False,
    mark: str = ".denoised",
    suffix: str | None = None,
) -> tuple[list[Job], dict[Path, str]]:
    """Return a job for every audio file, and the skipped files with the reason.

    Without ``output`` the name of an input gets ``mark``: ``talk.mp3`` becomes ``talk.denoised.mp3``, ``talks/``
    becomes ``talks.denoised/`` with the names inside kept. Results have the format of their input, or ``suffix``.
    Nothing that exists is replaced unless ``overwrite``.
    """
    target = output
    if output is None and len(inputs) == 1 and os.path.isdir(inputs[0]):
        target = str(_marked(Path(inputs[0]), mark, None))
    located = find_inputs(inputs, target)
    single = len(inputs) == 1 and not os.path.isdir(inputs[0])
    if output is not None and single and not _is_folder(output):
        jobs = [Job(located.files[0][0], Path(output))]
    else:
        if output is not None:
            _check_folder(output, suffix)
        jobs = [Job(path, _named(path, origin, below, output, mark, suffix)) for path, origin, below in located.files]
    _check(jobs, overwrite)
    return jobs, located.skipped


def _named(path: Path, origin: Path, below: Path, output: str | None, mark: str, suffix: str | None) -> Path:
    inner = below.with_suffix(suffix) if suffix else below
    if output is not None:
        return Path(output) / inner
    if path == origin:
        return _marked(path, mark, suffix)
    return _marked(origin, mark, None) / inner


def _marked(path: Path, mark: str, suffix: str | None) -> Path:
    """Return ``talk.mp3`` as ``talk.denoised.mp3``; dots in the name of a folder do not begin a suffix."""
    if os.path.isdir(path):
        path = path if path.name not in ("", os.pardir) else path.resolve()  # . and .. have names of their own
        return path.with_name(path.name + mark)
    return path.with_name(f"{path.stem}{mark}{suffix or path.suffix}")


def _is_folder(output: str) -> bool:
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


def _check_folder(output: str, suffix: str | None) -> None:
    files = {*EXTENSIONS, *CONTAINERS, *TEXTS, suffix}
    if not _is_folder(output) and (Path(output).suffix.lower() in files or Path(output).exists()):
        raise OutputError(
            f"is one file for several results: name a folder with -o, such as {Path(output).stem}/", output
        )


def _check(jobs: Sequence[Job], overwrite: bool) -> None:
    twice = [path for path, count in Counter(job.output for job in jobs).items() if count > 1]
    if twice:
        raise OutputError("would be the result of two inputs: give another folder with -o", twice[0])
    there = [job.output for job in jobs if os.path.lexists(job.output)]
    if there and not overwrite:
        more = f", and {len(there) - 1} more" if len(there) > 1 else ""
        raise OutputError(f"exists already{more}; -f overwrites", there[0])


def open_source(path: AnyPath, seconds: float = 1.0) -> Source:
    """Open any audio file in blocks: by libsndfile, or by ffmpeg if its suffix is that of a container."""
    return from_container(path) if is_container(path) else from_file(path, seconds)


def open_sink(job: Job, layout: Layout, frames: int | None = None, overwrite: bool = False) -> Writer | ContainerSink:
    """Open the file to write; a video keeps its video track. ``frames`` is the length if it is known."""
    if is_container(job.output):
        return ContainerSink(job.output, layout, job.source, overwrite)
    return open_writer(job.output, layout, frames, overwrite, like=job.source)
