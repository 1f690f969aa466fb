"""Decode the outputs of networks: token logits to words, class logits to keywords. numpy only."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from html import escape

import numpy as np
from numpy.typing import NDArray

BLANKS = ("<blank>", "[PAD]", "<pad>", "")
SPACES = (" ", "|")
CONTINUED = "##"
MARK = "<start>"  # an optional last output: a word begins here


class Style(Enum):
    """How tokens form words: pieces with ``##`` for a continuation, single characters, or whole words."""

    PIECES = "wordpiece"
    CHARACTERS = "character"
    WORDS = "word"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens by index. ``Vocabulary.of(tokens)`` infers blank and style."""

    tokens: tuple[str, ...]
    blank: int
    style: Style

    def __post_init__(self) -> None:
        if not 0 <= self.blank < len(self.tokens):
            raise ValueError(f"the blank should be one of {len(self.tokens)} tokens, got index {self.blank}")

    @classmethod
    def of(cls, tokens: Sequence[str], blank: int | None = None, style: Style | str | None = None) -> Vocabulary:
        """Return the vocabulary of these tokens. The blank is ``<blank>`` or ``[PAD]`` if present, else the first."""
        if not tokens or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"a vocabulary is a list of strings, got {tokens!r:.80}")
        if blank is None:
            blank = next((index for name in BLANKS for index, token in enumerate(tokens) if token == name), 0)
        return cls(tuple(tokens), blank, Style(style) if style is not None else _guess(tokens, blank))

    @property
    def mark(self) -> int | None:
        """The index of the output that marks word starts, or None."""
        return len(self.tokens) - 1 if self.tokens[-1] == MARK else None

    def starts_word(self, token: int) -> bool:
        """Return whether a word ends before this token."""
        text = self.tokens[token]
        if self.style is Style.PIECES:
            return not text.startswith(CONTINUED)
        return self.style is Style.WORDS or text in SPACES

    def text(self, token: int) -> str:
        """Return the characters that the token adds to its word."""
        text = self.tokens[token]
        if self.style is Style.PIECES:
            return text.removeprefix(CONTINUED)
        return "" if self.style is Style.CHARACTERS and text in SPACES else text


def _guess(tokens: Sequence[str], blank: int) -> Style:
    spoken = [token for index, token in enumerate(tokens) if index != blank and not _special(token)]
    if any(token.startswith(CONTINUED) and token != CONTINUED for token in spoken):
        return Style.PIECES
    return Style.CHARACTERS if all(len(token) == 1 for token in spoken) else Style.WORDS


def _special(token: str) -> bool:
    return len(token) > 2 and (token[0], token[-1]) in (("<", ">"), ("[", "]"))


def normalise(text: str) -> str:
    """Return the text as transcripts are compared: lower case, only letters, digits, apostrophes and single spaces."""
    plain = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    return " ".join("".join(c if c.isalnum() or c == "'" else " " for c in plain).split())


LATE = 0.05  # seconds: a token of a vocabulary with a start mark is trained to last this long after its word
MARK_DELAY = 0.02  # seconds from the sound of a word to the first frame of its start mark, more in noise
REACH = 1.0  # seconds: a token begins at most this long before it is the most probable
MARKED = 0.1  # seconds for which a start mark is trained to last
# Words of Speech Commands begin 0.43 s before they are most probable (median; 90 % from 0.29 to 0.68 s). Another time
# costs UNUSUAL times the squared logarithm of the ratio, in logits: chosen on the validation list, where 6 to 13 place
# starts equally well.
USUAL, UNUSUAL = 0.43, 9.6
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

    ``seconds`` are those of a frame. If the vocabulary has a start mark, a token begins where the mark's logit is
    highest, after the previous token and within ``REACH``: the mean over ``MARKED``, less the cost of an unusual time.
    Without a mark a token begins where it is first the most probable.
    """

    def __init__(self, vocabulary: Vocabulary, seconds: float) -> None:
        self.vocabulary, self.seconds = vocabulary, seconds
        self.reset()

    def reset(self) -> None:
        """Clear the state."""
        self._frame = 0
        self._index, self._start, self._total = self.vocabulary.blank, 0, 0.0
        self._begin, self._spent = 0, False
        self._marks: list[float] = []  # for the frames up to this one, any of which may start the next token

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
                    self._begin = self._frame - _since_begin(self._marks, self.seconds)
                    self._marks, self._spent = [], True
            self._total += probability
            self._frame += 1
        return done

    def _remember(self, marked: float) -> None:
        """Keep the mark's logit; a mark that continues after a token still belongs to it."""
        self._spent = self._spent and marked > 0
        if not self._spent:
            self._marks = [*self._marks, marked][-_frames(REACH, self.seconds) :]

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


def _frames(time: float, seconds: float) -> int:
    return max(1, round(time / seconds))


def _since_begin(marks: list[float], seconds: float) -> int:
    """Return how many frames ago the token began, from marks that end with this frame."""
    since, best = 0, -math.inf
    for k in range(len(marks)):
        lasting = marks[k : k + _frames(MARKED, seconds)]
        cost = UNUSUAL * math.log((len(marks) - k - 0.5) * seconds / USUAL) ** 2
        if (score := sum(lasting) / len(lasting) - cost) > best:
            since, best = len(marks) - 1 - k, score
    return since


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
        delay, late = (0.0, 0.0) if self.vocabulary.mark is None else (MARK_DELAY, LATE)
        start, end = max(0.0, spoken[0].begin * self.seconds - delay), spoken[-1].end * self.seconds
        return [Word(text, start, max(start, end - late), sum(token.confidence for token in spoken) / len(spoken))]


def greedy(logits: NDArray[np.floating], vocabulary: Vocabulary, seconds: float) -> list[Word]:
    """Return the words of a whole utterance: logits (tokens, frames), ``seconds`` per frame."""
    collapse, words = Greedy(vocabulary, seconds), Words(vocabulary, seconds)
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
    entries = (f"\n{clock(cue.start)} --> {clock(cue.end)}\n{escape(cue.text, quote=False)}\n" for cue in captions)
    return "WEBVTT\n" + "".join(entries)


def clock(seconds: float, point: str = ".") -> str:
    """Return hours, minutes, seconds and milliseconds: 00:01:02.345."""
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"


LONGEST_WINDOW = 60.0  # seconds: a keyword is shorter than that, and its frames are all kept
MOST_CAUTION = 20.0  # logits
PATIENCE = 0.5  # seconds from the threshold to the report, at most
BACKGROUND = "background"  # the class of everything that is not a keyword


@dataclass(frozen=True)
class Keyword:
    """A detected keyword: ``time`` is when it reached the threshold, ``confidence`` its peak probability."""

    word: str
    time: float
    confidence: float


@dataclass(frozen=True)
class Smoothing:
    """When a keyword is reported: probabilities in [0, 1], times in seconds.

    ``threshold`` is compared with the probability averaged over ``window``; ``release`` is the level below which a
    keyword has ended (0.8 of the threshold if not given); ``refractory`` is the shortest time between two reports;
    ``patience`` is the longest wait for the peak, and 0 reports a keyword as soon as it reaches the threshold.
    ``caution`` is added to the logit of the background before probabilities are averaged: frames then count by how
    much surer than the threshold they are, and a word that is doubtful for long is not one that is sure for a moment.
    """

    threshold: float = 0.6
    release: float | None = None
    window: float = 0.1
    refractory: float = 0.5
    patience: float = PATIENCE
    caution: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"the threshold is a probability above 0 and up to 1, got {self.threshold:g}")
        if not 0.0 <= self.low <= self.threshold:
            raise ValueError(f"the release level lies between 0 and the threshold {self.threshold:g}, got {self.low:g}")
        if not 0.0 <= self.window <= LONGEST_WINDOW:
            raise ValueError(f"the window should be 0 to {LONGEST_WINDOW:g} seconds, got {self.window:g}")
        for name, seconds in {"refractory time": self.refractory, "patience": self.patience}.items():
            if not 0.0 <= seconds < np.inf:
                raise ValueError(f"the {name} should be seconds from 0 on, got {seconds:g}")
        if not abs(self.caution) <= MOST_CAUTION:
            raise ValueError(f"the caution should be at most {MOST_CAUTION:g} either way, got {self.caution:g}")

    @property
    def low(self) -> float:
        """The release level: 0.8 of the threshold if none is given."""
        return 0.8 * self.threshold if self.release is None else self.release

    def at(self, threshold: float) -> Smoothing:
        """Return the same smoothing with another threshold, and a release level in proportion to it."""
        return replace(self, threshold=threshold, release=None)


class MovingMean:
    """The mean of the last ``frames`` frames, of fewer at the beginning; (features, frames) in and out."""

    def __init__(self, features: int, frames: int) -> None:
        self.features, self.frames = features, frames
        self.reset()

    def reset(self) -> None:
        """Reset the state."""
        self._past: NDArray[np.float64] = np.zeros((self.features, 0))

    def push(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one mean for every frame."""
        past, new = self._past.shape[1], x.shape[1]
        line = np.concatenate([np.zeros((self.features, self.frames - 1 - past)), self._past, x], axis=1)
        total = np.zeros((self.features, new))
        for k in range(self.frames):  # always in this order, so that a sum does not depend on the pieces
            total += line[:, k : k + new]
        seen = np.minimum(np.arange(past + 1, past + new + 1), self.frames)
        self._past = line[:, line.shape[1] - min(past + new, self.frames - 1) :]
        return total / seen


class Decision:
    """Keywords from averaged scores (words, frames): threshold, peak, hysteresis, refractory time."""

    def __init__(self, words: Sequence[str], seconds: float, smoothing: Smoothing) -> None:
        self.words, self.seconds, self.smoothing = tuple(words), seconds, smoothing
        self._refractory = round(smoothing.refractory / seconds)
        self._patience = max(1, round(smoothing.patience / seconds)) if smoothing.patience else 0
        self.reset()

    def reset(self) -> None:
        """Reset the state."""
        self._armed = np.ones(len(self.words), bool)  # which have been below the release level since their report
        self._frame = 0
        self._rising = -1  # the keyword above the threshold that waits for its peak
        self._began = self._quiet_until = 0
        self._peak = 0.0

    def push(self, scores: NDArray[np.float64]) -> list[Keyword]:
        """Return the keywords to report within these frames. Only frames near the threshold are examined one by one."""
        keywords: list[Keyword] = []
        low = scores < self.smoothing.low
        loud = np.flatnonzero(scores.max(axis=0, initial=0.0) >= self.smoothing.threshold)
        first, frames, start = 0, scores.shape[1], self._frame
        while first < frames:
            if self._rising < 0:  # skip to the next frame in which a word could begin
                later = loud[np.searchsorted(loud, first) :]
                target = int(later[0]) if len(later) else frames
                self._armed |= low[:, first:target].any(axis=1)
                first = target
                if first == frames:
                    break
            self._frame = start + first
            self._armed |= low[:, first]
            keywords += self._look(scores[:, first])
            first += 1
        self._frame = start + frames
        return keywords

    def flush(self) -> list[Keyword]:
        """Return the keyword that was still rising, if any, and reset the state."""
        keywords = self._report() if self._rising >= 0 else []
        self.reset()
        return keywords

    def _look(self, scores: NDArray[np.float64]) -> list[Keyword]:
        keywords: list[Keyword] = []
        if self._rising >= 0:
            score = float(scores[self._rising])
            if score >= self._peak and self._frame - self._began < self._patience:
                self._peak = score
            else:
                keywords = self._report()
        leader = int(scores.argmax())
        free = self._rising < 0 and self._frame >= self._quiet_until
        if free and self._armed[leader] and scores[leader] >= self.smoothing.threshold:
            self._rising, self._began, self._peak = leader, self._frame, float(scores[leader])
            self._armed[leader] = False
            if not self._patience:
                keywords += self._report()
        return keywords

    def _report(self) -> list[Keyword]:
        word = self.words[self._rising]
        self._rising, self._quiet_until = -1, self._began + self._refractory
        return [Keyword(word, (self._began + 1) * self.seconds, self._peak)]


class Spotting:
    """Keywords from logits (classes, frames), ``seconds`` apart.

    ``words`` are the classes that may be reported, by default all but the background: probabilities are still those
    over all classes, so that leaving words out only removes reports.
    """

    def __init__(
        self,
        classes: Sequence[str],
        seconds: float,
        smoothing: Smoothing | None = None,
        words: Sequence[str] | None = None,
    ) -> None:
        self.classes, self.seconds = tuple(classes), seconds
        self.smoothing = smoothing or Smoothing()
        chosen = [name for name in self.classes if name != BACKGROUND] if words is None else list(words)
        unknown = [word for word in chosen if word not in self.classes or word == BACKGROUND]
        if unknown or not chosen:
            known = ", ".join(name for name in self.classes if name != BACKGROUND) or "none"
            raise ValueError(f"cannot report {', '.join(unknown) or 'no word at all'}: the model's words are {known}")
        self.words = tuple(chosen)
        self._chosen = [self.classes.index(word) for word in chosen]
        self._caution = np.array([[self.smoothing.caution * (name == BACKGROUND)] for name in self.classes])
        self._mean = MovingMean(len(self.classes), max(1, round(self.smoothing.window / seconds)))
        self._decision = Decision(chosen, seconds, self.smoothing)

    def reset(self) -> None:
        """Reset the state."""
        self._mean.reset()
        self._decision.reset()

    def scores(self, logits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return averaged probabilities (words, frames) of the words that may be reported."""
        check_frames(logits, len(self.classes), "classes")
        return self._mean.push(softmax(logits + self._caution))[self._chosen]

    def push(self, logits: NDArray[np.floating]) -> list[Keyword]:
        """Return the keywords to report within these frames."""
        return self._decision.push(self.scores(logits))

    def flush(self) -> list[Keyword]:
        """Return the keyword that was still rising, if any, and reset the state."""
        self._mean.reset()
        return self._decision.flush()
