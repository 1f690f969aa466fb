"""A client for ``centaurus serve``: audio in, clean audio, keywords or words out."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any, Self
from urllib.parse import urlencode

import numpy as np
from numpy.typing import ArrayLike, NDArray
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from centaurus.decode import Keyword, Word
from centaurus.runtime.io import Encoding, Layout, as_rows, decode, encode
from centaurus.serve.protocol import PATH, SUBPROTOCOL

Result = NDArray[np.float32] | Keyword | Word


class ServerError(ConnectionError):
    """The server refused a stream or ended it; the message is the server's."""


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
        """Send (t,) or (channels, t); blocks while the server's queue is full."""
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
        """Disconnect without waiting for results."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
