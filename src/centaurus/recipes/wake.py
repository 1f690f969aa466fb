"""A custom wake word: from recordings of a phrase and of other audio to a model with a threshold.

The folder has ``positive/`` with recordings of the phrase, one in each, and other speech in other folders; files
in ``noise/`` are noise. Where espeak-ng is installed it speaks phrases that sound similar. ``corrections`` names a
folder collected in use: ``missed/`` has phrases that were not reported, ``alarms/`` audio that was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from centaurus.data import Corpus
from centaurus.data.corpus import Clip
from centaurus.data.keywords import Streaming, Streams
from centaurus.data.layouts import hold_out, sound_files, speaker_of
from centaurus.data.near import SPOKEN, VOICES, spoken, spoken_near
from centaurus.decode import BACKGROUND, Smoothing, Spotting
from centaurus.evaluation import live, save_curve
from centaurus.export.write import export_onnx
from centaurus.models import Classifier, classifier, load, save
from centaurus.nn import Stream
from centaurus.system import ContentError
from centaurus.train.config import Prepared, Preset, Reading, Recipe, hours
from centaurus.train.loop import Data
from centaurus.train.objectives import Spot
from centaurus.train.run import LIVE, Run

POSITIVE, NOISE, MISSED, ALARMS = "positive", "noise", "missed", "alarms"
FEWEST = 20  # recordings of the phrase: with fewer, networks do not generalise to other voices
HELD_OUT = 0.2  # share of recordings, and of speakers of other speech, held out for validation
NEAR_REPEATS = 3  # how many times as often as other speech a similar phrase is drawn
REPEATS = 8  # how many times as often as other speech a recording of a false alarm is drawn
UNNAMED = "wake"  # the phrase if none is given: nothing is spoken then
MOST_MISSES = 0.1  # share of phrases that the threshold may miss for fewer false alarms
WINDOW = 0.16  # seconds over which probabilities are averaged


@dataclass(frozen=True, kw_only=True)
class WakeSettings(Reading):
    """Settings of a wake phrase: its name, and the balance of misses and false alarms."""

    network: str = "wake-mel"
    """Table of the spotter."""
    phrase: str = UNNAMED
    """The phrase, as it is written; reported when it is detected."""
    near: int = 150
    """Phrases that sound similar, spoken by espeak-ng if it is installed, to learn that they are not the phrase."""
    corrections: str = ""
    """A folder with missed/ and alarms/ kept in use, to learn from."""
    alarms: float = 0.5
    """False alarms an hour that the threshold is chosen for."""
    negatives: float = 4.0
    """Weight of background in the loss: a larger one gives fewer false alarms and more misses."""
    decode_once: bool = True


def configure(preset: Preset = "ours") -> WakeSettings:
    """Return a preset: 20 minutes on two cores from the blocks of ``wake-computer``; ``small`` takes two."""
    usual = WakeSettings(
        start="wake-computer", minutes=20, batch=16, lr=2e-3, decay=0.02, optimizer="muon", warmup=0.02, ema=0.998,
        validations=6, workers=1,
    )  # fmt: skip
    return replace(usual, minutes=2, validations=2) if preset == "small" else usual


def recordings(settings: WakeSettings, folder: Path) -> tuple[Corpus, Corpus, Corpus]:
    """Return phrases, other speech and noise of a folder and its corrections, each with a split."""
    phrases = hold_out(_clips(folder / POSITIVE, "word", settings.phrase), lambda clip: clip.id, HELD_OUT)
    if len(phrases) < FEWEST:
        raise ContentError(
            f"has {len(phrases)} recordings of the phrase, at least {FEWEST} are needed", folder / POSITIVE
        )
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and path.name != POSITIVE)
    speech = [clip for path in inner if path.name != NOISE for clip in _clips(path, "speech")]
    if not speech:
        raise ContentError(f"has no other speech besides {POSITIVE}/: else every input would be the phrase", folder)
    speech = hold_out(speech, lambda clip: clip.labels["speaker"], HELD_OUT)
    noise = hold_out(_clips(folder / NOISE, "noise"), lambda clip: clip.id, HELD_OUT)
    if settings.corrections:
        kept = Path(settings.corrections)
        missed, alarms = _clips(kept / MISSED, "word", settings.phrase), _clips(kept / ALARMS, "speech")
        if not (missed or alarms):
            raise ContentError(f"has no recordings in {MISSED}/ or {ALARMS}/ to correct from", kept)
        phrases += _learnt(missed)
        speech += _learnt(alarms) * REPEATS

    if settings.near and settings.phrase != UNNAMED:  # by the same voices, so that it is not they that tell them apart
        similar = spoken_near(settings.phrase, settings.near)
        own = spoken([settings.phrase], len(VOICES)) if similar else []
        speech += _learnt(_named(similar, "speech")) * NEAR_REPEATS
        phrases += _learnt(_named(own, "word", settings.phrase))

    def read(clips: list[Clip]) -> Corpus:
        return settings.read(Corpus("wake", tuple(clips), settings.rate))

    return read(phrases), read(speech), read(noise)


def _clips(folder: Path, kind: str, word: str = "") -> list[Clip]:
    return _named(sound_files(folder), kind, word, folder.parent) if folder.is_dir() else []


def _named(files: Iterable[Path], kind: str, word: str = "", top: Path | None = None) -> list[Clip]:
    """Return clips of files; their ids are paths below ``top``, or the names of the folder and the file."""

    def labels(path: Path) -> dict[str, str]:
        return {"kind": kind, "word": word, "speaker": speaker_of(path)}

    return [Clip(path, str(path.relative_to(top or path.parents[1])), labels=labels(path)) for path in files]


def _is_spoken(clip: Clip) -> bool:
    return clip.id.startswith(f"{SPOKEN}{os.sep}")


def _learnt(clips: Iterable[Clip]) -> list[Clip]:
    return [replace(clip, labels={**clip.labels, "split": "train"}) for clip in clips]


def prepare(settings: WakeSettings, folder: Path) -> Prepared:
    """Return streams with the phrase in other speech and noise, and the network that learns from them."""
    phrases, speech, noise = recordings(settings, folder)
    classes = (settings.phrase, BACKGROUND)
    net = classifier(settings.network, classes, settings={"sample_rate": settings.rate})

    def streams(split: str, count: int, fixed: int | None) -> Streams:
        own = [corpus.where(split=split) for corpus in (phrases, noise, speech)]
        return Streams(own[0], classes, net.hop, own[1], own[2], Streaming(), count, fixed)

    notes: dict[str, Any] = {
        "phrases": len(phrases),
        "similar_phrases": len({clip.id for clip in speech if _is_spoken(clip)}),
        "speech_hours": hours(speech),
        "noise_hours": hours(noise),
    }
    faults = {**phrases.faults.reasons, **speech.faults.reasons, **noise.faults.reasons}
    data = Data(streams("train", 20 * len(phrases), None), streams("val", 200, 0))
    return Prepared(Spot(net, settings.negatives), data, notes, (phrases, speech, noise), faults)


def finish(run: Run, settings: WakeSettings, folder: Path) -> None:
    """Measure the best model in one continuous stream, choose its threshold, and write model, curve and card.

    ``live.json`` has the figures at the threshold.
    """
    phrases, speech, noise = (corpus.where(split="val") for corpus in recordings(settings, folder))
    path = run.folder / "best.safetensors"
    net = load(path)
    assert isinstance(net, Classifier)
    points = measure(net, phrases, speech, noise)
    chosen = live.threshold_for(points, settings.alarms, MOST_MISSES)
    net.settings |= {"threshold": chosen.threshold, "window": WINDOW}
    save(net, path)
    save_curve(points, run.folder, chosen)
    said = _said(chosen, settings, hours(speech) + hours(noise))
    card = f"{(run.folder / 'card.md').read_text(encoding='utf-8')}\n## Live\n\n{said}\n"
    run.write_text("card.md", card)
    name = re.sub(r"[^\w-]+", "-", settings.phrase).strip("-") or "wake"  # a phrase may have any characters
    export_onnx(net, run.folder / f"{name}.onnx", card=card)
    run.write_json(LIVE, {"model": f"{name}.onnx", **chosen._asdict(), "description": said})


def measure(net: Classifier, phrases: Corpus, speech: Corpus, noise: Corpus) -> list[live.Point]:
    """Return the curve of misses of phrases in noise at 10 dB against false alarms in other speech and noise."""
    seconds = float(1 / (int(net.settings["sample_rate"]) * net.ratio))
    spotting = Spotting(net.settings["classes"], seconds, Smoothing(window=WINDOW))
    return live.measure(
        lambda: _listener(net), spotting, phrases, speech.of([*speech, *noise]), noise, count=live.MEASURED
    )


def _listener(net: Classifier) -> live.Push:
    stream = Stream(net)

    @torch.inference_mode()
    def push(x: live.Samples) -> Any:
        return stream(torch.from_numpy(np.ascontiguousarray(x))[None, None])[0].numpy()

    return push


def _said(chosen: live.Point, settings: WakeSettings, total: float) -> str:
    """Return what the threshold means, from ``total`` hours of other audio."""
    text = (
        f"One continuous stream, held-out recordings: at the threshold {chosen.threshold:g} it misses "
        f"{chosen.misses:.1%} of phrases in noise at {live.SNR:g} dB and raises {chosen.alarms} false alarms in "
        f"{total:.2f} h of other audio ({chosen.alarms_per_hour:.2g} an hour, at most {chosen.at_most:.2g} with 95 % "
        f"confidence). Misses against false alarms at other thresholds: `curve.json`."
    )
    if chosen.alarms_per_hour > settings.alarms:
        text += (
            f" {settings.alarms:g} an hour was not reached with {MOST_MISSES:.0%} misses or fewer: train for longer, "
            f"or add other speech to learn from."
        )
    return text


RECIPE = Recipe(configure, prepare, ("ours", "small"), finish)
