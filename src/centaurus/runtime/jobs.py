"""Which file goes where: the names of results for files and folders, settled before anything is computed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from centaurus.audio import AudioError, Writer
from centaurus.runtime import ffmpeg
from centaurus.runtime.io import Layout, Source, from_file, open_writer
from centaurus.system import OutputError

KINDS = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64"}
TEXTS = {".txt", ".json", ".jsonl", ".srt", ".vtt", ".csv"}
MODELS = {".onnx", ".safetensors", ".pt", ".pth", ".ckpt"}


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


def find_inputs(inputs: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str] | None = None) -> Inputs:
    """The audio files of files and folders; what lies in ``output`` is not among them.

    A folder may hold anything: what is not audio is skipped and named. A file that was named itself must be audio.
    """
    located = Inputs()
    if any(os.fspath(path) == "" for path in inputs):
        raise AudioError("the name of an input is empty")  # as a path it would be the whole current folder
    for path in map(Path, inputs):
        if os.path.isdir(path):
            _walk(path, located, None if output is None else Path(output).resolve())
        else:
            if path.suffix.lower() in MODELS:
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
        if path.suffix.lower() in KINDS or (ffmpeg.is_container(path) and ffmpeg.is_available()):
            located.files.append((path, folder, below))
        else:
            located.skipped[path] = (
                "needs ffmpeg, which is not on the PATH" if ffmpeg.is_container(path) else "not audio"
            )
    if len(located.files) == before:
        kinds = ", ".join(sorted(KINDS | (set(ffmpeg.CONTAINERS) if ffmpeg.is_available() else set())))
        raise AudioError(f"holds no audio files ({kinds})", folder)


def plan_jobs(
    inputs: Sequence[str | os.PathLike[str]],
    output: str | None = None,
    overwrite: bool = False,
    mark: str = ".denoised",
    suffix: str | None = None,
) -> tuple[list[Job], dict[Path, str]]:
    """A job for every audio file, and the files that are skipped with the reason.

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
    """``talk.mp3`` as ``talk.denoised.mp3``; a folder has no suffix, whatever dots its name has."""
    if os.path.isdir(path):
        path = path if path.name not in ("", os.pardir) else path.resolve()  # . and .. have names of their own
        return path.with_name(path.name + mark)
    return path.with_name(f"{path.stem}{mark}{suffix or path.suffix}")


def _is_folder(output: str) -> bool:
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


def _check_folder(output: str, suffix: str | None) -> None:
    files = KINDS | set(ffmpeg.CONTAINERS) | TEXTS | {suffix}
    if not _is_folder(output) and (Path(output).suffix.lower() in files or Path(output).exists()):
        raise OutputError(
            f"is one file for several results: name a folder with -o, such as {Path(output).stem}/", output
        )


def _check(jobs: Sequence[Job], overwrite: bool) -> None:
    twice = [path for path, count in Counter(job.output for job in jobs).items() if count > 1]
    if twice:
        raise OutputError("would be written twice, by different inputs: give another folder with -o", twice[0])
    there = [job.output for job in jobs if os.path.lexists(job.output)]
    if there and not overwrite:
        more = f", and {len(there) - 1} more" if len(there) > 1 else ""
        raise OutputError(f"exists already{more}; -f overwrites", there[0])


def open_source(path: str | os.PathLike[str], seconds: float = 1.0) -> Source:
    """Any file with audio in blocks: by libsndfile, or by ffmpeg where its suffix is one for that."""
    return ffmpeg.from_container(path) if ffmpeg.is_container(path) else from_file(path, seconds)


def open_sink(
    job: Job, layout: Layout, frames: int | None = None, overwrite: bool = False
) -> Writer | ffmpeg.ContainerSink:
    """The file to write; a video keeps its pictures. ``frames`` is the length if it is known."""
    if ffmpeg.is_container(job.output):
        return ffmpeg.ContainerSink(job.output, layout, job.source, overwrite)
    return open_writer(job.output, layout, frames, overwrite, like=job.source)
