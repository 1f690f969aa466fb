"""``Session``: run an exported model as a stream, with numpy and onnxruntime alone.

``Spotter`` and ``Transcriber`` find keywords, or transcribe, in audio of any rate: a session, then smoothing or greedy
CTC.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import ArrayLike, NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from centaurus.decode import Greedy, Keyword, Smoothing, Spotting, Vocabulary, Word, Words
from centaurus.native.build import find_compiler
from centaurus.runtime.io import Intake, as_rows
from centaurus.runtime.modelfile import KEY, WEIGHTS, SessionError, Settings, find_model, read_settings
from centaurus.runtime.native import GROUP, SOURCE, Binding, Native, find_source, open_native
from centaurus.runtime.onnxfile import FLOAT, Contents, Value, infer_shapes, inspect
from centaurus.system import AnyPath
from centaurus.tasks import CLASSIFIER, RECOGNIZER, TASKS

__all__ = ["Session", "SessionError"]

Samples = NDArray[np.float32]
ENGINES = ("onnxruntime", "c")
MOST_BYTES = 1 << 31  # of the states of all rows
COMPARED = 0.5  # seconds of noise by which a compiled step is compared with the ONNX file
LINE = 1 << 20  # bytes within which the first line of a saved session ends
KIND: Literal["centaurus-session-1"] = "centaurus-session-1"
SAME = 1e-3  # of the largest value, by which two engines may differ; those of the shipped models differ by 1e-5
REFUSALS = (
    errors.Fail,
    errors.InvalidArgument,
    errors.InvalidGraph,
    errors.InvalidProtobuf,
    errors.NotImplemented,
    errors.RuntimeException,
    UnicodeDecodeError,  # from an onnxruntime message with a name that is not UTF-8
)


class Arrays:
    """Input, output and two sets of states of some rows, which take turns as the states before and after a step."""

    def __init__(self, engine: onnxruntime.InferenceSession | Native, s: Settings, rows: int) -> None:
        self.audio = np.zeros((rows, 1, s.chunk), np.float32)
        self.output = np.zeros((rows, s.features, s.frames(s.chunk)), np.float32)
        self.states = [[np.zeros((rows, *state.shape), np.float32) for state in s.states] for _ in range(2)]
        self.bindings = [self._binding(engine, [state.name for state in s.states], turn) for turn in range(2)]

    def _binding(
        self, engine: onnxruntime.InferenceSession | Native, names: list[str], turn: int
    ) -> onnxruntime.IOBinding | Binding:
        bound = engine.io_binding()
        for name, x in [("audio", self.audio), *zip(names, self.states[turn], strict=True)]:
            bound.bind_input(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
        after = [name.replace("state.", "next.", 1) for name in names]
        for name, x in [("output", self.output), *zip(after, self.states[1 - turn], strict=True)]:
            bound.bind_output(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
        return bound


class Session:
    """A model's file, run piece by piece: pieces of any length in, the frames that are ready out.

    ``model`` is an ONNX file written by ``centaurus export`` or the name of a shipped model. The ``batch`` rows are
    streams that advance together; a stream may ``join`` a free row and ``leave`` it. Arrays of states, input and output
    are allocated once: a step allocates only its result. ``engine="c"`` runs a step of ``hops`` compiled by the local
    C compiler where the model has one (docs/devices.md), else onnxruntime; ``engine`` says which.
    ``threads`` are those of onnxruntime (0: one for each core). A compiled step uses two where there are more than one
    and a piece has many steps, with the same results.
    """

    def __init__(
        self, model: AnyPath, batch: int = 1, threads: int = 1, engine: str = "onnxruntime", hops: int = 1
    ) -> None:
        if batch < 1 or threads < 0:
            raise SessionError(f"a session has at least one row and no negative threads, got {batch=} and {threads=}")
        if engine not in ENGINES:
            raise SessionError(f"engine should be one of {', '.join(ENGINES)}, got {engine!r}")
        native = _compiled(model, hops) if engine == "c" else None
        self.engine = "onnxruntime" if native is None else "c"
        self._engine, self.settings = native or _open(find_model(model), batch, threads)
        self.batch, self.threads = batch, threads
        halves = isinstance(self._engine, Native) and self._engine.halves
        self._by_two = self._engine if halves and threads != 1 else None
        self._single = batch == 1
        self._waiting, self._turn = 0, 0  # samples that do not fill a chunk yet, and which states are the next step's
        self.samples = [0] * batch
        self._taken: set[int] = set()
        self._arrays = Arrays(self._engine, self.settings, batch)
        self._audio, self._output, self._states = self._arrays.audio, self._arrays.output, self._arrays.states
        self._fewer: dict[int, Arrays] = {}  # by the number of rows of a step, allocated once
        self.reset()

    def process(self, x: ArrayLike) -> Samples:
        """Return the frames completed by a piece (t,) or (batch, t); samples that fill no chunk wait for the next.

        They come as (features, frames) or (batch, features, frames); a denoiser's as (t,) or (batch, t).
        """
        piece = self._piece(x)
        chunk, steps = self.settings.chunk, (self._waiting + piece.shape[1]) // self.settings.chunk
        output = np.empty((self.batch, self.settings.features, steps * self.settings.frames(chunk)), np.float32)
        taken = max(0, steps * chunk - self._waiting)
        if self._by_two is None or steps < 2 * GROUP:
            self._one_by_one(piece[:, :taken], output, steps)
        else:
            whole = np.concatenate([self._audio[:, 0, : self._waiting], piece[:, :taken]], axis=1)
            self._by_two.run_steps(whole, output, self._states[self._turn][0], steps)
        self._waiting = 0 if steps else self._waiting
        rest = piece.shape[1] - taken
        self._audio[:, 0, self._waiting : self._waiting + rest] = piece[:, taken:]
        self._waiting += rest
        self.samples = [n + piece.shape[1] for n in self.samples]
        return self._shaped(output, self._single)

    def _one_by_one(self, piece: Samples, output: Samples, steps: int) -> None:
        """Run the steps that a piece completes together with what is waiting."""
        waiting, frames = self._waiting, self.settings.frames(self.settings.chunk)
        for step in range(steps):
            start = step * self.settings.chunk - self._waiting
            self._audio[:, 0, waiting:] = piece[:, max(0, start) : start + self.settings.chunk]
            self._run(self._arrays.bindings[self._turn])
            self._turn, waiting = 1 - self._turn, 0
            output[..., step * frames : (step + 1) * frames] = self._output

    def step(self, rows: Sequence[int], x: Samples) -> Samples:
        """Advance some rows by one chunk, x (rows, chunk), without changing the others, and return their frames.

        They are (rows, features, frames). For streams that advance independently: a session that uses ``step`` cannot
        use ``process``.
        """
        count = len(rows)
        if x.shape != (count, self.settings.chunk) or not 1 <= count <= self.batch or self._waiting:
            raise SessionError(
                f"a step takes up to {self.batch} rows of {self.settings.chunk} samples with none waiting, "
                f"got shape {x.shape} for {count} rows and {self._waiting} samples waiting"
            )
        if count not in self._fewer:
            self._fewer[count] = Arrays(self._engine, self.settings, count)
        some = self._fewer[count]
        index = np.asarray(self._checked(rows))
        some.audio[:, 0] = self._limited(x)
        for mine, all_rows in zip(some.states[0], self._states[self._turn], strict=True):
            np.take(all_rows, index, axis=0, out=mine)
        self._run(some.bindings[0])
        for mine, all_rows in zip(some.states[1], self._states[self._turn], strict=True):
            all_rows[index] = mine
        for row in rows:
            self.samples[row] += self.settings.chunk
        return some.output.copy()

    def flush(self) -> Samples:
        """Return the frames of the samples still waiting, padded with zeros, shaped like the last, and reset."""
        tail = self._shaped(self._tail(), self._single)
        self.reset()
        return tail

    def reset(self, rows: Sequence[int] | None = None) -> None:
        """Clear the state of all rows, or of these, with their waiting samples."""
        for row in self._checked(rows):
            for states in self._states:
                for state in states:
                    state[row] = 0
            self._audio[row] = 0
        if rows is None:
            self._waiting, self._turn = 0, 0
            self.samples = [0] * self.batch
            self._taken = set()
        for row in rows or ():
            self.samples[row] = 0

    def join(self) -> int:
        """Return a free row for a new stream, which starts in silence. Its pieces come in step with the other rows'."""
        free = [row for row in range(self.batch) if row not in self._taken]
        if not free:
            raise SessionError(f"all {self.batch} rows of this session are in use")
        self.reset([free[0]])
        self._taken.add(free[0])
        return free[0]

    def leave(self, row: int) -> Samples:
        """End the stream of a row and return its tail as ``flush`` would. The other rows are not affected."""
        if row not in self._taken:
            raise SessionError(f"no stream has joined row {row}; rows in use: {sorted(self._taken)}")
        tail = self._shaped(self._tail()[row : row + 1], True)
        self.reset([row])
        self._taken.remove(row)
        return tail

    def save(self) -> bytes:
        """Return the state of every stream, as bytes that a session of the same model and batch can restore."""
        arrays = [self._audio[:, 0, : self._waiting], *self._states[self._turn]]
        head = Saved(KIND, fingerprint(self.settings), self.batch, self._waiting, self.samples, sorted(self._taken))
        line = json.dumps(msgspec.to_builtins(head)).encode()
        return line + b"\n" + b"".join(x.astype("<f4").tobytes() for x in arrays)

    def restore(self, data: bytes) -> None:
        """Continue where ``save`` left off."""
        saved, numbers = unpack(data, self.settings, self.batch)
        self.reset()
        self._waiting, self.samples, self._taken = saved.waiting, saved.samples, set(saved.taken)
        at = self.batch * self._waiting
        self._audio[:, 0, : self._waiting] = numbers[:at].reshape(self.batch, -1)
        for state in self._states[self._turn]:
            state[...] = numbers[at : at + state.size].reshape(state.shape)
            at += state.size

    def _run(self, binding: onnxruntime.IOBinding | Binding) -> None:
        try:
            self._engine.run_with_iobinding(binding)
        except (RuntimeError, *REFUSALS) as error:
            raise SessionError(f"{self.settings.name!r:.60} failed in a step: {_reason(error)}") from error

    def _tail(self) -> Samples:
        """Return the frames of the waiting samples; the states stay, since a step writes into the other set."""
        frames = self.settings.frames(self._waiting)
        if frames:
            self._audio[:, 0, self._waiting :] = 0
            self._run(self._arrays.bindings[self._turn])
        return self._output[..., :frames].copy()

    def _piece(self, x: ArrayLike) -> Samples:
        piece = np.asarray(x)
        if piece.dtype.kind != "f":
            raise SessionError(f"samples are floating-point numbers, about -1 to 1, got {piece.dtype}")
        single = piece.ndim == 1 and self.batch == 1
        if not single and (piece.ndim != 2 or piece.shape[0] != self.batch):
            raise SessionError(f"this session takes ({self.batch}, samples), got shape {piece.shape}")
        self._single = single
        return self._limited(piece).reshape(self.batch, -1)

    def _limited(self, x: NDArray[Any]) -> Samples:
        """Return samples clipped to the model's range: larger ones disturb the state for seconds, NaN permanently."""
        peak = self.settings.peak
        if not np.abs(x).max(initial=0.0) <= peak:  # nor is NaN
            if not np.isfinite(x).all():
                raise SessionError("the samples contain NaN or infinity, which would stay in the states")
            x = np.clip(x, -peak, peak)
        return x.astype(np.float32, copy=False)

    def _shaped(self, y: Samples, single: bool) -> Samples:
        y = y[:, 0] if self.settings.task == "denoiser" else y
        return y[0] if single else y

    def _checked(self, rows: Sequence[int] | None) -> Sequence[int]:
        wrong = [row for row in rows or () if not 0 <= row < self.batch]
        if wrong:
            raise SessionError(f"this session has rows 0 to {self.batch - 1}, there is no row {wrong[0]}")
        return range(self.batch) if rows is None else rows


def _compiled(model: AnyPath, hops: int) -> tuple[Native, Settings] | None:
    """Return the compiled step of a model and its settings; None without a compiler or the weights of this model."""
    compiler = find_compiler()
    source = None if compiler is None else find_source(model, hops)
    if compiler is None or source is None:
        return None
    own = Path(model).suffix in (SOURCE, WEIGHTS)
    return open_native(source, compiler) if own or _agree(Session(source, engine="c"), Session(model)) else None


def _agree(one: Session, other: Session) -> bool:
    """Return whether two sessions give the same output for noise: weights next to an ONNX file may be of another."""
    pieces = {name: getattr(other.settings, name) for name in ("name", "card", "chunk", "latency", "states")}
    if replace(one.settings, **pieces) != other.settings:
        return False
    length = max(round(COMPARED * other.settings.rate), one.settings.chunk, other.settings.chunk)
    x = np.random.default_rng(0).uniform(-0.1, 0.1, length)
    actual, expected = (np.atleast_2d(session.process(x)) for session in (one, other))
    frames = min(actual.shape[1], expected.shape[1])
    difference = np.abs(actual[:, :frames] - expected[:, :frames]).max(initial=0)
    return bool(difference <= SAME * np.abs(expected).max(initial=0))


def _open(path: Path, batch: int, threads: int) -> tuple[onnxruntime.InferenceSession | Native, Settings]:
    """Return the engine and the settings of an ONNX file, checked before anything of it runs."""
    contents = inspect(path)
    if KEY not in contents.metadata:
        raise SessionError(f"is an ONNX file but not one written by centaurus: it has no {KEY!r} metadata", path)
    settings = read_settings(contents.metadata[KEY], path)
    numbers = batch * (settings.state_numbers + settings.chunk)
    if 8 * numbers > MOST_BYTES:
        raise SessionError(f"{batch} streams of it have {numbers:,} state numbers and waiting samples", path)
    _check_fit(settings, contents, path)
    _check_cost(contents, batch, path)
    return _engine(contents.data, threads, path), settings


def _check_fit(settings: Settings, contents: Contents, path: Path) -> None:
    """Raise SessionError unless inputs and outputs are those of the settings."""
    frames = settings.frames(settings.chunk)
    states = [(s.name, s.shape) for s in settings.states]
    after = [(name.replace("state.", "next.", 1), shape) for name, shape in states]
    expected_in = [("audio", (1, settings.chunk)), *states]
    expected_out = [("output", (settings.features, frames)), *after]
    for what, expected, values in (("input", expected_in, contents.inputs), ("output", expected_out, contents.outputs)):
        if len(values) != len(expected):
            raise SessionError(f"it has {len(values)} {what}s, its settings say {len(expected)}", path)
        for (name, shape), value in zip(expected, values, strict=True):
            if value.name != name or value.shape[1:] != shape or not isinstance(value.shape[0], str):
                is_ = f"{what} {value.name!r:.60} of shape {value.shape}"
                raise SessionError(f"its {is_} should be {name!r} of shape (batch, {shape})", path)
            if value.kind != FLOAT:
                raise SessionError(f"its {what} {name!r} should be of single precision", path)


def _check_cost(contents: Contents, batch: int, path: Path) -> None:
    """Raise SessionError unless shapes fit together, give the declared outputs and cost no more than is allowed."""

    def shape(value: Value) -> tuple[int, ...]:
        return tuple(batch if isinstance(n, str) else n for n in value.shape)

    try:
        shapes = infer_shapes({v.name: shape(v) for v in contents.inputs}, contents.constants, contents.nodes)
    except SessionError as error:
        raise SessionError(f"will not be run: {error.reason}", path) from error
    for value in contents.outputs:
        if shapes.get(value.name) != shape(value):
            made = shapes.get(value.name, "nothing")
            raise SessionError(f"its output {value.name!r:.60} should have shape {shape(value)}, got {made}", path)


def _engine(data: bytes, threads: int, path: Path) -> onnxruntime.InferenceSession:
    """Return the runtime's session for the bytes that were checked: the file may have changed since."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"], enable_fallback=False)
    except REFUSALS as error:
        raise SessionError(f"cannot be run: {_reason(error)}", path) from error


def _reason(error: Exception) -> str:
    return f"{(str(error).splitlines() or [type(error).__name__])[0]:.300}"


Count = Annotated[int, msgspec.Meta(ge=0)]


class Saved(msgspec.Struct):
    """The line of JSON before the numbers of a saved session: samples waiting and taken, and rows with a stream."""

    kind: Literal["centaurus-session-1"]
    model: str
    batch: int
    waiting: Count
    samples: list[Count]
    taken: list[Count]


def unpack(data: bytes, settings: Settings, batch: int) -> tuple[Saved, NDArray[np.float32]]:
    """Return the metadata and the numbers, checked against the session that restores them."""
    line = data[:LINE].partition(b"\n")[0]
    try:
        saved = msgspec.json.decode(line, type=Saved)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SessionError(f"these are not the bytes of a saved session, or damaged ones: {error}") from error
    if saved.model != fingerprint(settings):
        raise SessionError(f"this session was saved with a model other than {settings.name!r}")
    if saved.batch != batch:
        raise SessionError(f"the saved session has {saved.batch} rows, this one has {batch}")
    fits = len(saved.samples) == batch and saved.waiting < settings.chunk and all(row < batch for row in saved.taken)
    numbers = data[len(line) + 1 :]
    if not fits or len(numbers) != 4 * batch * (saved.waiting + settings.state_numbers):
        raise SessionError("the saved session is damaged")
    values = np.frombuffer(numbers, "<f4").astype(np.float32)
    if not np.isfinite(values).all():
        raise SessionError("the saved session holds NaN or infinity, which would stay in the states")
    return saved, values


def fingerprint(settings: Settings) -> str:
    """Return a hash of what must agree for a saved state to fit."""
    return hashlib.sha256(json.dumps(settings.json(), sort_keys=True).encode()).hexdigest()[:16]


class Streaming(Protocol):
    """The part of a session that a task needs; a lane of a server's engine has it too."""

    settings: Settings

    def process(self, x: Samples) -> Samples: ...

    def flush(self) -> Samples: ...


def open_for(task: str, model: AnyPath | Streaming, batch: int, threads: int) -> Streaming:
    """Return a session for a task, or the one that is already open; an error if the model has another task."""
    session: Streaming = Session(model, batch=batch, threads=threads) if isinstance(model, str | os.PathLike) else model
    actual = session.settings.task
    if actual != task:
        does = TASKS[actual].does if actual in TASKS else "does something else"
        raise SessionError(f"{session.settings.name!r:.60} is a {actual}, which {does}; a {task} is needed here")
    return session


class Spotter:
    """Find keywords in a stream: blocks (channels, n) in, keywords out. Channels are averaged.

    ``smoothing`` decides when a keyword is reported, by default as the model's file says; ``words`` are those of its
    classes that may be reported, by default all.
    """

    def __init__(
        self,
        model: AnyPath | Streaming = CLASSIFIER.model,
        rate: int = 16_000,
        channels: int = 1,
        smoothing: Smoothing | None = None,
        threads: int = 1,
        words: Sequence[str] | None = None,
    ) -> None:
        self.session: Streaming = open_for("classifier", model, batch=1, threads=threads)
        settings = self.session.settings
        if not settings.classes:
            raise SessionError(f"{settings.name!r:.60} has no class names: export it with them")
        self._intake = Intake(rate, channels, settings.rate, mono=True, peak=settings.peak)
        self.smoothing = smoothing or smoothing_of(settings)
        self._spotting = Spotting(settings.classes, 1 / float(settings.rate * settings.ratio), self.smoothing, words)

    @property
    def repaired(self) -> int:
        """Samples that were NaN, infinite or out of range and became zeros."""
        return self._intake.repaired

    def process(self, x: NDArray[np.float32]) -> list[Keyword]:
        """Return the keywords that can be reported now."""
        return self._spotting.push(self.session.process(self._intake.process(x)[0]))

    def flush(self) -> list[Keyword]:
        """Return the last keywords and reset the stream."""
        keywords = self._spotting.push(self.session.process(self._intake.flush()[0]))
        return keywords + self._spotting.push(self.session.flush()) + self._spotting.flush()


def smoothing_of(settings: Settings) -> Smoothing:
    """Return the smoothing that a model's file asks for."""
    usual = Smoothing()
    threshold, window = settings.threshold or usual.threshold, settings.window or usual.window
    return Smoothing(threshold, window=window, caution=settings.caution)


def spot(
    samples: ArrayLike,
    rate: int,
    model: AnyPath = CLASSIFIER.model,
    smoothing: Smoothing | None = None,
    words: Sequence[str] | None = None,
) -> list[Keyword]:
    """Return the keywords in a recording, with their times and confidence.

    Args:
        samples: (t,) or (channels, t), full scale at ±1; channels are averaged.
        rate: sample rate in Hz; any.
        model: an .onnx file or the name of a shipped model.
        smoothing: when a keyword is reported (threshold, window …); by default as the model's file says.
        words: the classes that may be reported; all by default.

    For a recording at 16 kHz:

        for keyword in ct.spot(samples, 16_000):
            print(keyword.time, keyword.word)
    """
    x = as_rows(samples)
    job = Spotter(model, rate, x.shape[0], smoothing, words=words)
    return job.process(x) + job.flush()


class Transcriber:
    """Transcribe a stream: blocks (channels, n) in, words out when they end. Channels are averaged."""

    def __init__(
        self, model: AnyPath | Streaming = RECOGNIZER.model, rate: int = 16_000, channels: int = 1, threads: int = 1
    ) -> None:
        self.session: Streaming = open_for("recognizer", model, batch=1, threads=threads)
        settings = self.session.settings
        if not settings.tokens:
            raise SessionError(f"{settings.name!r:.60} has no tokens: export it with its tokenizer")
        vocabulary = Vocabulary.of(settings.tokens)
        self._intake = Intake(rate, channels, settings.rate, mono=True, peak=settings.peak)
        seconds = 1 / float(settings.rate * settings.ratio)
        self._collapse, self._words = Greedy(vocabulary, seconds), Words(vocabulary, seconds)

    @property
    def repaired(self) -> int:
        """Samples that were NaN, infinite or out of range and became zeros."""
        return self._intake.repaired

    def process(self, x: NDArray[np.float32]) -> list[Word]:
        """Return the words that have ended."""
        return self._decode(self.session.process(self._intake.process(x)[0]))

    @property
    def partial(self) -> list[Word]:
        """The word that has begun and may still change."""
        return self._words.partial(self._collapse.open)

    def flush(self) -> list[Word]:
        """Return the last words and reset the stream."""
        words = self._decode(self.session.process(self._intake.flush()[0])) + self._decode(self.session.flush())
        return words + self._words.push(self._collapse.flush()) + self._words.flush()

    def _decode(self, logits: NDArray[np.float32]) -> list[Word]:
        return self._words.push(self._collapse.push(logits))


def transcribe(samples: ArrayLike, rate: int, model: AnyPath = RECOGNIZER.model) -> list[Word]:
    """Return the words in a recording, with the start and end of each.

    Args:
        samples: (t,) or (channels, t), full scale at ±1; channels are averaged.
        rate: sample rate in Hz; any.
        model: an .onnx file or the name of a shipped model.

    For a recording at 16 kHz:

        text = " ".join(word.text for word in ct.transcribe(samples, 16_000))
    """
    x = as_rows(samples)
    job = Transcriber(model, rate, x.shape[0])
    return job.process(x) + job.flush()
