"""How well a model does on a folder of recordings: one figure a task and more, clip by clip and group by group.

A model here is anything that turns samples into frames, so that a file for torch and one for onnxruntime are measured
alike; nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from centaurus import audio
from centaurus.audio.augment import fit
from centaurus.data import Clip, Corpus, open_corpus, pairs
from centaurus.data.examples.drawing import evenly_spaced
from centaurus.data.noise import looped
from centaurus.decode import Vocabulary, normalise, transcript
from centaurus.evaluation.connected import connected
from centaurus.evaluation.model import Engine, Report, Samples

BACKGROUND = "background"
SNRS = (-5, 0, 5, 10, 15)  # of mixtures, in turn
MIXED_LEVEL = -25.0


def evaluate(
    engine: Engine, folder: Path, split: str | None = None, limit: int = 0, noise: Path | None = None
) -> Report:
    """Measure on the clips of a folder that suit the task; ``limit`` takes so many, spread over all of them.

    A recogniser is measured on speech with transcripts, or on phrases made of the words of a folder of those.
    """
    if engine.task == "classifier":
        return keywords(engine, clips(folder, ("word",), engine.rate, split), limit)
    if engine.task == "recognizer":
        try:
            words = clips(folder, ("word",), engine.rate, split)
        except ValueError:
            words = None
        if words is not None:
            return _phrases(engine, words, folder, split, limit, noise)
        found = clips(folder, ("speech",), engine.rate, split)
        return speech(engine, found.of(clip for clip in found if clip.labels.get("transcript")), limit)
    return denoising(engine, _noisy(folder, engine.rate, split, limit, noise))


def _phrases(engine: Engine, words: Corpus, folder: Path, split: str | None, limit: int, noise: Path | None) -> Report:
    """Phrases of words, with the noise of a folder, or coloured noise where there is none."""
    try:
        sounds = clips(noise or folder, ("noise",), engine.rate, split)
    except ValueError:
        if noise is not None:
            raise
        sounds = None
    return connected(engine, words, sounds, limit)


def clips(folder: Path, kinds: tuple[str, ...], rate: int, split: str | None) -> Corpus:
    """The clips of a split: the one asked for, else ``test``, else ``val``, else all where there are no splits."""
    for wanted in (split,) if split else ("test", "val"):
        found = open_corpus(folder, (wanted,), kinds, rate)
        if any("split" in clip.labels for clip in found):
            return found
    found = open_corpus(folder, None, kinds, rate)
    known = found.values("split")
    if not found.clips:
        raise ValueError(f"{folder} has no clips of {' or '.join(kinds)} to measure on")
    if known:
        raise ValueError(f"{folder} has no clips of {' or '.join(kinds)} in {split or 'test'}: choose --split {known}")
    return found


def _readable(corpus: Corpus, chosen: Iterable[Clip], report: Report) -> Iterable[tuple[Clip, Samples]]:
    for clip in chosen:
        try:
            yield clip, corpus.load(clip)
        except audio.AudioError as error:
            report.missing[clip.id] = str(error)


def keywords(engine: Engine, corpus: Corpus, limit: int = 0) -> Report:
    """Accuracy and each class's recall and precision; words that are no class count as background if there is one."""
    report, names = Report(engine.task), list(engine.classes)
    other = BACKGROUND if BACKGROUND in names else None
    known = [clip for clip in corpus if clip.labels["word"] in names or other]
    if not known:
        raise ValueError(f"no word of the folder is a class of the model: {', '.join(names)}")
    for clip, x in _readable(corpus, (known[k] for k in evenly_spaced(len(known), limit)), report):
        logits = engine.run(fit(x, max(len(x), engine.rate)))[:, -1]
        chances = np.exp(logits - logits.max())
        word = clip.labels["word"]
        wanted, said = word if word in names else other, names[int(logits.argmax())]
        row = {"id": clip.id, "word": word, "class": wanted, "predicted": said}
        report.rows.append({**row, "probability": round(float(chances.max() / chances.sum()), 4)})
    right = [row["class"] == row["predicted"] for row in report.rows]
    report.figures["accuracy"] = float(np.mean(right)) if right else 0.0
    for name in names:
        mine = [row for row in report.rows if row["class"] == name]
        hits = sum(row["predicted"] == name for row in mine)
        called = sum(row["predicted"] == name for row in report.rows)
        shares = {"recall": hits / len(mine) if mine else None, "precision": hits / called if called else None}
        report.groups.append({"class": name, "clips": len(mine), **shares})
    return report


def speech(engine: Engine, corpus: Corpus, limit: int = 0) -> Report:
    """Word and character error rates over all utterances together, and those of each."""
    if not len(corpus):
        raise ValueError("no speech of the folder has a transcript")
    report, vocabulary = Report(engine.task), Vocabulary.of(engine.tokens)
    seconds = float(1 / (engine.ratio * engine.rate))
    for clip, x in _readable(corpus, (corpus[k] for k in evenly_spaced(len(corpus), limit)), report):
        said, wanted = transcript(engine.run(x), vocabulary, seconds), normalise(clip.labels["transcript"])
        rates = {"wer": audio.word_errors(said, wanted).rate, "cer": audio.char_errors(said, wanted).rate}
        report.rows.append({"id": clip.id, "reference": wanted, "transcript": said, **rates})
    texts = [[row[key] for row in report.rows] for key in ("transcript", "reference")]
    report.figures |= {"wer": audio.word_errors(*texts).rate, "cer": audio.char_errors(*texts).rate}
    return report


@dataclass(frozen=True)
class Noisy:
    """A noisy signal; the clean one and the SNR where they are known."""

    id: str
    noisy: Samples
    clean: Samples | None = None
    snr: float | None = None


def _noisy(folder: Path, rate: int, split: str | None, limit: int, noise: Path | None) -> Iterable[Noisy]:
    """Pairs if the folder has any; else its speech mixed with noise, its own or another folder's."""
    try:
        found = clips(folder, ("noisy", "clean"), rate, split)
    except ValueError as error:
        return _mixtures(folder, rate, split, limit, noise, error)
    return _recorded(found, limit)


def _recorded(corpus: Corpus, limit: int) -> Iterable[Noisy]:
    both = pairs(corpus)
    alone = {clip.id for clip in corpus if clip.labels["kind"] == "noisy"} - {noisy.id for noisy, _ in both}
    every = [*both, *((clip, None) for clip in corpus if clip.labels["kind"] == "noisy" and clip.id in alone)]
    for k in evenly_spaced(len(every), limit):
        noisy, clean = every[k]
        x = corpus.load(noisy)
        if clean is None:
            yield Noisy(noisy.id, x)
            continue
        y = corpus.load(clean)
        x, y = x[: len(y)], y[: len(x)]
        yield Noisy(noisy.id, x, y, audio.dbfs(y) - audio.dbfs(x - y))


def _mixtures(
    folder: Path, rate: int, split: str | None, limit: int, noise: Path | None, error: ValueError
) -> Iterable[Noisy]:
    """Every clip of speech with noise from a random place, the SNRs in turn; the same whenever it is asked."""
    try:
        speech = clips(folder, ("speech",), rate, split)
        sounds = clips(noise or folder, ("noise",), rate, split)
    except ValueError:
        raise ValueError(f"{error}; nor speech and noise to mix (--noise FOLDER gives noise)") from error
    for place, k in enumerate(evenly_spaced(len(speech), limit)):
        rng = np.random.default_rng([0, k])
        clean = speech.load(k)
        sound = looped(rng, sounds.take(int(rng.integers(len(sounds))))[1], len(clean))
        snr = SNRS[place % len(SNRS)]
        mixed, target = audio.mix(clean, sound, snr, MIXED_LEVEL)
        yield Noisy(speech[k].id, mixed, target, snr)


def denoising(engine: Engine, signals: Iterable[Noisy]) -> Report:
    """SI-SDR, PESQ, STOI and DNSMOS before and after, and by SNR. A measure that is not installed is left out."""
    report = Report(engine.task)
    for signal in signals:
        estimate = np.asarray(engine.run(signal.noisy), np.float32).reshape(-1)
        row: dict[str, Any] = {"id": signal.id}
        if signal.snr is not None:
            row["snr"] = round(signal.snr, 2)
        for suffix, x in (("", estimate), ("_before", signal.noisy)):
            for name, measure in MEASURES.items():
                value = _measured(report, name, measure, x, signal, engine.rate)
                if value is not None:
                    row[f"{name}{suffix}"] = value
        report.rows.append(row)
    if not report.rows:
        raise ValueError("there are no noisy clips to measure on")
    report.figures |= _means(report.rows)
    bands = sorted({_band(row) for row in report.rows if "snr" in row})
    for band in bands:
        mine = [row for row in report.rows if "snr" in row and _band(row) == band]
        report.groups.append({"snr": band, "clips": len(mine), **_means(mine)})
    return report


def _measured(report: Report, name: str, measure: Measure, x: Samples, signal: Noisy, rate: int) -> float | None:
    if name in report.missing or (signal.clean is None and name != "dnsmos"):
        return None
    try:
        return measure(x, signal.clean, rate)
    except ImportError as error:
        report.missing[name] = str(error)
    except ValueError as error:  # too short or silent for this measure
        report.missing[f"{name} of {signal.id}"] = str(error)
    return None


Measure = Callable[[Samples, Any, int], float]
MEASURES: dict[str, Measure] = {
    "pesq": audio.pesq,
    "stoi": audio.stoi,
    "si_sdr": lambda x, clean, rate: audio.si_sdr(x, clean),
    "dnsmos": lambda x, clean, rate: audio.dnsmos(x, rate)["ovrl"],
}


def _means(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean of every measure over the rows that have it."""
    names = [f"{name}{suffix}" for name in MEASURES for suffix in ("", "_before")]
    found = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: float(np.mean(values)) for name, values in found.items() if values}


def _band(row: dict[str, Any]) -> int:
    """Its SNR to the nearest 5 dB."""
    return 5 * round(row["snr"] / 5)
