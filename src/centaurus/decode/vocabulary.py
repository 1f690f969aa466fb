"""What a recogniser's outputs stand for: tokens, the blank between them, and how tokens make words."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

BLANKS = ("<blank>", "[PAD]", "<pad>", "")
SPACES = (" ", "|")
CONTINUED = "##"
MARK = "<start>"  # the last output, where there is one: that a word begins here, whatever it will be


class Style(Enum):
    """How tokens make words: pieces with ``##`` for a continuation, single characters, or words as they are."""

    PIECES = "wordpiece"
    CHARACTERS = "character"
    WORDS = "word"


@dataclass(frozen=True)
class Vocabulary:
    """The tokens by index. ``Vocabulary.of(tokens)`` finds blank and style by itself."""

    tokens: tuple[str, ...]
    blank: int
    style: Style

    def __post_init__(self) -> None:
        if not 0 <= self.blank < len(self.tokens):
            raise ValueError(f"the blank should be one of {len(self.tokens)} tokens, got index {self.blank}")

    @classmethod
    def of(cls, tokens: Sequence[str], blank: int | None = None, style: Style | str | None = None) -> Vocabulary:
        """From a list of tokens. The blank is ``<blank>`` or ``[PAD]`` where there is one, else the first token."""
        if not tokens or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"a vocabulary is a list of strings, got {tokens!r:.80}")
        if blank is None:
            blank = next((index for name in BLANKS for index, token in enumerate(tokens) if token == name), 0)
        return cls(tuple(tokens), blank, Style(style) if style is not None else _guess(tokens, blank))

    @property
    def mark(self) -> int | None:
        """The output beside the tokens that says where words begin, if there is one."""
        return len(self.tokens) - 1 if self.tokens[-1] == MARK else None

    def starts_word(self, token: int) -> bool:
        """Whether a word ends before this token."""
        text = self.tokens[token]
        if self.style is Style.PIECES:
            return not text.startswith(CONTINUED)
        return self.style is Style.WORDS or text in SPACES

    def text(self, token: int) -> str:
        """What the token adds to its word."""
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
