"""Measure the shipped spotters on held-out recordings, for their model cards.

    python scripts/measure.py DATA OUT [kws-30] [commands]

DATA has the folders kws, librispeech and noise, packs or corpora in their own layouts: their testing list is used, or
validation where there is none. OUT gets one JSON file per model. The ONNX file is measured, streamed as in use: hop
by hop, without warm-up. Denoisers are measured by measure_denoiser.py.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.cli.train import engine
from centaurus.data import Corpus, open_corpus
from centaurus.data.keywords import without_words
from centaurus.decode import BACKGROUND, Smoothing, Spotting
from centaurus.evaluation import clips, connected
from centaurus.runtime import Session
from centaurus.runtime.session import Transcriber

Samples = NDArray[np.float32]
TEN = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
RECALL = 0.9  # at which false alarms are counted


def interval(values: Sequence[float], draws: int = 2000) -> list[float]:
    """Return the mean of values and its 95 % bootstrap interval."""
    x = np.asarray(values, float)
    means = np.random.default_rng(0).choice(x, (draws, len(x))).mean(1)
    return [round(float(v), 3) for v in (x.mean(), *np.quantile(means, (0.025, 0.975)))]


def keywords(data: Path, name: str) -> dict[str, Any]:
    """Return the accuracy on clips of held-out speakers, and false alarms in hours of other audio.

    A model without a class for the background is a classifier of clips: it has no false alarms to count.
    """
    session = Session(name, batch=20)
    classes = list(session.settings.classes)
    words = clips(data / "kws", ("word",), 16_000, None).where(word=tuple(classes))
    logits = np.concatenate([_last(session, words, k) for k in range(0, len(words), 20)])
    labels = np.array([classes.index(clip.labels["word"]) for clip in words])
    right = logits.argmax(1) == labels
    ten = [classes.index(word) for word in TEN]
    of_ten = np.isin(labels, ten)
    right_ten = np.array(ten)[logits[of_ten][:, ten].argmax(1)] == labels[of_ten]
    result = {
        "n": len(words),
        "accuracy": interval(right),
        "accuracy of ten": [*interval(right_ten), int(of_ten.sum())],
        "by word": {classes[k]: round(float(right[labels == k].mean()), 3) for k in sorted(set(labels.tolist()))},
    }
    if BACKGROUND not in classes:
        return result
    of_background = round(float((logits.argmax(1) == classes.index(BACKGROUND)).mean()), 4)
    return result | {"taken for background": of_background, "live": alarms(data, name, words)}


def _last(session: Session, words: Corpus, first: int) -> NDArray[np.float32]:
    loaded = [words.load(words[k])[:16_000] for k in range(first, min(first + 20, len(words)))]
    x = np.zeros((20, 16_000), np.float32)
    for row, clip in zip(x, loaded, strict=False):
        row[: len(clip)] = clip
    session.reset()
    y = np.concatenate([session.process(x), session.flush()], -1)
    return y[: len(loaded), :, -1]


def alarms(data: Path, name: str, words: Corpus) -> dict[str, Any]:
    """Return the threshold with a recall of 90 % in a stream, and the false alarms at that threshold."""
    session = Session(name)
    classes = list(session.settings.classes)
    quiet = np.zeros(8000, np.float32)
    rng = np.random.default_rng(0)
    chosen = [words[int(k)] for k in rng.choice(len(words), 300, replace=False)]
    sure = []
    for clip in chosen:
        session.reset()
        logits = np.concatenate(
            [session.process(np.concatenate([quiet, words.load(clip), quiet])), session.flush()], -1
        )
        sure.append(_smoothed(logits)[classes.index(clip.labels["word"])].max())
    threshold = float(np.quantile(sure, 1 - RECALL))
    speech = without_words(clips(data / "librispeech", ("speech",), 16_000, None), classes)
    noise = open_corpus(data / "noise", ("val",), ("noise",))
    result: dict[str, Any] = {"threshold": round(threshold, 3), "keywords": len(chosen)}
    for kind, corpus in (("speech", speech), ("noise", noise)):
        spotting = Spotting(classes, session.settings.hop / session.settings.rate, Smoothing(threshold=threshold))
        session.reset()
        count, samples = 0, 0
        for clip in corpus:
            x = corpus.load(clip)
            count, samples = count + len(spotting.push(session.process(x))), samples + len(x)
        count += len(spotting.push(session.flush())) + len(spotting.flush())
        hours = samples / corpus.rate / 3600
        result[kind] = {"alarms": count, "hours": round(hours, 3), "per hour": round(count / hours, 1)}
    return result


def _smoothed(logits: NDArray[np.float32], frames: int = 6) -> NDArray[np.float64]:
    p = np.exp(logits - logits.max(0))
    p = p / p.sum(0)
    return np.stack([np.convolve(row, np.ones(frames) / frames, "valid") for row in p])


def connected_words(data: Path, name: str) -> dict[str, Any]:
    """Return error rates on phrases of held-out speakers, clean and in noise, and inserted words in other audio."""
    model = engine(name if name.endswith(".onnx") else f"{files('centaurus') / 'pretrained' / name}.onnx")
    words, noise = clips(data / "kws", ("word",), 16_000, None), open_corpus(data / "noise", ("val",), ("noise",))
    report = connected(model, words, noise)
    rng = np.random.default_rng(0)
    for group in report.groups:
        own_rows = [row for row in report.rows if row["condition"] == group["condition"]]
        counts = np.array(
            [[len(row["reference"].split()) * row["wer"], len(row["reference"].split())] for row in own_rows]
        )
        drawn = counts[rng.integers(0, len(own_rows), (2000, len(own_rows)))].sum(1)
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
        group |= {"words": int(counts[:, 1].sum()), "interval": [round(float(low), 4), round(float(high), 4)]}
        group["by words"] = {
            str(k): round(float(own[:, 0].sum() / own[:, 1].sum()), 4)
            for k in range(1, 8)
            if len(own := counts[counts[:, 1] == k])
        }
    speech = without_words(clips(data / "librispeech", ("speech",), 16_000, None), words.values("word"))
    transcriber = Transcriber(name)
    result: dict[str, Any] = {"conditions": report.groups, "examples": report.rows[:12]}
    for kind, corpus in (("speech", speech), ("noise", noise)):
        inserted, samples = 0, 0
        for clip in corpus:
            x = corpus.load(clip)
            inserted, samples = inserted + len(transcriber.process(x[None])), samples + len(x)
        inserted += len(transcriber.flush())
        minutes = samples / corpus.rate / 60
        result[kind] = {"words": inserted, "minutes": round(minutes, 1), "per minute": round(inserted / minutes, 2)}
    return result


def main(data: Path, out: Path, names: Sequence[str]) -> None:
    """Measure each model and write its JSON file."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names or ("kws-30", "commands"):
        stem = Path(name).stem
        result = connected_words(data, name) if "commands" in stem else keywords(data, name)
        (out / f"{stem}.json").write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
