"""What commands that listen have in common: where the sound comes from, and what is said about it."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from centaurus.cli import output

if TYPE_CHECKING:
    from centaurus.runtime.io import Layout, Source

PIPE = "-"

Input = Annotated[str | None, typer.Argument(metavar="IN", help="A sound file, or - for standard input.")]
Mic = Annotated[bool, typer.Option("--mic", help="Listen to a microphone until Ctrl-C.")]
Device = Annotated[str | None, typer.Option(help="Which microphone: its number or a part of its name.")]
Rate = Annotated[int | None, typer.Option(help="Sample rate of raw samples on standard input, in Hz.")]
Channels = Annotated[int, typer.Option(help="Channels of raw samples on standard input.")]
Raw = Annotated[
    str | None,
    typer.Option("--raw", help="Standard input is raw: u8, s16le, s24le, s32le, f32le or f64le. Else it is WAV."),
]
Threads = Annotated[int, typer.Option(min=1, help="Threads of the network.")]


def layout(raw: str | None, rate: int | None, channels: int) -> Layout | None:
    """The layout of raw samples, if there are any."""
    from centaurus.runtime.io import Encoding, Layout

    if raw is None:
        if rate is not None:
            raise typer.BadParameter("--rate describes raw samples: say which kind as well, such as --raw s16le")
        return None
    if raw not in {encoding.value for encoding in Encoding}:
        known = ", ".join(encoding.value for encoding in Encoding)
        raise typer.BadParameter(f"raw samples are one of {known}, got {raw!r}")
    if rate is None:
        raise typer.BadParameter("raw samples need their rate, such as --rate 16000")
    return Layout(rate, channels, Encoding(raw))


def source(name: str | None, mic: bool, device: str | None, raw: Layout | None, rate: int) -> Source:
    """A file, standard input or a microphone (at ``rate``), whichever was asked for."""
    from centaurus.runtime.io import from_file, from_microphone, from_pipe

    if mic == (name is not None):
        raise typer.BadParameter("give a sound file, - for standard input, or --mic: one of them")
    if raw is not None and name != PIPE:
        raise typer.BadParameter("--raw describes standard input: give - as the input")
    if name is None:
        return from_microphone(rate, device)
    if name == PIPE:
        refuse_terminal_input()
        return from_pipe(sys.stdin.buffer, raw)
    return from_file(name)


def refuse_terminal_input() -> None:
    """Nobody types samples."""
    if sys.stdin.isatty():
        raise typer.BadParameter("standard input is a terminal: pipe sound into it, as arecord -f S16_LE -r 16000 | …")


class Hearing:
    """Around listening: an interrupt ends live sound, and what was heard still counts. ``end`` then says so.

    For a microphone Ctrl-C is the way to stop, and no fault; for a pipe it is one after everything has been written.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._interrupt: KeyboardInterrupt | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, KeyboardInterrupt) or not self._source.live:
            return False
        self._interrupt = error
        return True

    def end(self, repaired: int, mic: bool) -> None:
        """What is left to say."""
        note_repaired(repaired)
        if self._interrupt is not None and not mic:
            raise self._interrupt


def note_repaired(count: int) -> None:
    """Say that samples were no numbers."""
    if count:
        output.note(f"{count} samples were not finite numbers or far too large; they were taken as zeros")
