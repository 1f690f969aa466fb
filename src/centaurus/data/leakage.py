"""Training clips whose text is too much like one that scores are taken on: found and removed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from centaurus.data.clips import Clip, Corpus

WORDS_IN_A_ROW = 4
_WORD = re.compile(r"[\w']+")


@dataclass(frozen=True)
class Leak:
    """A training clip, the held-out clip it resembles, and the share of the shorter text that both have."""

    clip: Clip
    held_out: Clip
    similarity: float


def without_leaks(train: Corpus, held_out: Iterable[Clip], limit: float = 0.5) -> tuple[Corpus, list[Leak]]:
    """The training clips that resemble no held-out text, and the leaks.

    Similarity is the share of runs of four words, of the text that has fewer, that both texts have; texts of fewer
    than four words resemble each other only if they are the same. One pass over the training texts, whatever the
    number of held-out ones.
    """
    if not 0 < limit <= 1:
        raise ValueError(f"a similarity lies between 0 and 1, not at {limit}")
    held = list(held_out)
    runs = [_runs(clip) for clip in held]
    where: dict[tuple[str, ...], list[int]] = {}
    for number, own in enumerate(runs):
        for run in own:
            where.setdefault(run, []).append(number)
    kept, leaks = [], []
    for clip in train:
        own = _runs(clip)
        shared = Counter(number for run in own for number in where.get(run, ()))
        alike = {number: count / min(len(own), len(runs[number])) for number, count in shared.items()}
        worst = max(alike, key=alike.__getitem__, default=None)
        if worst is not None and alike[worst] >= limit:
            leaks.append(Leak(clip, held[worst], alike[worst]))
        else:
            kept.append(clip)
    return train.of(kept), leaks


def _runs(clip: Clip) -> set[tuple[str, ...]]:
    """Every run of four words of a text, whatever its case and punctuation; a shorter text is one run."""
    words = _WORD.findall(clip.labels.get("transcript", "").casefold())
    if not words:
        return set()
    last = max(1, len(words) - WORDS_IN_A_ROW + 1)
    return {tuple(words[i : i + WORDS_IN_A_ROW]) for i in range(last)}
