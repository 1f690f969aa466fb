"""The WebSocket server: admission, health, metrics, graceful shutdown, and a connection for each client.

A connection handles frames in and out, back-pressure, and clients that stall or disconnect. It is an
``asyncio.Protocol`` on the sans-I/O layer of ``websockets``: no task, future or timer per message, of which a stream
has a hundred a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from centaurus import tasks
from centaurus.runtime import Session, SessionError
from centaurus.runtime.session import open_for
from centaurus.serve import protocol
from centaurus.serve.engine import BATCHES, Engine, FullError, Lane, Metrics, measure_pace
from centaurus.serve.protocol import MOST_CHANNELS, SUBPROTOCOL, Message, Request, Stream, read_request

MESSAGE_BYTES = 1 << 20  # of one client message: 16 s of one channel of float32 at 16 kHz
OUTPUT_BYTES = 1 << 16  # of unsent results, here and in the kernel, above which reading from the client pauses
GOODBYE = 2.0  # seconds that a client has to answer a close frame
DONE, GOING_AWAY, POLICY, FAILED, TRY_LATER = 1000, 1001, 1008, 1011, 1013  # close codes of WebSocket
TASKS = {task.command: task.name for task in tasks.TASKS.values() if task.command}
MODELS = {task.command: task.model for task in tasks.TASKS.values() if task.command}
MOST_ROWS = 1024  # channels of all streams of a model: tens of MB of states for the models that ship


class Connection(asyncio.Protocol):
    """A client's stream: its audio goes to an engine and results go back, with back-pressure on both sides.

    ``answer`` maps an HTTP request to a response, or to an engine and a stream's request. ``closed`` is called when a
    stream has ended, with the reason.
    """

    def __init__(
        self,
        options: Options,
        metrics: Metrics,
        answer: Callable[[Connection, HttpRequest], Response | tuple[Engine, Request]],
        closed: Callable[[Connection, str], None],
    ) -> None:
        self.options, self.metrics = options, metrics
        self._answer, self._closed = answer, closed
        self._socket = ServerProtocol(select_subprotocol=_choose_subprotocol, max_size=MESSAGE_BYTES)
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._lane: Lane | None = None
        self._most = 0  # samples of the backlog
        self._text = b""  # of an incomplete command
        self._complete = self._ended = self._pinged = False
        self._full_since: float | None = None  # when the client stopped reading results
        self._waits = False  # whether reading from the client is paused
        self._last_audio = self._last_data = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=OUTPUT_BYTES)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, OUTPUT_BYTES)
        self._watching = self._loop.call_later(self._interval, self._watch)

    def connection_lost(self, error: Exception | None) -> None:
        self._watching.cancel()
        self._finish("gone")

    def pause_writing(self) -> None:
        """Pause reading from a client that reads its results too slowly."""
        self._full_since = self._loop.time()
        self._balance()

    def resume_writing(self) -> None:
        """Resume reading from a client that has read its results."""
        self._full_since = None
        self._balance()

    def data_received(self, data: bytes) -> None:
        self._last_data, self._pinged = self._loop.time(), False
        self._socket.receive_data(data)
        for event in self._socket.events_received():
            if isinstance(event, HttpRequest):
                self._request(event)
            elif isinstance(event, Frame) and not self._complete:
                self._frame(event)
        if self._socket.state is State.CLOSING and not self._ended:
            self._finish("gone")  # the client disconnected during its stream
        self._write()

    def eof_received(self) -> None:
        """Notify the protocol; asyncio then closes the connection."""
        self._socket.receive_eof()
        self._write()

    def go_away(self) -> None:
        """End the stream because the server shuts down."""
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
        self._most = max(2 * settings.chunk, round(self.options.backlog * settings.rate))
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
        """Pause or resume reading from the client, by the queues on either side."""
        waits = self._full_since is not None or (self._lane is not None and self._lane.backlog > self._most)
        if waits != self._waits and not self._transport.is_closing():
            self._waits = waits
            self._last_audio = self._last_data = self._loop.time()
            (self._transport.pause_reading if waits else self._transport.resume_reading)()

    @property
    def _interval(self) -> float:
        return min(self.options.idle, self.options.stall) / 4

    def _watch(self) -> None:
        """Disconnect a client that is idle, does not read its results or is gone."""
        now = self._loop.time()
        self._watching = self._loop.call_later(self._interval, self._watch)
        if self._full_since is not None and now - self._full_since > self.options.stall:
            self._fail(TimeoutError(f"results were not read for {self.options.stall:g} s"), POLICY, "stalled")
            self._transport.abort()  # its queued results would never be sent
        elif self._waits or self._complete:
            return
        elif self._stream is not None and now - self._last_audio > self.options.idle:
            self._fail(TimeoutError(f"nothing was sent for {self.options.idle:g} s"), POLICY, "stalled")
        elif now - self._last_data > 2 * self.options.stall or (
            self._stream is None and now - self._last_data > self.options.stall
        ):
            self._transport.abort()
        elif now - self._last_data > self.options.stall and self._stream is not None and not self._pinged:
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
            self._send(protocol.error_text(error))
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


@dataclass(frozen=True)
class Options:
    """Settings of a server. Times are in seconds.

    ``streams`` is the most streams at the same time; None admits as many as were measured to fit ``load`` of one core.
    ``backlog`` is how much audio of one stream may be queued before reading from its client pauses. A client that sends
    nothing for ``idle``, or reads nothing for ``stall``, is disconnected. After SIGTERM streams have ``drain`` to end.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token: str | None = None
    streams: int | None = None
    load: float = 0.9
    backlog: float = 1.0
    idle: float = 60.0
    stall: float = 10.0
    drain: float = 30.0
    origins: Sequence[str] = ()
    models: Mapping[str, str] = field(default_factory=lambda: MODELS)

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            raise ValueError(
                f"{self.host} is not a loopback address: a token is needed to serve there (--token, CENTAURUS_TOKEN)"
            )
        if not self.models:
            raise ValueError(f"nothing to serve: choose from {', '.join(TASKS)}")
        for name in ("load", "backlog", "idle", "stall", "drain"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} should be above 0, got {getattr(self, name):g}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host name or address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


class Server:
    """Serves models on a WebSocket port; ``start`` it, ``wait`` until a signal has ended it.

    server = Server(Options(port=0, models={"denoise": "denoise-16k"}))
    await server.start()
    port = server.port
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.metrics = Metrics()
        self.engines = {task: self._engine(task, model) for task, model in self.options.models.items()}
        self.draining = False
        self._streams: dict[Connection, Request] = {}
        self._empty = asyncio.Event()
        self._ended = asyncio.Event()
        self._server: asyncio.Server | None = None

    def _engine(self, task: str, model: str) -> Engine:
        """Return an engine with a row for every channel that may be admitted, by the measured speed of the model."""
        trial = Session(model, batch=BATCHES[-1])
        open_for(TASKS[task], trial, trial.batch, 1)
        pace = measure_pace(trial)
        streams = self.options.streams
        channels = MOST_CHANNELS if task == "denoise" else 1
        if streams is None:
            rows = max(channels, min(MOST_ROWS, int(self.options.load / pace.real_time_factor)))
        else:
            rows = max(streams, min(MOST_ROWS, streams * channels))
        return Engine(task, Session(model, batch=rows), self.metrics, pace)

    @property
    def port(self) -> int:
        """The port in use, also where the system chose it."""
        assert self._server is not None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @property
    def load(self) -> float:
        """The share of one core that the open streams take in real time, by the speed measured at the start."""
        return sum(self.engines[r.task].real_time_factor * r.rows for r in self._streams.values())

    def capacity(self, task: str) -> int:
        """Return how many streams of one channel a task admits if there are no others."""
        if self.options.streams is not None:
            return self.options.streams
        engine = self.engines[task]
        return max(1, min(MOST_ROWS, int(self.options.load / engine.real_time_factor)))

    async def start(self) -> None:

        def connection() -> Connection:
            return Connection(self.options, self.metrics, self._answer, self._closed)

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(connection, self.options.host, self.options.port, backlog=1024)

    async def wait(self) -> None:
        """Serve until SIGTERM or SIGINT; a second one does not wait for the streams."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError):  # on Windows an interrupt ends the loop instead
                loop.add_signal_handler(number, self._stop)
        await self._ended.wait()

    def _stop(self) -> None:
        if self.draining:
            self._empty.set()
        else:
            self._draining = asyncio.get_running_loop().create_task(self.drain())

    async def drain(self) -> None:
        """Stop accepting streams, let the open ones finish, and close."""
        self.draining = True
        if self._streams:
            self._empty.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.options.drain):
                    await self._empty.wait()
        await self.close()

    async def close(self) -> None:
        """Close every stream, the port and the engines."""
        if self._server is not None:
            self._server.close()
            for connection in list(self._streams):
                connection.go_away()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE + 1.0):
                    await self._server.wait_closed()
        self._ended.set()

    def _answer(self, connection: Connection, http: HttpRequest) -> Response | tuple[Engine, Request]:
        """Answer plain HTTP, refuse streams that cannot be served, and accept the others."""
        path = urlsplit(http.path).path
        if path == "/health":
            status = HTTPStatus.SERVICE_UNAVAILABLE if self.draining else HTTPStatus.OK
            return _respond(status, json.dumps(self._health()) + "\n", "application/json")
        if path == "/client.js":
            text = (files("centaurus") / "serve" / "client.js").read_text(encoding="utf-8")
            return _respond(HTTPStatus.OK, text, "text/javascript")
        if not self._may(http.headers):
            return self._reject(HTTPStatus.UNAUTHORIZED, "token", "a token is required")
        if path == "/metrics":
            gauges = {"centaurus_load": self.load, "centaurus_draining": float(self.draining)}
            return _respond(HTTPStatus.OK, self.metrics.text(gauges), "text/plain; version=0.0.4")
        try:
            request = read_request(http.path)
        except LookupError as error:
            return self._reject(HTTPStatus.NOT_FOUND, "path", str(error.args[0]))
        except ValueError as error:
            return self._reject(HTTPStatus.BAD_REQUEST, "request", str(error))
        refusal = self._refuse(request, http.headers.get("Origin"))
        if refusal is not None:
            return refusal
        if http.headers.get("Upgrade", "").lower() == "websocket":
            self._streams[connection] = request
            self.metrics.streams.add(1, task=request.task)
        return self.engines[request.task], request

    def _refuse(self, request: Request, origin: str | None) -> Response | None:
        if request.task not in self.engines:
            here = ", ".join(self.engines)
            return self._reject(HTTPStatus.NOT_FOUND, "path", f"{request.task} is not served here, only {here}")
        if self.options.token is None and origin is not None and not self._known(origin):
            return self._reject(HTTPStatus.FORBIDDEN, "origin", f"the origin {origin:.100} is not allowed")
        if self.draining:
            return self._reject(HTTPStatus.SERVICE_UNAVAILABLE, "draining", "this server is shutting down")
        if self._is_full(request):
            return self._reject(HTTPStatus.SERVICE_UNAVAILABLE, "full", "this server is at capacity")
        return None

    def _is_full(self, request: Request) -> bool:
        if self.engines[request.task].free_rows < request.rows:
            return True
        if self.options.streams is not None:
            return len(self._streams) >= self.options.streams
        more = self.engines[request.task].real_time_factor * request.rows
        return bool(self._streams) and self.load + more > self.options.load

    def _known(self, origin: str) -> bool:
        return origin in self.options.origins or is_loopback(urlsplit(origin).hostname or "")

    def _may(self, headers: Headers) -> bool:
        if self.options.token is None:
            return True
        tokens = [headers.get("Authorization", "").removeprefix("Bearer ")]
        offered = ",".join(headers.get_all("Sec-WebSocket-Protocol"))
        tokens += [name.strip().removeprefix(protocol.TOKEN) for name in offered.split(",")]
        return any(hmac.compare_digest(text.encode(), self.options.token.encode()) for text in tokens)

    def _reject(self, status: HTTPStatus, reason: str, text: str) -> Response:
        self.metrics.rejected.add(reason=reason)
        return _respond(status, text + "\n", "text/plain")

    def _health(self) -> dict[str, object]:
        return {
            "status": "draining" if self.draining else "ok",
            "streams": len(self._streams),
            "load": round(self.load, 4),
            "capacity": {task: self.capacity(task) for task in self.engines},
            "models": {task: engine.session.settings.name for task, engine in self.engines.items()},
        }

    def _closed(self, connection: Connection, reason: str) -> None:
        request = self._streams.pop(connection, None)
        if request is None:
            return
        self.metrics.streams.add(-1, task=request.task)
        self.metrics.closed.add(reason=reason, task=request.task)
        if not self._streams:
            self._empty.set()


def _respond(status: HTTPStatus, text: str, kind: str) -> Response:
    body = text.encode()
    headers = Headers({"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status.value, status.phrase, headers, body)
