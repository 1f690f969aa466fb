"""Decode the outputs of networks: token logits to words, class logits to keywords. numpy only."""

from centaurus.decode.ctc import Cue, Greedy, Token, Word, Words, clock, cues, greedy, join, srt, transcript, vtt
from centaurus.decode.keywords import Keyword, Smoothing, Spotting
from centaurus.decode.vocabulary import Style, Vocabulary, normalise

__all__ = [
    "Cue",
    "Greedy",
    "Keyword",
    "Smoothing",
    "Spotting",
    "Style",
    "Token",
    "Vocabulary",
    "Word",
    "Words",
    "clock",
    "cues",
    "greedy",
    "join",
    "normalise",
    "srt",
    "transcript",
    "vtt",
]
