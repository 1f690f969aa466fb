"""What the outputs of networks mean: words out of token logits, keywords out of class logits. numpy only."""

from centaurus.decode.captions import Cue, clock, cues, srt, vtt
from centaurus.decode.ctc import Greedy, Token, Word, Words, greedy, join, transcript
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
