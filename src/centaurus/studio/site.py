"""The files of the site by their paths: the studio's own, the shipped models' WebAssembly modules, the demo clip."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from centaurus.runtime.modelfile import KEY, find_model, read_settings
from centaurus.runtime.onnxfile import inspect
from centaurus.ssm.topology import EQUATIONS
from centaurus.studio.plans import DEFAULTS, grid

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".flac": "audio/flac",
}
# Only the page's own files; WebAssembly may be compiled, text may not be run; no markup is made from strings.
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "media-src 'self' blob:; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types centaurus"
)
SETTINGS = ("name", "task", "rate", "hop", "latency", "features", "classes", "tokens")


@dataclass(frozen=True)
class Page:
    """One file of the site: its media type and a function that returns its bytes."""

    kind: str
    read: Callable[[], bytes]


def site(live: bool) -> dict[str, Page]:
    """Every file by its path below the root. ``live`` says whether a server answers questions about plans."""
    package = files("centaurus")
    pages = {path: _page(path, file) for path, file in _tree(package / "studio" / "static")}
    for file in sorted((package / "pretrained").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".wasm"):
            pages[f"models/{file.name}"] = _page(file.name, file)
    for name in ("demo.flac", "demo.json"):
        pages[name] = _page(name, package / "assets" / name)
    pages["models.json"] = Page(TYPES[".json"], lambda: _json(describe_site(live)))
    return pages


def describe_site(live: bool) -> dict[str, Any]:
    """Return what the pages ask for first: whether a server answers, the models, the equations and default sizes."""
    return {"live": live, "models": describe_models(), "equations": EQUATIONS, "defaults": DEFAULTS}


def describe_models() -> list[dict[str, Any]]:
    """Settings of the shipped models that have a WebAssembly module, as their ONNX files carry them."""
    folder = files("centaurus") / "pretrained"
    names = sorted(file.name.removesuffix(".wasm") for file in folder.iterdir() if file.name.endswith(".wasm"))
    models = []
    for name in names:
        path = find_model(name)
        data = read_settings(inspect(path).metadata[KEY], path).json()
        numerator, denominator = data["ratio"]
        models.append({key: data[key] for key in SETTINGS} | {"frame": denominator / numerator})
    return models


def write_site(folder: str | os.PathLike[str]) -> list[Path]:
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
