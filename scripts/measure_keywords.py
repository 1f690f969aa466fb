"""Measure a keyword spotter or wake word as it is used, for its card.

    python scripts/measure_keywords.py MODEL OUT --words FOLDER --noise FOLDER [FOLDER ...] --others FOLDER [FOLDER ...]

MODEL is an ONNX file or a shipped name, OUT a folder for MODEL.json and the curve. Words are clips of one word each
(the testing list where there is one), mixed with the first folder of noise, a pack. False alarms are counted in all
folders of noise, which may be any folders of audio files, and in the others, hours of speech without the words. Every
figure of continuous audio is from one stream that is never reset, counted after its first minute.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from centaurus.data import Clip, Corpus, open_corpus
from centaurus.data.layouts import sound_files
from centaurus.decode import BACKGROUND, PATIENCE, Decision, Spotting
from centaurus.evaluation import QUIET, clips, live, most_probable, save_curve
from centaurus.runtime import Session
from centaurus.runtime.session import smoothing_of

TEN = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
CONDITIONS = {"silence": 60.0, "white": 30.0, "hum": 30.0, "recorded": 30.0, "recorded at 10 dB": 10.0}
WORDS = 600  # in each stream
MISSES = 0.1  # share of words at which false alarms are compared


def accuracy(session: Session, words: Corpus, limit: int) -> dict[str, Any]:
    """Return the share of clips whose own word is the most probable class at the frame where any word is most probable.

    Of the ten words of the paper's smaller task also where these ten are the only choice, as they are there.
    """
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(words))[: limit or None]
    quiet = np.zeros(round(QUIET * words.rate), np.float32)
    reader, rows = spotting(session), []
    frames = reader.smoothing.window / reader.seconds
    among = [k for k, name in enumerate(reader.classes) if name in TEN]
    right_of_ten = []
    for k in chosen:
        clip, x = words.take(int(k))
        session.reset()
        logits = np.concatenate([session.process(np.concatenate([quiet, x, quiet])), session.flush()], -1)
        word = clip.labels["word"]
        rows.append((word, most_probable(logits, reader.classes, frames)[0]))
        if word in TEN:
            right_of_ten.append(most_probable(logits[among], [reader.classes[k] for k in among], frames)[0] == word)
    right = [said == word for word, said in rows]
    ten = [said == word for word, said in rows if word in TEN]
    return {
        "clips": len(rows),
        "accuracy": round(float(np.mean(right)), 4),
        "ten words": round(float(np.mean(ten)), 4) if ten else None,
        "ten words alone": round(float(np.mean(right_of_ten)), 4) if right_of_ten else None,
        "clips of ten": len(ten),
        "by word": {
            w: round(float(np.mean([s == w for o, s in rows if o == w])), 3) for w in sorted({o for o, _ in rows})
        },
    }


def noise_of(folder: Path) -> Corpus:
    """The validation noise of a pack, or every audio file below a folder."""
    if (folder / "index.tsv").is_file():
        return open_corpus(folder, ("val",), ("noise",))
    return Corpus("noise", tuple(Clip(file, file.stem) for file in sound_files(folder)))


def spotting(session: Session) -> Spotting:
    """Return a decoder of the session's outputs with the model's own settings."""
    known = session.settings
    return Spotting(known.classes or (BACKGROUND,), float(1 / (known.rate * known.ratio)), smoothing_of(known))


def said(session: Session, words: Corpus, bed: live.Samples, below: float, count: int) -> live.Words:
    """Return the scores of a stream of words on a background."""
    rng = np.random.default_rng(1)
    chosen = np.resize(rng.permutation(len(words)), count)
    pairs = ((clip.labels["word"], x) for clip, x in (words.take(int(k)) for k in chosen))
    stream, spoken = live.compose(pairs, bed, below, words.rate, rng)
    session.reset()
    reader = spotting(session)
    return live.Words(live.score(session.process, reader, [stream]), spoken, words.rate, reader.seconds)


def latencies(said: live.Words, reader: Spotting, patience: float) -> dict[str, Any]:
    """Return the delay from a word's end to its report in ms, median and 95 % quantile, and the share detected."""
    smoothing = replace(reader.smoothing, patience=patience)
    decision = Decision(reader.words, reader.seconds, smoothing)
    reported = []
    for frame in range(said.scores.shape[1]):
        now = (frame + 1) * reader.seconds
        reported += [replace(keyword, time=now) for keyword in decision.push(said.scores[:, frame : frame + 1])]
    result = live.outcome(reported, said)
    late = np.quantile(result.delays, (0.5, 0.95)) if result.delays else (0.0, 0.0)
    return {"ms": [round(1000 * float(value)) for value in late], "found": round(result.recall, 4)}


def combined(curves: list[list[live.Point]], parts: list[live.Others]) -> list[live.Point]:
    """Return one curve of the false alarms in several corpora."""
    hours = sum(part.hours for part in parts)
    points = []
    for same in zip(*curves, strict=True):
        count = sum(point.alarms for point in same)
        at_most = live.most_alarms(count) / hours
        points.append(live.Point(same[0].threshold, same[0].misses, count, count / hours, at_most))
    return points


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--noise", type=Path, nargs="+", required=True)
    parser.add_argument("--others", type=Path, nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=0, help="clips for the accuracy, 0 for all")
    options = parser.parse_args()
    session = Session(options.model)
    reader = spotting(session)
    threshold = reader.smoothing.threshold
    words = clips(options.words, ("word",), 16_000, None).where(word=reader.words)
    noise = noise_of(options.noise[0])
    recorded = np.concatenate([noise.load(clip) for clip in noise])
    figures: dict[str, Any] = {"threshold": threshold, "clips": accuracy(session, words, options.limit), "live": {}}
    streams = {}
    for kind, below in CONDITIONS.items():
        rng = np.random.default_rng(2)
        bed = recorded if kind.startswith("recorded") else live.background(kind, 60 * 16_000, 16_000, rng)
        streams[kind] = said(session, words, bed, below, WORDS)
        result = live.outcome(live.reports(streams[kind].scores, reader, threshold), streams[kind])
        figures["live"][kind] = {
            "words": result.words, "found": round(result.recall, 4), "wrong words": result.wrong,
            "between words": result.between, "reported at the peak": latencies(streams[kind], reader, PATIENCE),
            "reported at the threshold": latencies(streams[kind], reader, 0.0),
        }  # fmt: skip
        print(kind, figures["live"][kind], flush=True)
    parts, alarms = [], {}
    for folder in [*options.others, *options.noise]:
        corpus = noise_of(folder) if folder in options.noise else open_corpus(folder)
        session.reset()
        others = live.score_others(session.process, spotting(session), corpus)
        count, hours = len(others.false(live.reports(others.scores, reader, threshold))), others.hours
        alarms[folder.name] = {
            "hours": round(hours, 2), "alarms": count, "an hour": round(count / hours, 2),
            "at most": round(live.most_alarms(count) / hours, 2),
        }  # fmt: skip
        print(folder.name, alarms[folder.name], flush=True)
        if folder in options.others:
            parts.append(others)
    points = combined([live.curve(streams["recorded at 10 dB"], part, reader) for part in parts], parts)
    figures |= {"false alarms": alarms, "curve": [point._asdict() for point in points]}
    for rate in (0.5, 1.0, 10.0):
        figures[f"at {rate:g} alarms an hour"] = live.threshold_for(points, rate)._asdict()
    kept = [point for point in points if point.misses <= MISSES]
    figures[f"at {MISSES:.0%} misses at 10 dB"] = (
        max(kept, key=lambda point: point.threshold)._asdict() if kept else None
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{Path(options.model).stem}.json").write_text(json.dumps(figures, indent=1) + "\n")
    save_curve(points, options.out)


if __name__ == "__main__":
    main()
