"""``centaurus denoise``: files, folders and pipes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from centaurus.cli import listening, output

if TYPE_CHECKING:
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
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite files that exist.")] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Write spectrograms before and after beside the result.")
    ] = False,
    workers: Annotated[
        int,
        typer.Option(min=1, max=listening.CORES, clamp=True, help="Files at the same time, at most as many as cores."),
    ] = min(4, listening.CORES),
    raw: listening.Raw = None,
    rate: listening.Rate = None,
    channels: listening.Channels = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=listening.CORES,
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
    layout = listening.raw_layout(raw, rate, channels)
    piped = listening.PIPE in (*inputs, out)
    if piped and len(inputs) > 1:
        raise typer.BadParameter("- stands for one stream: give no other input beside it, and one for -o -")
    if piped and (plot or json):
        raise typer.BadParameter("--plot and --json are for files, not for pipes")
    if layout is not None and inputs != [listening.PIPE]:
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

    if out in (None, listening.PIPE) and sys.stdout.isatty():
        raise typer.BadParameter("standard output is a terminal: pipe it on, as … | aplay, or name a file with -o")
    if name == listening.PIPE:
        listening.refuse_terminal_input()
        source = from_pipe(sys.stdin.buffer, layout)
    else:
        source = open_source(name, seconds=0.1)
    denoiser = options.open(source.rate, source.channels)
    if out is None or out == listening.PIPE:
        pipe = Pipe(sys.stdout.buffer, source.layout, wav=layout is None)
        report = denoise_stream(source, pipe, denoiser, "standard output")
    else:
        with open_sink(Job(Path(name), Path(out)), source.layout, source.frames, overwrite=force) as sink:
            report = denoise_stream(source, sink, denoiser, out)
    listening.note_repaired(report.repaired)
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
        import_module("matplotlib")  # an error before the work, not after it
    jobs, skipped = plan_jobs(inputs, out, force)
    listening.note_skipped(skipped)
    options.open(16_000, 1)  # a model that cannot be used is one error, not one for every file
    results: dict[Job, Report | Exception] = {}
    try:
        what = f"denoising {f'{len(jobs)} files' if len(jobs) > 1 else jobs[0].source.name}"
        with output.progress_bar(what, sum(listening.length(job.source) for job in jobs)) as advance:
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
    listening.note_repaired(sum(report.repaired for report in reports))
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
