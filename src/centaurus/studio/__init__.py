"""Serve the studio on the loopback interface or write it as a static site; and plans as plain data for its explorer."""

from __future__ import annotations

import gzip
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from string import Template
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from centaurus.planner import CPU, Device, Plan
from centaurus.planner.named import NAMES, named_plan
from centaurus.runtime.modelfile import KEY, find_model, read_settings
from centaurus.runtime.onnxfile import inspect
from centaurus.ssm.topology import EQUATIONS, Topology, topology
from centaurus.system import AnyPath

LARGEST_SIZE = 1 << 20
MOST_OPERANDS = 6  # the search grows as 3^operands: six take about a second
LONGEST_EQUATION = 120  # characters
MOST_CELLS = 16  # in a row of a map
DEFAULTS = {"b": 8, "t": 16_384, "i": 16, "j": 16, "n": 64, "m": 4, "g": 4}
OTHER = 16  # the size of an index that has no default
# The grid of a static site. i and j move together; m and g stay at their defaults.
GRID = {"b": (1, 8, 64), "t": (1_024, 16_384, 262_144), "i": (8, 32, 128), "n": (4, 32, 256)}


class QueryError(ValueError):
    """A query that cannot be answered; the message is shown to the user."""


def answer_plan(query: Mapping[str, str], device: Device | str = "cpu") -> dict[str, Any]:
    """Return the plan of ``equation`` (a topology's name or an equation) at the sizes given as ``b=8&t=16384&…``."""
    equation = _read(query)
    e = equation.expression
    plans = {name: _plan(equation, name, device) for name in NAMES}
    best = plans["planned"]
    return {
        "equation": _text(equation),
        "operands": [{"name": n, "indices": op} for n, op in zip(e.names, e.operands, strict=True)],
        "output": e.output,
        "sizes": dict(equation.sizes),
        "device": best.device,
        "plan": _total(best) | {"steps": best.json()["steps"]},
        "runners_up": [_total(plan) for plan in best.runners_up],
        "named": {name: _total(plans[name]) for name in NAMES if name != "planned"},
        "rule": _rule(plans),
    }


def answer_row(query: Mapping[str, str], device: Device | str = "cpu") -> dict[str, Any]:
    """Return a row of a map: the best plan and the paper's at every value of one size (``across=i&values=4,8,16``)."""
    index, values = query.get("across", ""), query.get("values", "").split(",")
    if not 0 < len(values) <= MOST_CELLS:
        raise QueryError(f"a row of a map has 1 to {MOST_CELLS} values, got {len(values)}")
    cells = []
    for value in values:
        equation = _read({**query, index: value})
        if index not in dict(equation.sizes):
            raise QueryError(f"the map goes across {index[:8]!r}, which {_text(equation)} does not have")
        cells.append(_cell({name: _plan(equation, name, device) for name in NAMES}))
    return {"cells": cells}


def grid() -> dict[str, Any]:
    """Return plans of every topology over a grid of sizes, for the default CPU, with equal summaries stored once."""
    summaries: dict[str, int] = {}
    answers: dict[str, Any] = {}
    for name in EQUATIONS:
        for values in product(*GRID.values()):
            sizes = dict(zip(GRID, values, strict=True))
            asked = {index: str(size) for index, size in (sizes | {"j": sizes["i"]}).items()}
            answer = answer_plan({"equation": name} | asked, CPU)
            for plan in (answer["plan"], *answer["runners_up"], *answer["named"].values()):
                _shorten(plan, summaries)
            kept = {key: answer[key] for key in ("plan", "runners_up", "named", "rule")}
            answers["/".join([name, *map(str, values)])] = kept
    return {
        "device": CPU.name,
        "axes": {index: list(values) for index, values in GRID.items()},
        "defaults": DEFAULTS,
        "equations": EQUATIONS,
        "summaries": list(summaries),
        "plans": answers,
    }


def _shorten(plan: dict[str, Any], summaries: dict[str, int]) -> None:
    """Return a plan with three digits of every estimate, and the index of its summary."""
    plan["summary"] = summaries.setdefault(plan["summary"], len(summaries))
    for data in (plan, *plan.get("steps", ())):
        for key, value in data.items():
            if isinstance(value, float):
                data[key] = float(f"{value:.3g}")


def _read(query: Mapping[str, str]) -> Topology:
    """Return the topology of a query, with every size checked; ``ValueError`` says what is wrong."""
    name = query.get("equation", "bottleneck").strip()
    if len(name) > LONGEST_EQUATION:
        raise QueryError(f"an equation has at most {LONGEST_EQUATION} characters, got {len(name)}")
    text = EQUATIONS.get(name, name)
    if "->" not in text:
        raise QueryError(f"{name!r} is not a topology ({', '.join(EQUATIONS)}) nor an equation 'u_bit … -> y_bjt'")
    indices = {index for term in text.split("->")[0].split() for index in term.partition("_")[2].strip(",")}
    if text.count("_") - 1 > MOST_OPERANDS:
        raise QueryError(f"an equation here has at most {MOST_OPERANDS} operands: the search grows with 3^operands")
    sizes = {index: _size(index, query.get(index, str(DEFAULTS.get(index, OTHER)))) for index in sorted(indices)}
    inner = tuple((index, size) for index, size in sizes.items() if index not in "bt")
    equation = topology(text, inner, False)
    return Topology(equation.expression, tuple(sizes.items()), False)


def _size(index: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:9]) <= LARGEST_SIZE or len(text) > 9:
        raise QueryError(f"the size of {index!r} is a whole number from 1 to {LARGEST_SIZE}, got {text[:20]!r}")
    return int(text)


def _plan(equation: Topology, name: str, device: Device | str) -> Plan:
    profile = Device.load(device) if isinstance(device, str) else device
    return named_plan(name, equation.expression, dict(equation.sizes), equation.modes, "", profile, True, None)


def _text(equation: Topology) -> str:
    e = equation.expression
    terms = " ".join(f"{name}_{op}" for name, op in zip(e.names, e.operands, strict=True))
    return f"{terms} -> y_{e.output}"


def _rule(plans: Mapping[str, Plan]) -> str:
    """Return which order the paper's Listing 1 chooses here."""
    paper = plans["paper"].summary()
    same = [name for name in ("natural", "full-kernel") if plans[name].summary() == paper]
    return same[0] if same else "frequency"


def _cell(plans: Mapping[str, Plan]) -> dict[str, Any]:
    best = plans["planned"]
    times = {"seconds": best.seconds, "paper": plans["paper"].seconds / best.seconds}
    return {"plan": best.summary(), **times, "rule": _rule(plans)}


def _total(plan: Plan) -> dict[str, Any]:
    """Return the summary and the estimates of a plan."""
    estimates = {name: getattr(plan, name) for name in ("seconds", "forward_seconds", "flops", "peak_bytes")}
    return {"name": plan.name, "summary": plan.summary(), **estimates}


TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".flac": "audio/flac",
}
# Only the site's own files; WebAssembly may be compiled, strings may not be evaluated or parsed as markup.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src 'self' blob:; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types centaurus"
)
PAGES = {  # title and description; the title is also the name of the script
    "index.html": ("Denoise", "Remove noise from speech in the browser, live or from a file."),
    "words.html": ("Words", "Keywords, connected words and a wake word, live in the browser."),
    "plans.html": (
        "Plans",
        "How a state-space layer is contracted: the tensor network, the plan and the map of best plans.",
    ),
    "networks.html": ("Networks", "The networks as pictures: channels, rates, states, counts, memory and modes."),
}
SETTINGS = ("name", "task", "rate", "hop", "latency", "features", "classes", "tokens", "threshold", "window", "caution")
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


@dataclass(frozen=True)
class Page:
    """One file of the site: its media type and a function that returns its bytes."""

    kind: str
    read: Callable[[], bytes]


def site(live: bool) -> dict[str, Page]:
    """Return every file by its path below the root. ``live`` is whether a server answers queries about plans."""
    package = files("centaurus")

    def first() -> bytes:
        """Return the data that pages load first: whether there is a server, the models, equations and default sizes."""
        return _json({"live": live, "models": describe_models(), "equations": EQUATIONS, "defaults": DEFAULTS})

    pages = {path: _page(path, file) for path, file in _tree(package / "studio" / "static")}
    frame = Template((package / "studio" / "frame.html").read_text(encoding="utf-8"))
    for name in PAGES:
        pages[name] = Page(TYPES[".html"], partial(_framed, name, pages[name], frame))
    for file in sorted((package / "pretrained").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".wasm"):
            pages[f"models/{file.name}"] = _page(file.name, file)
    for name in ("demo.flac", "demo.json"):
        pages[name] = _page(name, package / "assets" / name)
    pages["models.json"] = Page(TYPES[".json"], first)
    return pages


def _framed(name: str, page: Page, frame: Template) -> bytes:
    """Return a page with what all pages have around their contents, the first line of which is the lead."""
    title, description = PAGES[name]
    lead, _, content = page.read().decode().partition("\n")
    here = {name: ' aria-current="page"'}
    links = "\n".join(f'<a href="{path}"{here.get(path, "")}>{PAGES[path][0]}</a>' for path in PAGES)
    words = {"title": title, "script": title.lower(), "description": description, "lead": lead, "content": content}
    return frame.substitute(words, policy=POLICY, links=links).encode()


def describe_models() -> list[dict[str, Any]]:
    """Return the settings of the shipped models that have a WebAssembly module, from their ONNX files."""
    folder = files("centaurus") / "pretrained"
    names = sorted(file.name.removesuffix(".wasm") for file in folder.iterdir() if file.name.endswith(".wasm"))
    models = []
    for name in names:
        path = find_model(name)
        data = read_settings(inspect(path).metadata[KEY], path).json()
        numerator, denominator = data["ratio"]
        models.append({key: data[key] for key in SETTINGS if key in data} | {"frame": denominator / numerator})
    return models


def write_site(folder: AnyPath) -> list[Path]:
    """Write the whole site to a new or empty folder, with plans over a grid of sizes; return its files."""
    root = Path(folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise FileExistsError(f"{root} exists and is not an empty folder: the site is written to a new one")
    pages = site(live=False) | {"plans.json": Page(TYPES[".json"], lambda: _json(grid()))}
    written = []
    for path, page in pages.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(page.read())
        written.append(target)
    return written


def _tree(folder: Traversable, prefix: str = "") -> list[tuple[str, Traversable]]:
    files = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            files += _tree(entry, f"{path}/")
        elif Path(path).suffix in TYPES:
            files.append((path, entry))
    return files


def _page(path: str, file: Traversable) -> Page:
    return Page(TYPES[Path(path).suffix], file.read_bytes)


def _json(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()


class Server(ThreadingHTTPServer):
    """Serves the site on 127.0.0.1. ``port`` 0 takes a free one; ``url`` is where it answers."""

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # Windows would let two servers have one port

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
        """Return a file's bytes, plain and compressed."""
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
        if self.headers.get("Host") not in allowed:  # DNS rebinding: a foreign name that resolves to this machine
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
