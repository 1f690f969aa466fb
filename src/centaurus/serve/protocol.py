"""The protocol: a stream is requested by a URL, audio is binary, everything else is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from centaurus.decode import Keyword, Word, join
from centaurus.runtime import Denoiser, Spotter, Transcriber
from centaurus.runtime.io import Encoding, Layout, decode, encode
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
    if not url.path.startswith(PATH) or task not in OPTIONS:
        raise LookupError(f"there is no {url.path}: streams are {', '.join(PATH + name for name in OPTIONS)}")
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


OPTIONS: dict[str, tuple[str, ...]] = {
    "denoise": ("mix", "attn_limit_db"),
    "spot": ("threshold", "release", "window", "refractory", "patience", "caution"),
    "transcribe": (),
}
"""The tasks, and the options of each."""


def _open(lane: Lane, request: Request) -> Denoiser | Spotter | Transcriber:
    """Return what runs a requested task on a lane."""
    rate, channels, options = request.layout.rate, request.layout.channels, request.options
    if request.task == "denoise":
        return Denoiser(lane, rate, channels, options.get("mix", 1.0), options.get("attn_limit_db"))
    if request.task == "spot":
        return Spotter(lane, rate, channels, replace(smoothing_of(lane.settings), **options))
    return Transcriber(lane, rate, channels)


class Stream:
    """Audio messages of a client in, messages for the client out."""

    def __init__(self, lane: Lane, request: Request) -> None:
        self.lane, self.layout, self.task = lane, request.layout, request.task
        self.job = _open(lane, request)
        self.frames = 0
        self._partial = ""
        self._rest = b""
        self._frame_bytes = self.layout.frame
        self._nothing = np.zeros((self.layout.channels, 0), np.float32)

    def ready(self) -> str:
        """Return the first message: the task, the model and the format of the audio."""
        s = self.lane.settings
        form = {"rate": self.layout.rate, "channels": self.layout.channels, "format": self.layout.encoding.value}
        return _text("ready", task=self.task, model=s.name, **form, latency_ms=round(1e3 * s.latency / s.rate, 3))

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
        messages: list[Message] = [_result_text(x) for x in results]
        if isinstance(self.job, Transcriber):
            partial = join(self.job.partial)
            if partial != self._partial:
                messages.append(_text("partial", text=partial))
            self._partial = partial
        return messages


def _result_text(x: Keyword | Word) -> str:
    """Return a keyword, or a word of a transcript, as a message."""
    sure = round(x.confidence, 4)
    if isinstance(x, Keyword):
        return _text("keyword", keyword=x.word, time=round(x.time, 4), confidence=sure)
    return _text("word", word=x.text, start=round(x.start, 4), end=round(x.end, 4), confidence=sure)


def error_text(message: object) -> str:
    """Return the message with which the server ends a stream."""
    return _text("error", message=str(message))


def _text(kind: str, **values: object) -> str:
    return json.dumps({"type": kind, **values})
