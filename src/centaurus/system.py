"""Atomic file writes, models that ship or are on the Hub, the cache folder, optional packages."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from importlib import import_module, metadata
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

AnyPath = str | os.PathLike[str]
"""A path as text or as an object that has one."""
EXTRAS = {
    "torch": ("torch", "safetensors"),
    "export": ("onnx",),
    "train": ("accelerate", "tensorboard", "tokenizers"),
    "plot": ("matplotlib",),
    "eval": ("pesq", "pystoi", "speechmos", "jiwer"),
    "mic": ("sounddevice",),
    "serve": ("websockets",),
    "hub": ("huggingface_hub",),
    "teacher": ("transformers",),
}
"""The optional packages of each extra of ``centaurus-ssm``."""
HUB = "hf:"  # before the name of a model on the Hugging Face Hub
WITH_TORCH = ("export", "train")  # extras that include the extra torch
WINDOWS = os.name == "nt"
RENAME_PAUSES = (0.01, 0.1, 0.5, 1.0)  # seconds between attempts: scanners hold a new file for less than a second
PORTS = tuple(port + n for port in ("COM", "LPT") for n in "123456789¹²³")
RESERVED = {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", *PORTS}  # names of devices on Windows
STEM = "model"
SUFFIXES = (".safetensors", ".onnx")
CARDS = ("{stem}.md", "card.md")  # beside a model, in this order


class FileError(Exception):
    """An error about a file: ``reason`` says what is wrong, ``path`` which file it is, if any; the message has both."""

    def __init__(self, reason: str, path: AnyPath | None = None) -> None:
        super().__init__(reason if path is None else f"{os.fspath(path)}: {reason}")
        self.reason, self.path = reason, None if path is None else Path(path)


class ContentError(FileError, ValueError):
    """A file or folder that does not contain what is needed."""


class OutputError(FileError, OSError):
    """A file that cannot be written: it exists, the disk is full, or the format does not support the data."""


class MissingModelError(FileError, FileNotFoundError):
    """A model that is neither a file, nor on the Hub, nor among those that ship. The reason names it."""

    def __str__(self) -> str:
        return self.reason


@contextmanager
def replacing(path: AnyPath, overwrite: bool = True, like: AnyPath | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that takes its name if the block succeeds and is removed if it raises.

    The write is atomic. The mode is that of the file it replaces, else that of ``like`` within the umask, else the
    default of the umask. A symbolic link stays one: its target is replaced.
    """
    named = Path(path)
    if os.path.islink(named) and not overwrite:
        raise OutputError("exists already; overwriting was not asked for", named)
    target = Path(os.path.realpath(named)) if os.path.islink(named) else named
    if os.path.islink(target):
        raise OutputError("is a symbolic link loop", named)
    _check_target(target, overwrite)
    temporary = target.with_name(f".{secrets.token_hex(8)}.part")  # short: the target may have a name of maximum length
    try:
        yield temporary
        _check_target(target, overwrite)
        _set_mode(temporary, target, like)
        _rename(temporary, target)
    except OSError as error:
        if error.filename is None or os.fspath(error.filename) != os.fspath(temporary):
            raise
        raise OutputError(f"could not be written: {error.strerror}", named) from error
    finally:
        temporary.unlink(missing_ok=True)


def _rename(source: Path, target: Path) -> None:
    """Replace the target. On Windows that fails while a virus scanner or another reader has the file open."""
    for seconds in RENAME_PAUSES if WINDOWS else ():
        with suppress(PermissionError):
            return os.replace(source, target)
        time.sleep(seconds)
    return os.replace(source, target)


def is_reserved(name: str) -> bool:
    """Return whether Windows takes a file of this name for a device or a hidden stream, so that its contents are lost.

    A device has any suffix (``nul.wav``); ``a.wav:b`` is a stream in a.wav. A drive (``C:``) is not part of a name.
    """
    return ":" in name or name.partition(".")[0].rstrip(" ").upper() in RESERVED


def _check_target(target: Path, overwrite: bool) -> None:
    if WINDOWS and is_reserved(target.name):
        raise OutputError("is the name of a device or a stream on Windows, not of a file", target)
    try:
        if not target.parent.is_dir():
            raise OutputError(f"there is no folder {target.parent}", target)
        if target.is_dir():
            raise OutputError("is a folder", target)
        os.lstat(target)
    except FileNotFoundError:
        return
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"cannot be written: {error.strerror}", target) from error  # a name that is too long
    if not overwrite:
        raise OutputError("exists already; overwriting was not asked for", target)


def _set_mode(temporary: Path, target: Path, like: AnyPath | None) -> None:
    """Set the mode that the umask asks for, which those of mkstemp and of libraries do not follow."""
    mask = os.umask(0)
    os.umask(mask)
    if target.exists():
        mode = target.stat().st_mode & 0o777
    elif like is not None and Path(like).exists():
        mode = Path(like).stat().st_mode & 0o666 & ~mask
    else:
        mode = 0o666 & ~mask
    os.chmod(temporary, mode)


def write_file(path: AnyPath, data: str | bytes) -> None:
    """Write text (UTF-8) or bytes to a file atomically, and sync it to disk."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        # A name that is not UTF-8 is written with the bytes that it has.
        file.write(data.encode(errors="surrogateescape") if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def package_version() -> str:
    """Return the version of the installed package; one of its own for a source tree that is not installed."""
    return installed_version("centaurus-ssm") or "0.0.0+source"


def shipped_models(suffix: str) -> list[str]:
    """Return the names of the models that come with the package as files of this kind, such as ``.onnx``."""
    folder = files("centaurus") / "pretrained"
    names = [x.name for x in folder.iterdir()] if folder.is_dir() else []
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))


def find_model(model: AnyPath, suffix: str) -> Path:
    """Return the path of a model given by its file, by ``hf:user/model``, or by the name of a shipped one."""
    if str(model).startswith(HUB):
        return download_model(str(model), suffix)
    if os.path.isfile(model):
        return Path(model)
    known = shipped_models(suffix)
    if str(model) in known:
        return Path(str(files("centaurus") / "pretrained" / f"{model}{suffix}"))
    name = f"{os.fspath(model)!r:.200}"
    raise MissingModelError(
        f"there is no model file {name}, and no shipped model of that name ({', '.join(known) or 'none'})", model
    )


def download_model(name: str, suffix: str) -> Path:
    """Return the file of ``hf:user/model`` or ``hf:user/model@revision`` with this suffix.

    It is downloaded once into the cache of ``huggingface_hub``, which is needed for nothing else.
    """
    repository, _, revision = name.removeprefix(HUB).partition("@")
    hub = extra("huggingface_hub")
    try:
        return Path(hub.hf_hub_download(repository, f"model{suffix}", revision=revision or None))
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise MissingModelError(f"{name}: model{suffix} could not be downloaded: {reason}", name) from error


def cache_folder(name: str = "") -> Path:
    """Return ``centaurus`` in the user's cache folder, or a folder of that name in it; it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "centaurus" / name


def choose_threads(environment: MutableMapping[str, str]) -> str:
    """Set how OpenMP's threads work, unless the environment does, and return a description.

    Takes effect if torch is not imported yet. One thread for every core that this process may use, and threads that
    sleep while they wait: by default they spin, which on a busy machine costs more than it gains.
    """
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment.setdefault("OMP_NUM_THREADS", str(may_use))
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    threads, policy = environment["OMP_NUM_THREADS"], environment["OMP_WAIT_POLICY"].lower()
    return f"{threads} thread{'' if threads == '1' else 's'}, {policy} while waiting"


def plot_style() -> str:
    """Return the path of the matplotlib style of all plots, for ``matplotlib.style.context``."""
    return str(files("centaurus") / "assets" / "plots.mplstyle")


def extra(package: str) -> Any:
    """Import an optional package; if it is not installed, the error names the extra that has it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ImportError(what_to_install(error)) from error


def what_to_install(error: ModuleNotFoundError, preferred: str = "") -> str:
    """Return the error's text, with the extra that has the missing package and how to install it.

    ``preferred`` is the extra to name if it has the package too, such as ``train`` for a command that trains.
    """
    package = (error.name or "").partition(".")[0]
    names = [name for name, packages in EXTRAS.items() if package in packages]
    if not names:
        return str(error)
    name = preferred if preferred in WITH_TORCH and names == ["torch"] else names[0]
    return f"{package} is needed for this and is not installed: {install_command(name)}"


def install_command(name: str) -> str:
    """Return the pip command that installs an extra in the way this package was installed itself.

    Without a release on an index that is from the clone, or else the extra's packages by name.
    """
    try:
        origin = metadata.distribution("centaurus-ssm").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return f"pip install {' '.join(_packages(name))}"
    if origin is None:
        return f"pip install 'centaurus-ssm[{name}]'"
    source = json.loads(origin)
    if "vcs_info" in source:
        return f"pip install 'centaurus-ssm[{name}] @ {source['vcs_info']['vcs']}+{source['url']}'"
    folder = Path(url2pathname(urlsplit(source["url"]).path))
    if not (folder / "pyproject.toml").is_file():
        return f"pip install {' '.join(_packages(name))}"
    editable = "-e " if source.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'{folder}[{name}]'"


def _packages(name: str) -> tuple[str, ...]:
    return (*(EXTRAS["torch"] if name in WITH_TORCH else ()), *EXTRAS[name])


def push(model: AnyPath, repository: str, private: bool = False) -> list[str]:
    """Upload a model's file, its other form and its card if they lie beside it; return the names in the repository.

    ``repository`` is ``user/model``; it is made if it does not exist. The token is the one that ``hf auth login``
    stored, or ``HF_TOKEN``.
    """
    hub = extra("huggingface_hub")
    sources = find_files(model)
    name = repository.removeprefix(HUB)
    with tempfile.TemporaryDirectory(prefix="centaurus-") as folder:
        for target, source in sources.items():
            shutil.copyfile(source, Path(folder) / target)
        api = hub.HfApi()
        try:
            api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Upload {Path(model).stem}")
        except Exception as error:  # HTTP clients' errors have no common base class
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise OutputError(f"could not be uploaded: {reason}", f"{HUB}{name}") from error
    return sorted(sources)


def find_files(model: AnyPath) -> dict[str, Path]:
    """Return what to upload by its name in the repository, for a model's file or the name of a shipped one."""
    path = find_model(model, SUFFIXES[-1])
    if path.suffix not in SUFFIXES:
        raise ContentError(f"a model is a {' or '.join(SUFFIXES)} file", path)
    beside = {f"{STEM}{suffix}": path.with_suffix(suffix) for suffix in SUFFIXES}
    present = {name: file for name, file in beside.items() if file.is_file()}
    cards = [path.with_name(card.format(stem=path.stem)) for card in CARDS]
    card = next((card for card in cards if card.is_file()), None)
    return present if card is None else present | {"README.md": card}
