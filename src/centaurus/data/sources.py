"""Where public corpora come from, and how their archives are checked and unpacked into a layout that is read here."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from centaurus.data.layouts import recognise
from centaurus.system import FileError, replacing

CHUNK = 1 << 20  # bytes read at once
PATIENCE = 10.0  # seconds without an answer after which a host counts as out of reach


@dataclass(frozen=True)
class Archive:
    """One file to download. ``checksum`` is ``sha256:…`` or ``md5:…`` as published; a zip has its own for each file."""

    url: str
    checksum: str = ""

    @property
    def name(self) -> str:
        """The file's name."""
        return PurePosixPath(urlsplit(self.url).path).name


@dataclass(frozen=True)
class Source:
    """A public corpus: what it is, its licence, its page, and its archives.

    ``top`` is the folder that its archives have at the top and that is left out.
    """

    content: str
    licence: str
    page: str
    archives: tuple[Archive, ...]
    top: str = ""


def _openslr(number: int, **checksums: str) -> tuple[Archive, ...]:
    base = f"https://www.openslr.org/resources/{number}"
    return tuple(Archive(f"{base}/{name.replace('_', '-')}.tar.gz", f"md5:{md5}") for name, md5 in checksums.items())


TENSORFLOW = "https://storage.googleapis.com/download.tensorflow.org/data"
EDINBURGH = "https://datashare.ed.ac.uk/bitstream/handle/10283/2791"

SOURCES = {
    "speech-commands-v1": Source(
        "30 words, 65,000 clips of a second",
        "CC BY 4.0",
        "https://arxiv.org/abs/1804.03209",
        (
            Archive(
                f"{TENSORFLOW}/speech_commands_v0.01.tar.gz",
                "sha256:743935421bb51cccdb6bdd152e04c5c70274e935c82119ad7faeec31780d811d",
            ),
        ),
    ),
    "speech-commands-v2": Source(
        "35 words, 106,000 clips of a second",
        "CC BY 4.0",
        "https://arxiv.org/abs/1804.03209",
        (
            Archive(
                f"{TENSORFLOW}/speech_commands_v0.02.tar.gz",
                "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
            ),
        ),
    ),
    "voicebank-demand": Source(
        "noisy and clean speech, training and test sets",
        "CC BY 4.0",
        "https://datashare.ed.ac.uk/handle/10283/2791",
        tuple(
            Archive(f"{EDINBURGH}/{kind}_{part}_wav.zip")
            for part in ("trainset_28spk", "testset")
            for kind in ("clean", "noisy")
        ),
    ),
    "mini-librispeech": Source(
        "read English, 7 hours with transcripts",
        "CC BY 4.0",
        "https://www.openslr.org/31",
        _openslr(31, train_clean_5="5df7d4e78065366204ca6845bb08f490", dev_clean_2="6d7ab67ac6a1d2c993d050e16d61080d"),
        top="LibriSpeech",
    ),
    "librispeech-100": Source(
        "read English, 100 hours and clean dev and test sets",
        "CC BY 4.0",
        "https://www.openslr.org/12",
        _openslr(
            12,
            train_clean_100="2a93770f6d5c6c964bc36631d331a522",
            dev_clean="42e2234ba48799c1f50f24a7926300a1",
            test_clean="32fa31d27d2e1cad72775fee3f4849a9",
        ),
        top="LibriSpeech",
    ),
}


class SourceError(FileError, ValueError):
    """An archive that is missing, damaged or not what it should be; the message says where to get it."""


def get(
    name: str,
    out: str | os.PathLike[str],
    downloads: str | os.PathLike[str] | None = None,
    moved: Callable[[float], object] = lambda amount: None,
) -> str:
    """Check a corpus' archives and unpack them into a new folder; return the name of its layout.

    Archives are taken from the folder ``downloads``; those that are not there are downloaded if their host can be
    reached. ``moved`` is told the bytes that were read. The folder appears whole or not at all.
    """
    source, target = find_source(name), Path(out)
    if target.exists():
        raise SourceError("exists already; name another folder with -o", target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _building(target) as folder:
        for archive in source.archives:
            with _archive(archive, downloads, folder.parent, moved) as path:
                _check(path, archive, moved)
                _unpack(path, folder, source.top)
        return recognise(folder)


def find_source(name: str) -> Source:
    """Return a corpus by its name."""
    if name not in SOURCES:
        raise SourceError(f"there is no corpus {name!r:.60}; there are {', '.join(SOURCES)}")
    return SOURCES[name]


@contextmanager
def _building(target: Path) -> Iterator[Path]:
    """Yield a folder that takes the target's name if all goes well."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        inside = Path(folder) / target.name
        inside.mkdir()
        yield inside
        os.rename(inside, target)


@contextmanager
def _archive(
    archive: Archive, downloads: str | os.PathLike[str] | None, folder: Path, moved: Callable[[float], object]
) -> Iterator[Path]:
    """Yield an archive that was downloaded before, or download it for the time being."""
    kept = None if downloads is None else Path(downloads) / archive.name
    if kept is not None and kept.is_file():
        yield kept
        return
    path = folder / archive.name
    try:
        with urlopen(archive.url, timeout=PATIENCE) as answer, replacing(path) as part, part.open("wb") as file:
            while data := answer.read(CHUNK):
                file.write(data)
                moved(len(data))
    except (URLError, TimeoutError) as error:
        host, reason = urlsplit(archive.url).hostname, getattr(error, "reason", error)
        raise SourceError(
            f"{host} cannot be reached ({reason}): download {archive.url} by other means "
            "and give its folder with --from",
            archive.name,
        ) from error
    yield path
    path.unlink()


def _check(path: Path, archive: Archive, moved: Callable[[float], object]) -> None:
    if not archive.checksum:
        return
    kind, _, published = archive.checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
            moved(len(data))
    if digest.hexdigest() != published:
        raise SourceError(
            f"is damaged or another file: its {kind} is {digest.hexdigest()}, published is {published} "
            f"({path.stat().st_size:,} bytes)",
            path,
        )


def _unpack(path: Path, folder: Path, top: str) -> None:
    """Unpack an archive; refuse members that would land outside of the folder."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)  # names are cleaned, and every file's CRC is compared
        else:
            with tarfile.open(path) as packed:
                packed.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise SourceError(f"cannot be unpacked: {error}", path) from error
    inner = folder / top
    if top and inner.is_dir():
        for item in inner.iterdir():
            if not (folder / item.name).exists():
                shutil.move(item, folder / item.name)
        shutil.rmtree(inner)
