"""One client's connection: WebSocket frames in and out, back-pressure, and clients that stall or vanish.

An ``asyncio.Protocol`` on the protocol engine of ``websockets``: a message costs no task, future or timer of its own,
which is what a stream of a hundred blocks a second is made of.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from websockets.frames import Frame, Opcode
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from centaurus.runtime import SessionError
from centaurus.serve.engine import Engine, FullError, Lane
from centaurus.serve.metrics import Metrics
from centaurus.serve.protocol import SUBPROTOCOL, Message, Request, Stream, error_text

MESSAGE_BYTES = 1 << 20  # of one message of a client: 16 s of one channel of float32 at 16 kHz
OUTPUT_BYTES = 1 << 16  # of results that wait for a client, here and in the kernel, before nothing is read from it
GOODBYE = 2.0  # seconds that a client has to answer the end of a stream
DONE, GOING_AWAY, POLICY, FAILED, TRY_LATER = 1000, 1001, 1008, 1011, 1013  # close codes of WebSocket


class Limits(Protocol):
    """The times that a connection keeps to, in seconds."""

    @property
    def backlog(self) -> float: ...

    @property
    def idle(self) -> float: ...

    @property
    def stall(self) -> float: ...


class Connection(asyncio.Protocol):
    """A client's stream: its audio goes to an engine and results go back, with back-pressure on both sides.

    ``answer`` settles a request: an HTTP response, or an engine and what was asked of it. ``closed`` is told when a
    stream has ended, and why.
    """

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        answer: Callable[[Connection, HttpRequest], Response | tuple[Engine, Request]],
        closed: Callable[[Connection, str], None],
    ) -> None:
        self.limits, self.metrics = limits, metrics
        self._answer, self._closed = answer, closed
        self._socket = ServerProtocol(select_subprotocol=_choose_subprotocol, max_size=MESSAGE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._lane: Lane | None = None
        self._most = 0  # samples of the backlog
        self._text = b""  # of a command that is not complete
        self._complete = self._ended = self._pinged = False
        self._full_since: float | None = None  # when the client stopped taking results
        self._waits = False  # whether nothing is read from the client for now
        self._last_audio = self._last_data = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch the clock."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=OUTPUT_BYTES)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, OUTPUT_BYTES)
        self._watching = self._loop.call_later(self._interval, self._watch)

    def connection_lost(self, error: Exception | None) -> None:
        """Free the stream's resources."""
        self._watching.cancel()
        self._finish("gone")

    def pause_writing(self) -> None:
        """Stop reading from a client that takes results too slowly."""
        self._full_since = self._loop.time()
        self._balance()

    def resume_writing(self) -> None:
        """Read again from a client that has taken its results."""
        self._full_since = None
        self._balance()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        self._last_data, self._pinged = self._loop.time(), False
        self._socket.receive_data(data)
        for event in self._socket.events_received():
            if isinstance(event, HttpRequest):
                self._request(event)
            elif isinstance(event, Frame) and not self._complete:
                self._frame(event)
        if self._socket.state is State.CLOSING and not self._ended:
            self._finish("gone")  # the client left in the middle of its stream
        self._write()

    def eof_received(self) -> None:
        """Let the protocol know; asyncio then closes the connection."""
        self._socket.receive_eof()
        self._write()

    def go_away(self) -> None:
        """End the stream because the server does."""
        self._close(GOING_AWAY, "the server is shutting down")
        self._finish("gone")

    def _request(self, http: HttpRequest) -> None:
        answer = self._answer(self, http)
        if isinstance(answer, Response):
            self._socket.send_response(answer)
            return
        response = self._socket.accept(http)
        self._socket.send_response(response)
        if self._socket.state is not State.OPEN:
            return
        engine, request = answer
        self._last_audio = self._loop.time()
        try:
            self._lane = engine.join(request.rows, self._collect)
            self._stream = Stream(self._lane, request)
        except (FullError, ValueError) as error:
            self._fail(error, *((TRY_LATER, "full") if isinstance(error, FullError) else (POLICY, "refused")))
            return
        settings = self._lane.settings
        self._most = max(2 * settings.chunk, round(self.limits.backlog * settings.rate))
        self.metrics.opened.add(task=request.task)
        self._send(self._stream.ready())

    def _frame(self, frame: Frame) -> None:
        """Handle a frame: audio, in messages or parts of them, or the command that ends it."""
        stream = self._stream
        if stream is None or self._ended or frame.opcode in (Opcode.PING, Opcode.PONG, Opcode.CLOSE):
            return
        self._last_audio = self._last_data
        try:
            if frame.opcode is Opcode.TEXT or self._text:
                self._text += bytes(frame.data)
                if frame.fin:
                    _check_command(self._text)
                    self._complete = True
                    self._collect()
                return
            before = stream.frames
            messages = stream.feed(bytes(frame.data))
            self.metrics.audio.add((stream.frames - before) / stream.layout.rate, task=stream.task)
        except SessionError as error:
            self._fail(error, FAILED, "failed")
            return
        except ValueError as error:
            self._fail(error, POLICY, "refused")
            return
        for message in messages:
            self._send(message)
        self._balance()

    def _collect(self) -> None:
        """Send what the engine has finished; after the last block, the end of the stream."""
        stream, lane = self._stream, self._lane
        if stream is None or lane is None or self._ended:
            return
        try:
            last = self._complete and not lane.chunks
            messages = stream.finish() if last else stream.collect()
        except SessionError as error:
            self._fail(error, FAILED, "failed")
            return
        for message in messages:
            self._send(message)
        if last:
            self._close(DONE, "")
            self._finish("done")
        else:
            self._balance()
        self._write()

    def _balance(self) -> None:
        """Read from the client, or do not, by what is waiting on either side."""
        waits = self._full_since is not None or (self._lane is not None and self._lane.backlog > self._most)
        if waits != self._waits and not self._transport.is_closing():
            self._waits = waits
            self._last_audio = self._last_data = self._loop.time()
            (self._transport.pause_reading if waits else self._transport.resume_reading)()

    @property
    def _interval(self) -> float:
        return min(self.limits.idle, self.limits.stall) / 4

    def _watch(self) -> None:
        """Disconnect a client that sends nothing, takes nothing or is gone."""
        now = self._loop.time()
        self._watching = self._loop.call_later(self._interval, self._watch)
        if self._full_since is not None and now - self._full_since > self.limits.stall:
            self._fail(TimeoutError(f"results were not taken for {self.limits.stall:g} s"), POLICY, "stalled")
            self._transport.abort()  # what waits for it would never be sent
        elif self._waits or self._complete:
            return
        elif self._stream is not None and now - self._last_audio > self.limits.idle:
            self._fail(TimeoutError(f"nothing was sent for {self.limits.idle:g} s"), POLICY, "stalled")
        elif now - self._last_data > 2 * self.limits.stall or (
            self._stream is None and now - self._last_data > self.limits.stall
        ):
            self._transport.abort()
        elif now - self._last_data > self.limits.stall and self._stream is not None and not self._pinged:
            self._pinged = True
            self._socket.send_ping(b"")
            self._write()

    def _send(self, message: Message) -> None:
        if isinstance(message, str):
            self._socket.send_text(message.encode())
        else:
            self._socket.send_binary(message)

    def _fail(self, error: Exception, code: int, reason: str) -> None:
        if self._socket.state is State.OPEN:
            self._send(error_text(error))
        self._close(code, str(error)[:100])
        self._finish(reason)

    def _close(self, code: int, reason: str) -> None:
        if self._socket.state is State.OPEN:
            self._socket.send_close(code, reason)
        self._write()
        self._loop.call_later(GOODBYE, self._transport.abort)

    def _finish(self, reason: str) -> None:
        """Free the stream's resources, once."""
        if not self._ended:
            self._ended = True
            if self._lane is not None:
                self._lane.close()
            self._closed(self, reason)

    def _write(self) -> None:
        for data in self._socket.data_to_send():
            if data:
                self._transport.write(data)
            else:  # half-close: nothing more will be sent
                self._transport.close()


def _check_command(text: bytes) -> None:
    shown = repr(text.decode(errors="replace"))[:60]
    try:
        command = json.loads(text)
    except ValueError as error:
        raise ValueError(f"text messages are JSON, got {shown}") from error
    if command != {"type": "end"}:
        raise ValueError(f'the only command is {{"type": "end"}}, got {shown}')


def _choose_subprotocol(connection: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in offered else None
