"""Run a model over an evaluation set and collect its metrics, by clip and by group.

A model is any function from samples to frames, so that torch and onnxruntime are evaluated alike; no torch here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from centaurus import audio, decode
from centaurus.audio.augment import fit, looped
from centaurus.audio.metrics import MetricError
from centaurus.data import Clip, Corpus, Phrases, Phrasing, Spoken, open_corpus, pairs
from centaurus.data.rows import evenly_spaced
from centaurus.evaluation import live
from centaurus.evaluation.live import Point
from centaurus.system import ContentError, plot_style, write_file
from centaurus.tasks import CLASSIFIER, DENOISER, RECOGNIZER, TASKS

if TYPE_CHECKING:
    from centaurus.runtime.session import Session

Samples = NDArray[np.float32]
SNRS = (-5, 0, 5, 10, 15)  # dB, of successive mixtures
MIXED_LEVEL = -25.0  # dBFS
ALARMS = (0.5, 1.0, 10.0)  # false alarms an hour at which misses are reported
QUIET = 0.5  # seconds of silence before and after a clip for a spotter with logits for every frame
PHRASES = 200  # in each of these conditions
CONDITIONS = {
    "clean": Phrasing(speed=0.0, noisy=0.0),
    "10 dB": Phrasing(speed=0.0, noisy=1.0, snr=(10.0, 10.0)),
}


@dataclass(frozen=True)
class Model:
    """A model under evaluation: its task, the meaning of its outputs, and ``run``, samples (t,) to (features, frames).

    ``listen`` starts a stream and returns a function from its next samples to its next frames. ``window`` is the time
    in seconds over which a spotter with logits for every frame averages its probabilities; ``caution`` is what it adds
    to the logit of the background in streams.
    """

    task: str
    rate: int
    ratio: Fraction
    classes: Sequence[str]
    tokens: Sequence[str]
    run: Callable[[Samples], NDArray[np.floating[Any]]]
    listen: Callable[[], Callable[[Samples], NDArray[np.floating[Any]]]] | None = None
    window: float | None = None
    caution: float = 0.0

    @property
    def seconds(self) -> float:
        """The time between two frames."""
        return float(1 / (self.rate * self.ratio))


@dataclass
class Evaluation:
    """Metrics over all clips, a row for each clip, groups (classes, SNRs), and why metrics are missing."""

    task: str
    figures: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """Return the metrics and groups as plain data; rows go to a CSV file."""
        return {
            "task": self.task,
            "clips": len(self.rows),
            **self.figures,
            "groups": self.groups,
            "missing": self.missing,
        }


def evaluate(
    model: Model, folder: Path, split: str | None = None, limit: int = 0, noise: Path | None = None
) -> Evaluation:
    """Evaluate a model on the clips of a folder that suit its task, or on ``limit`` of them, evenly spaced.

    A recognizer is evaluated on speech with transcripts, or on phrases made from a folder of single words.
    """
    if model.task not in EVALUATIONS:
        raise ValueError(f"a model of the task {model.task} cannot be evaluated; these can: {', '.join(EVALUATIONS)}")
    return EVALUATIONS[model.task](model, folder, split, limit, noise)


def exported(session: Session) -> Model:
    """Return the model of an exported file; whole signals come out aligned."""
    known = session.settings

    def run(x: Samples) -> NDArray[np.floating[Any]]:
        pieces = [session.process(np.pad(x, (0, known.delay))), session.flush()]
        return np.concatenate(pieces, axis=-1)[..., known.frames(known.delay) :]

    def listen() -> Callable[[Samples], NDArray[np.floating[Any]]]:
        session.reset()
        return session.process

    classes, tokens = known.classes or (), known.tokens or ()
    return Model(known.task, known.rate, known.ratio, classes, tokens, run, listen, known.window, known.caution)


def evaluate_live(
    model: Model, report: Evaluation, folder: Path, split: str | None, noise: Path | None, others: Path
) -> list[Point]:
    """Return misses against false alarms in continuous streams; figures at three rates of alarms go to the report.

    Misses are those of the folder's words in noise, false alarms those in ``others``.
    """
    if model.listen is None or model.task != CLASSIFIER.name:
        raise ValueError(f"--others counts false alarms of keyword spotters; this model is a {model.task}")
    usual = decode.Smoothing(caution=model.caution)
    smoothing = usual if model.window is None else replace(usual, window=model.window)
    spotting = decode.Spotting(model.classes, model.seconds, smoothing)
    sounds = None if noise is None else clips(noise, ("noise",), model.rate, split)
    words, quiet = clips(folder, ("word",), model.rate, split), open_corpus(others, None, None, model.rate)
    points = live.measure(model.listen, spotting, words, quiet, sounds)
    for alarms in ALARMS:
        best = live.threshold_for(points, alarms)
        report.figures[f"misses_at_{alarms:g}_alarms_per_hour"] = best.misses
        report.figures[f"threshold_for_{alarms:g}_alarms_per_hour"] = best.threshold
        report.figures[f"most_alarms_per_hour_at_{best.threshold:g}"] = best.at_most
    return points


def _keywords(model: Model, folder: Path, split: str | None, limit: int, noise: Path | None) -> Evaluation:
    return keywords(model, clips(folder, ("word",), model.rate, split), limit)


def _recognition(model: Model, folder: Path, split: str | None, limit: int, noise: Path | None) -> Evaluation:
    """Evaluate on speech with transcripts, or on phrases of words, with noise from a folder or coloured noise."""
    words = find_clips(folder, ("word",), model.rate, split)
    if words is not None:
        find = find_clips if noise is None else clips
        return connected(model, words, find(noise or folder, ("noise",), model.rate, split), limit)
    corpus = clips(folder, ("speech",), model.rate, split)
    return speech(model, corpus.of(clip for clip in corpus if clip.labels.get("transcript")), limit)


def _denoising(model: Model, folder: Path, split: str | None, limit: int, noise: Path | None) -> Evaluation:
    return denoising(model, _noisy(folder, model.rate, split, limit, noise))


def clips(folder: Path, kinds: tuple[str, ...], rate: int, split: str | None) -> Corpus:
    """Return the clips of ``find_clips``; raise ``ContentError`` if there are none."""
    corpus = find_clips(folder, kinds, rate, split)
    if corpus is None:
        raise ContentError(f"has no {' or '.join(kinds)} clips to evaluate on", folder)
    return corpus


def find_clips(folder: Path, kinds: tuple[str, ...], rate: int, split: str | None) -> Corpus | None:
    """Return a folder's clips of some kinds, or None if it has none.

    They are those of ``split`` if given, else of ``test``, else of ``val``, else all clips of a folder without splits.
    """
    for name in (split,) if split else ("test", "val"):
        corpus = open_corpus(folder, (name,), kinds, rate)
        if any("split" in clip.labels for clip in corpus):
            return corpus
    corpus = open_corpus(folder, None, kinds, rate)
    known = corpus.values("split")
    if not corpus.clips and corpus.name == "pack" and len(corpus.faults):  # only a pack filters faults by kind
        raise ContentError(f"no clip of {' or '.join(kinds)} can be read\n{corpus.faults}", folder)
    if not corpus.clips:
        return None
    if known:
        names, splits = " or ".join(kinds), " or ".join(known)
        raise ContentError(f"has no clips of {names} in {split or 'test'}: choose --split {splits}", folder)
    return corpus


def _readable(corpus: Corpus, chosen: Iterable[Clip], report: Evaluation) -> Iterable[tuple[Clip, Samples]]:
    for clip in chosen:
        try:
            yield clip, corpus.load(clip)
        except audio.AudioError as error:
            report.missing[clip.id] = str(error)


def keywords(model: Model, corpus: Corpus, limit: int = 0) -> Evaluation:
    """Measure accuracy, and recall and precision of each class; other words count as background if that is a class."""
    report, names = Evaluation(model.task), list(model.classes)
    other = decode.BACKGROUND if decode.BACKGROUND in names else None
    known = [clip for clip in corpus if clip.labels["word"] in names or other]
    if not known:
        raise ValueError(f"no clip of the folder belongs to a class of the model: {', '.join(names)}")
    for clip, x in _readable(corpus, (known[k] for k in evenly_spaced(len(known), limit)), report):
        predicted, probability = _predict(model, x)
        word = clip.labels["word"]
        row = {"id": clip.id, "word": word, "class": word if word in names else other, "predicted": predicted}
        report.rows.append({**row, "probability": round(probability, 4)})
    right = [row["class"] == row["predicted"] for row in report.rows]
    report.figures["accuracy"] = float(np.mean(right)) if right else 0.0
    report.groups += [_class_shares(name, report.rows) for name in names]
    return report


def _predict(model: Model, x: Samples) -> tuple[str, float]:
    """Return the most probable class of a clip and its probability.

    It is taken at the end of a clip of at least a second; for a spotter with logits for every frame, where one of its
    words is most probable, with silence before and after the clip.
    """
    if model.window is not None:
        quiet = np.zeros(round(QUIET * model.rate), np.float32)
        return most_probable(model.run(np.concatenate([quiet, x, quiet])), model.classes, model.window / model.seconds)
    last = decode.softmax(model.run(fit(x, max(len(x), model.rate)))[:, -1])
    return model.classes[int(last.argmax())], float(last.max())


def most_probable(logits: NDArray[np.floating[Any]], classes: Sequence[str], frames: float) -> tuple[str, float]:
    """Return the most probable class, averaged over some frames, in the frame where a word is most probable."""
    mean = decode.MovingMean(len(classes), max(1, round(frames))).push(decode.softmax(logits))
    words = [k for k, name in enumerate(classes) if name != decode.BACKGROUND]
    there = mean[:, int(mean[words].max(axis=0).argmax())]
    return classes[int(there.argmax())], float(there.max())


def _class_shares(name: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a class's number of clips, recall and precision; None where a denominator is zero."""
    clips_of = [row for row in rows if row["class"] == name]
    hits = sum(row["predicted"] == name for row in clips_of)
    predicted = sum(row["predicted"] == name for row in rows)
    recall, precision = (hits / n if n else None for n in (len(clips_of), predicted))
    return {"class": name, "clips": len(clips_of), "recall": recall, "precision": precision}


def speech(model: Model, corpus: Corpus, limit: int = 0) -> Evaluation:
    """Measure word and character error rates of all utterances together, of each, and of each subset of LibriSpeech."""
    if not len(corpus):
        raise ValueError("no speech of the folder has a transcript")
    report, vocabulary = Evaluation(model.task), decode.Vocabulary.of(model.tokens)
    subsets: dict[str, list[dict[str, Any]]] = {}
    for clip, x in _readable(corpus, (corpus[k] for k in evenly_spaced(len(corpus), limit)), report):
        said = decode.transcript(model.run(x), vocabulary, model.seconds)
        report.rows.append(_text_row(clip.id, said, decode.normalise(clip.labels["transcript"])))
        subsets.setdefault(clip.labels.get("subset", ""), []).append(report.rows[-1])
    report.figures |= _error_rates(report.rows)
    if len(subsets) > 1:
        report.groups += [{"subset": name, "clips": len(own), **_error_rates(own)} for name, own in subsets.items()]
    return report


def _text_row(label: str, said: str, reference: str) -> dict[str, Any]:
    row = {"id": label, "reference": reference, "transcript": said}
    return row | _error_rates([row])


def _error_rates(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    texts = [[row[key] for row in rows] for key in ("transcript", "reference")]
    return {"wer": audio.word_errors(*texts).rate, "cer": audio.char_errors(*texts).rate}


@dataclass(frozen=True)
class Noisy:
    """A noisy signal, with the clean one and the SNR if they are known."""

    id: str
    noisy: Samples
    clean: Samples | None = None
    snr: float | None = None


def _noisy(folder: Path, rate: int, split: str | None, limit: int, noise: Path | None) -> Iterable[Noisy]:
    """Return the pairs of a folder, if any; else its speech mixed with its own noise or that of another folder."""
    corpus = find_clips(folder, ("noisy", "clean"), rate, split)
    return _mixtures(folder, rate, split, limit, noise) if corpus is None else _recorded(corpus, limit)


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


def _mixtures(folder: Path, rate: int, split: str | None, limit: int, noise: Path | None) -> Iterable[Noisy]:
    """Yield every clip of speech with noise from a random place, cycling through the SNRs; deterministic."""
    speech = find_clips(folder, ("speech",), rate, split)
    sounds = clips(noise, ("noise",), rate, split) if noise else find_clips(folder, ("noise",), rate, split)
    if speech is None or sounds is None:
        raise ContentError(
            "has neither noisy and clean clips to evaluate on nor speech and noise to mix (--noise FOLDER adds noise)",
            folder,
        )
    for place, k in enumerate(evenly_spaced(len(speech), limit)):
        rng = np.random.default_rng([0, k])
        clean = speech.load(k)
        sound = looped(rng, sounds.take(int(rng.integers(len(sounds))))[1], len(clean))
        snr = SNRS[place % len(SNRS)]
        mixed, target = audio.mix(clean, sound, snr, MIXED_LEVEL)
        yield Noisy(speech[k].id, mixed, target, snr)


def denoising(model: Model, signals: Iterable[Noisy]) -> Evaluation:
    """Measure SI-SDR, PESQ, STOI and DNSMOS before and after, and by SNR, as far as they are installed."""
    report = Evaluation(model.task)
    for signal in signals:
        estimate = np.asarray(model.run(signal.noisy), np.float32).reshape(-1)
        row: dict[str, Any] = {"id": signal.id}
        if signal.snr is not None:
            row["snr"] = round(signal.snr, 2)
        for suffix, x in (("", estimate), ("_before", signal.noisy)):
            for name, measure in MEASURES.items():
                value = _measured(report, name, measure, x, signal, model.rate)
                if value is not None:
                    row[f"{name}{suffix}"] = value
        report.rows.append(row)
    if not report.rows:
        raise ValueError("there are no noisy clips to evaluate on")
    report.figures |= _means(report.rows)
    bands = sorted({_band(row) for row in report.rows if "snr" in row})
    for band in bands:
        mine = [row for row in report.rows if "snr" in row and _band(row) == band]
        report.groups.append({"snr": band, "clips": len(mine), **_means(mine)})
    return report


def _measured(report: Evaluation, name: str, measure: Measure, x: Samples, signal: Noisy, rate: int) -> float | None:
    if name in report.missing or (signal.clean is None and name != "dnsmos"):
        return None
    try:
        return measure(x, signal.clean, rate)
    except ImportError as error:
        report.missing[name] = str(error)
    except MetricError as error:
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
    """Return the mean of every metric over the rows that have it."""
    names = [f"{name}{suffix}" for name in MEASURES for suffix in ("", "_before")]
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: float(np.mean(values)) for name, values in columns.items() if values}


def _band(row: dict[str, Any]) -> int:
    """Return the SNR of a row to the nearest 5 dB."""
    return 5 * round(row["snr"] / 5)


def connected(model: Model, words: Corpus, noise: Corpus | None, limit: int = 0) -> Evaluation:
    """Measure word and character error rates, clean and in noise, and the mean timing error of words in ms."""
    report, vocabulary = Evaluation(model.task), decode.Vocabulary.of(model.tokens)
    known = words
    if vocabulary.style is decode.Style.WORDS:
        known = words.of(clip for clip in words if clip.labels["word"] in model.tokens)
    if not len(known):
        raise ValueError(f"the model knows none of the words of the {words.name} corpus")
    rng = np.random.default_rng(0)
    for name, how in CONDITIONS.items():
        phrases = Phrases(known, noise, how, limit or PHRASES, fixed=1)
        for index in range(phrases.size()):
            x, said = phrases.phrase(index, rng)
            recognised = decode.greedy(model.run(x), vocabulary, model.seconds)
            report.rows.append({"condition": name, **_phrase_row(f"{name} {index}", recognised, said, model.rate)})
    for name in CONDITIONS:
        mine = [row for row in report.rows if row["condition"] == name]
        report.groups.append({"condition": name, "phrases": len(mine), **_phrase_figures(mine)})
    report.figures |= {key: value for key, value in report.groups[0].items() if key not in ("condition", "phrases")}
    for row in report.rows:
        row.pop("off")
    return report


def _phrase_row(label: str, words: list[decode.Word], said: list[Spoken], rate: int) -> dict[str, Any]:
    off = [
        (word.start - spoken.start / rate, word.end - spoken.end / rate) for word, spoken in _aligned(words, said, rate)
    ]
    return _text_row(label, decode.join(words), " ".join(spoken.word for spoken in said)) | {"off": off}


def _aligned(words: list[decode.Word], said: list[Spoken], rate: int) -> list[tuple[decode.Word, Spoken]]:
    """Match recognised words with spoken ones by the fewest edits; of equal alignments, the closest in time."""
    best: dict[tuple[int, int], tuple[float, list[tuple[decode.Word, Spoken]]]] = {}
    for i in range(len(words) + 1):
        for j in range(len(said) + 1):
            options: list[tuple[float, list[tuple[decode.Word, Spoken]]]] = [(0.0, [])] if i == j == 0 else []
            options += [(cost + 1, pairs) for cost, pairs in (best[k] for k in ((i - 1, j), (i, j - 1)) if k in best)]
            if i and j:
                word, spoken = words[i - 1], said[j - 1]
                cost, pairs = best[i - 1, j - 1]
                far = min(abs(word.end - spoken.end / rate), 10.0)
                same = word.text == spoken.word
                options.append((cost + 1e-3 * far, [*pairs, (word, spoken)]) if same else (cost + 1, pairs))
            best[i, j] = min(options, key=lambda option: option[0])
    return best[len(words), len(said)][1]


def _phrase_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    figures = _error_rates(rows)
    off = np.array([pair for row in rows for pair in row["off"]]).reshape(-1, 2)
    if len(off):
        start, end = 1000 * np.abs(off).mean(0)
        figures |= {"start_ms": float(start), "end_ms": float(end)}
    return figures


EVALUATIONS: dict[str, Callable[[Model, Path, str | None, int, Path | None], Evaluation]] = {
    CLASSIFIER.name: _keywords,
    RECOGNIZER.name: _recognition,
    DENOISER.name: _denoising,
}
"""The evaluation of each task: model, folder, split, limit and a folder of noise."""


def write(report: Evaluation, folder: Path) -> list[Path]:
    """Write all files of a report and return their paths; the plot only if matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / "figures.json", json.dumps(report.json(), indent=2) + "\n")
    written = [folder / "figures.json"]
    task = TASKS[report.task]
    for name, rows in ((task.clips, report.rows), (task.groups, report.groups)):
        if rows:
            write_file(folder / name, table(rows))
            written.append(folder / name)
    draw = PLOTS.get(report.task)
    return written if draw is None else written + _plot(folder / "plot.png", partial(draw, report))


def save_curve(points: Sequence[Point], folder: Path, chosen: Point | None = None) -> list[Path]:
    """Write misses against false alarms an hour as ``curve.json`` and, if matplotlib is installed, ``curve.png``."""
    rows = [point._asdict() for point in points]
    write_file(folder / "curve.json", json.dumps(rows, indent=1) + "\n")

    def draw(axes: Any) -> None:
        axes.plot([p.alarms_per_hour for p in points], [100 * p.misses for p in points], marker=".", color="#0072b2")
        if chosen is not None:
            place = (chosen.alarms_per_hour, 100 * chosen.misses)
            axes.plot(*place, marker="o", color="#d55e00")
            axes.annotate(f"threshold {chosen.threshold:g}", place, xytext=(6, 6), textcoords="offset points")
        axes.set_xscale("symlog", linthresh=0.5)
        axes.set(xlabel="false alarms an hour", ylabel="misses, %", ylim=(0, None))

    return [folder / "curve.json", *_plot(folder / "curve.png", draw, (6, 4))]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as CSV, with a column for every key that occurs."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plot(path: Path, draw: Callable[[Any], None], size: tuple[float, float] = (7, 5)) -> list[Path]:
    """Draw on new axes and return the path of the picture; without matplotlib none is drawn."""
    try:
        import matplotlib.style
    except ModuleNotFoundError:
        return []
    from matplotlib.figure import Figure

    with matplotlib.style.context(plot_style()):
        figure = Figure(figsize=size)
        draw(figure.subplots())
    figure.savefig(path, dpi=110)
    return [path]


def _confusions(report: Evaluation, axes: Any) -> None:
    names = [group["class"] for group in report.groups]
    place = {name: k for k, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)))
    for row in report.rows:
        counts[place[row["class"]], place[row["predicted"]]] += 1
    axes.grid(visible=False)
    axes.imshow(counts / np.maximum(counts.sum(1, keepdims=True), 1), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xlabel="predicted", ylabel="spoken", title=f"accuracy {report.figures['accuracy']:.1%}")


def _by_snr(report: Evaluation, axes: Any) -> None:
    groups = [group for group in report.groups if "si_sdr" in group]
    bands = [group["snr"] for group in groups]
    for name, label in (("si_sdr_before", "noisy"), ("si_sdr", "denoised")):
        axes.plot(bands, [group[name] for group in groups], marker="o", label=label)
    axes.set(xlabel="SNR of the noisy signal, dB", ylabel="SI-SDR, dB")
    axes.legend()


def _errors(report: Evaluation, axes: Any) -> None:
    for name in ("wer", "cer"):
        values = np.sort([row[name] for row in report.rows])
        axes.plot(values, np.arange(1, len(values) + 1) / len(values), label=f"{name} {report.figures[name]:.1%}")
    axes.set(xlabel="error rate", ylabel="share of utterances at or below")
    axes.legend()


PLOTS: dict[str, Callable[[Evaluation, Any], None]] = {
    CLASSIFIER.name: _confusions,
    DENOISER.name: _by_snr,
    RECOGNIZER.name: _errors,
}
"""The plot of each task: class confusions, SI-SDR by SNR, the distribution of error rates."""
