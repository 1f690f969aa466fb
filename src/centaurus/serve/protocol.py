"""The protocol of ``centaurus serve``, and a client: a stream is a URL, audio is binary, everything else is JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

import numpy as np
from numpy.typing import ArrayLike, NDArray
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from centaurus.decode import Keyword, Word, join
from centaurus.runtime import Denoiser, Spotter, Transcriber
from centaurus.runtime.io import Encoding, Layout, as_rows, decode, encode
from centaurus.runtime.session import smoothing_of
from centaurus.serve.engine import Lane

PATH = "/v1/"
SUBPROTOCOL = "centaurus.v1"
TOKEN = "bearer."  # prefix of a subprotocol that carries the token: browsers cannot set other headers
MOST_CHANNELS = 8
Message = bytes | str


@dataclass(frozen=True)
class Request:
    """A requested stream: the task, the layout of its audio, and the options of the task."""

    task: str
    layout: Layout
    options: Mapping[str, float]

    @property
    def rows(self) -> int:
        """Rows of the network: one for each channel that is denoised, otherwise one for their mean."""
        return self.layout.channels if self.task == "denoise" else 1


def read_request(path: str) -> Request:
    """Return the request of a URL such as ``/v1/denoise?rate=48000&channels=2``; ValueError says what is wrong."""
    url = urlsplit(path)
    task = url.path.removeprefix(PATH)
    if not url.path.startswith(PATH) or task not in JOBS:
        raise LookupError(f"there is no {url.path}: streams are {', '.join(PATH + name for name in JOBS)}")
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    rate, channels = int(_number(query, "rate", 16_000)), int(_number(query, "channels", 1))
    if channels > MOST_CHANNELS:
        raise ValueError(f"a stream has at most {MOST_CHANNELS} channels, got {channels}")
    name = query.pop("format", Encoding.F32.value)
    encodings = {encoding.value: encoding for encoding in Encoding}
    if name not in encodings:
        raise ValueError(f"format should be one of {', '.join(encodings)}, got {name!r:.40}")
    known = OPTIONS[task]
    unknown = sorted(set(query) - set(known))
    if unknown:
        raise ValueError(
            f"{task} has no option {unknown[0]!r:.40}; there are rate, channels, format, {', '.join(known)}"
        )
    options = {key: _number(query, key) for key in list(query)}
    return Request(task, Layout(rate, channels, encodings[name]), options)


def _number(query: dict[str, str], key: str, default: float | None = None) -> float:
    text = query.pop(key, None)
    if text is None and default is not None:
        return default
    try:
        return float(text or "")
    except ValueError as error:
        raise ValueError(f"{key} should be a number, got {text!r:.40}") from error


def _denoiser(lane: Lane, request: Request) -> Denoiser:
    mix, limit = request.options.get("mix", 1.0), request.options.get("attn_limit_db")
    return Denoiser(lane, request.layout.rate, request.layout.channels, mix, limit)


def _spotter(lane: Lane, request: Request) -> Spotter:
    smoothing = replace(smoothing_of(lane.settings), **request.options)
    return Spotter(lane, request.layout.rate, request.layout.channels, smoothing)


def _transcriber(lane: Lane, request: Request) -> Transcriber:
    return Transcriber(lane, request.layout.rate, request.layout.channels)


Job = Denoiser | Spotter | Transcriber
JOBS: dict[str, Callable[[Lane, Request], Job]] = {
    "denoise": _denoiser,
    "spot": _spotter,
    "transcribe": _transcriber,
}
OPTIONS: dict[str, tuple[str, ...]] = {
    "denoise": ("mix", "attn_limit_db"),
    "spot": ("threshold", "release", "window", "refractory", "patience"),
    "transcribe": (),
}


class Stream:
    """Audio messages of a client in, messages for the client out."""

    def __init__(self, lane: Lane, request: Request) -> None:
        self.lane, self.layout, self.task = lane, request.layout, request.task
        self.job = JOBS[request.task](lane, request)
        self.frames = 0
        self._partial = ""
        self._rest = b""
        self._frame_bytes = self.layout.frame
        self._nothing = np.zeros((self.layout.channels, 0), np.float32)

    def ready(self) -> str:
        """Return the first message: the task, the model and the format of the audio."""
        s = self.lane.settings
        return _text(
            "ready",
            task=self.task,
            model=s.name,
            rate=self.layout.rate,
            channels=self.layout.channels,
            format=self.layout.encoding.value,
            latency_ms=round(1e3 * s.latency / s.rate, 3),
        )

    def feed(self, data: bytes) -> list[Message]:
        """Take interleaved samples and return the results that are ready."""
        data = self._rest + data if self._rest else data
        whole = len(data) // self._frame_bytes * self._frame_bytes
        self._rest = data[whole:]
        x = decode(data[:whole], self.layout)
        self.frames += x.shape[1]
        return self._messages(self.job.process(x))

    def collect(self) -> list[Message]:
        """Return the results that have become ready since the last call."""
        return self._messages(self.job.process(self._nothing))

    def finish(self) -> list[Message]:
        """Return the remaining results and the last message. Waits for the engine."""
        last = self._messages(self.job.flush())
        seconds = self.frames / self.layout.rate
        return [*last, _text("end", frames=self.frames, seconds=round(seconds, 6), repaired=self.job.repaired)]

    def _messages(self, results: Any) -> list[Message]:
        if isinstance(self.job, Denoiser):
            return [encode(results, self.layout.encoding)] if results.size else []
        messages: list[Message] = [keyword_text(x) if isinstance(x, Keyword) else word_text(x) for x in results]
        if isinstance(self.job, Transcriber):
            partial = join(self.job.partial)
            if partial != self._partial:
                messages.append(_text("partial", text=partial))
            self._partial = partial
        return messages


def keyword_text(x: Keyword) -> str:
    """Return a keyword as a message."""
    return _text("keyword", keyword=x.word, time=round(x.time, 4), confidence=round(x.confidence, 4))


def word_text(x: Word) -> str:
    """Return a word of a transcript as a message."""
    times = {"start": round(x.start, 4), "end": round(x.end, 4)}
    return _text("word", word=x.text, **times, confidence=round(x.confidence, 4))


def error_text(message: object) -> str:
    """Return the message with which the server ends a stream."""
    return _text("error", message=str(message))


def _text(kind: str, **values: object) -> str:
    return json.dumps({"type": kind, **values})


Result = NDArray[np.float32] | Keyword | Word


class ServerError(ConnectionError):
    """The server refused a stream or ended it; the message is its own."""


class Client:
    """One live stream to a server.

    ``task`` is denoise, spot or transcribe; ``rate`` and ``channels`` are those of the audio; ``options`` are the
    task's, such as ``mix`` or ``threshold``. Denoised audio comes back as (channels, t). Iterating ends when the
    server has answered everything that was sent before ``end``. One thread may send while another one iterates.

        with Client("ws://127.0.0.1:8765", "denoise", rate=16_000) as live:
            live.send(samples)
            live.end()
            clean = np.concatenate(list(live), axis=1)
    """

    def __init__(
        self,
        url: str,
        task: str = "denoise",
        rate: int = 16_000,
        channels: int = 1,
        token: str | None = None,
        encoding: str = "f32le",
        **options: float,
    ) -> None:
        self._layout = Layout(rate, channels, Encoding(encoding))
        query = urlencode({"rate": rate, "channels": channels, "format": encoding, **options})
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._open = ExitStack()
        try:
            opening = connect(
                f"{url.rstrip('/')}{PATH}{task}?{query}",
                additional_headers=headers,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                compression=None,
                max_size=None,
            )
            self._socket = self._open.enter_context(opening)
        except InvalidStatus as error:
            text = error.response.body.decode(errors="replace").strip()
            raise ServerError(f"{url}: {error.response.status_code}: {text}") from error
        self.ready: dict[str, Any] = json.loads(self._receive())
        self.summary: dict[str, Any] = {}
        self.partial = ""

    def send(self, samples: ArrayLike) -> None:
        """Send (t,) or (channels, t); waits while the server has enough to do."""
        try:
            self._socket.send(encode(as_rows(samples), self._layout.encoding))
        except ConnectionClosed as error:
            raise _ended(error) from error

    def end(self) -> None:
        """Tell the server that everything was sent."""
        self._socket.send(json.dumps({"type": "end"}))

    def __iter__(self) -> Iterator[Result]:
        while not self.summary:
            message = self._receive()
            if isinstance(message, bytes):
                yield decode(message, self._layout)
                continue
            data = json.loads(message)
            kind = data.pop("type")
            if kind == "end":
                self.summary = data
            elif kind == "partial":
                self.partial = data["text"]
            elif kind == "keyword":
                yield Keyword(data["keyword"], data["time"], data["confidence"])
            elif kind == "word":
                yield Word(data["word"], data["start"], data["end"], data["confidence"])
            else:
                raise ServerError(data.get("message", message))

    def close(self) -> None:
        """Disconnect without waiting for answers."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self) -> str | bytes:
        try:
            return self._socket.recv()
        except ConnectionClosed as error:
            raise _ended(error) from error


def stream(url: str, task: str, blocks: Iterable[ArrayLike], rate: int, **options: Any) -> Iterator[Result]:
    """Send blocks from a thread and yield the results as they come."""
    with Client(url, task, rate, **options) as live:

        def send() -> None:
            with suppress(ServerError, ConnectionClosed):  # the iterating thread gets the error
                for block in blocks:
                    live.send(block)
                live.end()

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        yield from live
        sender.join()


def _ended(error: ConnectionClosed) -> ServerError:
    reason = error.rcvd.reason if error.rcvd is not None else ""
    return ServerError(f"the server ended the stream: {reason or error}")
