"""``centaurus spot`` and ``transcribe``: keywords or words in files and folders, a pipe or from a microphone.

The options, inputs and outputs that both have in common come first; ``denoise`` shares some of them.
"""

from __future__ import annotations

import json as coder
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from centaurus.cli import output

if TYPE_CHECKING:
    from centaurus.decode import Keyword, Word
    from centaurus.runtime.io import Layout, Source

PIPE = "-"
CORES = os.cpu_count() or 1
SHOWN = 5  # skipped files that are named

Inputs = Annotated[
    list[str] | None, typer.Argument(metavar="[IN]...", help="Audio files, folders, or - for standard input.")
]
Mic = Annotated[bool, typer.Option("--mic", help="Listen to a microphone until Ctrl-C.")]
Device = Annotated[str | None, typer.Option(help="Which microphone: its number or a part of its name.")]
Rate = Annotated[int | None, typer.Option(help="Sample rate of raw samples on standard input, in Hz.")]
Channels = Annotated[int, typer.Option(help="Channels of raw samples on standard input.")]
Raw = Annotated[
    str | None,
    typer.Option("--raw", help="Standard input is raw: u8, s16le, s24le, s32le, f32le or f64le. Else it is WAV."),
]
Threads = Annotated[
    int, typer.Option(min=1, max=CORES, clamp=True, help="Threads of the network, at most as many as cores.")
]
Out = Annotated[
    str | None, typer.Option("--out", "-o", help="File or folder for the results.", show_default="standard output")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite files that exist.")]


def raw_layout(raw: str | None, rate: int | None, channels: int) -> Layout | None:
    """Return the layout of raw samples on standard input; None if it is WAV."""
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


class Task(NamedTuple):
    """One input to listen to, and where its results go: a file, or standard output."""

    open: Callable[[], Source]
    output: Path | None
    seconds: Callable[[], float | None]


def plan_tasks(
    inputs: Sequence[str] | None,
    mic: bool,
    device: str | None,
    raw: Layout | None,
    out: str | None,
    force: bool,
    suffix: str,
) -> list[Task]:
    """Return the inputs: files and folders, standard input, or a microphone (at 16 kHz)."""
    from centaurus.runtime.files import Job, find_inputs, open_source, plan_jobs
    from centaurus.runtime.io import from_microphone, from_pipe

    if mic == bool(inputs):
        raise typer.BadParameter("give audio files, folders, - for standard input, or --mic")
    if raw is not None and inputs != [PIPE]:
        raise typer.BadParameter("--raw describes standard input: give - as the input")
    if not inputs or PIPE in inputs:
        if inputs and len(inputs) > 1:
            raise typer.BadParameter("- stands for one stream: give no other input beside it")
        if not mic:
            refuse_terminal_input()
        live = (lambda: from_microphone(16_000, device)) if mic else (lambda: from_pipe(sys.stdin.buffer, raw))
        return [Task(live, None if out is None else _free(Path(out), force), lambda: None)]
    if out is None:
        located = find_inputs(inputs)
        jobs, skipped = [Job(path, Path()) for path, _, _ in located.files], located.skipped
    else:
        jobs, skipped = plan_jobs(inputs, out, force, suffix=suffix)
    note_skipped(skipped)
    return [
        Task(partial(open_source, job.source), None if out is None else job.output, partial(length, job.source))
        for job in jobs
    ]


def _free(path: Path, force: bool) -> Path:
    from centaurus.system import OutputError

    if path.exists() and not force:
        raise OutputError("exists already; -f overwrites", path)
    return path


def length(path: Path) -> float:
    """Return the seconds of a file by its header; 0 for one that cannot be read, whose error comes later."""
    from centaurus.audio import AudioError, info
    from centaurus.runtime.files import is_container, seconds

    try:
        return seconds(path) if is_container(path) else info(path).seconds
    except AudioError:
        return 0.0


def refuse_terminal_input() -> None:
    """Refuse samples from a terminal."""
    if sys.stdin.isatty():
        raise typer.BadParameter("standard input is a terminal: pipe audio into it, as arecord -f S16_LE -r 16000 | …")


def run_all(tasks: Sequence[Task], what: str, run: Callable[[Task, Callable[[float], object]], None]) -> None:
    """Run every task. One that fails does not stop the others; the exit code is that of the first failure."""
    errors: list[Exception] = []
    total = sum(task.seconds() or 0.0 for task in tasks)
    with output.progress_bar(what, total) as advance:
        for task in tasks:
            try:
                run(task, advance)
            except (ValueError, OSError) as error:
                if len(tasks) == 1 or output.is_closed_pipe(error):
                    raise
                output.note(error)
                errors.append(error)
    if errors:
        raise SystemExit(output.exit_code(errors[0]))


def write_result(task: Task, text: str) -> None:
    """Write a whole result to its file."""
    from centaurus.runtime.io import make_folder
    from centaurus.system import write_file

    assert task.output is not None
    make_folder(task.output.parent)
    write_file(task.output, text)
    output.note(f"wrote {task.output}")


@contextmanager
def until_interrupted(source: Source) -> Iterator[list[KeyboardInterrupt]]:
    """Read a source in a context in which an interrupt ends live audio; yield a list that then has the interrupt."""
    interrupts: list[KeyboardInterrupt] = []
    try:
        yield interrupts
    except KeyboardInterrupt as error:
        if not source.live:
            raise
        interrupts.append(error)


def end_recording(interrupts: list[KeyboardInterrupt], repaired: int, mic: bool) -> None:
    """Report repaired samples. Raise the interrupt of a pipe; it is the normal end of a microphone."""
    note_repaired(repaired)
    if interrupts and not mic:
        raise interrupts[0]


def note_repaired(count: int) -> None:
    """Print how many samples were not finite or out of range, if any were."""
    if count:
        output.note(f"{count} samples were not finite (taken as zeros) or far above full scale (limited)")


def note_skipped(skipped: dict[Path, str]) -> None:
    """Print which files of a folder were skipped, and why."""
    for reason in dict.fromkeys(skipped.values()):
        names = [path.name for path, why in skipped.items() if why == reason]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        output.note(f"skipped ({reason}): {', '.join(names[:SHOWN])}{more}")


def spot(
    inputs: Inputs = None,
    mic: Mic = False,
    out: Out = None,
    model: Annotated[str, typer.Option(help="An .onnx file or a shipped model.")] = "kws-30",
    words: Annotated[str | None, typer.Option(help="Report only these words, such as yes,no.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Report from this probability on.", show_default="the model's own, or 0.6")
    ] = None,
    release: Annotated[
        float | None, typer.Option(help="A word has ended below this.", show_default="0.8 of the threshold")
    ] = None,
    smooth: Annotated[
        float | None,
        typer.Option(
            min=0, help="Average probabilities over this many seconds.", show_default="the model's own, or 0.1"
        ),
    ] = None,
    refractory: Annotated[float, typer.Option(min=0, help="Seconds after a report without another.")] = 0.5,
    patience: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds to wait for the peak; 0 reports at the threshold.", show_default="0.5"),
    ] = None,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A line of JSON for every keyword.")] = False,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec", metavar="CMD", help="Run this on every keyword: $KEYWORD, $TIME and $CONFIDENCE are set."
        ),
    ] = None,
    force: Force = False,
    device: Device = None,
    raw: Raw = None,
    rate: Rate = None,
    channels: Channels = 1,
    threads: Threads = 1,
) -> None:
    """Find keywords, with the time and confidence of each."""
    from centaurus.runtime.listen import Spotter, smoothing_of
    from centaurus.runtime.session import open_for

    launch = Launcher(command) if command else None
    lines_of_json = jsonl or (out is not None and out.endswith(".jsonl"))
    settings = open_for("classifier", model, batch=1, threads=threads).settings
    smoothing = replace(smoothing_of(settings), release=release, refractory=refractory)
    options = {"threshold": threshold, "window": smooth, "patience": patience}
    smoothing = replace(smoothing, **{key: value for key, value in options.items() if value is not None})
    layout = raw_layout(raw, rate, channels)
    chosen = [word.strip() for word in words.split(",") if word.strip()] if words is not None else None
    tasks = plan_tasks(inputs, mic, device, layout, out, force, ".jsonl" if lines_of_json else ".txt")
    several = len(tasks) > 1

    def run(task: Task, advance: Callable[[float], object]) -> None:
        source = task.open()
        spotter = Spotter(model, source.rate, source.channels, smoothing, threads, chosen)
        lines: list[str] = []
        show = output.show_line if task.output is None else lines.append
        if several and task.output is None and not lines_of_json:
            show(source.name)
        if not lines_of_json:
            show(f"{'time':<14}{'keyword':<14}confidence")
        name = {"file": source.name} if several and lines_of_json else {}
        count = 0
        with until_interrupted(source) as interrupts:
            for block in source.blocks:
                count += _show_keywords(spotter.process(block), lines_of_json, name, show, launch)
                advance(block.shape[1] / source.rate)
        count += _show_keywords(spotter.flush(), lines_of_json, name, show, launch)
        if not count:
            output.note(f"no keyword in {source.name} reached {smoothing.threshold:g}")
        if task.output is not None:
            write_result(task, "".join(f"{line}\n" for line in lines))
        end_recording(interrupts, spotter.repaired, mic)

    run_all(tasks, "spotting keywords", run)
    if launch is not None:
        launch.end()


class Launcher:
    """Runs a command for every keyword, without a shell and without waiting for it."""

    def __init__(self, command: str) -> None:
        try:
            words = shlex.split(command, posix=not output.WINDOWS)
        except ValueError as error:
            raise typer.BadParameter(f"--exec {command!r} cannot be read: {error}") from error
        if not words:
            raise typer.BadParameter("--exec needs a command")
        self._name = words[0]
        self._command = command if output.WINDOWS else words  # where programs split their command line themselves
        self._running: list[subprocess.Popen[bytes]] = []

    def __call__(self, keyword: Keyword) -> None:
        variables = {"KEYWORD": keyword.word, "TIME": f"{keyword.time:.3f}", "CONFIDENCE": f"{keyword.confidence:.4f}"}
        self._running = [process for process in self._running if not self._ended(process.poll())]
        try:
            self._running.append(subprocess.Popen(self._command, env={**os.environ, **variables}))
        except OSError as error:
            raise typer.BadParameter(f"--exec: {self._name} cannot be run: {error.strerror}") from error

    def end(self) -> None:
        for process in self._running:
            self._ended(process.wait())

    def _ended(self, code: int | None) -> bool:
        if code:
            output.note(f"{self._name} ended with {code}")
        return code is not None


def _show_keywords(
    keywords: list[Keyword],
    jsonl: bool,
    name: dict[str, Any],
    show: Callable[[str], object],
    launch: Callable[[Keyword], None] | None,
) -> int:
    from centaurus.decode import clock

    for keyword in keywords:
        if jsonl:
            data = {"time": round(keyword.time, 3), "keyword": keyword.word, "confidence": round(keyword.confidence, 4)}
            show(coder.dumps(name | data))
        else:
            show(f"{clock(keyword.time):<14}{keyword.word:<14}{keyword.confidence:>10.2f}")
        if launch is not None:
            launch(keyword)
    return len(keywords)


class Format(StrEnum):
    """The format of a transcript."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


def transcribe(
    inputs: Inputs = None,
    mic: Mic = False,
    out: Out = None,
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
    force: Force = False,
    device: Device = None,
    raw: Raw = None,
    rate: Rate = None,
    channels: Channels = 1,
    threads: Threads = 1,
) -> None:
    """Transcribe speech, with the time of every word.

    Without --model this is a recogniser of thirty words, one after the other: yes no up down left right on off stop go,
    the digits, bed bird cat dog happy house marvin sheila tree wow. It does not know general English (centaurus train
    asr trains a recogniser for that).
    """
    from centaurus.runtime.listen import Transcriber

    named = next((known for known in Format if out and out.endswith(f".{known.value}")), Format.TEXT)
    kind = form or named
    if live and (kind not in (Format.TEXT, Format.JSON) or out is not None):
        raise typer.BadParameter(f"--live prints text or JSON lines; {kind.value} captions and -o need the whole")
    layout = raw_layout(raw, rate, channels)
    suffix = {Format.TEXT: ".txt"}.get(kind, f".{kind.value}")
    tasks = plan_tasks(inputs, mic, device, layout, out, force, suffix)
    if model == "commands":
        output.note("the model commands knows thirty words, not general English (see -h)")

    def run(task: Task, advance: Callable[[float], object]) -> None:
        source = task.open()
        transcriber = Transcriber(model, source.rate, source.channels, threads)
        screen = Live(kind is Format.JSON) if live else None
        words: list[Word] = []
        with until_interrupted(source) as interrupts:
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
            write_result(task, _write_transcript(words, kind))
        else:
            title = f"{source.name}\n" if len(tasks) > 1 and kind is Format.TEXT else ""
            sys.stdout.write(title + _write_transcript(words, kind, source.name if len(tasks) > 1 else None))
            sys.stdout.flush()
        end_recording(interrupts, transcriber.repaired, mic)

    run_all(tasks, "transcribing", run)


def _write_transcript(words: list[Word], form: Format, name: str | None = None) -> str:
    from centaurus.decode import clock, cues, join, srt, vtt

    if form is Format.JSON:
        data = {"text": join(words), "words": [_word_data(word) for word in words]}
        return coder.dumps(data if name is None else {"file": name, **data}, indent=2 if name is None else None) + "\n"
    lines = cues(words)
    if form is Format.SRT:
        return srt(lines)
    if form is Format.VTT:
        return vtt(lines)
    return "".join(f"[{clock(cue.start)} – {clock(cue.end)}]  {cue.text}\n" for cue in lines)


def _word_data(word: Word) -> dict[str, Any]:
    return {
        "word": word.text,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "confidence": round(word.confidence, 4),
    }


class Live:
    """Prints a live transcript: one line rewritten on a terminal, a line for every change elsewhere, or JSON lines."""

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
                output.show_line(coder.dumps(_word_data(word)))
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
        if self._rewrite and self._shown:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._line, self._shown = [], ""
