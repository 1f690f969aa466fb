"""The WebSocket server: admission, health, metrics and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.http11 import Request as HttpRequest
from websockets.http11 import Response

from centaurus import tasks
from centaurus.runtime import Session
from centaurus.runtime.session import open_for
from centaurus.serve.connection import GOODBYE, Connection
from centaurus.serve.engine import BATCHES, Engine, measure_pace
from centaurus.serve.metrics import Metrics
from centaurus.serve.protocol import MOST_CHANNELS, TOKEN, Request, read_request

TASKS = {task.command: task.name for task in tasks.TASKS.values() if task.command}
MODELS = {task.command: task.model for task in tasks.TASKS.values() if task.command}
MOST_ROWS = 1024  # channels of all streams of a model: some tens of MB of states for the models that ship


@dataclass(frozen=True)
class Options:
    """Settings of a server. Times are in seconds.

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
            raise ValueError(
                f"{self.host} can be reached by others: a token is needed to serve there (--token, CENTAURUS_TOKEN)"
            )
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
        self._streams: dict[Connection, Request] = {}
        self._empty = asyncio.Event()
        self._ended = asyncio.Event()
        self._server: asyncio.Server | None = None

    def _engine(self, task: str, model: str) -> Engine:
        """An engine with a row for every channel that may come, once a few rows have shown how fast the model is."""
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
        """The port that is served, also where the system chose it."""
        assert self._server is not None
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @property
    def load(self) -> float:
        """The share of one core that the open streams take in real time, by the time of a row measured at the start."""
        return sum(self.engines[r.task].real_time_factor * r.rows for r in self._streams.values())

    def capacity(self, task: str) -> int:
        """Return how many streams of one channel a task admits if there are no others."""
        if self.options.streams is not None:
            return self.options.streams
        engine = self.engines[task]
        return max(1, min(MOST_ROWS, int(self.options.load / engine.real_time_factor)))

    async def start(self) -> None:
        """Listen."""

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
            self._server.close()
            for connection in list(self._streams):
                connection.go_away()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE + 1.0):
                    await self._server.wait_closed()
        self._ended.set()

    def _answer(self, connection: Connection, http: HttpRequest) -> Response | tuple[Engine, Request]:
        """Answer plain HTTP, refuse streams that cannot be had, and let the others through."""
        path = urlsplit(http.path).path
        if path == "/health":
            status = HTTPStatus.SERVICE_UNAVAILABLE if self.draining else HTTPStatus.OK
            return _respond(status, json.dumps(self._health()) + "\n", "application/json")
        if path == "/client.js":
            text = (files("centaurus") / "serve" / "client.js").read_text(encoding="utf-8")
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
        refusal = self._refuse(request, http.headers.get("Origin"))
        if refusal is not None:
            return refusal
        if http.headers.get("Upgrade", "").lower() == "websocket":
            self._opened(connection, request)
        return self.engines[request.task], request

    def _refuse(self, request: Request, origin: str | None) -> Response | None:
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
        tokens += [name.strip().removeprefix(TOKEN) for name in offered.split(",")]
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

    def _gauges(self) -> dict[str, float]:
        return {"centaurus_load": self.load, "centaurus_draining": float(self.draining)}

    def _opened(self, connection: Connection, request: Request) -> None:
        self._streams[connection] = request
        self.metrics.streams.add(1, task=request.task)

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
