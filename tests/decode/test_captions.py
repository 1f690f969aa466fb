from __future__ import annotations

from centaurus.decode import Cue, Word, clock, cues, srt, vtt


def word(text: str, start: float, end: float) -> Word:
    return Word(text, start, end, 1.0)


def test_a_caption_ends_at_a_pause_a_width_or_a_length() -> None:
    words = [word("one", 0, 0.5), word("two", 0.6, 1.0), word("three", 2.0, 2.4)]
    assert cues(words) == [Cue("one two", 0, 1.0), Cue("three", 2.0, 2.4)]
    wide = [word("x" * 20, k * 0.1, k * 0.1 + 0.1) for k in range(3)]
    assert [len(cue.text) for cue in cues(wide)] == [41, 20]
    slow = [word("a", float(k) * 0.7, k * 0.7 + 0.6) for k in range(12)]
    assert [cue.end - cue.start <= 6 for cue in cues(slow)] == [True, True]
    assert cues([]) == []


def test_subrip() -> None:
    text = srt([Cue("one", 0.0, 1.25), Cue("two", 3661.0, 3662.5)])
    assert text == "1\n00:00:00,000 --> 00:00:01,250\none\n\n2\n01:01:01,000 --> 01:01:02,500\ntwo\n"


def test_webvtt_escapes_markup() -> None:
    assert vtt([Cue("a <b> & c", 0.0, 1.0)]) == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na &lt;b&gt; &amp; c\n"
    assert vtt([]) == "WEBVTT\n"


def test_the_clock_rounds_up_into_the_next_second() -> None:
    assert clock(59.9996) == "00:01:00.000"
    assert clock(360_000.0) == "100:00:00.000"
