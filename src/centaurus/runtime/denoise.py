"""Denoise signals, streams, files and folders at any rate and channel count, sample for sample.

Audio above the network's band is scaled by the gain that the network has in its top band.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from queue import SimpleQueue
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from centaurus.audio import AudioError, Resampler, dbfs
from centaurus.audio.signal import save_png
from centaurus.runtime.files import Job, open_sink, open_source
from centaurus.runtime.io import Intake, Source, as_rows, make_folder
from centaurus.runtime.modelfile import Settings
from centaurus.runtime.session import ENGINES, Session, Streaming, open_for
from centaurus.system import AnyPath
from centaurus.tasks import DENOISER

Block = NDArray[np.float32]
Band = Literal["full", "narrow"]
BANDS: tuple[Band, ...] = ("full", "narrow")
FRAME = 64  # samples of the network between two gains: 4 ms at 16 kHz
TOP = 0.6  # the top band: from this share of the network's band up, 4.8 kHz at 16 kHz
TAPS = 33  # of the filter that keeps the top band
RELEASE = 0.01  # seconds over which powers are averaged
SILENT = 1e-10  # power of the top band below which there is no noise to remove: −100 dBFS
MODEL = DENOISER.model
LONGEST = 60  # seconds of a spectrogram: columns of a longer one average over too much time
SETTLED = 4  # seconds of a stream after which its largest lag has occurred
LONG = 900  # seconds of a file above which compiling a step saves more time than it takes
HOPS = 16  # per compiled step for files: weights are read once for all of them
TWO = min(2, os.cpu_count() or 1)  # threads of a compiled step for one long file
PIECE = 30.0  # seconds of a long file at a time: about a hundred steps, of which two threads overlap all but a few
SHORTEST = 1024  # samples of a spectrogram; shorter signals are padded


class UpperBand:
    """Splits an input of ``rate`` at half the network's rate and scales the band above.

    The gain is the square root of the ratio of powers, network's output to input, in the network's top band. It is at
    most one and interpolated linearly between frames, so it does not depend on how a stream is split.
    """

    def __init__(self, rate: int, network_rate: int, channels: int) -> None:
        self._frames_per_sample = network_rate / (FRAME * rate)
        self._keep = math.exp(-FRAME / (RELEASE * network_rate))
        self._filter = _high_pass(TOP, TAPS)
        self._channels = channels
        self.reset()

    def reset(self) -> None:
        """Reset the state."""
        self._pending: Block = np.zeros((self._channels, 0), np.float32)  # network input whose output is not known yet
        self._waiting: Block = np.zeros((2, self._channels, TAPS - 1), np.float32)  # less than a frame, and history
        self._power = np.zeros((2, self._channels))
        self._gains = np.ones((self._channels, 1))  # at the ends of frames, from ``_first`` on
        self._first = 0
        self._given = 0  # samples at the input's rate
        self._ended = False

    def pair(self, network_input: Block, clean: Block) -> Block:
        """Take network input and output (channels, t); return the part of the input that belongs to the output."""
        self._pending = np.concatenate([self._pending, network_input], axis=1)
        count = clean.shape[1]
        low, self._pending = self._pending[:, :count], self._pending[:, count:]
        self._measure(np.stack([low, clean]))
        return low

    def end(self) -> None:
        """Keep the last gain for the rest of the stream."""
        self._ended = True

    @property
    def ready(self) -> int:
        """Samples at the input's rate, from the last one that was scaled, whose gain is known."""
        if self._ended:
            return sys.maxsize
        frames = self._first + self._gains.shape[1] - 1
        return max(0, math.floor(frames / self._frames_per_sample) - self._given)

    def scale(self, high: Block) -> Block:
        """Return the next samples (channels, n) above the network's band times their gains."""
        at = (self._given + np.arange(high.shape[1])) * self._frames_per_sample
        frames = self._first + np.arange(self._gains.shape[1])
        scaled = np.stack([x * np.interp(at, frames, g) for x, g in zip(high, self._gains, strict=True)])
        self._given += high.shape[1]
        past = min(int(self._given * self._frames_per_sample) - self._first, self._gains.shape[1] - 1)
        self._gains, self._first = self._gains[:, past:], self._first + past
        return scaled.astype(np.float32)

    def _measure(self, pair: Block) -> None:
        self._waiting = np.concatenate([self._waiting, pair], axis=2)
        frames = (self._waiting.shape[2] - TAPS + 1) // FRAME
        if not frames:
            return
        used = frames * FRAME
        rows = self._waiting[:, :, : used + TAPS - 1].reshape(2 * self._channels, -1)
        top = np.stack([np.convolve(row, self._filter, "valid") for row in rows])
        powers = np.square(top, dtype=np.float64).reshape(2, self._channels, frames, FRAME).mean(axis=-1)
        means = (1 - self._keep) * np.moveaxis(powers, 2, 0)
        for k in range(frames):
            means[k] += self._keep * self._power
            self._power = means[k]
        before, after = np.moveaxis(means, 0, 2) + SILENT
        self._gains = np.concatenate([self._gains, np.sqrt(np.minimum(after / before, 1.0))], axis=1)
        self._waiting = self._waiting[:, :, used:]


def _high_pass(cut: float, taps: int) -> NDArray[np.float32]:
    """Return a linear-phase high-pass filter with its edge at ``cut`` of the band: a windowed sinc."""
    at = np.arange(taps) - (taps - 1) / 2
    low = cut * np.sinc(cut * at) * np.hamming(taps)
    high = (at == 0) - low / low.sum()
    return (high / np.sum(high * np.cos(np.pi * at))).astype(np.float32)


class Denoiser:
    """Denoise a stream: noisy blocks (t,) or (channels, t) in, clean ones out, as many samples in all.

    ``model`` is an ONNX file or a shipped model's name, ``rate`` and ``channels`` are the audio's. ``mix`` is the
    share of the cleaned signal (0 to 1). ``attn_limit_db`` keeps noise from falling by more than that. With ``block``
    every call takes that many samples and gives as many, as an audio callback needs: the output is then ``delay``
    samples late. Audio above half the network's rate is scaled by the gain that the network has in its top band, or
    with ``band="narrow"`` removed, except in the share of the input that is mixed in.

        live = Denoiser(rate=48_000, block=480)
        clean = live.process(noisy)  # (480,) in, (480,) out
    """

    def __init__(
        self,
        model: AnyPath | Streaming = MODEL,
        rate: int = 16_000,
        channels: int = 1,
        mix: float = 1.0,
        attn_limit_db: float | None = None,
        threads: int = 1,
        block: int | None = None,
        band: Band = "full",
    ) -> None:
        if band not in BANDS:
            raise ValueError(f"band should be one of {', '.join(BANDS)}, got {band!r}")
        if block is not None and block < 1:
            raise ValueError(f"a block has at least one sample, got {block}")
        self.rate, self.channels, self.block = rate, channels, block
        self._wet = cleaned_share(mix, attn_limit_db)
        self.session: Streaming = open_for("denoiser", model, batch=channels, threads=threads)
        self._intake = Intake(rate, channels, self.session.settings.rate, peak=self.session.settings.peak)
        network_rate = self.session.settings.rate
        self._upper = UpperBand(rate, network_rate, channels) if band == "full" and rate > network_rate else None
        self._back = Resampler(network_rate, rate, channels if self._upper is None else 2 * channels)
        self.delay = 0 if block is None else _shortage(self.session.settings, rate, block, self._upper is not None)
        self._single = False
        self._start()

    def _start(self) -> None:
        self._dry: Block = np.zeros((self.channels, 0), np.float32)  # input without output yet
        self._ready: Block = np.zeros((self._back.channels, 0), np.float32)  # clean, then the input's low band
        self._late: Block = np.zeros((self.channels, self.delay), np.float32)  # output that is due in later blocks
        self._early = self.session.settings.delay  # samples of the network's output that precede the input
        if self._upper is not None:
            self._upper.reset()

    @property
    def repaired(self) -> int:
        """Samples that were NaN, infinite or out of range and were replaced."""
        return self._intake.repaired

    @property
    def removed_above(self) -> float | None:
        """The frequency in Hz above which the input was removed, if it had anything there."""
        network_rate = self.session.settings.rate
        return network_rate / 2 if network_rate < self.rate and self._wet == 1.0 and self._upper is None else None

    @property
    def scaled_above(self) -> float | None:
        """The frequency in Hz above which the input is scaled by the gain in the network's top band, if it is."""
        return None if self._upper is None else self.session.settings.rate / 2

    @property
    def latency(self) -> float:
        """Seconds from a sample to its output, at most: those of the network, or with ``block`` those of the output."""
        if self.block is not None:
            return (self.delay + self.block) / self.rate
        return self.session.settings.latency / self.session.settings.rate

    def process(self, x: ArrayLike) -> Block:
        """Return clean samples at the input's rate, shaped like ``x``: those ready, or with ``block`` as many."""
        rows = self._rows(x)
        if rows.shape[1]:
            self._dry = np.concatenate([self._dry, rows], axis=1)
        low = self._intake.resample(rows)
        clean = self._give(self._back.process(self._with_low(low, self._at_place(self.session.process(low)))))
        if self.block is not None:
            late = np.concatenate([self._late, clean], axis=1)
            clean, self._late = late[:, : self.block], late[:, self.block :]
        return clean[0] if self._single else clean

    def flush(self) -> Block:
        """Return the remaining samples, shaped like the last ones, and reset the stream."""
        silence = np.zeros((self.channels, self.session.settings.delay), np.float32)
        low = np.concatenate([self._intake.flush(), silence], axis=1)
        parts = (self.session.process(low), self.session.flush().reshape(self.channels, -1))
        clean = np.concatenate([self._at_place(x) for x in parts], axis=1)
        tail = np.concatenate([self._back.process(self._with_low(low, clean)), self._back.flush()], axis=1)
        if self._upper is not None:
            self._upper.end()
        missing = self._dry.shape[1] - self._ready.shape[1] - tail.shape[1]
        last = self._give(np.pad(tail, ((0, 0), (0, max(0, missing)))))
        last = np.concatenate([self._late, last], axis=1) if self.block is not None else last
        self._start()  # resampling there and back may end a few samples late
        return last[0] if self._single else last

    def _at_place(self, clean: Block) -> Block:
        """Return the network's output without its delay, aligned with the input."""
        dropped = min(self._early, clean.shape[1])
        self._early -= dropped
        return clean[:, dropped:]

    def _with_low(self, low: Block, clean: Block) -> Block:
        """Return the network's output, and if the upper band is kept, the network's input as further channels."""
        return clean if self._upper is None else np.concatenate([clean, self._upper.pair(low, clean)])

    def _rows(self, x: ArrayLike) -> Block:
        with np.errstate(over="ignore"):  # beyond float32 is infinity, which ``Intake`` replaces
            samples = np.asarray(x, np.float32)
        self._single = samples.ndim == 1 and self.channels == 1
        rows = self._intake.finite(samples[None] if self._single else samples)
        if self.block is not None and rows.shape[1] != self.block:
            raise ValueError(f"every block has {self.block} samples, got {rows.shape[1]}")
        return rows

    def _give(self, clean: Block) -> Block:
        ready = np.concatenate([self._ready, clean], axis=1) if self._ready.shape[1] else clean
        count = min(ready.shape[1], self._dry.shape[1])
        if self._upper is not None:
            count = min(count, self._upper.ready)
        dry, self._dry = self._dry[:, :count], self._dry[:, count:]
        wet, self._ready = ready[:, :count], ready[:, count:]
        if self._upper is not None:
            wet = wet[: self.channels] + self._upper.scale(dry - wet[self.channels :])
        return wet if self._wet == 1.0 else self._wet * wet + np.float32(1 - self._wet) * dry


def _shortage(settings: Settings, rate: int, block: int, full: bool) -> int:
    """Return by how many samples the output lags at most: resamplers, the network's chunk and, if full, the gains."""
    into, back = Resampler(rate, settings.rate, 1), Resampler(settings.rate, rate, 1)
    silence = np.zeros((1, block), np.float32)
    taken = waiting = returned = worst = 0
    early, known = settings.delay, 0
    while taken < SETTLED * rate:
        taken += block
        waiting += into.process(silence).shape[1]
        ready = waiting // settings.chunk * settings.chunk
        waiting -= ready
        dropped = min(early, ready)
        early -= dropped
        returned += back.process(np.zeros((1, ready - dropped), np.float32)).shape[1]
        known += ready - dropped
        lasting = known // FRAME * FRAME * rate // settings.rate if full else returned
        worst = max(worst, taken - min(returned, lasting))
    return worst


def cleaned_share(mix: float, attn_limit_db: float | None) -> np.float32:
    """Return the share of the denoised signal; the rest is input, so that noise is attenuated by at most the limit."""
    if not 0.0 <= mix <= 1.0:
        raise ValueError(f"mix is between 0 (the input) and 1 (the cleaned signal), got {mix:g}")
    if attn_limit_db is None:
        return np.float32(mix)
    if not attn_limit_db >= 0.0:
        raise ValueError(f"the limit of attenuation is a number of dB from 0, got {attn_limit_db:g}")
    return np.float32(mix * (1 - 10 ** (-attn_limit_db / 20)))


def denoise(
    samples: ArrayLike,
    rate: int,
    model: AnyPath = MODEL,
    mix: float = 1.0,
    attn_limit_db: float | None = None,
    threads: int = 1,
    band: Band = "full",
) -> Block:
    """Return speech without its noise, float32 in the shape of ``samples``.

    Args:
        samples: (t,) or (channels, t), full scale at ±1.
        rate: sample rate in Hz; any.
        model: an .onnx file or the name of a shipped model.
        mix: share of the denoised signal, 0 to 1; the rest is input.
        attn_limit_db: attenuate noise by at most this many dB; without a limit if None.
        threads: threads of the network.
        band: ``"full"`` scales audio above the model's band by the gain in its top band, ``"narrow"`` removes it.

    For a recording at 48 kHz:

        clean = ct.denoise(noisy, 48_000)
    """
    x = as_rows(samples)
    job = Denoiser(model, rate, x.shape[0], mix, attn_limit_db, threads, band=band)
    clean = np.concatenate(
        [*(job.process(x[:, k : k + rate]) for k in range(0, x.shape[1], rate)), job.flush()], axis=1
    )
    return clean.reshape(np.shape(samples))


class Sink(Protocol):
    """Takes blocks (channels, n)."""

    def write(self, x: Block) -> None: ...


class Stopped(Exception):  # noqa: N818
    """The job was cancelled."""


@dataclass(frozen=True)
class Options:
    """Settings of denoising."""

    model: str = MODEL
    mix: float = 1.0
    attn_limit_db: float | None = None
    threads: int | None = None  # of the network; None: two for a compiled step where there are two cores, else one
    engine: str = "auto"  # "c" or "onnxruntime"; "auto" compiles the model for long files where that is possible
    band: Band = "full"  # audio above the network's band is scaled; "narrow" removes it

    def compiles(self, seconds: float) -> bool:
        """Return whether a file of that length is denoised by a compiled step."""
        return self.engine == "c" or (self.engine == "auto" and seconds >= LONG)

    def open(self, rate: int, channels: int, seconds: float = 0.0) -> Denoiser:
        """Return a denoiser for audio of that rate, channel count and length."""
        if self.engine not in ("auto", *ENGINES):
            raise ValueError(f"engine should be one of auto, {', '.join(ENGINES)}, got {self.engine!r}")
        model: str | Session = self.model
        if self.compiles(seconds):
            session = Session(self.model, channels, TWO if self.threads is None else self.threads, "c", HOPS)
            model = session if session.engine == "c" else model
        threads = 1 if self.threads is None else self.threads
        return Denoiser(model, rate, channels, self.mix, self.attn_limit_db, threads, band=self.band)


@dataclass(frozen=True)
class Report:
    """Figures of a denoised file: levels in dBFS, frequencies in Hz; ``seconds`` of audio took ``took`` seconds."""

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
    scaled_above: float | None = None
    ended: BaseException | None = None

    @property
    def seconds(self) -> float:
        return self.frames / self.rate

    @property
    def interrupted(self) -> bool:
        """Whether an exception ended the recording."""
        return self.ended is not None

    def json(self) -> dict[str, Any]:
        """Return plain data; silence has no level."""
        data = asdict(replace(self, ended=None)) | {"seconds": self.seconds, "interrupted": self.interrupted}
        del data["ended"]
        return {key: None if value == float("-inf") else value for key, value in data.items()}


class Level:
    """The level of a signal that comes in blocks."""

    def __init__(self) -> None:
        self._power, self._count = 0.0, 0

    def add(self, x: Block) -> None:
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
    on_seconds: Callable[[float], object] = lambda seconds: None,
) -> Report:
    """Denoise a source into a sink. ``on_seconds`` is called with the seconds of every block, and may raise to stop.

    An interrupt, or a pipe that ends before the length in its header, ends a live recording but keeps the result: all
    input so far is denoised and written, and the report has the exception.
    """
    begin, frames, repaired = time.perf_counter(), 0, denoiser.repaired
    before, after = Level(), Level()

    def write(x: Block) -> None:
        after.add(x)
        sink.write(x)

    ended: BaseException | None = None
    try:
        for block in source.blocks:
            clean = denoiser.process(block)
            frames += block.shape[1]
            before.add(block)
            write(clean)
            on_seconds(block.shape[1] / source.rate)
    except (KeyboardInterrupt, AudioError) as error:
        if not source.live:
            raise
        ended = error
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
        scaled_above=denoiser.scaled_above,
        ended=ended,
    )


class FileDenoiser:
    """Denoises files one after another, with one session for each rate and channel count. Not thread-safe."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._ready: dict[tuple[int, int, bool], Denoiser] = {}

    def run(
        self, job: Job, overwrite: bool = False, on_seconds: Callable[[float], object] = lambda seconds: None
    ) -> Report:
        """Denoise one file; the result is written atomically."""
        source = open_source(job.source)
        seconds = (source.frames or 0) / source.rate
        compiled = self.options.compiles(seconds)
        key = (source.rate, source.channels, compiled)
        denoiser = self._ready.pop(key, None) or self.options.open(source.rate, source.channels, seconds)
        if compiled:
            source = replace(source, blocks=in_pieces(source.blocks, round(PIECE * source.rate)))
        make_folder(job.output.parent)
        with open_sink(job, source.layout, source.frames, overwrite) as sink:
            report = denoise_stream(source, sink, denoiser, str(job.output), on_seconds)
        self._ready = {key: denoiser}  # only after success: an interrupted denoiser has state
        return report


def in_pieces(blocks: Iterable[Block], samples: int) -> Iterator[Block]:
    """Yield blocks concatenated to pieces of at least that many samples; the last may be shorter."""
    piece: list[Block] = []
    for block in blocks:
        piece.append(block)
        if sum(part.shape[1] for part in piece) >= samples:
            yield np.concatenate(piece, axis=1)
            piece = []
    if piece:
        yield np.concatenate(piece, axis=1)


def denoise_files(
    jobs: Iterable[Job],
    options: Options,
    workers: int = 1,
    overwrite: bool = False,
    on_seconds: Callable[[float], object] = lambda seconds: None,
) -> Iterator[tuple[Job, Report | Exception]]:
    """Yield every job with its report or error, as they finish, run by ``workers`` threads with a session each.

    Several workers keep the cores busy: their networks have one thread each unless ``options`` say otherwise.
    """
    if workers > 1 and options.threads is None:
        options = replace(options, threads=1)
    idle: SimpleQueue[FileDenoiser] = SimpleQueue()
    for _ in range(workers):
        idle.put(FileDenoiser(options))
    stop = threading.Event()

    def count(seconds: float) -> None:
        if stop.is_set():
            raise Stopped
        on_seconds(seconds)

    def run(job: Job) -> Report:
        denoiser = idle.get()
        try:
            return denoiser.run(job, overwrite, count)
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


def before_and_after(before: AnyPath, after: AnyPath, path: AnyPath, overwrite: bool = False) -> None:
    """Write a PNG of the first minute of two audio files of one rate, the mean of their channels."""
    signals = {"before": _beginning(before), "after": _beginning(after)}
    save_png(path, signals, open_source(before).rate, overwrite=overwrite)


def _beginning(path: AnyPath) -> NDArray[np.float32]:
    pieces = [np.zeros(0, np.float32)]
    source, taken = open_source(path), 0
    for block in source.blocks:
        pieces.append(block.mean(axis=0, dtype=np.float32))
        taken += block.shape[1]
        if taken > LONGEST * source.rate:
            break
    x = np.concatenate(pieces)[: LONGEST * source.rate]
    return np.pad(x, (0, max(0, SHORTEST - len(x))))
