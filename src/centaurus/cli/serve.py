"""``centaurus serve`` and ``studio``: models for many live streams over WebSocket, and the library in a browser."""

from __future__ import annotations

import asyncio
import errno
import webbrowser
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


def studio(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8008,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    site: Annotated[str, typer.Option(help="Write the static site to this new folder, for any web host.")] = "",
) -> None:
    """Try the models in a browser; sound stays there.

    Denoise, find words, explore plans and networks.
    """
    from centaurus.studio import serve as serve_site
    from centaurus.studio import write_site

    if site:
        written = write_site(site)
        total = sum(path.stat().st_size for path in written)
        output.show(f"{len(written)} files, {output.size(total)}, in {site}")
        return

    def ready(url: str) -> None:
        output.show_line(f"The studio is at {url} (Ctrl+C ends it)")
        if browser:
            webbrowser.open(url)

    try:
        serve_site(port, ready)
    except KeyboardInterrupt:
        output.note("stopped")
