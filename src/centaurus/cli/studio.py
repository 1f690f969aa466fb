"""``centaurus studio``: the library in a browser, on this machine or as a static site."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from centaurus.cli import output


def studio(
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8008,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    site: Annotated[str, typer.Option(help="Write the static site to this new folder, for any web host.")] = "",
) -> None:
    """Try the models in a browser; sound stays there.

    Denoise, find words, explore plans and networks.
    """
    from centaurus.studio import serve, write_site

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
        serve(port, ready)
    except KeyboardInterrupt:
        output.note("stopped")
