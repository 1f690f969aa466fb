"""``centaurus spot``: keywords in files and folders, a pipe or from a microphone."""

from __future__ import annotations

import json as coder
from collections.abc import Callable
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
    threshold: Annotated[float, typer.Option(help="Report from this probability on.")] = 0.6,
    release: Annotated[
        float | None, typer.Option(help="A word has ended below this.", show_default="0.8 of the threshold")
    ] = None,
    smooth: Annotated[float, typer.Option(min=0, help="Average probabilities over this many seconds.")] = 0.1,
    refractory: Annotated[float, typer.Option(min=0, help="Seconds after a report without another.")] = 0.5,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A line of JSON for every keyword.")] = False,
    force: listening.Force = False,
    device: listening.Device = None,
    raw: listening.Raw = None,
    rate: listening.Rate = None,
    channels: listening.Channels = 1,
    threads: listening.Threads = 1,
) -> None:
    """Find keywords, with the time when each was heard and how sure it is."""
    with faults.handled():
        from centaurus.decode import Smoothing
        from centaurus.runtime.spot import Spotter

        smoothing = Smoothing(threshold, release, smooth, refractory)
        layout = listening.layout(raw, rate, channels)
        tasks = listening.plan(inputs, mic, device, layout, out, force, ".jsonl" if jsonl else ".txt")
        several = len(tasks) > 1

        def run(task: listening.Task, heard: Callable[[float], object]) -> None:
            source = task.open()
            spotter = Spotter(model, source.rate, source.channels, smoothing, threads)
            lines: list[str] = []
            show = output.show_line if task.output is None else lines.append
            if several and task.output is None and not jsonl:
                show(source.name)
            if not jsonl:
                show(f"{'time':<14}{'keyword':<14}confidence")
            name = {"file": source.name} if several and jsonl else {}
            count = 0
            with listening.Hearing(source) as hearing:
                for block in source.blocks:
                    count += _show(spotter.process(block), jsonl, name, show)
                    heard(block.shape[1] / source.rate)
            count += _show(spotter.flush(), jsonl, name, show)
            if not count:
                output.note(f"no keyword in {source.name} reached {threshold:g}")
            if task.output is not None:
                listening.write_result(task, "".join(f"{line}\n" for line in lines))
            hearing.end(spotter.repaired, mic)

        listening.run_all(tasks, "spotting keywords", run)


def _show(found: list[Keyword], jsonl: bool, name: dict[str, Any], show: Callable[[str], object]) -> int:
    from centaurus.decode import clock

    for keyword in found:
        if jsonl:
            data = {"time": round(keyword.time, 3), "keyword": keyword.word, "confidence": round(keyword.confidence, 4)}
            show(coder.dumps(name | data))
        else:
            show(f"{clock(keyword.time):<14}{keyword.word:<14}{keyword.confidence:>10.2f}")
    return len(found)
