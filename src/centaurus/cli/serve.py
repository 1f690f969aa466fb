"""``centaurus serve``: models for many live streams over WebSocket."""

from __future__ import annotations

import asyncio
import errno
from typing import Annotated

import typer

from centaurus.cli import output

Model = Annotated[str | None, typer.Option(metavar="MODEL", help="An .onnx file or a shipped model.")]


def serve(
    denoise: Model = None,
    spot: Model = None,
    transcribe: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 lets the system choose.")] = 8765,
    token: Annotated[str | None, typer.Option(envvar="CENTAURUS_TOKEN", help="Ask clients for this token.")] = None,
    streams: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many streams.", show_default="what one core was measured to run"),
    ] = None,
    origin: Annotated[
        list[str] | None, typer.Option(help="A web origin whose pages may connect without a token.")
    ] = None,
    drain: Annotated[float, typer.Option(min=0.1, help="Seconds that streams have to end after SIGTERM.")] = 30.0,
) -> None:
    """Serve models to live streams over WebSocket.

    Streams are ws://HOST:PORT/v1/denoise, /v1/spot and /v1/transcribe; /health and /metrics are HTTP. With no model
    named, the three that ship are served; otherwise only those named.
    """
    from centaurus.serve.server import MODELS, Options, Server

    named = {"denoise": denoise, "spot": spot, "transcribe": transcribe}
    models = {task: model for task, model in named.items() if model} or MODELS
    options = Options(host, port, token, streams, drain=drain, origins=origin or (), models=models)

    async def run() -> None:
        server = Server(options)
        try:
            await server.start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise ValueError(f"port {port} is in use: choose another with --port, or 0 for any that is free") from error
        rooms = ", ".join(f"{task} ({server.capacity(task)} streams)" for task in models)
        output.show_sentence(f"serving {rooms} on ws://{host}:{server.port}")
        await server.wait()

    asyncio.run(run())
