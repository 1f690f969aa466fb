"""A small HTTP server for the studio, on the loopback interface: its own files, and answers about plans."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from centaurus.studio.plans import answer_plan, answer_row
from centaurus.studio.site import POLICY, Page, site

HOST = "127.0.0.1"
PORT = 8008
LONGEST_TARGET = 2_000  # characters of a request's path and query
TIMEOUT = 30  # seconds without a byte until a connection is closed
COMPRESSED = ("text/", "application/json", "application/wasm")
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
ANSWERS: dict[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {"api/plan": answer_plan, "api/row": answer_row}
log = logging.getLogger(__name__)


class Server(ThreadingHTTPServer):
    """Serves the site on 127.0.0.1. ``port`` 0 takes a free one; ``url`` is where it answers."""

    daemon_threads = True

    def __init__(self, port: int = PORT) -> None:
        self.pages: dict[str, Page] = site(live=True)
        self.planning = Lock()  # one search at a time: they are pure Python
        super().__init__((HOST, port), Handler)

    @property
    def url(self) -> str:
        """The address of the first page."""
        return f"http://{HOST}:{self.server_port}/"

    @lru_cache(maxsize=128)  # noqa: B019 - one server a process
    def body(self, path: str) -> tuple[bytes, bytes]:
        """A file's bytes, plain and compressed."""
        data = self.pages[path].read()
        return data, gzip.compress(data, 6, mtime=0)


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD. A path is looked up in a table and never opened as a file."""

    server: Server
    server_version = "centaurus"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def do_GET(self) -> None:
        """Send a file of the site, or an answer about plans."""
        allowed = {f"{host}:{self.server.server_port}" for host in (HOST, "localhost")}
        target = urlsplit(self.path)
        path = target.path.lstrip("/") or "index.html"
        if self.headers.get("Host") not in allowed:  # another site's name that resolves to this machine
            self._error(HTTPStatus.FORBIDDEN, f"this server answers only to {' and '.join(sorted(allowed))}")
        elif len(self.path) > LONGEST_TARGET:
            self._error(HTTPStatus.REQUEST_URI_TOO_LONG, f"a request has at most {LONGEST_TARGET} characters")
        elif path in ANSWERS:
            self._answer(path, target.query)
        elif path in self.server.pages:
            self._send(HTTPStatus.OK, self.server.pages[path].kind, *self.server.body(path))
        else:
            self._error(HTTPStatus.NOT_FOUND, "there is no such page")

    do_HEAD = do_GET  # noqa: N815 - the base class finds methods by these names

    def _answer(self, path: str, query: str) -> None:
        try:
            asked = dict(parse_qsl(query, max_num_fields=32))
            with self.server.planning:
                data = ANSWERS[path](asked)
        except ValueError as error:
            self._error(HTTPStatus.BAD_REQUEST, str(error))
            return
        self._json(HTTPStatus.OK, data)

    def _error(self, status: HTTPStatus, message: str) -> None:
        self._json(status, {"error": message})

    def _json(self, status: HTTPStatus, data: Any) -> None:
        body = json.dumps(data, separators=(",", ":")).encode()
        self._send(status, "application/json", body, gzip.compress(body, 1))

    def _send(self, status: HTTPStatus, kind: str, plain: bytes, compressed: bytes) -> None:
        small = "gzip" in self.headers.get("Accept-Encoding", "") and kind.startswith(COMPRESSED)
        body = compressed if small else plain
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if small:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Vary", "Accept-Encoding")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log requests instead of printing them."""
        log.debug(format, *args)


def serve(port: int = PORT, ready: Callable[[str], object] = lambda url: None) -> None:
    """Serve the studio until interrupted; ``ready`` is called with its address once it answers."""
    try:
        server = Server(port)
    except OSError as error:
        raise OSError(error.errno, f"port {port} of {HOST} cannot be used: {error.strerror}") from error
    with server:
        ready(server.url)
        server.serve_forever()
