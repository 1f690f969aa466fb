"""The outputs of a recognizer: tokens, the CTC blank, and how tokens form words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

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
