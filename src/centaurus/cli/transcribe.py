"""``centaurus transcribe``: words in files and folders, a pipe or from a microphone, as text, captions or JSON."""

from __future__ import annotations

import json as coder
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centaurus.cli import faults, listening, output

if TYPE_CHECKING:
    from centaurus.decode import Word


class Format(StrEnum):
    """The format of a transcript."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


def transcribe(
    inputs: listening.Inputs = None,
    mic: listening.Mic = False,
    out: listening.Out = None,
    model: Annotated[
        str, typer.Option(help="An .onnx file or a shipped model; commands knows thirty words only.")
    ] = "commands",
    form: Annotated[
        Format | None,
        typer.Option(
            "--format", help="Text with times, captions, or JSON with every word.", show_default="as -o ends, or text"
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Print words as they come, unfinished ones too.")] = False,
    force: listening.Force = False,
    device: listening.Device = None,
    raw: listening.Raw = None,
    rate: listening.Rate = None,
    channels: listening.Channels = 1,
    threads: listening.Threads = 1,
) -> None:
    """Write down what is said, with the time of every word.

    Without --model this is a recogniser of thirty words, one after the other: yes no up down left right on off stop go,
    the digits, bed bird cat dog happy house marvin sheila tree wow. It shows the whole path from sound to text; it does
    not know general English (centaurus train asr trains a recogniser for that).
    """
    with faults.handled():
        from centaurus.runtime.transcribe import Transcriber

        named = next((known for known in Format if out and out.endswith(f".{known.value}")), Format.TEXT)
        kind = form or named
        if live and (kind not in (Format.TEXT, Format.JSON) or out is not None):
            raise typer.BadParameter(f"--live prints text or JSON lines; {kind.value} captions and -o need the whole")
        layout = listening.layout(raw, rate, channels)
        suffix = {Format.TEXT: ".txt"}.get(kind, f".{kind.value}")
        tasks = listening.plan(inputs, mic, device, layout, out, force, suffix)
        if model == "commands":
            output.note("the model commands knows thirty words, not general English (see -h)")

        def run(task: listening.Task, advance: Callable[[float], object]) -> None:
            source = task.open()
            transcriber = Transcriber(model, source.rate, source.channels, threads)
            screen = Live(kind is Format.JSON) if live else None
            words: list[Word] = []
            with listening.Interruptible(source) as reading:
                for block in source.blocks:
                    words += (done := transcriber.process(block))
                    if screen is not None:
                        screen.show(done, transcriber.partial)
                    advance(block.shape[1] / source.rate)
            words += (done := transcriber.flush())
            if screen is not None:
                screen.show(done, [])
                screen.close()
            elif task.output is not None:
                listening.write_result(task, _written(words, kind))
            else:
                title = f"{source.name}\n" if len(tasks) > 1 and kind is Format.TEXT else ""
                sys.stdout.write(title + _written(words, kind, source.name if len(tasks) > 1 else None))
                sys.stdout.flush()
            reading.end(transcriber.repaired, mic)

        listening.run_all(tasks, "transcribing", run)


def _written(words: list[Word], form: Format, name: str | None = None) -> str:
    from centaurus.decode import clock, cues, join, srt, vtt

    if form is Format.JSON:
        data = {"text": join(words), "words": [_data(word) for word in words]}
        return coder.dumps(data if name is None else {"file": name, **data}, indent=2 if name is None else None) + "\n"
    lines = cues(words)
    if form is Format.SRT:
        return srt(lines)
    if form is Format.VTT:
        return vtt(lines)
    return "".join(f"[{clock(cue.start)} – {clock(cue.end)}]  {cue.text}\n" for cue in lines)


def _data(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "confidence": round(word.confidence, 4),
    }


class Live:
    """A transcript that grows: one line rewritten on a terminal, a line for every change elsewhere, or JSON lines."""

    def __init__(self, json: bool) -> None:
        self._json = json
        self._rewrite = sys.stdout.isatty() and not json
        self._line: list[Word] = []
        self._shown = ""

    def show(self, done: list[Word], partial: list[Word]) -> None:
        """Print words that have ended, and the one that may still change."""
        from centaurus.decode import cues, join

        if self._json:
            for word in done:
                output.show_line(coder.dumps(_data(word)))
            text = join(partial)
            if text and text != self._shown:
                output.show_line(coder.dumps({"partial": text}))
            self._shown = text
            return
        for word in done:
            if len(cues([*self._line, word])) > 1:
                self._print(join(self._line))
                self.close()
            self._line.append(word)
        self._print(join([*self._line, *partial]))

    def _print(self, text: str) -> None:
        if text == self._shown:
            return
        sys.stdout.write(f"\r\x1b[K{text}" if self._rewrite else f"{text}\n")
        sys.stdout.flush()
        self._shown = text

    def close(self) -> None:
        """End the line."""
        if self._rewrite and self._shown:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._line, self._shown = [], ""
