"""``centaurus spot``: keywords in a file, a pipe or from a microphone."""

from __future__ import annotations

import json as coder
from typing import TYPE_CHECKING, Annotated

import typer

from centaurus.cli import faults, listening, output

if TYPE_CHECKING:
    from centaurus.decode import Keyword


def spot(
    name: listening.Input = None,
    mic: listening.Mic = False,
    model: Annotated[str, typer.Option(help="An .onnx file or a shipped model.")] = "kws-30",
    threshold: Annotated[float, typer.Option(help="Report from this probability on.")] = 0.6,
    release: Annotated[
        float | None, typer.Option(help="A word has ended below this.", show_default="0.8 of the threshold")
    ] = None,
    smooth: Annotated[float, typer.Option(min=0, help="Average probabilities over so many seconds.")] = 0.1,
    refractory: Annotated[float, typer.Option(min=0, help="Seconds after a report without another.")] = 0.5,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="A line of JSON for every keyword.")] = False,
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
        source = listening.source(name, mic, device, layout, 16_000)
        spotter = Spotter(model, source.rate, source.channels, smoothing, threads)
        if not jsonl:
            output.show_line(f"{'time':<14}{'keyword':<14}confidence")
        count = 0
        with listening.Hearing(source) as hearing:
            for block in source.blocks:
                count += _show(spotter.process(block), jsonl)
        count += _show(spotter.flush(), jsonl)
        if not count:
            output.note(f"no keyword in {source.name} reached {threshold:g}")
        hearing.end(spotter.repaired, mic)


def _show(found: list[Keyword], jsonl: bool) -> int:
    from centaurus.decode import clock

    for keyword in found:
        if jsonl:
            data = {"time": round(keyword.time, 3), "keyword": keyword.word, "confidence": round(keyword.confidence, 4)}
            output.show_line(coder.dumps(data))
        else:
            output.show_line(f"{clock(keyword.time):<14}{keyword.word:<14}{keyword.confidence:>10.2f}")
    return len(found)
