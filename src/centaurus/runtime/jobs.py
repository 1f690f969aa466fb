"""Denoising from a source to a sink: in constant memory, interruptible, with a report at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import dbfs
from centaurus.runtime.denoising import Denoiser
from centaurus.runtime.outputs import FileSink, make_folder
from centaurus.runtime.plans import Job
from centaurus.runtime.sources import Source, from_file

Block = NDArray[np.float32]


class Sink(Protocol):
    """Takes blocks (channels, n)."""

    def write(self, x: Block) -> None: ...


class Stopped(Exception):  # noqa: N818
    """The work was stopped from outside."""


@dataclass(frozen=True)
class Options:
    """How to denoise."""

    model: str = "denoise-16k"
    mix: float = 1.0
    attn_limit_db: float | None = None
    threads: int = 1

    def open(self, rate: int, channels: int) -> Denoiser:
        """A denoiser for sound of that kind."""
        return Denoiser(self.model, rate, channels, self.mix, self.attn_limit_db, self.threads)


@dataclass(frozen=True)
class Report:
    """What was done. Levels are in dBFS, ``seconds`` of sound took ``took`` seconds, frequencies are in Hz."""

    source: str
    output: str
    rate: int
    channels: int
    frames: int
    took: float
    level_in: float
    level_out: float
    repaired: int
    removed_above: float | None = None
    interrupted: bool = False

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    def json(self) -> dict[str, Any]:
        """As plain data; silence has no level."""
        data = asdict(self) | {"seconds": self.seconds}
        return {key: None if value == float("-inf") else value for key, value in data.items()}


class Level:
    """The level of a signal that comes in blocks."""

    def __init__(self) -> None:
        self._power, self._count = 0.0, 0

    def hear(self, x: Block) -> None:
        """Take a block into account."""
        self._power += float(np.vdot(x, x))
        self._count += x.size

    @property
    def dbfs(self) -> float:
        return dbfs(np.sqrt([self._power / max(1, self._count)]))


def denoise_stream(
    source: Source,
    sink: Sink,
    denoiser: Denoiser,
    output: str,
    heard: Callable[[float], object] = lambda seconds: None,
) -> Report:
    """Everything from a source to a sink. ``heard`` is told the seconds of every block, and may raise to stop.

    An interrupt while sound is still being made ends the recording, not the result: what was heard is written whole.
    """
    begin, frames, repaired = time.perf_counter(), 0, denoiser.repaired
    before, after = Level(), Level()

    def write(x: Block) -> None:
        after.hear(x)
        sink.write(x)

    interrupted = False
    try:
        for block in source.blocks:
            clean = denoiser.process(block)
            frames += block.shape[1]
            before.hear(block)
            write(clean)
            heard(block.shape[1] / source.rate)
    except KeyboardInterrupt:
        if not source.live:
            raise
        interrupted = True
    write(denoiser.flush())
    return Report(
        source=source.name,
        output=output,
        rate=source.rate,
        channels=source.channels,
        frames=frames,
        took=time.perf_counter() - begin,
        level_in=before.dbfs,
        level_out=after.dbfs,
        repaired=denoiser.repaired - repaired,
        removed_above=denoiser.removed_above,
        interrupted=interrupted,
    )


class FileDenoiser:
    """Denoises files one after another, with one session for each rate and channel count. Not for two threads."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._ready: dict[tuple[int, int], Denoiser] = {}

    def run(self, job: Job, overwrite: bool = False, heard: Callable[[float], object] = lambda seconds: None) -> Report:
        """One file: whole in the end, or not there."""
        source = from_file(job.source)
        key = (source.rate, source.channels)
        denoiser = self._ready.pop(key, None) or self.options.open(*key)
        make_folder(job.output.parent)
        with FileSink(job.output, source.layout, source.frames or 0, overwrite) as sink:
            report = denoise_stream(source, sink, denoiser, str(job.output), heard)
        self._ready = {key: denoiser}  # only after it went well: an interrupted one is in the middle of something
        return report


def denoise_files(
    jobs: Iterable[Job],
    options: Options,
    workers: int = 1,
    overwrite: bool = False,
    heard: Callable[[float], object] = lambda seconds: None,
) -> Iterator[tuple[Job, Report | Exception]]:
    """Every job with its report or its error, as they finish, by ``workers`` threads with a session each."""
    idle: SimpleQueue[FileDenoiser] = SimpleQueue()
    for _ in range(workers):
        idle.put(FileDenoiser(options))
    stop = threading.Event()

    def listen(seconds: float) -> None:
        if stop.is_set():
            raise Stopped
        heard(seconds)

    def run(job: Job) -> Report:
        denoiser = idle.get()
        try:
            return denoiser.run(job, overwrite, listen)
        finally:
            idle.put(denoiser)

    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(run, job): job for job in jobs}
        try:
            for done in as_completed(waiting):
                error = done.exception()
                if error is None:
                    yield waiting[done], done.result()
                elif isinstance(error, ValueError | OSError):
                    yield waiting[done], error
                else:
                    raise error
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
