"""``centaurus data``: public corpora, where they come from and how they become a folder to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from centaurus.cli import output

app = typer.Typer(no_args_is_help=True, help="Find, check and unpack public corpora.", rich_markup_mode=None)


@app.command()
def get(
    name: Annotated[str | None, typer.Argument(help="A corpus; without one, they are listed.")] = None,
    downloads: Annotated[
        Path | None, typer.Option("--from", help="A folder with archives that you have downloaded.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The folder to make.", show_default="NAME")] = None,
    json: output.Json = False,
) -> None:
    """Check the archives of a corpus and unpack them; without a name, list the corpora and where they come from.

    Archives are taken from the folder given by --from. Those that are not there are downloaded, if their host can be
    reached.
    """
    from centaurus.data import sources

    if name is None:
        _list(json)
        return
    if downloads is not None and not downloads.is_dir():
        raise ValueError(f"--from {downloads}: there is no such folder")
    folder = out or Path(name)
    with output.progress_bar(f"getting {name}", None) as moved:
        layout = sources.get(name, folder, downloads, moved)
    if json:
        output.show_json({"folder": str(folder), "layout": layout})
    else:
        output.show(f"{folder}: {sources.SOURCES[name].content} (layout {layout})")


def _list(json: bool) -> None:
    from centaurus.data.sources import SOURCES

    if json:
        output.show_json(
            {
                name: {"content": s.content, "licence": s.licence, "page": s.page, "files": [a.url for a in s.archives]}
                for name, s in SOURCES.items()
            }
        )
        return
    for name, s in SOURCES.items():
        output.show_line(f"{name}: {s.content}, {s.licence}\n  {s.page}")
        output.show_line(f"  from {s.archives[0].url.removesuffix(s.archives[0].name)}")
        for archive in s.archives:
            output.show_line(f"    {archive.name}\n      {archive.checksum or 'no checksum published'}")
    output.show("\ncentaurus data get NAME --from FOLDER checks and unpacks archives that you have downloaded.")
