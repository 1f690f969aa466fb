"""Greedy CTC decoding: the most probable token of every frame, repeats collapsed, blanks dropped, tokens to words.

Logits may come in pieces of any length: streaming equals offline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centaurus.decode.vocabulary import Vocabulary, normalise

LATE = 0.05  # seconds: a token of a vocabulary with a start mark is trained to last this long after its word
REACH = 32  # frames: a token begins at most this long before it is the most probable
PAUSE = 0.8  # seconds of silence that end a caption
LONGEST = 6.0  # seconds
WIDEST = 42  # characters, as subtitles usually have


@dataclass(frozen=True)
class Token:
    """A token over the frames [start, end), with its mean probability there; ``begin`` is where its sound begins."""

    index: int
    start: int
    end: int
    confidence: float
    begin: int


@dataclass(frozen=True)
class Word:
    """A word with its times in seconds, accurate to a few frames.

    CTC places words near their ends: ``start`` is accurate only if the network has an output for word starts.
    """

    text: str
    start: float
    end: float
    confidence: float


class Greedy:
    """Collapse logits (tokens, frames) to tokens. A token is returned when the frame after it differs.

    If the vocabulary has a start mark, a token begins with the last run of frames in which the mark's logit is above
    0, after the previous token and within ``REACH``; or, without such frames, where it is highest. Without a mark a
    token begins where it is first the most probable.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.reset()

    def reset(self) -> None:
        """Clear the state."""
        self._frame = 0
        self._index, self._start, self._total = self.vocabulary.blank, 0, 0.0
        self._begin, self._spent = 0, False
        self._marks: list[float] = []  # of the frames up to this one that may be the beginning of the next token

    def push(self, logits: NDArray[np.floating]) -> list[Token]:
        """Return the tokens that ended within these frames."""
        check_frames(logits, len(self.vocabulary.tokens), "tokens of the vocabulary")
        mark = self.vocabulary.mark
        marks = np.zeros(logits.shape[1]) if mark is None else logits[mark]
        spoken = logits if mark is None else logits[:mark]
        best = spoken.argmax(axis=0)
        sure = softmax(spoken).max(axis=0, initial=0.0)
        done: list[Token] = []
        for index, probability, marked in zip(best.tolist(), sure.tolist(), marks.tolist(), strict=True):
            if mark is not None:
                self._remember(marked)
            if index != self._index:
                done += self.open
                self._index, self._start, self._total = index, self._frame, 0.0
                if index != self.vocabulary.blank:
                    self._begin = self._frame - _since_begin(self._marks)
                    self._marks, self._spent = [], True
            self._total += probability
            self._frame += 1
        return done

    def _remember(self, marked: float) -> None:
        """Keep the mark's logit; a mark that continues after a token still belongs to it."""
        self._spent = self._spent and marked > 0
        if not self._spent:
            self._marks = [*self._marks[1 - REACH :], marked]

    @property
    def open(self) -> list[Token]:
        """The token that has begun and may continue: at most one."""
        if self._index == self.vocabulary.blank:
            return []
        confidence = self._total / (self._frame - self._start)
        return [Token(self._index, self._start, self._frame, confidence, self._begin)]

    def flush(self) -> list[Token]:
        """Return the last token, if one is open, and clear the state."""
        last = self.open
        self.reset()
        return last


def _since_begin(marks: list[float]) -> int:
    """Return how many frames ago the token began, from marks that end with this frame."""
    if not marks:
        return 0
    begin = next((k for k in range(len(marks) - 1, -1, -1) if marks[k] > 0), None)
    if begin is None:
        begin = marks.index(max(marks))
    while begin > 0 and marks[begin] > 0 and marks[begin - 1] > 0:
        begin -= 1
    return len(marks) - 1 - begin


class Words:
    """Join tokens to words. A word is returned when the next one begins."""

    def __init__(self, vocabulary: Vocabulary, seconds: float) -> None:
        self.vocabulary, self.seconds = vocabulary, seconds
        self._tokens: list[Token] = []

    def push(self, tokens: Iterable[Token]) -> list[Word]:
        """Return the words that end before these tokens."""
        done: list[Word] = []
        for token in tokens:
            if self.vocabulary.starts_word(token.index):
                done += self._word(self._tokens)
                self._tokens = []
            self._tokens.append(token)
        return done

    def partial(self, tokens: Iterable[Token] = ()) -> list[Word]:
        """Return the words there would be if the stream ended after ``tokens``, without changing the state."""
        ahead = Words(self.vocabulary, self.seconds)
        ahead._tokens = list(self._tokens)
        return ahead.push(tokens) + ahead.flush()

    def flush(self) -> list[Word]:
        """Return the last word and clear the state."""
        tokens, self._tokens = self._tokens, []
        return self._word(tokens)

    def _word(self, tokens: list[Token]) -> list[Word]:
        text = "".join(self.vocabulary.text(token.index) for token in tokens)
        spoken = [token for token in tokens if self.vocabulary.text(token.index)]
        if not text:
            return []
        late = 0.0 if self.vocabulary.mark is None else LATE
        start, end = spoken[0].begin * self.seconds, spoken[-1].end * self.seconds
        return [Word(text, start, max(start, end - late), sum(token.confidence for token in spoken) / len(spoken))]


def greedy(logits: NDArray[np.floating], vocabulary: Vocabulary, seconds: float) -> list[Word]:
    """Return the words of a whole utterance: logits (tokens, frames), ``seconds`` per frame."""
    collapse, words = Greedy(vocabulary), Words(vocabulary, seconds)
    done = words.push(collapse.push(logits))
    return done + words.push(collapse.flush()) + words.flush()


def join(words: Iterable[Word]) -> str:
    """Return words as text."""
    return " ".join(word.text for word in words)


def transcript(logits: NDArray[np.floating], vocabulary: Vocabulary, seconds: float) -> str:
    """Return the normalised text of token logits (tokens, frames); an apostrophe joins its neighbours."""
    return normalise(join(greedy(logits, vocabulary, seconds))).replace(" ' ", "'")


def check_frames(logits: NDArray[np.floating], features: int, of: str) -> None:
    """Raise ValueError unless logits are (features, frames)."""
    if logits.ndim != 2 or logits.shape[0] != features:
        raise ValueError(f"logits should be ({features}, frames) for the {features} {of}, got {logits.shape}")


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return probabilities over the first axis, in double precision."""
    x = logits.astype(np.float64)
    x = np.exp(x - x.max(axis=0, keepdims=True, initial=-np.inf)) if x.shape[0] else x
    return np.asarray(x / x.sum(axis=0, keepdims=True))


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
