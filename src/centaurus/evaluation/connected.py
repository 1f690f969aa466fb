"""Evaluate a recognizer on phrases composed from a folder of single words: error rates and word timing."""

from __future__ import annotations

from typing import Any

import numpy as np

from centaurus import audio
from centaurus.data import Corpus, Phrases, Phrasing, Spoken
from centaurus.decode import Style, Vocabulary, Word, greedy
from centaurus.evaluation.model import Evaluation, Model

COUNT = 200  # phrases of each kind
CONDITIONS = {
    "clean": Phrasing(speed=0.0, noisy=0.0),
    "10 dB": Phrasing(speed=0.0, noisy=1.0, snr=(10.0, 10.0)),
}


def connected(model: Model, words: Corpus, noise: Corpus | None, limit: int = 0) -> Evaluation:
    """Word and character error rates clean and in noise, and the mean timing error of recognised words in ms."""
    report, vocabulary = Evaluation(model.task), Vocabulary.of(model.tokens)
    known = words
    if vocabulary.style is Style.WORDS:
        known = words.of(clip for clip in words if clip.labels["word"] in model.tokens)
    if not len(known):
        raise ValueError(f"the model knows none of the words of the {words.name} corpus")
    seconds = float(1 / (model.ratio * model.rate))
    rng = np.random.default_rng(0)
    for name, how in CONDITIONS.items():
        phrases = Phrases(known, noise, how, limit or COUNT, fixed=1)
        for index in range(phrases.size()):
            x, said = phrases.phrase(index, rng)
            recognised = greedy(model.run(x), vocabulary, seconds)
            report.rows.append({"condition": name, **_row(f"{name} {index}", recognised, said, model.rate)})
    for name in CONDITIONS:
        mine = [row for row in report.rows if row["condition"] == name]
        report.groups.append({"condition": name, "phrases": len(mine), **_figures(mine)})
    report.figures |= {key: value for key, value in report.groups[0].items() if key not in ("condition", "phrases")}
    for row in report.rows:
        row.pop("off")
    return report


def _row(label: str, words: list[Word], said: list[Spoken], rate: int) -> dict[str, Any]:
    texts = [word.text for word in words], [spoken.word for spoken in said]
    off = [
        (word.start - spoken.start / rate, word.end - spoken.end / rate) for word, spoken in _same(words, said, rate)
    ]
    transcript, reference = map(" ".join, texts)
    rates = {"wer": audio.word_errors(transcript, reference).rate, "cer": audio.char_errors(transcript, reference).rate}
    return {"id": label, "reference": reference, "transcript": transcript, **rates, "off": off}


def _same(words: list[Word], said: list[Spoken], rate: int) -> list[tuple[Word, Spoken]]:
    """Match recognised words with spoken ones by the fewest edits; of equal alignments, the closest in time."""
    best: dict[tuple[int, int], tuple[float, list[tuple[Word, Spoken]]]] = {}
    for i in range(len(words) + 1):
        for j in range(len(said) + 1):
            options: list[tuple[float, list[tuple[Word, Spoken]]]] = [(0.0, [])] if i == j == 0 else []
            options += [(cost + 1, pairs) for cost, pairs in (best[k] for k in ((i - 1, j), (i, j - 1)) if k in best)]
            if i and j:
                word, spoken = words[i - 1], said[j - 1]
                cost, pairs = best[i - 1, j - 1]
                far = min(abs(word.end - spoken.end / rate), 10.0)
                same = word.text == spoken.word
                options.append((cost + 1e-3 * far, [*pairs, (word, spoken)]) if same else (cost + 1, pairs))
            best[i, j] = min(options, key=lambda option: option[0])
    return best[len(words), len(said)][1]


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    texts = [[row[key] for row in rows] for key in ("transcript", "reference")]
    figures: dict[str, float] = {"wer": audio.word_errors(*texts).rate, "cer": audio.char_errors(*texts).rate}
    off = np.array([pair for row in rows for pair in row["off"]]).reshape(-1, 2)
    if len(off):
        start, end = 1000 * np.abs(off).mean(0)
        figures |= {"start_ms": float(start), "end_ms": float(end)}
    return figures
