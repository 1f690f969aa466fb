"""Captions from words: grouped into readable lines, written as SRT or WebVTT."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from centaurus.decode.ctc import Word, join

PAUSE = 0.8  # seconds of silence that end a caption
LONGEST = 6.0  # seconds
WIDEST = 42  # characters, as subtitles usually have


@dataclass(frozen=True)
class Cue:
    """A caption with its times in seconds."""

    text: str
    start: float
    end: float


def cues(words: Iterable[Word]) -> list[Cue]:
    """Return captions that end at a pause, after six seconds or 42 characters."""
    lines: list[list[Word]] = []
    for word in words:
        if lines and _fits(lines[-1], word):
            lines[-1].append(word)
        else:
            lines.append([word])
    return [Cue(join(line), line[0].start, line[-1].end) for line in lines]


def _fits(line: list[Word], word: Word) -> bool:
    width = len(join(line)) + 1 + len(word.text)
    return word.start - line[-1].end < PAUSE and word.end - line[0].start <= LONGEST and width <= WIDEST


def srt(captions: Iterable[Cue]) -> str:
    """Return SubRip text: numbered, times with a comma."""
    entries = (
        f"{number}\n{clock(cue.start, ',')} --> {clock(cue.end, ',')}\n{cue.text}\n"
        for number, cue in enumerate(captions, 1)
    )
    return "\n".join(entries)


def vtt(captions: Iterable[Cue]) -> str:
    """Return WebVTT text: times with a point, markup characters escaped."""
    entries = (f"\n{clock(cue.start, '.')} --> {clock(cue.end, '.')}\n{_escape(cue.text)}\n" for cue in captions)
    return "WEBVTT\n" + "".join(entries)


def clock(seconds: float, point: str = ".") -> str:
    """Return hours, minutes, seconds and milliseconds: 00:01:02.345."""
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
