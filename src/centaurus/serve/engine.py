"""One thread that advances many streams of a model: chunks that are waiting are stepped together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime import Session, SessionError, Settings
from centaurus.serve.metrics import Metrics

Samples = NDArray[np.float32]
BATCHES = (1, 2, 4, 8)  # rows of a step that are tried when an engine starts
TRIALS = 5  # the fastest of so many steps counts: a busy machine still has quiet moments
FLUSH_SECONDS = 30.0  # how long the end of a stream may take


class FullError(RuntimeError):
    """No row is free for another stream."""


class Lane:
    """One stream of an engine, with the interface of a ``Session``: samples in, the frames that are ready out.

    ``process`` never waits: it returns what the engine has finished since the last call. ``flush`` waits for the rest.
    ``notify`` is called from the engine's thread whenever frames have become ready.
    """

    def __init__(self, engine: Engine, rows: list[int], notify: Callable[[], object]) -> None:
        self.settings: Settings = engine.session.settings
        self.rows, self.notify = rows, notify
        self.busy = self.closed = False
        self.error: SessionError | None = None
        self.chunks: deque[tuple[Samples, float]] = deque()  # (rows, chunk) and when it was complete
        self.frames: deque[Samples] = deque()
        self._engine = engine
        self._rest: Samples = np.zeros((len(rows), 0), np.float32)
        self._samples = self._given = 0  # samples taken, frames given back

    @property
    def backlog(self) -> int:
        """Samples that were handed over and whose frames have not been taken back yet."""
        return self._samples - int(self._given / self.settings.ratio)

    def process(self, x: Samples) -> Samples:
        """Hand samples (t,) or (rows, t) to the engine; the frames that have become ready, shaped as by a session."""
        self._put(x.reshape(len(self.rows), -1))
        return self._shaped(self._ready(), x.ndim == 1)

    def flush(self) -> Samples:
        """Wait for everything that was handed over, as if silence followed; the stream has then ended."""
        wanted = self.settings.frames(self._samples) - self._given
        chunk = self.settings.chunk
        silence = -self._rest.shape[1] % chunk
        if self._rest.shape[1]:
            self._put(np.zeros((len(self.rows), silence), np.float32), counted=False)
        self._engine.wait_for(self)
        return self._shaped(self._ready()[..., :wanted], len(self.rows) == 1)

    def close(self) -> None:
        """Leave the engine; what is waiting is dropped."""
        self._engine.leave(self)

    def _put(self, x: Samples, counted: bool = True) -> None:
        self._samples += x.shape[1] if counted else 0
        rest, chunk = np.concatenate([self._rest, x], axis=1), self.settings.chunk
        whole = rest.shape[1] // chunk
        self._rest = rest[:, whole * chunk :]
        if whole:
            self._engine.submit(self, [rest[:, k * chunk : (k + 1) * chunk] for k in range(whole)])

    def _ready(self) -> Samples:
        if self.error is not None:
            raise self.error
        done = [self.frames.popleft() for _ in range(len(self.frames))]
        s = self.settings
        frames = np.concatenate(done, axis=-1) if done else np.zeros((len(self.rows), s.features, 0), np.float32)
        self._given += frames.shape[-1]
        return frames

    def _shaped(self, frames: Samples, single: bool) -> Samples:
        frames = frames[:, 0] if self.settings.task == "denoiser" else frames
        return frames[0] if single and self.settings.task != "denoiser" else frames


class Engine:
    """A session whose rows are streams that come and go, each at its own pace.

    A step takes one chunk of every stream that has one, up to the number of rows that is cheapest for this model on
    this machine, and leaves all other rows untouched. Streams take turns, so that nobody can crowd out the others.
    """

    def __init__(self, task: str, session: Session, metrics: Metrics) -> None:
        self.task, self.session, self.metrics = task, session, metrics
        self.rows_per_step, self.row_seconds = _cheapest_batch(session)
        self._change = threading.Condition()
        self._turn: deque[Lane] = deque()  # lanes with a chunk that no step has taken yet
        self._running = True
        self._thread = threading.Thread(target=self._run, name=f"centaurus-{task}", daemon=True)
        self._thread.start()

    @property
    def real_time_factor(self) -> float:
        """Share of one core that one row takes in real time, as measured when the engine started."""
        settings = self.session.settings
        return self.row_seconds * settings.rate / settings.chunk

    def join(self, rows: int, notify: Callable[[], object]) -> Lane:
        """A lane of so many rows, which starts in silence."""
        with self._change:
            taken: list[int] = []
            try:
                for _ in range(rows):
                    taken.append(self.session.join())
            except SessionError as error:
                for row in taken:
                    self.session.leave(row)
                raise FullError(str(error)) from error
            return Lane(self, taken, notify)

    def leave(self, lane: Lane) -> None:
        """Free the rows of a lane, at once or after the step it is in."""
        with self._change:
            if lane.closed:
                return
            lane.closed = True
            lane.chunks.clear()
            if lane in self._turn:
                self._turn.remove(lane)
            if not lane.busy:
                self._free(lane)
            self._change.notify_all()

    def submit(self, lane: Lane, chunks: list[Samples]) -> None:
        """Queue complete chunks of a lane."""
        with self._change:
            if lane.closed:
                return
            now = time.perf_counter()
            if not lane.chunks and not lane.busy:
                self._turn.append(lane)
            lane.chunks.extend((chunk, now) for chunk in chunks)
            self._change.notify_all()

    def wait_for(self, lane: Lane) -> None:
        """Return when nothing of a lane is waiting any more."""
        with self._change:
            done = self._change.wait_for(lambda: lane.closed or not (lane.chunks or lane.busy), FLUSH_SECONDS)
        if not done:
            raise SessionError(f"the last blocks of a stream were not finished within {FLUSH_SECONDS:g} s")

    def stop(self) -> None:
        """End the thread after its step."""
        with self._change:
            self._running = False
            self._change.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._turn or not self._running)
                if not self._running:
                    return
                batch = self._take()
            self._step(batch)

    def _take(self) -> list[tuple[Lane, Samples, float]]:
        """The next chunk of each lane whose turn it is, up to the rows of a step."""
        batch: list[tuple[Lane, Samples, float]] = []
        rows = 0
        while self._turn and (not batch or rows + len(self._turn[0].rows) <= self.rows_per_step):
            lane = self._turn.popleft()
            lane.busy = True
            batch.append((lane, *lane.chunks.popleft()))
            rows += len(lane.rows)
        return batch

    def _step(self, batch: list[tuple[Lane, Samples, float]]) -> None:
        rows = [row for lane, _, _ in batch for row in lane.rows]
        begin, error = time.perf_counter(), None
        try:
            frames = self.session.step(rows, np.concatenate([chunk for _, chunk, _ in batch]))
        except SessionError as failure:
            error = failure
        end = time.perf_counter()
        self.metrics.steps.observe(end - begin, task=self.task)
        self.metrics.rows.observe(len(rows), task=self.task)
        with self._change:
            at = 0
            for lane, _, arrived in batch:
                lane.busy = False
                if error is None:
                    lane.frames.append(frames[at : at + len(lane.rows)])
                lane.error, at = error, at + len(lane.rows)
                if lane.closed:
                    self._free(lane)
                elif lane.chunks:
                    self._turn.append(lane)
                self.metrics.latency.observe(end - arrived, task=self.task)
            self._change.notify_all()
        for lane, _, _ in batch:
            lane.notify()

    def _free(self, lane: Lane) -> None:
        for row in lane.rows:
            self.session.leave(row)


def _cheapest_batch(session: Session) -> tuple[int, float]:
    """The number of rows whose step costs least for each row, and the seconds of one row in it."""
    best = (1, float("inf"))
    for rows in (n for n in BATCHES if n <= session.batch):
        x = np.zeros((rows, session.settings.chunk), np.float32)
        fastest = float("inf")
        for _ in range(TRIALS):
            begin = time.perf_counter()
            session.step(list(range(rows)), x)
            fastest = min(fastest, time.perf_counter() - begin)
        best = min(best, (rows, fastest / rows), key=lambda found: found[1])
    session.reset()
    return best
