"""Transcripts as numbers for CTC: word pieces, characters or whole words, with the blank first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from centaurus.decode.vocabulary import MARK, normalise

BLANK = "<blank>"
UNKNOWN = "[UNK]"
SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The 32 symbols of the character head, in the order of the wav2vec2 models fine-tuned on LibriSpeech; the pad is CTC's
# blank and the bar stands between words.
CHARACTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZ")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a recogniser by index, and how a transcript becomes indices. Index 0 is CTC's blank."""

    names: tuple[str, ...]
    encode: Callable[[str], list[int]]


def read_tokens(kind: str, transcripts: Iterable[str]) -> Tokens:
    """``characters`` or ``words`` of these transcripts, ``marked`` words (and where they begin), the WordPiece
    vocabulary in a file, or ``used:FILE``: those of its tokens that occur in the transcripts."""
    if kind == "characters":
        return _listed({c for text in transcripts for c in normalise(text)} | {" "}, list)
    if kind == "words":
        return _listed({word for text in transcripts for word in normalise(text).split()}, str.split)
    if kind == "marked":
        words = read_tokens("words", transcripts)
        return Tokens((*words.names, MARK), words.encode)
    path = Path(kind.removeprefix("used:"))
    if not path.is_file():
        raise ValueError(f"vocabulary is characters, words, marked, a WordPiece file or used:FILE; there is no {path}")
    return _used(wordpiece(path), transcripts) if kind.startswith("used:") else wordpiece(path)


def _listed(symbols: set[str], split: Callable[[str], list[str]]) -> Tokens:
    names = (BLANK, *sorted(symbols))
    index = {name: k for k, name in enumerate(names)}
    return Tokens(names, _Lookup(index, split))


@dataclass(frozen=True)
class _Lookup:
    """Names that are in the table by their index; others are left out. A class, so that workers can be sent one."""

    index: dict[str, int]
    split: Callable[[str], list[str]]

    def __call__(self, text: str) -> list[int]:
        return [self.index[name] for name in self.split(normalise(text)) if name in self.index]


def wordpiece(path: Path) -> Tokens:
    """A WordPiece vocabulary as BERT has it: one token a line, ``[PAD]`` first, which serves as the blank."""
    names = tuple(path.read_text(encoding="utf-8").splitlines())
    missing = [name for name in SPECIAL if name not in names]
    if missing or names[0] != "[PAD]":
        raise ValueError(f"{path} is not a WordPiece vocabulary: it should begin with [PAD] and have {SPECIAL}")
    return Tokens(names, _Pieces(str(path)))


class _Pieces:
    """The tokenizer of a vocabulary file, loaded when first needed in each process."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, text: str) -> list[int]:
        indices: list[int] = _tokenizer(self.path).encode(normalise(text), add_special_tokens=False).ids
        return indices


_LOADED: dict[str, Any] = {}


def _tokenizer(path: str) -> Any:
    if path not in _LOADED:
        from tokenizers import BertWordPieceTokenizer

        _LOADED[path] = BertWordPieceTokenizer(path, lowercase=True)
    return _LOADED[path]


def _used(tokens: Tokens, transcripts: Iterable[str]) -> Tokens:
    """Return only the tokens that occur in transcripts, so that a small network is not all vocabulary."""
    needed = {k for text in transcripts for k in tokens.encode(text)}
    kept = sorted(needed | {0, tokens.names.index(UNKNOWN)})
    place = {old: new for new, old in enumerate(kept)}
    return Tokens(
        tuple(tokens.names[k] for k in kept), _Remapped(tokens.encode, place, place[tokens.names.index(UNKNOWN)])
    )


@dataclass(frozen=True)
class _Remapped:
    encode: Callable[[str], list[int]]
    place: dict[int, int]
    unknown: int

    def __call__(self, text: str) -> list[int]:
        return [self.place.get(k, self.unknown) for k in self.encode(text)]


def characters(text: str) -> list[int]:
    """A transcript for the character head: upper-case letters, a bar between words, anything else left out."""
    return [CHARACTERS.index(c) for c in normalise(text).upper().replace(" ", "|") if c in CHARACTERS]
