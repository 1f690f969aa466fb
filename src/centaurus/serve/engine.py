"""Advance many streams of a model together: chunks that are waiting become the rows of one step."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime import Session, SessionError, Settings
from centaurus.serve.metrics import Metrics

Samples = NDArray[np.float32]
BATCHES = (1, 2, 4, 8, 16)  # rows of a step that are tried when an engine starts
TRIALS = 5  # the fastest of so many steps counts: a busy machine still has quiet moments
GATHER = 1 / 8  # of a chunk's time that a step may wait for more rows
AHEAD = 0.25  # seconds that a stream may run ahead of real time before it waits for those that do not


@dataclass(frozen=True)
class Pace:
    """How fast a model is here: the ``rows`` whose step costs least for each, and the share of a core of one alone."""

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
        self._samples = self._given = 0  # samples taken, frames given back
        self._seconds = self.settings.chunk / self.settings.rate
        self._due = time.perf_counter()  # when the next chunk would come in real time

    @property
    def backlog(self) -> int:
        """Samples that were handed over and have not been stepped yet."""
        return len(self.chunks) * self.settings.chunk + self._rest.shape[1]

    def process(self, x: Samples) -> Samples:
        """Hand samples (t,) or (rows, t) to the engine; the frames that have become ready, shaped as by a session."""
        if x.size:
            self._put(x.reshape(len(self.rows), -1))
        return self._shaped(self._ready(), x.ndim == 1)

    def flush(self) -> Samples:
        """Step until everything that was handed over is finished, as if silence followed; the stream has then ended."""
        missing = self.settings.frames(self._samples) - self._given
        if self._rest.shape[1]:
            silence = -self._rest.shape[1] % self.settings.chunk
            self._put(np.zeros((len(self.rows), silence), np.float32), counted=False)
        self._engine.finish(self)
        return self._shaped(self._ready()[..., :missing], len(self.rows) == 1)

    def close(self) -> None:
        """Leave the engine; what is waiting is dropped."""
        self._engine.leave(self)

    def is_ahead(self, now: float) -> bool:
        """Whether this stream has had more steps than real time asks for; called once for every step."""
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
        self._given += frames.shape[-1]
        return frames

    def _shaped(self, frames: Samples, single: bool) -> Samples:
        if self.settings.task == "denoiser":
            return frames[:, 0]
        return frames[0] if single else frames


class Engine:
    """A session whose rows are streams that come and go, each at its own pace, stepped by the event loop.

    A step takes one chunk of every stream that has one, up to the number of rows that is cheapest for this model on
    this machine, and leaves all other rows untouched. Where the last step had several rows, the next one waits for
    more, an eighth of a chunk's time at most: many rows in one step cost a third of what they cost one by one. Streams
    take turns, and one that sends faster than real time waits for those that do not, so that nobody can crowd out the
    others.
    """

    def __init__(self, task: str, session: Session, metrics: Metrics, pace: Pace | None = None) -> None:
        self.task, self.session, self.metrics = task, session, metrics
        pace = pace or measure_pace(session)
        self.rows_per_step, self.real_time_factor = pace.rows, pace.real_time_factor
        self.free_rows = session.batch
        self._turn: deque[Lane] = deque()  # lanes with a chunk that no step has taken yet
        self._later: deque[Lane] = deque()  # the same, of streams that are ahead of real time
        self._gather = GATHER * session.settings.chunk / session.settings.rate
        self._next: asyncio.Handle | None = None  # the step that is to come
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
        """Step a lane until nothing of it is waiting any more; it is not notified."""
        while lane.chunks:
            for queue in (self._turn, self._later):
                if lane in queue:
                    queue.remove(lane)
            self._step([lane])

    def _enqueue(self, lane: Lane, now: float) -> None:
        (self._later if lane.is_ahead(now) else self._turn).append(lane)

    def _schedule(self, soon: bool) -> None:
        """Step soon if asked to, if nothing is gained by waiting or if a step is full; otherwise after a while."""
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
        """The lanes whose turn it is, up to the rows of a step."""
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
    """Time steps of several numbers of rows; the session is as new afterwards."""
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
