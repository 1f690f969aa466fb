"""A server in a thread of the test's own process, on a port that the system chooses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from centaurus.serve.server import Options, Server
from tests.runtime.models import exported

MODELS = {"denoise": "denoiser", "spot": "classifier", "transcribe": "recognizer"}


@contextmanager
def served(*tasks: str, **options: Any) -> Iterator[Server]:
    """A server of small models: a denoiser if no task is named."""
    models = {task: str(exported(MODELS[task])) for task in tasks or ("denoise",)}
    settings = {"port": 0, "streams": 4, "models": models, **options}
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def make() -> Server:
        server = Server(Options(**settings))
        await server.start()
        return server

    server = asyncio.run_coroutine_threadsafe(make(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


def url(server: Server) -> str:
    return f"ws://127.0.0.1:{server.port}"


def get(server: Server, path: str, **headers: str) -> tuple[int, str]:
    """Status and text of a plain HTTP request."""
    request = Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    try:
        with urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def metric(server: Server, line: str) -> float:
    """The value of a metric, by its name and labels."""
    result = [text for text in get(server, "/metrics")[1].splitlines() if text.startswith(line + " ")]
    return float(result[0].rpartition(" ")[2]) if result else 0.0
