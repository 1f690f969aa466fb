"""Where sound comes from: a file, a pipe or a microphone, all as a rate, channels and blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError, blocks, info
from centaurus.runtime.microphone import Microphone
from centaurus.runtime.pipes import Encoding, Layout, Reader

Block = NDArray[np.float32]
ESTIMATED = ("MPEG",)  # formats whose header does not give the exact length
ENCODINGS = {
    "PCM_U8": Encoding.U8,
    "PCM_24": Encoding.S24,
    "PCM_32": Encoding.S32,
    "FLOAT": Encoding.F32,
    "DOUBLE": Encoding.F64,
}


@dataclass(frozen=True)
class Source:
    """Blocks (channels, n). ``frames`` is the length where it is known; ``live`` if the sound is still being made."""

    name: str
    layout: Layout
    blocks: Iterable[Block]
    frames: int | None = None
    live: bool = False

    @property
    def rate(self) -> int:
        return self.layout.rate

    @property
    def channels(self) -> int:
        return self.layout.channels


def from_file(path: str | os.PathLike[str], seconds: float = 1.0) -> Source:
    """A sound file in blocks of about so many seconds. One that is cut short is an error, at once or at its end."""
    about = info(path)
    if about.truncated:
        raise AudioError(f"{path}: is cut short: its header promises more than the {about.frames} frames it holds")
    pieces = _complete(path, max(1, round(about.rate * seconds)), about.frames, about.format not in ESTIMATED)
    layout = Layout(about.rate, about.channels, ENCODINGS.get(about.subtype, Encoding.S16))
    return Source(str(path), layout, pieces, about.frames)


def _complete(path: str | os.PathLike[str], frames: int, wanted: int, exact: bool) -> Iterator[Block]:
    found = 0
    for block in blocks(path, frames):
        found += block.shape[-1]
        yield block
    if exact and found < wanted:
        raise AudioError(f"{path}: is cut short: {found} of {wanted} frames could be decoded")


def from_pipe(stream: BinaryIO, raw: Layout | None = None) -> Source:
    """Standard input or another byte stream: WAV, or raw samples in a given layout."""
    reader = Reader(stream, raw)
    return Source(reader.name, reader.layout, reader, live=True)


def from_microphone(rate: int, device: str | None = None) -> Source:
    """A microphone, until the blocks are no longer asked for."""
    return Source("microphone", Layout(rate, 1), Microphone(rate, device), live=True)
