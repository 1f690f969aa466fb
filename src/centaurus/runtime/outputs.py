"""Where sound goes: a file that appears only when it is whole, or a pipe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import soundfile
from numpy.typing import NDArray

from centaurus.audio import AudioError, Writer
from centaurus.runtime.pipes import Encoding, Layout

SUBTYPES = {
    Encoding.U8: "PCM_U8",
    Encoding.S16: "PCM_16",
    Encoding.S24: "PCM_24",
    Encoding.S32: "PCM_32",
    Encoding.F32: "FLOAT",
    Encoding.F64: "DOUBLE",
}
LARGE = 3_900_000_000  # bytes: a plain WAV file can hold a little more


class OutputError(OSError):
    """Something cannot be written: it exists, the disk is full, the format cannot hold it. The message names it."""


def subtype_in(suffix: str, encoding: Encoding) -> str | None:
    """How a format stores such samples: as they are, else with 24 bits if they had more than 16, else its own way."""
    kind = {".aif": "AIFF"}.get(suffix, suffix[1:].upper())
    wanted = SUBTYPES[encoding], "PCM_24" if encoding.bytes > 2 else ""
    known = soundfile.available_subtypes(kind) if kind in soundfile.available_formats() else {}
    return next((subtype for subtype in wanted if subtype in known), None)


def make_folder(path: Path) -> None:
    """The folder, with those above it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{path}: cannot be made a folder: {error.strerror}") from error


@contextmanager
def _as_output() -> Iterator[None]:
    try:
        yield
    except AudioError as error:
        raise OutputError(str(error)) from error


class FileSink:
    """A sound file written in blocks (channels, n): there whole in the end, or not at all."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Layout,
        frames: int = 0,
        overwrite: bool = False,
    ) -> None:
        kind = Path(path).suffix.lower()
        large = kind == ".wav" and frames * layout.frame > LARGE
        subtype = subtype_in(kind, layout.encoding)
        with _as_output():
            self._file = Writer(path, layout.rate, layout.channels, "RF64" if large else None, subtype, overwrite)

    def write(self, x: NDArray[np.float32]) -> None:
        """Append a block."""
        with _as_output():
            self._file.write(x)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _as_output():
            self._file.__exit__(kind, error, trace)
