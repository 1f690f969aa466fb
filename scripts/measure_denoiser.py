"""Measure a denoiser on recordings that no training has seen, for its card.

    python scripts/measure_denoiser.py MODEL OUT PACKS [voicebank=FOLDER] [music=FOLDER] [voices=FOLDER] [count=12]
        [card=FILE] [pictures=only]

MODEL is an ONNX file or a shipped name, OUT gets ``NAME.json`` and spectrograms. PACKS is the folder of packs (vctk,
librispeech and noise with validation splits, vbdemand_public20, dns_samples). ``voicebank`` is the official corpus with
its 824 test pairs; ``music`` a folder of music that was kept out of training, ``voices`` a corpus of speech that was
(LibriSpeech test-clean; each mixture has another speaker), without which the packs' validation voices are used. The
ONNX file is measured, run as by `centaurus denoise`. ``card`` is a Markdown file whose marked part gets the figures.
``pictures=only`` draws the spectrograms and measures nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mixing import Samples, in_room, rms
from pictures import save_small, spectrogram_palette
from PIL import Image

from centaurus import audio
from centaurus.audio.signal import save_png
from centaurus.data import Clip, Corpus, open_corpus, pairs
from centaurus.data.layouts import sound_files
from centaurus.runtime import denoise

CleanUp = Callable[[Samples], Samples]
Pair = tuple[Samples, Samples]
RATE, LONGEST = 16_000, 80_000  # five seconds of a voice at most
LEVEL = 0.05  # RMS of noise alone: -26 dBFS
DIGITS = {"pesq": 2, "stoi": 3, "si_sdr": 1, "ovrl": 2}  # of a figure in a card
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def interval(values: Sequence[float], draws: int = 2000) -> list[float]:
    """Return the mean of values and its 95 % interval by resampling them."""
    x = np.asarray(values, float)
    means = np.random.default_rng(0).choice(x, (draws, len(x))).mean(1)
    return [round(float(v), 3) for v in (x.mean(), *np.quantile(means, (0.025, 0.975)))]


def scores(signals: Sequence[Pair], every: int = 1) -> dict[str, Any]:
    """Return PESQ, STOI and SI-SDR of (output, clean) pairs, and DNSMOS of every n-th output, with intervals."""
    return {
        "n": len(signals),
        "pesq": interval([audio.pesq(y, s) for y, s in signals]),
        "stoi": interval([audio.stoi(y, s) for y, s in signals]),
        "si_sdr": interval([audio.si_sdr(y, s) for y, s in signals]),
        "ovrl": interval([audio.dnsmos(y)["ovrl"] for y, _ in signals[::every]]),
    }


def before_and_after(clean_up: CleanUp, signals: Sequence[Pair], every: int = 1) -> dict[str, Any]:
    """Return the scores of (noisy, clean) pairs as they are and denoised."""
    return {"noisy": scores(signals, every), "denoised": scores([(clean_up(x), s) for x, s in signals], every)}


def loaded(corpus: Corpus) -> list[Pair]:
    """Return the samples of every (noisy, clean) pair of a corpus."""
    return [(corpus.load(a), corpus.load(b)) for a, b in pairs(corpus)]


def held_out_voices(folder: Path, count: int, rng: np.random.Generator) -> list[Samples]:
    """Return the beginning of one utterance of at least two seconds of each of ``count`` speakers, drawn at random."""
    speech = open_corpus(folder, None, ("speech",))
    voices = []
    for name in rng.permutation(sorted(set(speech.values("speaker"))))[:count]:
        own = speech.where(speaker=(str(name),))
        loaded = (own.load(int(k)) for k in rng.permutation(len(own)))
        voices.append(next(x for x in loaded if len(x) >= 2 * RATE)[:LONGEST])
    return voices


def conditions(packs: Path, music: Sequence[Samples], count: int, voices: str = "") -> dict[str, list[Pair]]:
    """Return mixtures of held-out voices with validation noise, by name; the same every time."""
    rng = np.random.default_rng(5)
    noise = open_corpus(packs, ("val",), ("noise",))
    if voices:
        chosen = held_out_voices(Path(voices), count, rng)
    else:
        speech = open_corpus(packs, ("val",), ("speech",))
        long = [speech.load(clip)[:LONGEST] for clip in speech if clip.frames >= 2 * RATE]
        chosen = [long[int(k)] for k in rng.choice(len(long), count, replace=False)]
    ambience = [noise.load(clip) for clip in noise if not clip.id.endswith(".wav")] or [noise.load(x) for x in noise]

    def among(sounds: Sequence[Samples], frames: int) -> Samples:
        x = sounds[int(rng.integers(len(sounds)))]
        start = int(rng.integers(max(1, len(x) - frames)))
        return np.resize(x[start:], frames)

    def mixed(sounds: Sequence[Samples], snr: float, voices: Sequence[Samples] = chosen) -> list[Pair]:
        return [(_mix(s, among(sounds, len(s)), snr), s) for s in voices]

    rooms = [in_room(rng, s) for s in chosen]
    pairs_of = {f"ambience {snr} dB": mixed(ambience, snr) for snr in (-5, 0, 5, 10)}
    pairs_of["reverberant, ambience 10 dB"] = mixed(ambience, 10, rooms)
    pairs_of["clipped, ambience 15 dB"] = [(_clip(x, 0.25), s) for x, s in mixed(ambience, 15)]
    pairs_of["typing 5 dB"] = [(_mix(s, typing(rng, len(s)), 5), s) for s in chosen]
    if music:
        pairs_of["music 5 dB"] = mixed(music, 5)
    return pairs_of


def _mix(speech: Samples, noise: Samples, snr: float) -> Samples:
    return (speech + noise * rms(speech) / (rms(noise) + 1e-9) * 10 ** (-snr / 20)).astype(np.float32)


def _clip(x: Samples, share: float) -> Samples:
    top = share * float(np.abs(x).max())
    return np.clip(x, -top, top)


def typing(rng: np.random.Generator, frames: int) -> Samples:
    """Return key strokes: short bursts of noise, three to thirteen a second."""
    x, at = 1e-4 * rng.standard_normal(frames), 1000
    while at < frames:
        burst = rng.standard_normal(900) * np.exp(-np.arange(900) / 60) * rng.uniform(0.4, 1)
        x[at : at + 900] += burst[: frames - at]
        at += int(rng.uniform(1200, 4500))
    return x.astype(np.float32)


def suppression(clean_up: CleanUp, packs: Path, music: Sequence[Samples]) -> dict[str, list[float]]:
    """Return by how many dB noise alone falls after its first second, mean and least, by category."""
    noise = open_corpus(packs, ("val",), ("noise",))
    sounds = [(clip.labels.get("category", "noise"), noise.load(clip)) for clip in noise]
    falls_of: dict[str, list[float]] = {}
    for kind, x in [*sounds, *(("music", x) for x in music)]:
        x = np.resize(x, max(len(x), LONGEST))[: 2 * LONGEST]
        x = (x / (rms(x) + 1e-9) * LEVEL).astype(np.float32)
        falls = audio.dbfs(x[RATE:]) - audio.dbfs(clean_up(x)[RATE:])
        falls_of.setdefault(kind, []).append(min(float(falls), 100.0))
    return {kind: [round(float(np.mean(v)), 1), round(min(v), 1)] for kind, v in sorted(falls_of.items())}


def level_changes(clean_up: CleanUp, speech: Samples) -> dict[str, float]:
    """Return the change of level of clean speech in dB, by the gain in dB that its input has."""
    inputs = {f"{db} dB": (speech * 10 ** (db / 20)).astype(np.float32) for db in (-40, -20, 0, 6)}
    return {name: round(float(audio.dbfs(clean_up(x)) - audio.dbfs(x)), 3) for name, x in inputs.items()}


def onset_change(clean_up: CleanUp, signals: Sequence[Pair]) -> float:
    """Return the level of the first 100 ms of speech after denoising, in dB over the clean recording's, on average."""
    changes = []
    for noisy, clean in signals:
        power = np.square(clean[: len(clean) // 160 * 160].reshape(-1, 160)).mean(1)
        start = int(np.argmax(power > 1e-2 * power.max())) * 160
        part = slice(start, start + RATE // 10)
        changes.append(float(audio.dbfs(clean_up(noisy)[part]) - audio.dbfs(clean[part])))
    return round(float(np.mean(changes)), 2)


def markdown(results: dict[str, Any]) -> str:
    """Return the figures as the tables of a card."""

    def cell(value: Sequence[float], digits: int) -> str:
        return "{:.{d}f} ({:.{d}f}–{:.{d}f})".format(*value, d=digits)

    def rows(name: str, both: dict[str, Any]) -> list[str]:
        return [
            f"| {name}, {kind} | " + " | ".join(cell(both[kind][key], d) for key, d in DIGITS.items()) + " |"
            for kind in ("noisy", "denoised")
        ]

    head = ["| | PESQ | STOI | SI-SDR dB | DNSMOS OVRL |", "|---|---|---|---|---|"]
    sets = [key for key in ("voicebank", "public pairs") if key in results]
    names = {"voicebank": "VoiceBank+DEMAND, official test set", "public pairs": "20 of these pairs"}
    lines = [
        "Mean and 95 % interval of the mean. " + "; ".join(f"{names[k]}: n = {results[k]['noisy']['n']}" for k in sets)
    ]
    lines += [". DNSMOS of every fourth pair of the test set.", "", *head]
    lines = ["".join(lines[:2]), *lines[2:]]
    for key in sets:
        lines += rows(names[key], results[key])
    figures = [cell(results["clean input"][key], d) for key, d in DIGITS.items()]
    lines.append("| clean speech through it | " + " | ".join(figures) + " |")
    lines += ["", "Voices and noises that training did not use, before → after:", "", *head]
    for kind, both in results["conditions"].items():
        a, b = both["noisy"], both["denoised"]
        figures = [f"{a[k][0]:.{d}f} → {b[k][0]:.{d}f}" for k, d in DIGITS.items()]
        lines.append(f"| {kind} (n = {a['n']}) | " + " | ".join(figures) + " |")
    alone, dns = results["noise alone"], results["dns challenge"]
    by = ", ".join(f"{kind} {mean:.0f} ({least:.0f})" for kind, (mean, least) in alone["by category"].items())
    lines += ["", f"Noise alone falls by {alone['mean']:.1f} dB on average; by kind, mean (least): {by}."]
    lines += [
        "",
        f"Six recordings of the DNS challenge, DNSMOS OVRL: {dns['noisy'][0]:.2f} → {cell(dns['denoised'], 2)}.",
    ]
    silence = results["silence peak"]
    levels = ", ".join(f"{change:+.2f} dB at {gain}" for gain, change in results["levels"].items())
    lines += [
        "",
        f"Level of clean speech after it: {levels} of input gain. The first 100 ms of speech in noise: "
        f"{results['onsets']:+.2f} dB. Ten seconds of silence come out below {silence:.0e} of full scale.",
    ]
    return "\n".join(lines)


def draw(clean_up: CleanUp, signals: Sequence[Pair], path: Path) -> None:
    """Draw spectrograms of (noisy, clean) pairs and of what is left after denoising: PATH-1.png, PATH-2.png …"""
    for number, (x, s) in enumerate(signals, 1):
        picture = path.with_name(f"{path.name}-{number}.png")
        save_png(picture, {"noisy": x, "denoised": clean_up(x), "clean": s}, RATE)
        save_small(Image.open(picture), picture, spectrogram_palette())


def write_card(card: Path, figures: str) -> None:
    """Replace the text between the marks of a card by these figures."""
    before, rest = card.read_text(encoding="utf-8").split(BEGIN, 1)
    card.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def main(
    model: str,
    out: Path,
    packs: Path,
    voicebank: str = "",
    music: str = "",
    voices: str = "",
    count: str = "12",
    card: str = "",
    pictures: str = "",
) -> None:
    """Measure a model and write its JSON and its pictures."""

    def clean_up(x: Samples) -> Samples:
        return denoise(x, RATE, model=model)

    name = Path(model).stem
    out.mkdir(parents=True, exist_ok=True)
    public = loaded(open_corpus(packs / "vbdemand_public20"))
    draw(clean_up, public[:2], out / name)
    if pictures == "only":
        return
    sounds = [Clip(f, f.stem) for f in sound_files(Path(music))] if music else []
    tracks = [x for clip in sounds if len(x := Corpus("music", (clip,)).load(0)) >= 3 * RATE]
    results: dict[str, Any] = {"public pairs": before_and_after(clean_up, public)}
    if voicebank:
        test = open_corpus(voicebank, ("test",), ("noisy", "clean"))
        results["voicebank"] = before_and_after(clean_up, loaded(test), every=4)
    results["clean input"] = scores([(clean_up(s), s) for _, s in public])
    results["conditions"] = {
        kind: before_and_after(clean_up, signals)
        for kind, signals in conditions(packs, tracks, int(count), voices).items()
    }
    falls = suppression(clean_up, packs, tracks[:12])
    results["noise alone"] = {
        "by category": falls,
        "mean": round(float(np.mean([v[0] for v in falls.values()])), 1),
        "least": min(v[1] for v in falls.values()),
    }
    results["levels"] = level_changes(clean_up, public[0][1])
    results["onsets"] = onset_change(clean_up, public)
    results["silence peak"] = float(np.abs(clean_up(np.zeros(10 * RATE, np.float32))).max())
    challenge = open_corpus(packs / "dns_samples")
    recordings = [challenge.load(clip) for clip in challenge if clip.labels["kind"] == "noisy"]
    results["dns challenge"] = {
        "n": len(recordings),
        "noisy": interval([audio.dnsmos(x)["ovrl"] for x in recordings]),
        "denoised": interval([audio.dnsmos(clean_up(x))["ovrl"] for x in recordings]),
    }
    (out / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
    if card:
        write_card(Path(card), markdown(results))
    print(markdown(results))


if __name__ == "__main__":
    model, out, packs, *settings = sys.argv[1:]
    main(model, Path(out), Path(packs), **dict(pair.split("=", 1) for pair in settings))
