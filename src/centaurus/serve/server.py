"""The WebSocket server: admission, back-pressure, health, metrics and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import urlsplit

from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response
from websockets.typing import Subprotocol

from centaurus import tasks
from centaurus.runtime import Session, SessionError
from centaurus.runtime.session import open_for
from centaurus.serve.engine import Engine, FullError
from centaurus.serve.metrics import Metrics
from centaurus.serve.protocol import SUBPROTOCOL, TOKEN, Message, Request, Stream, error_text, read_request

TASKS = {task.command: task.name for task in tasks.TASKS.values()}
MODELS = {task.command: task.model for task in tasks.TASKS.values()}
MESSAGE_BYTES = 1 << 20  # of one message of a client: 16 s of one channel of float32 at 16 kHz
OUTBOX = 64  # results that wait for a client before nothing more is read from it
ROWS = 64  # rows of a session where nothing else is said: the bytes of their states, not a promise of speed
GOING_AWAY, POLICY, FAILED, TRY_LATER = 1001, 1008, 1011, 1013  # close codes of WebSocket


@dataclass(frozen=True)
class Options:
    """How to serve. Times are in seconds.

    ``streams`` is the most streams at the same time; None admits as many as were measured to fit ``load`` of one core.
    ``backlog`` is how much audio of one stream may wait before its client is made to wait. A client that sends nothing
    for ``idle``, or takes nothing for ``stall``, is disconnected. After SIGTERM streams have ``drain`` to end.
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
            raise ValueError(f"{self.host} can be reached by others: a token is needed to serve there")
        if not self.models:
            raise ValueError(f"nothing to serve: choose from {', '.join(TASKS)}")
        for name in ("load", "backlog", "idle", "stall", "drain"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} should be above 0, got {getattr(self, name):g}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host name or address."""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


class Server:
    """Models behind a WebSocket port; ``start`` it, ``wait`` until a signal has ended it.

    server = Server(Options(port=0, models={"denoise": "denoise-16k"}))
    await server.start()
    port = server.port
    """

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.metrics = Metrics()
        self.engines = {task: self._engine(task, model) for task, model in self.options.models.items()}
        self.draining = False
        self._streams: dict[ServerConnection, Request] = {}
        self._empty = asyncio.Event()
        self._ended = asyncio.Event()
        self._server: WebSocketServer | None = None

    def _engine(self, task: str, model: str) -> Engine:
        session = Session(model, batch=self.options.streams or ROWS)
        open_for(TASKS[task], session, session.batch, 1)
        return Engine(task, session, self.metrics)

    @property
    def port(self) -> int:
        """The port that is served, also where the system chose it."""
        assert self._server is not None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @property
    def load(self) -> float:
        """The share of one core that the open streams take in real time, by the time of a row measured at the start."""
        return sum(self.engines[r.task].real_time_factor * r.rows for r in self._streams.values())

    def capacity(self, task: str) -> int:
        """How many streams of one channel a task admits, were there no others."""
        if self.options.streams is not None:
            return self.options.streams
        engine = self.engines[task]
        return max(1, min(engine.session.batch, int(self.options.load / engine.real_time_factor)))

    async def start(self) -> None:
        """Listen."""
        self._server = await serve(
            self._handle,
            self.options.host,
            self.options.port,
            process_request=self._answer,
            select_subprotocol=_choose_subprotocol,
            compression=None,  # audio does not compress, and every stream would pay for trying
            max_size=MESSAGE_BYTES,
            max_queue=4,  # messages: what waits further down is in the backlog or with the client
            ping_interval=self.options.stall,
            ping_timeout=self.options.stall,
            close_timeout=2.0,
        )

    async def wait(self) -> None:
        """Serve until SIGTERM or SIGINT; a second one does not wait for the streams."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        await self._ended.wait()

    def _stop(self) -> None:
        if self.draining:
            self._empty.set()
        else:
            self._draining = asyncio.get_running_loop().create_task(self.drain())

    async def drain(self) -> None:
        """Accept no more streams, let the open ones end, and close."""
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
            self._server.close(code=GOING_AWAY)
            await self._server.wait_closed()
        for engine in self.engines.values():
            await asyncio.to_thread(engine.stop)
        self._ended.set()

    def _answer(self, connection: ServerConnection, http: HttpRequest) -> Response | None:
        """Answer plain HTTP, refuse streams that cannot be had, and let the others through."""
        path = urlsplit(http.path).path
        if path == "/health":
            status = HTTPStatus.SERVICE_UNAVAILABLE if self.draining else HTTPStatus.OK
            return _respond(status, json.dumps(self._health()) + "\n", "application/json")
        if path == "/client.js":
            text = (files("centaurus") / "serve" / "client.js").read_text()
            return _respond(HTTPStatus.OK, text, "text/javascript")
        if not self._may(http.headers):
            return self._reject(HTTPStatus.UNAUTHORIZED, "token", "this server needs its token")
        if path == "/metrics":
            return _respond(HTTPStatus.OK, self.metrics.text(self._gauges()), "text/plain; version=0.0.4")
        try:
            request = read_request(http.path)
        except LookupError as error:
            return self._reject(HTTPStatus.NOT_FOUND, "path", str(error.args[0]))
        except ValueError as error:
            return self._reject(HTTPStatus.BAD_REQUEST, "request", str(error))
        return self._admit(request, http.headers.get("Origin"))

    def _admit(self, request: Request, origin: str | None) -> Response | None:
        if request.task not in self.engines:
            here = ", ".join(self.engines)
            return self._reject(HTTPStatus.NOT_FOUND, "path", f"{request.task} is not served here, only {here}")
        if self.options.token is None and origin is not None and not self._known(origin):
            return self._reject(HTTPStatus.FORBIDDEN, "origin", f"pages of {origin:.100} may not use this server")
        if self.draining:
            return self._reject(HTTPStatus.SERVICE_UNAVAILABLE, "draining", "this server is shutting down")
        if self._is_full(request):
            return self._reject(HTTPStatus.SERVICE_UNAVAILABLE, "full", "this server has as many streams as it can run")
        return None

    def _is_full(self, request: Request) -> bool:
        if self.options.streams is not None:
            return len(self._streams) >= self.options.streams
        more = self.engines[request.task].real_time_factor * request.rows
        return bool(self._streams) and self.load + more > self.options.load

    def _known(self, origin: str) -> bool:
        return origin in self.options.origins or is_loopback(urlsplit(origin).hostname or "")

    def _may(self, headers: Headers) -> bool:
        if self.options.token is None:
            return True
        given = [headers.get("Authorization", "").removeprefix("Bearer ")]
        offered = ",".join(headers.get_all("Sec-WebSocket-Protocol"))
        given += [name.strip().removeprefix(TOKEN) for name in offered.split(",")]
        return any(hmac.compare_digest(text.encode(), self.options.token.encode()) for text in given)

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

    def _gauges(self) -> dict[str, float]:
        return {"centaurus_load": self.load, "centaurus_draining": float(self.draining)}

    async def _handle(self, socket: ServerConnection) -> None:
        """One stream, from its first message to its last; whatever happens to it stays with it."""
        assert socket.request is not None
        request = read_request(socket.request.path)
        connection = Connection(socket, self.options, self.metrics)
        reason = "full"
        self._streams[socket] = request
        self.metrics.streams.add(1, task=request.task)
        try:
            reason = await connection.run(self.engines[request.task], request)
        finally:
            del self._streams[socket]
            self.metrics.streams.add(-1, task=request.task)
            self.metrics.closed.add(reason=reason, task=request.task)
            if not self._streams:
                self._empty.set()


class Connection:
    """One client: what it sends goes to an engine, what comes back goes to it, and neither runs ahead of the other."""

    def __init__(self, socket: ServerConnection, options: Options, metrics: Metrics) -> None:
        self.socket, self.options, self.metrics = socket, options, metrics
        self._outbox: deque[Message] = deque()
        self._wake, self._room = asyncio.Event(), asyncio.Event()
        self._complete = False

    async def run(self, engine: Engine, request: Request) -> str:
        """Serve the stream; why it ended, for the metrics."""
        loop = asyncio.get_running_loop()
        try:
            lane = engine.join(request.rows, lambda: loop.call_soon_threadsafe(self._wake.set))
        except FullError as error:
            await self._end(error, TRY_LATER)
            return "full"
        try:
            stream = Stream(lane, request)
            self.metrics.opened.add(task=request.task)
            await self.socket.send(stream.ready())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._send(stream))
                await self._receive(stream)
            for message in await asyncio.to_thread(stream.finish):
                await self.socket.send(message)
            return "done"
        except* ConnectionClosed:
            return_reason = "gone"
        except* TimeoutError as errors:
            return_reason = "stalled"
            await self._end(errors.exceptions[0], POLICY)
        except* SessionError as errors:
            return_reason = "failed"
            await self._end(errors.exceptions[0], FAILED)
        except* ValueError as errors:
            return_reason = "refused"
            await self._end(errors.exceptions[0], POLICY)
        finally:
            lane.close()
        return return_reason

    async def _receive(self, stream: Stream) -> None:
        """Until the client says that it has sent everything. A full backlog is waited for, and the client with it."""
        settings = stream.lane.settings
        most = max(2 * settings.chunk, round(self.options.backlog * settings.rate))
        while True:
            try:
                async with asyncio.timeout(self.options.idle):
                    message = await self.socket.recv()
            except TimeoutError as error:
                raise TimeoutError(f"nothing was sent for {self.options.idle:g} s") from error
            if isinstance(message, str):
                self._command(message)
                break
            before = stream.frames
            self._outbox.extend(stream.feed(message))
            self.metrics.audio.add((stream.frames - before) / stream.layout.rate, task=stream.task)
            if self._outbox:
                self._wake.set()
            while stream.lane.backlog > most or len(self._outbox) > OUTBOX:
                self._room.clear()
                await self._room.wait()
        self._complete = True
        self._wake.set()

    def _command(self, message: str) -> None:
        try:
            command = json.loads(message)
        except ValueError as error:
            raise ValueError(f"text messages are JSON, got {message!r:.60}") from error
        if command != {"type": "end"}:
            raise ValueError(f'the only command is {{"type": "end"}}, got {message!r:.60}')

    async def _send(self, stream: Stream) -> None:
        """Send what is ready. A client that takes nothing holds up nobody but itself, and that not for ever."""
        while not self._complete:
            await self._wake.wait()
            self._wake.clear()
            self._outbox.extend(stream.collect())
            while self._outbox:
                try:
                    async with asyncio.timeout(self.options.stall):
                        await self.socket.send(self._outbox.popleft())
                except TimeoutError as error:
                    raise TimeoutError(f"results were not taken for {self.options.stall:g} s") from error
            self._room.set()

    async def _end(self, error: BaseException, code: int) -> None:
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(1.0):
                await self.socket.send(error_text(error))
                await self.socket.close(code, str(error)[:100])


def _choose_subprotocol(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in offered else None


def _respond(status: HTTPStatus, text: str, kind: str) -> Response:
    body = text.encode()
    headers = Headers({"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status.value, status.phrase, headers, body)
