"""``centaurus spot``: keywords in files and folders, a pipe or from a microphone."""

from __future__ import annotations

import json as coder
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from centaurus.cli import faults, listening, output

if TYPE_CHECKING:
    from centaurus.decode import Keyword


def spot(
    inputs: listening.Inputs = None,
    mic: listening.Mic = False,
    out: listening.Out = None,
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
    force: listening.Force = False,
    device: listening.Device = None,
    raw: listening.Raw = None,
    rate: listening.Rate = None,
    channels: listening.Channels = 1,
    threads: listening.Threads = 1,
) -> None:
    """Find keywords, with the time and confidence of each."""
    with faults.handled():
        from centaurus.runtime.session import open_for
        from centaurus.runtime.spot import Spotter, smoothing_of

        launch = Launcher(command) if command else None
        lines_of_json = jsonl or (out is not None and out.endswith(".jsonl"))
        settings = open_for("classifier", model, batch=1, threads=threads).settings
        smoothing = replace(smoothing_of(settings), release=release, refractory=refractory)
        options = {"threshold": threshold, "window": smooth, "patience": patience}
        smoothing = replace(smoothing, **{key: value for key, value in options.items() if value is not None})
        layout = listening.layout(raw, rate, channels)
        chosen = [word.strip() for word in words.split(",") if word.strip()] if words is not None else None
        tasks = listening.plan(inputs, mic, device, layout, out, force, ".jsonl" if lines_of_json else ".txt")
        several = len(tasks) > 1

        def run(task: listening.Task, advance: Callable[[float], object]) -> None:
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
            with listening.Interruptible(source) as reading:
                for block in source.blocks:
                    count += _show(spotter.process(block), lines_of_json, name, show, launch)
                    advance(block.shape[1] / source.rate)
            count += _show(spotter.flush(), lines_of_json, name, show, launch)
            if not count:
                output.note(f"no keyword in {source.name} reached {smoothing.threshold:g}")
            if task.output is not None:
                listening.write_result(task, "".join(f"{line}\n" for line in lines))
            reading.end(spotter.repaired, mic)

        listening.run_all(tasks, "spotting keywords", run)
        if launch is not None:
            launch.end()


class Launcher:
    """Runs a command for every keyword, without a shell and without waiting for it."""

    def __init__(self, command: str) -> None:
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise typer.BadParameter(f"--exec {command!r} cannot be read: {error}") from error
        if not self._command:
            raise typer.BadParameter("--exec needs a command")
        self._running: list[subprocess.Popen[bytes]] = []

    def __call__(self, keyword: Keyword) -> None:
        told = {"KEYWORD": keyword.word, "TIME": f"{keyword.time:.3f}", "CONFIDENCE": f"{keyword.confidence:.4f}"}
        self._running = [process for process in self._running if not self._ended(process.poll())]
        try:
            self._running.append(subprocess.Popen(self._command, env={**os.environ, **told}))
        except OSError as error:
            raise typer.BadParameter(f"--exec: {self._command[0]} cannot be run: {error.strerror}") from error

    def end(self) -> None:
        """Wait for what is still running."""
        for process in self._running:
            self._ended(process.wait())

    def _ended(self, code: int | None) -> bool:
        if code:
            output.note(f"{self._command[0]} ended with {code}")
        return code is not None


def _show(
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
