"""Advance many streams of a model together in batches, with metrics in the text format of Prometheus.

Queued chunks become the rows of one step.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime import Session, SessionError, Settings

# Seconds. A hop of the shipped denoiser is 16 ms: the bounds are dense around one and two of them.
LATENCIES = (0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.048, 0.064, 0.128, 0.256, 0.512, 1.0)
ROWS = (1, 2, 4, 8, 16, 32, 64)

Labels = tuple[tuple[str, str], ...]
BATCHES = (1, 2, 4, 8, 16)  # rows of the steps that are timed when an engine starts
TRIALS = 5  # steps, of which the fastest counts: the others may have been interrupted by other processes
GATHER = 1 / 8  # share of a chunk's duration that a step may wait for more rows
AHEAD = 0.25  # seconds that a stream may be ahead of real time before streams in real time have priority


class Counter:
    """A number for each combination of labels. Each combination is written by one thread."""

    kind = "counter"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.values: dict[Labels, float] = defaultdict(float)

    def add(self, amount: float = 1.0, **labels: str) -> None:
        self.values[tuple(sorted(labels.items()))] += amount

    def lines(self) -> Iterator[str]:
        """Yield a line for each combination of labels."""
        for labels, value in sorted(self.values.items()):
            yield f"{self.name}{_braces(labels)} {value:g}"


class Gauge(Counter):
    """A number that goes up and down."""

    kind = "gauge"


class Histogram:
    """Counts of values below each of a few bounds, and their sum."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text, self.bounds = name, text, bounds
        self.counts: dict[Labels, list[int]] = defaultdict(lambda: [0] * (len(bounds) + 1))
        self.sums: dict[Labels, float] = defaultdict(float)

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(sorted(labels.items()))
        self.counts[key][bisect_left(self.bounds, value)] += 1
        self.sums[key] += value

    def lines(self) -> Iterator[str]:
        """Yield cumulative counts, the sum and the count for each combination of labels."""
        for labels, counts in sorted(self.counts.items()):
            total = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                total += count
                edge = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield f"{self.name}_bucket{_braces((*labels, ('le', edge)))} {total}"
            yield f"{self.name}_sum{_braces(labels)} {self.sums[labels]:g}"
            yield f"{self.name}_count{_braces(labels)} {total}"


class Metrics:
    """The metrics of a server."""

    def __init__(self) -> None:
        self.streams = Gauge("centaurus_streams", "Open streams.")
        self.opened = Counter("centaurus_streams_opened_total", "Accepted streams.")
        self.closed = Counter("centaurus_streams_closed_total", "Streams that ended, by reason.")
        self.rejected = Counter("centaurus_streams_rejected_total", "Streams that were refused, by reason.")
        self.audio = Counter("centaurus_audio_seconds_total", "Seconds of audio received.")
        self.steps = Histogram("centaurus_step_seconds", "Time of one batched step of a network.", LATENCIES)
        self.rows = Histogram("centaurus_step_rows", "Rows that were advanced by one step.", ROWS)
        self.latency = Histogram(
            "centaurus_block_latency_seconds", "From the last sample of a block to its result.", LATENCIES
        )

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return the whole page; ``gauges`` are further values by name."""
        lines = []
        for metric in vars(self).values():
            lines += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels) + "}" if labels else ""


Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Pace:
    """The speed of a model: the number of ``rows`` with the lowest cost a row, and the real-time factor of one row."""

    rows: int
    real_time_factor: float


class FullError(RuntimeError):
    """No row is free for another stream."""


class Lane:
    """One stream of an engine, with the interface of a ``Session``: samples in, the frames that are ready out.

    ``process`` never waits: it returns what the engine has finished since the last call. ``flush`` steps until
    everything is finished. ``notify`` is called whenever frames have become ready.
    """

    def __init__(self, engine: Engine, rows: list[int], notify: Callable[[], object]) -> None:
        self.settings: Settings = engine.session.settings
        self.rows, self.notify = rows, notify
        self.closed = False
        self.error: SessionError | None = None
        self.chunks: deque[tuple[Samples, float]] = deque()  # (rows, chunk) and when it was complete
        self.frames: deque[Samples] = deque()
        self._engine = engine
        self._rest: Samples = np.zeros((len(rows), 0), np.float32)
        self._samples = self._returned = 0  # samples taken, frames returned
        self._seconds = self.settings.chunk / self.settings.rate
        self._due = time.perf_counter()  # when the next chunk would come in real time

    @property
    def backlog(self) -> int:
        """Queued samples that have not been processed yet."""
        return len(self.chunks) * self.settings.chunk + self._rest.shape[1]

    def process(self, x: Samples) -> Samples:
        """Queue samples (t,) or (rows, t) and return the frames that are ready, shaped as by a session."""
        if x.size:
            self._put(x.reshape(len(self.rows), -1))
        return self._shaped(self._ready(), x.ndim == 1)

    def flush(self) -> Samples:
        """Step until all queued samples are processed, padded with zeros, and return the last frames."""
        missing = self.settings.frames(self._samples) - self._returned
        if self._rest.shape[1]:
            silence = -self._rest.shape[1] % self.settings.chunk
            self._put(np.zeros((len(self.rows), silence), np.float32), counted=False)
        self._engine.finish(self)
        return self._shaped(self._ready()[..., :missing], len(self.rows) == 1)

    def close(self) -> None:
        """Leave the engine; queued samples are dropped."""
        self._engine.leave(self)

    def is_ahead(self, now: float) -> bool:
        """Return whether this stream is ahead of real time; called once for every step."""
        self._due = max(self._due + self._seconds, now - AHEAD)
        return self._due > now + AHEAD

    def _put(self, x: Samples, counted: bool = True) -> None:
        self._samples += x.shape[1] if counted else 0
        chunk = self.settings.chunk
        rest = np.concatenate([self._rest, x], axis=1) if self._rest.shape[1] else x
        whole = rest.shape[1] // chunk
        self._rest = rest[:, whole * chunk :]
        if whole:
            self._engine.submit(self, [rest[:, k * chunk : (k + 1) * chunk] for k in range(whole)])

    def _ready(self) -> Samples:
        if self.error is not None:
            raise self.error
        if len(self.frames) == 1:
            frames = self.frames.popleft()
        elif self.frames:
            frames = np.concatenate(self.frames, axis=-1)
            self.frames.clear()
        else:
            frames = np.zeros((len(self.rows), self.settings.features, 0), np.float32)
        self._returned += frames.shape[-1]
        return frames

    def _shaped(self, frames: Samples, single: bool) -> Samples:
        if self.settings.task == "denoiser":
            return frames[:, 0]
        return frames[0] if single else frames


class Engine:
    """A session whose rows are streams that start, advance and end independently, stepped by the event loop.

    A step takes one chunk of every stream that has one, up to the number of rows that is cheapest for this model on
    this machine, and leaves all other rows untouched. Where the last step had several rows, the next one waits for
    more, an eighth of a chunk's duration at most: rows in one large step cost a third of what they cost one by one.
    Streams take turns, and one that sends faster than real time has lower priority than those that do not.
    """

    def __init__(self, task: str, session: Session, metrics: Metrics, pace: Pace | None = None) -> None:
        self.task, self.session, self.metrics = task, session, metrics
        pace = pace or measure_pace(session)
        self.rows_per_step, self.real_time_factor = pace.rows, pace.real_time_factor
        self.free_rows = session.batch
        self._turn: deque[Lane] = deque()  # lanes with a chunk that no step has taken yet
        self._later: deque[Lane] = deque()  # the same, for streams ahead of real time
        self._gather = GATHER * session.settings.chunk / session.settings.rate
        self._next: asyncio.Handle | None = None  # the scheduled step
        self._last_rows = 1

    def join(self, rows: int, notify: Callable[[], object]) -> Lane:
        """Return a new lane of ``rows`` rows, which starts in silence."""
        if rows > self.free_rows:
            raise FullError(f"{rows} rows are needed, {self.free_rows} of {self.session.batch} are free")
        self.free_rows -= rows
        return Lane(self, [self.session.join() for _ in range(rows)], notify)

    def leave(self, lane: Lane) -> None:
        """Free the rows of a lane."""
        if lane.closed:
            return
        lane.closed = True
        lane.chunks.clear()
        for queue in (self._turn, self._later):
            if lane in queue:
                queue.remove(lane)
        for row in lane.rows:
            self.session.leave(row)
        self.free_rows += len(lane.rows)

    def submit(self, lane: Lane, chunks: list[Samples]) -> None:
        """Queue complete chunks of a lane, and step soon."""
        if lane.closed:
            return
        now = time.perf_counter()
        if not lane.chunks:
            self._enqueue(lane, now)
        lane.chunks.extend((chunk, now) for chunk in chunks)
        self._schedule(soon=len(lane.chunks) > 1)

    def finish(self, lane: Lane) -> None:
        """Step a lane until its queue is empty; it is not notified."""
        while lane.chunks:
            for queue in (self._turn, self._later):
                if lane in queue:
                    queue.remove(lane)
            self._step([lane])

    def _enqueue(self, lane: Lane, now: float) -> None:
        (self._later if lane.is_ahead(now) else self._turn).append(lane)

    def _schedule(self, soon: bool) -> None:
        """Schedule the next step: at once if requested, if it is full or if no more rows are expected; else later."""
        soon = soon or self._last_rows == 1 or len(self._turn) + len(self._later) >= self.rows_per_step
        if self._next is not None:
            if not (soon and isinstance(self._next, asyncio.TimerHandle)):
                return
            self._next.cancel()
        loop = asyncio.get_running_loop()
        self._next = loop.call_soon(self._run) if soon else loop.call_later(self._gather, self._run)

    def _run(self) -> None:
        """Run one step; the event loop handles its sockets before the next."""
        self._next = None
        batch = self._take()
        if batch:
            self._step(batch)
        for lane in batch:
            lane.notify()
        if self._turn or self._later:
            self._schedule(soon=any(lane.chunks for lane in batch))

    def _take(self) -> list[Lane]:
        """Return the lanes of the next step, up to its number of rows."""
        batch: list[Lane] = []
        rows = 0
        for queue in (self._turn, self._later):
            while queue and (not batch or rows + len(queue[0].rows) <= self.rows_per_step):
                batch.append(queue.popleft())
                rows += len(batch[-1].rows)
        return batch

    def _step(self, batch: list[Lane]) -> None:
        chunks = [lane.chunks.popleft() for lane in batch]
        rows = [row for lane in batch for row in lane.rows]
        self._last_rows = len(rows)
        begin, error = time.perf_counter(), None
        try:
            frames = self.session.step(rows, np.concatenate([chunk for chunk, _ in chunks]))
        except SessionError as failure:
            error = failure
        end = time.perf_counter()
        self.metrics.steps.observe(end - begin, task=self.task)
        self.metrics.rows.observe(len(rows), task=self.task)
        at = 0
        for lane, (_, arrived) in zip(batch, chunks, strict=True):
            if error is None:
                lane.frames.append(frames[at : at + len(lane.rows)])
            lane.error, at = error, at + len(lane.rows)
            if lane.chunks:
                self._enqueue(lane, end)
            self.metrics.latency.observe(end - arrived, task=self.task)


def measure_pace(session: Session) -> Pace:
    """Time steps of several numbers of rows, then reset the session."""
    seconds: dict[int, float] = {}
    for rows in (n for n in BATCHES if n <= session.batch):
        x = np.zeros((rows, session.settings.chunk), np.float32)
        spent = []
        for _ in range(TRIALS):
            begin = time.perf_counter()
            session.step(list(range(rows)), x)
            spent.append(time.perf_counter() - begin)
        seconds[rows] = min(spent) / rows
    session.reset()
    best = min(seconds, key=lambda rows: seconds[rows])
    return Pace(best, seconds[1] * session.settings.rate / session.settings.chunk)
