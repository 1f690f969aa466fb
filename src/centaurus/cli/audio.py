"""``centaurus denoise``, ``spot`` and ``transcribe``: files, folders, pipes and microphones."""

from __future__ import annotations

import json as coder
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centaurus.cli import output

if TYPE_CHECKING:
    from centaurus.decode import Keyword, Word
    from centaurus.runtime.denoise import Options, Report
    from centaurus.runtime.files import Job
    from centaurus.runtime.io import Layout


def denoise(
    inputs: Annotated[
        list[str], typer.Argument(metavar="IN", help="Audio files, folders, or - for standard input (WAV, or --raw).")
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", help="File, folder or - for standard output. Default: IN.denoised beside IN."),
    ] = None,
    model: Annotated[str, typer.Option(help="An .onnx file or a shipped model.")] = "denoise-16k",
    attn_limit_db: Annotated[
        float | None, typer.Option(min=0, help="Attenuate noise by at most this many dB.", show_default="no limit")
    ] = None,
    mix: Annotated[float, typer.Option(min=0, max=1, help="Share of the denoised signal; the rest is input.")] = 1.0,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing files.")] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Write spectrograms before and after beside the result.")
    ] = False,
    workers: Annotated[
        int,
        typer.Option(min=1, max=output.CORES, clamp=True, help="Files processed in parallel, at most one per core."),
    ] = min(4, output.CORES),
    raw: output.Raw = None,
    rate: output.Rate = None,
    channels: output.Channels = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=output.CORES,
            clamp=True,
            help="Threads of the network, at most as many as cores.",
            show_default="2 for a single long file, else 1",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help="onnxruntime; c: the model compiled by a C compiler; auto: c for files from 15 minutes on."),
    ] = "auto",
    band: Annotated[
        str,
        typer.Option(
            help="full: audio above the model's band is scaled by the gain in its top band; narrow: it is removed."
        ),
    ] = "full",
    json: output.Json = False,
) -> None:
    """Remove noise from speech: files, folders or a live pipe.

    Any rate and number of channels, files of any length.
    """
    from centaurus.runtime.denoise import BANDS, Options

    if band not in BANDS:
        raise typer.BadParameter(f"band should be one of {', '.join(BANDS)}, got {band!r}", param_hint="--band")
    options = Options(model, mix, attn_limit_db, threads, engine, band)
    layout = output.raw_layout(raw, rate, channels)
    piped = output.PIPE in (*inputs, out)
    if piped and len(inputs) > 1:
        raise typer.BadParameter("- is one stream: it cannot be combined with other inputs, and -o - takes one input")
    if piped and (plot or json):
        raise typer.BadParameter("--plot and --json are for files, not for pipes")
    if layout is not None and inputs != [output.PIPE]:
        raise typer.BadParameter("--raw describes standard input: give - as the input")
    if piped:
        _pipe(inputs[0], out, options, layout, force)
    else:
        _files(inputs, out, options, workers, force, plot, json)


def _pipe(name: str, out: str | None, options: Options, layout: Layout | None, force: bool) -> None:
    """Denoise from standard input, to standard output, or both."""
    from centaurus.runtime.denoise import denoise_stream
    from centaurus.runtime.files import Job, open_sink, open_source
    from centaurus.runtime.io import Pipe, from_pipe

    if out in (None, output.PIPE) and sys.stdout.isatty():
        raise typer.BadParameter("standard output is a terminal: pipe it, such as … | aplay, or name a file with -o")
    if name == output.PIPE:
        output.refuse_terminal_input()
        source = from_pipe(sys.stdin.buffer, layout)
    else:
        source = open_source(name, seconds=0.1)
    denoiser = options.open(source.rate, source.channels)
    if out is None or out == output.PIPE:
        pipe = Pipe(sys.stdout.buffer, source.layout, wav=layout is None)
        report = denoise_stream(source, pipe, denoiser, "standard output")
    else:
        with open_sink(Job(Path(name), Path(out)), source.layout, source.frames, overwrite=force) as sink:
            report = denoise_stream(source, sink, denoiser, out)
    output.note_repaired(report.repaired)
    if note := _band(report):
        output.note(note)
    if report.ended is not None:
        raise report.ended


def _files(
    inputs: Sequence[str], out: str | None, options: Options, workers: int, force: bool, plot: bool, json: bool
) -> None:
    from centaurus.runtime.denoise import denoise_files
    from centaurus.runtime.files import Job, plan_jobs

    if plot:
        import_module("matplotlib")  # fail before the work, not after it
    jobs, skipped = plan_jobs(inputs, out, force)
    output.note_skipped(skipped)
    options.open(16_000, 1)  # a model that cannot be used is one error, not one for every file
    results: dict[Job, Report | Exception] = {}
    try:
        what = f"denoising {f'{len(jobs)} files' if len(jobs) > 1 else jobs[0].source.name}"
        with output.progress_bar(what, sum(output.length(job.source) for job in jobs)) as advance:
            results.update(denoise_files(jobs, options, min(workers, len(jobs)), force, advance))
    finally:
        reports, errors = _show([results[job] for job in jobs if job in results], json)
    if plot:
        _plot([Job(Path(report.source), Path(report.output)) for report in reports], force, json)
    if errors:
        raise SystemExit(output.exit_code(errors[0]))


def _show(results: Sequence[Report | Exception], json: bool) -> tuple[list[Report], list[Exception]]:
    """Print a line for every report and every error; return both."""
    reports = [result for result in results if not isinstance(result, Exception)]
    errors = [result for result in results if isinstance(result, Exception)]
    if json:
        output.show_json([report.json() for report in reports])
    else:
        for report in reports:
            output.show_sentence(_line(report))
    output.note_repaired(sum(report.repaired for report in reports))
    for note in dict.fromkeys(_band(report) for report in reports):
        if note:
            output.note(note)
    for error in errors:
        output.note(error)
    return reports, errors


def _line(report: Report) -> str:
    channels = f"{report.channels} ch" if report.channels > 1 else "mono"
    return (
        f"{report.source} → {report.output}  {report.seconds:.1f} s, {report.rate / 1000:g} kHz {channels}, "
        f"{_levels(report.level_in, report.level_out)}, {output.duration(report.took)}"
    )


def _band(report: Report) -> str | None:
    """Return a note about audio above the model's band."""
    if report.removed_above is not None:
        return f"audio above {report.removed_above / 1000:g} kHz was removed: it is outside the model's band"
    if report.scaled_above is not None:
        return (
            f"audio above {report.scaled_above / 1000:g} kHz has the gain of the model's top band (--band narrow "
            "removes it)"
        )
    return None


def _levels(before: float, after: float) -> str:
    if not isfinite(before):
        return "silence"
    return f"{before:.1f} → {after:.1f} dBFS" if isfinite(after) else f"{before:.1f} dBFS → silence"


def _plot(jobs: Sequence[Job], force: bool, quiet: bool) -> None:
    from centaurus.runtime.denoise import before_and_after

    for job in jobs:
        path = job.output.with_suffix(".png")
        before_and_after(job.source, job.output, path, overwrite=force)
        if not quiet:
            output.show_sentence(f"spectrograms: {path}")


def spot(
    inputs: output.Inputs = None,
    mic: output.Mic = False,
    out: output.Out = None,
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
    refractory: Annotated[float, typer.Option(min=0, help="Minimum seconds between two reports.")] = 0.5,
    caution: Annotated[
        float | None, typer.Option(help="Added to the logit of the background.", show_default="(the model's own, or 0)")
    ] = None,
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
    force: output.Force = False,
    device: output.Device = None,
    raw: output.Raw = None,
    rate: output.Rate = None,
    channels: output.Channels = 1,
    threads: output.Threads = 1,
) -> None:
    """Find keywords, with the time and confidence of each."""
    from centaurus.runtime.session import Spotter, open_for, smoothing_of

    launch = Launcher(command) if command else None
    lines_of_json = jsonl or (out is not None and out.endswith(".jsonl"))
    settings = open_for("classifier", model, batch=1, threads=threads).settings
    smoothing = replace(smoothing_of(settings), release=release, refractory=refractory)
    options = {"threshold": threshold, "window": smooth, "patience": patience, "caution": caution}
    smoothing = replace(smoothing, **{key: value for key, value in options.items() if value is not None})
    layout = output.raw_layout(raw, rate, channels)
    chosen = [word.strip() for word in words.split(",") if word.strip()] if words is not None else None
    tasks = output.plan_tasks(inputs, mic, device, layout, out, force, ".jsonl" if lines_of_json else ".txt")
    several = len(tasks) > 1

    def run(task: output.Task, advance: Callable[[float], object]) -> None:
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
        with output.until_interrupted(source) as interrupts:
            for block in source.blocks:
                count += _show_keywords(spotter.process(block), lines_of_json, name, show, launch)
                advance(block.shape[1] / source.rate)
        count += _show_keywords(spotter.flush(), lines_of_json, name, show, launch)
        if not count:
            output.note(f"no keyword in {source.name} reached the threshold {smoothing.threshold:g}")
        if task.output is not None:
            output.write_result(task, "".join(f"{line}\n" for line in lines))
        output.end_recording(interrupts, spotter.repaired, mic)

    output.run_all(tasks, "spotting keywords", run)
    if launch is not None:
        launch.end()


class Launcher:
    """Runs a command for every keyword, without a shell and without waiting for it."""

    def __init__(self, command: str) -> None:
        try:
            words = shlex.split(command, posix=not output.WINDOWS)
        except ValueError as error:
            raise typer.BadParameter(f"--exec {command!r} cannot be parsed: {error}") from error
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
    inputs: output.Inputs = None,
    mic: output.Mic = False,
    out: output.Out = None,
    model: Annotated[
        str, typer.Option(help="An .onnx file or a shipped model; commands knows thirty words only.")
    ] = "commands",
    form: Annotated[
        Format | None,
        typer.Option(
            "--format", help="Text with times, captions, or JSON with every word.", show_default="suffix of -o, or text"
        ),
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="Print words as they are recognised, partial ones too.")] = False,
    force: output.Force = False,
    device: output.Device = None,
    raw: output.Raw = None,
    rate: output.Rate = None,
    channels: output.Channels = 1,
    threads: output.Threads = 1,
) -> None:
    """Transcribe speech, with the time of every word.

    Without --model this is a recogniser of thirty words, one after the other: yes no up down left right on off stop go,
    the digits, bed bird cat dog happy house marvin sheila tree wow. It does not know general English (centaurus train
    asr trains a recogniser for that).
    """
    from centaurus.runtime.session import Transcriber

    named = next((known for known in Format if out and out.endswith(f".{known.value}")), Format.TEXT)
    kind = form or named
    if live and (kind not in (Format.TEXT, Format.JSON) or out is not None):
        raise typer.BadParameter(f"--live prints text or JSON lines; {kind.value} captions and -o need whole files")
    layout = output.raw_layout(raw, rate, channels)
    suffix = {Format.TEXT: ".txt"}.get(kind, f".{kind.value}")
    tasks = output.plan_tasks(inputs, mic, device, layout, out, force, suffix)
    if model == "commands":
        output.note("the model commands knows thirty words, not general English (see -h)")

    def run(task: output.Task, advance: Callable[[float], object]) -> None:
        source = task.open()
        transcriber = Transcriber(model, source.rate, source.channels, threads)
        screen = Live(kind is Format.JSON) if live else None
        words: list[Word] = []
        with output.until_interrupted(source) as interrupts:
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
            output.write_result(task, _write_transcript(words, kind))
        else:
            title = f"{source.name}\n" if len(tasks) > 1 and kind is Format.TEXT else ""
            sys.stdout.write(title + _write_transcript(words, kind, source.name if len(tasks) > 1 else None))
            sys.stdout.flush()
        output.end_recording(interrupts, transcriber.repaired, mic)

    output.run_all(tasks, "transcribing", run)


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
    times = {"start": round(word.start, 3), "end": round(word.end, 3)}
    return {"word": word.text, **times, "confidence": round(word.confidence, 4)}


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
