"""Which file goes where: the names of results for files and folders, settled before anything is computed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from centaurus.audio import AudioError
from centaurus.runtime.outputs import OutputError

KINDS = {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64"}
MARK = ".denoised"


@dataclass(frozen=True)
class Job:
    """One file to read and one to write."""

    source: Path
    output: Path


def plan_jobs(
    inputs: Sequence[str | os.PathLike[str]], output: str | None = None, overwrite: bool = False
) -> list[Job]:
    """A job for every file. A folder's tree is kept; results never replace anything unless that was asked for.

    Without ``output``, ``talk.mp3`` becomes ``talk.denoised.wav`` and ``talks/`` becomes ``talks.denoised/``.
    """
    paths = [Path(path) for path in inputs]
    if output is not None and len(paths) == 1 and not paths[0].is_dir() and not _is_folder(output):
        jobs = [Job(paths[0], Path(output))]
    else:
        jobs = [job for path in paths for job in (_tree(path, output) if path.is_dir() else [_single(path, output)])]
    _check(jobs, overwrite)
    return jobs


def _is_folder(output: str) -> bool:
    return output.endswith(("/", os.sep)) or Path(output).is_dir()


def _single(path: Path, output: str | None) -> Job:
    if output is None:
        return Job(path, path.with_name(f"{path.stem}{MARK}.wav"))
    return Job(path, Path(output) / path.name)


def _tree(folder: Path, output: str | None) -> list[Job]:
    target = Path(output) if output is not None else folder.resolve().with_name(f"{folder.resolve().name}{MARK}")
    inside = target.resolve()
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in KINDS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not (inside != folder.resolve() and path.resolve().is_relative_to(inside))
    ]
    if not found:
        raise AudioError(f"{folder}: holds no sound files ({', '.join(sorted(KINDS))})")
    return [Job(path, target / path.relative_to(folder)) for path in found]


def _check(jobs: Sequence[Job], overwrite: bool) -> None:
    twice = [path for path, count in Counter(job.output for job in jobs).items() if count > 1]
    if twice:
        raise OutputError(f"{twice[0]}: would be written twice, by different inputs: give another folder with -o")
    there = [job.output for job in jobs if job.output.exists()]
    if there and not overwrite:
        more = f", and {len(there) - 1} more" if len(there) > 1 else ""
        raise OutputError(f"{there[0]}: exists already{more}; -f overwrites")
