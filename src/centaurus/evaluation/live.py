"""Evaluate a keyword spotter on one continuous stream, never reset, counted after its first minute.

Misses are counted on words at known places in continuous audio, false alarms on hours of audio without the words.
The scores are computed once and thresholded many times, which gives the curve of misses against false alarms.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from centaurus.audio.signal import dbfs, gain
from centaurus.data.corpus import Corpus
from centaurus.data.keywords import Spoken, bounds, faded, some_noise, words_in
from centaurus.decode import Decision, Keyword, Spotting

Samples = NDArray[np.float32]
Scores = NDArray[np.float64]
Push = Callable[[Samples], NDArray[np.floating[Any]]]
"""The next samples (t,) of a stream to its next logits (classes, frames)."""

WARM_UP = 60.0  # seconds of a stream that are not counted, so that a state that drifts is detected
PAUSES = (0.3, 3.0)  # seconds between two words
WORD_LEVEL = -25.0  # dBFS of every word
SNR = 10.0  # dB at which misses are compared with false alarms
MEASURED = 300  # words of the stream that misses are counted in
LATEST = 0.75  # seconds after the end of a word until which its report counts
PIECE = 1 << 16  # samples of a stream that are composed and measured at a time
HUM = (50.0, 100.0, 150.0, 250.0)  # Hz: mains hum and its strongest harmonics
THRESHOLDS = tuple(round(float(p), 4) for p in 1 / (1 + np.exp(-np.linspace(-3.0, 7.0, 41))))


class Point(NamedTuple):
    """A threshold with the share of words missed, and false alarms an hour with their 95 % upper bound."""

    threshold: float
    misses: float
    alarms: int
    alarms_per_hour: float
    at_most: float


@dataclass
class Words:
    """Scores (words, frames) of a stream of words, the places of the words, and the seconds between frames."""

    scores: Scores
    spoken: list[Spoken]
    rate: int
    seconds: float


@dataclass
class Others:
    """Scores of audio without the words, its length in hours, and the seconds between frames.

    ``ends`` are the ends of its clips in seconds, ``transcripts`` their texts: a report of a word in the transcript of
    its clip, or of one that ended just before, is not a false alarm.
    """

    scores: Scores
    hours: float
    seconds: float
    ends: Sequence[float] = ()
    transcripts: Sequence[str] = ()

    def false(self, reported: Sequence[Keyword]) -> list[Keyword]:
        """Return the reports of words that were not spoken."""
        return [keyword for keyword in reported if not self._said(keyword)]

    def _said(self, keyword: Keyword) -> bool:
        first, last = (bisect_left(self.ends, time) for time in (keyword.time - LATEST, keyword.time))
        return any(says(text, [keyword.word]) for text in self.transcripts[first : last + 1])


@dataclass
class Outcome:
    """Reports matched with spoken words: hits, wrong words, reports between words, delays in seconds."""

    words: int = 0
    hits: int = 0
    wrong: int = 0
    between: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def recall(self) -> float:
        """The share of words that were reported correctly."""
        return self.hits / self.words if self.words else 0.0


def most_alarms(count: int) -> float:
    """Return the 95 % upper bound of a Poisson mean after ``count`` events: 3 for none (the rule of three)."""
    seen = np.arange(count + 1)
    log_factorials = np.cumsum(np.log(np.maximum(1, seen)))
    low, high = float(count), count + 10.0 + 4 * math.sqrt(count + 1)
    for _ in range(60):
        mean = (low + high) / 2
        log_terms = seen * math.log(mean) - mean - log_factorials
        low, high = (mean, high) if np.exp(log_terms).sum() > 0.05 else (low, mean)
    return high


def background(kind: str, frames: int, rate: int, rng: np.random.Generator) -> Samples:
    """Return background audio: ``silence`` (digital zeros), ``white`` noise or mains ``hum``."""
    if kind == "silence":
        return np.zeros(frames, np.float32)
    if kind == "white":
        return rng.standard_normal(frames, np.float32)
    if kind == "hum":
        time = np.arange(frames) / rate
        parts = [np.sin(2 * np.pi * hertz * time + rng.uniform(0, 2 * np.pi)) / k for k, hertz in enumerate(HUM, 1)]
        return np.sum(parts, axis=0).astype(np.float32)
    raise ValueError(f"the background is silence, white, hum or a recording, got {kind!r}")


def compose(
    words: Iterable[tuple[str, Samples]],
    sound: Samples,
    below_db: float,
    rate: int,
    rng: np.random.Generator,
    pauses: tuple[float, float] = PAUSES,
) -> tuple[Samples, list[Spoken]]:
    """Return a stream of words at one level, with pauses, on a background ``below_db`` quieter, and the words' places.

    The background is repeated to the length of the stream. Words of the first minute are not listed.
    """
    pieces: list[Samples] = []
    spoken: list[Spoken] = []
    at = 0
    for name, clip in words:
        first, last = bounds(clip)
        word = faded(clip[first:last])
        pause = round(rng.uniform(*pauses) * rate)
        at += pause
        if at >= WARM_UP * rate:
            spoken.append(Spoken(name, at, at + len(word)))
        pieces += [np.zeros(pause, np.float32), word * gain(WORD_LEVEL - dbfs(word))]
        at += len(word)
    pieces.append(np.zeros(rate, np.float32))
    stream = np.concatenate(pieces)
    if np.any(sound):
        bed = np.resize(sound, len(stream))
        stream += bed * gain(WORD_LEVEL - below_db - dbfs(sound))
    return stream, spoken


def score(push: Push, spotting: Spotting, stream: Iterable[Samples]) -> Scores:
    """Return the scores (words, frames) of a stream, continuous over all its pieces."""
    scores = [spotting.scores(push(piece)) for clip in stream for piece in _pieces(clip)]
    return np.concatenate(scores, axis=1)


def _pieces(clip: Samples) -> Iterator[Samples]:
    for first in range(0, len(clip), PIECE):
        yield clip[first : first + PIECE]


def reports(scores: Scores, spotting: Spotting, threshold: float) -> list[Keyword]:
    """Return the keywords reported at a threshold."""
    decision = Decision(spotting.words, spotting.seconds, spotting.smoothing.at(threshold))
    return decision.push(scores) + decision.flush()


def outcome(reported: Sequence[Keyword], said: Words) -> Outcome:
    """Match each word with its first report between its start and ``LATEST`` seconds after its end."""
    result = Outcome(words=len(said.spoken))
    first = said.spoken[0].start / said.rate if said.spoken else WARM_UP
    left = [keyword for keyword in reported if keyword.time >= first]
    for spoken in said.spoken:
        begin, end = spoken.start / said.rate, spoken.end / said.rate
        near = [k for k in left if begin <= k.time <= end + LATEST]
        own = next((k for k in near if k.word == spoken.word), None)
        if own is not None:
            result.hits += 1
            result.delays.append(own.time - end)
            left.remove(own)
        elif near:
            result.wrong += 1
            left.remove(near[0])
    result.between = len(left)
    return result


def curve(said: Words, others: Others, spotting: Spotting, thresholds: Sequence[float] = THRESHOLDS) -> list[Point]:
    """Return misses and false alarms an hour at every threshold."""
    points = []
    for threshold in thresholds:
        misses = 1 - outcome(reports(said.scores, spotting, threshold), said).recall
        count = len(others.false(reports(others.scores, spotting, threshold)))
        points.append(Point(threshold, misses, count, count / others.hours, most_alarms(count) / others.hours))
    return points


def measure(
    listen: Callable[[], Push],
    spotting: Spotting,
    words: Corpus,
    others: Corpus,
    noise: Corpus | None = None,
    below_db: float = SNR,
    count: int = MEASURED,
) -> list[Point]:
    """Return the curve of misses of words in noise, ``below_db`` quieter, against false alarms in other audio.

    ``listen`` starts a new stream. ``words`` are clips of one word each, of which ``count`` are used (repeatedly if
    there are fewer); in ``others``, reports of words in a clip's transcript are not false alarms.
    """
    rng = np.random.default_rng(0)
    rate, mine = words.rate, words.where(word=spotting.words)
    if not len(mine):
        raise ValueError(f"the {words.name} corpus has no clips of {', '.join(spotting.words)}")
    chosen = np.resize(rng.permutation(len(mine)), count)
    clips = (mine.take(int(k)) for k in chosen)
    bed = some_noise(noise, 30 * rate, rate, rng)
    stream, spoken = compose(((clip.labels["word"], x) for clip, x in clips), bed, below_db, rate, rng)
    spotting.reset()
    said = Words(score(listen(), spotting, [stream]), spoken, rate, spotting.seconds)
    spotting.reset()
    return curve(said, score_others(listen(), spotting, others), spotting)


def score_others(push: Push, spotting: Spotting, others: Corpus) -> Others:
    """Return the scores of all clips of a corpus, in one stream."""
    if not len(others):
        raise ValueError(f"the {others.name} corpus has no clips to count false alarms in")
    scores, ends, samples = [], [], 0
    for clip in others:
        x = others.load(clip)
        scores.append(score(push, spotting, [x]))
        samples += len(x)
        ends.append(samples / others.rate)
    transcripts = [clip.labels.get("transcript", "") for clip in others]
    return Others(np.concatenate(scores, axis=1), ends[-1] / 3600, spotting.seconds, ends, transcripts)


def says(transcript: str, words: Sequence[str]) -> bool:
    """Return whether a transcript has one of the words."""
    return not {word.lower() for word in words}.isdisjoint(words_in(transcript))


def threshold_for(points: Sequence[Point], alarms_per_hour: float, most_misses: float = 1.0) -> Point:
    """Return the point with the fewest misses within a rate of false alarms, or else with the fewest false alarms.

    If that misses more than ``most_misses``, return the one with the fewest false alarms among those that do not.
    """
    allowed = [point for point in points if point.alarms_per_hour <= alarms_per_hour]
    fewest = min(points, key=lambda point: (point.alarms_per_hour, point.misses))
    chosen = min(allowed, key=lambda point: (point.misses, -point.threshold)) if allowed else fewest
    useful = [point for point in points if point.misses <= most_misses]
    if chosen.misses <= most_misses or not useful:
        return chosen
    return min(useful, key=lambda point: (point.alarms_per_hour, point.misses, -point.threshold))
