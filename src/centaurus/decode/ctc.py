"""CTC: the most probable token of every frame, repeats collapsed, blanks dropped; tokens put together to words.

Everything here is fed piece by piece, and the pieces do not matter: a stream gives what the whole gives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from centaurus.decode.posterior import check_frames, softmax
from centaurus.decode.vocabulary import Vocabulary

LONGEST = 1.5  # seconds: a mark further before its word is not believed


@dataclass(frozen=True)
class Token:
    """A token over the frames [start, end), with its mean probability there."""

    index: int
    start: int
    end: int
    confidence: float


@dataclass(frozen=True)
class Word:
    """A word with its times in seconds, good to a few frames.

    CTC places words near their ends: only where the vocabulary marks where words begin, ``start`` is more than that.
    """

    text: str
    start: float
    end: float
    confidence: float


class Greedy:
    """Collapses logits (tokens, frames) to tokens. A token is given when the frame after it differs."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.reset()

    def reset(self) -> None:
        """As new."""
        self._frame = 0
        self._index, self._start, self._total = self.vocabulary.blank, 0, 0.0

    def push(self, logits: NDArray[np.floating]) -> list[Token]:
        """The tokens that ended within these frames."""
        check_frames(logits, len(self.vocabulary.tokens), "tokens of the vocabulary")
        best = logits.argmax(axis=0)
        sure = softmax(logits).max(axis=0, initial=0.0)
        done: list[Token] = []
        for index, probability in zip(best.tolist(), sure.tolist(), strict=True):
            if index != self._index:
                done += self.open
                self._index, self._start, self._total = index, self._frame, 0.0
            self._total += probability
            self._frame += 1
        return done

    @property
    def open(self) -> list[Token]:
        """The token that has begun and may go on: at most one."""
        if self._index == self.vocabulary.blank:
            return []
        return [Token(self._index, self._start, self._frame, self._total / (self._frame - self._start))]

    def flush(self) -> list[Token]:
        """The last token, if one is open; then as new."""
        last = self.open
        self.reset()
        return last


class Words:
    """Puts tokens together to words. A word is given when the next one begins."""

    def __init__(self, vocabulary: Vocabulary, seconds: float) -> None:
        self.vocabulary, self.seconds = vocabulary, seconds
        self._tokens: list[Token] = []

    def push(self, tokens: Iterable[Token]) -> list[Word]:
        """The words that these tokens end."""
        done: list[Word] = []
        for token in tokens:
            if self.vocabulary.starts_word(token.index) and not self._awaited(token):
                done += self._word(self._tokens)
                self._tokens = []
            self._tokens.append(token)
        return done

    def partial(self, tokens: Iterable[Token] = ()) -> list[Word]:
        """What there would be if the stream ended after ``tokens``; changes nothing."""
        ahead = Words(self.vocabulary, self.seconds)
        ahead._tokens = list(self._tokens)
        return ahead.push(tokens) + ahead.flush()

    def flush(self) -> list[Word]:
        """The last word; then as new."""
        tokens, self._tokens = self._tokens, []
        return self._word(tokens)

    def _awaited(self, token: Token) -> bool:
        """Whether only the mark of a word has come yet, and this is the word."""
        mark = self.vocabulary.mark
        return mark is not None and [waiting.index for waiting in self._tokens] == [mark] and token.index != mark

    def _word(self, tokens: list[Token]) -> list[Word]:
        text = "".join(self.vocabulary.text(token.index) for token in tokens)
        spoken = [token for token in tokens if self.vocabulary.text(token.index)]
        if not text:
            return []
        marked = tokens[0].index == self.vocabulary.mark and self._near(tokens[0], spoken[0])
        start, end = (tokens if marked else spoken)[0].start * self.seconds, spoken[-1].end * self.seconds
        return [Word(text, start, end, sum(token.confidence for token in spoken) / len(spoken))]

    def _near(self, mark: Token, token: Token) -> bool:
        return (token.start - mark.start) * self.seconds < LONGEST


def greedy(logits: NDArray[np.floating], vocabulary: Vocabulary, seconds: float) -> list[Word]:
    """The words of a whole utterance: logits (tokens, frames), ``seconds`` a frame."""
    collapse, words = Greedy(vocabulary), Words(vocabulary, seconds)
    done = words.push(collapse.push(logits))
    return done + words.push(collapse.flush()) + words.flush()


def join(words: Iterable[Word]) -> str:
    """The text of words."""
    return " ".join(word.text for word in words)
