"""A small synthetic corpus in the layout of Speech Commands, by formant synthesis: for demos and first runs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from centaurus import audio
from centaurus.audio.augment import coloured, hum
from centaurus.audio.signal import istft, stft
from centaurus.system import AnyPath

Samples = NDArray[np.float32]
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
RATE = 16_000
_SIZE, _HOP = 512, 128


def speech_commands(
    folder: AnyPath, words: Sequence[str] = WORDS, clips: int = 40, speakers: int = 20, seed: int = 0
) -> Path:
    """Write clips of a second, a folder for each word, with split lists and background noise; return the folder."""
    root = Path(folder)
    lists: dict[str, list[str]] = {"validation": [], "testing": []}
    voices = people(seed, speakers)
    for w, word in enumerate(words):
        (root / word).mkdir(parents=True, exist_ok=True)
        for k in range(clips):
            rng = np.random.default_rng([seed, 1, w, k])
            who = k % speakers
            name = f"{word}/{speaker_id(seed, who)}_nohash_{k // speakers}.wav"
            write_clip(root / name, placed(speak(word_phones(word), voices[who], rng), RATE, rng))
            part = split_of(who, speakers)
            if part != "train":
                lists["validation" if part == "val" else "testing"].append(name)
    for name, lines in lists.items():
        (root / f"{name}_list.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    noise = root / "_background_noise_"
    noise.mkdir(exist_ok=True)
    for k, name in enumerate(("white_noise", "pink_noise", "humming")):
        rng = np.random.default_rng([seed, 2, k])
        write_clip(noise / f"{name}.wav", hum(rng, 10 * RATE) if k == 2 else coloured(rng, 10 * RATE, k / 2), -30)
    return root


def placed(x: Samples, frames: int, rng: np.random.Generator) -> Samples:
    """Return a signal at a random place in ``frames`` frames of faint noise."""
    y = rng.standard_normal(frames, dtype=np.float32) * np.float32(0.0005)
    x = x[:frames]
    start = int(rng.integers(0, frames - len(x) + 1))
    y[start : start + len(x)] += x * np.float32(rng.uniform(0.2, 1.2))
    return y


def write_clip(path: Path, x: Samples, level: float | None = None, rate: int = RATE) -> None:
    """Write samples at RATE to a file at another rate, at a level in dBFS if one is given."""
    x = x if level is None else audio.to_level(x, level)
    subtype = "OPUS" if path.suffix in (".opus", ".ogg") else None
    audio.write(path, audio.resample(x, RATE, rate), rate, subtype=subtype, overwrite=True)


def people(seed: int, count: int) -> list[Speaker]:
    """Draw the speakers of a corpus."""
    return [Speaker.draw(np.random.default_rng([seed, 0, k])) for k in range(count)]


def split_of(who: int, speakers: int) -> str:
    """Return the split of a speaker: of the last fifth test, of the fifth before val, else train."""
    share = max(1, speakers // 5)
    return "test" if who >= speakers - share else "val" if who >= speakers - 2 * share else "train"


def speaker_id(seed: int, who: int) -> str:
    """Return the eight hexadecimal digits that name a speaker in file names."""
    return f"{(0x10000 * (seed + 1) + who * 0x9E37) & 0xFFFFFFFF:08x}"


@dataclass(frozen=True)
class Phone:
    """A phone: three formants in Hz, and how much of it is voiced (the rest is noise)."""

    formants: tuple[float, float, float]
    voiced: float = 1.0


@dataclass(frozen=True)
class Speaker:
    """A speaker's voice: pitch, length of the vocal tract, speed, breath."""

    pitch: float
    tract: float
    speed: float
    breath: float

    @staticmethod
    def draw(rng: np.random.Generator) -> Speaker:
        """Return a random speaker, from a low voice with a long vocal tract to a high one with a short one."""
        size = rng.uniform()
        return Speaker(
            pitch=95 + 130 * size + rng.uniform(-12, 12),
            tract=0.93 + 0.16 * size + rng.uniform(-0.02, 0.02),
            speed=rng.uniform(0.88, 1.14),
            breath=rng.uniform(0.01, 0.05),
        )


# Vowels on a grid of the first two formants, fricatives with one broad resonance.
_VOWELS = [Phone((first, second, 2600)) for first in (290, 430, 590, 760) for second in (850, 1250, 1750, 2250)]
_FRICATIVES = [Phone((base, base * 1.3, base * 1.6), voiced=0.0) for base in (1600, 2700, 4200)]
_NASALS = [Phone((260, second, 2400), voiced=0.97) for second in (1050, 1600)]
PHONES = (*_VOWELS, *_FRICATIVES, *_NASALS)


def word_phones(word: str) -> list[Phone]:
    """Return the three or four phones of a word, a function of its letters; neighbours differ."""
    digest = hashlib.blake2b(word.encode(), digest_size=16).digest()
    chosen: list[Phone] = []
    for byte in digest:
        phone = PHONES[byte % len(PHONES)]
        if not chosen or chosen[-1] != phone:
            chosen.append(phone)
    return chosen[: 3 + digest[0] % 2]


def speak(
    phones: Sequence[Phone | None],
    speaker: Speaker,
    rng: np.random.Generator,
    seconds: float = 0.14,
    rate: int = 16_000,
) -> NDArray[np.float32]:
    """Return a sequence of phones of about the given length in seconds; None is a pause. Peak 0.5."""
    lengths = [max(_HOP, int(rate * seconds / speaker.speed * rng.uniform(0.85, 1.2))) for _ in phones]
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    total = int(bounds[-1])
    if not total:
        return np.zeros(0, np.float32)
    spectra = stft(_excitation(phones, bounds, speaker, rng, rate), _SIZE, _HOP)
    # Which phone sounds in each frame, the resonances gliding from one to the next over about 30 ms.
    centres = np.arange(len(spectra)) * _HOP - _SIZE // 2 + _HOP
    which = np.clip(np.searchsorted(bounds, centres, side="right") - 1, 0, len(phones) - 1)
    shapes = np.stack([_shape(phone, speaker, rate) for phone in phones])[which]
    shapes = _glide(shapes, 3)
    voice = istft(spectra * shapes, total, _SIZE, _HOP)
    peak = np.abs(voice).max()
    return voice * np.float32(0.5 / peak) if peak > 0 else voice


def _excitation(
    phones: Sequence[Phone | None], bounds: NDArray[np.int64], speaker: Speaker, rng: np.random.Generator, rate: int
) -> NDArray[np.float32]:
    """Return glottal pulses and noise, mixed by how voiced each phone is."""
    total = int(bounds[-1])
    ends = np.linspace(0, total, 8)
    pitch = np.interp(np.arange(total), ends, speaker.pitch * (1 + 0.12 * rng.standard_normal(8)).clip(0.7, 1.3))
    turns = np.cumsum(pitch / rate)
    pulses = np.diff(np.floor(turns), prepend=0.0) * np.sqrt(rate / pitch)
    voiced = np.zeros(total, np.float32)
    loud = np.zeros(total, np.float32)
    for phone, first, last in zip(phones, bounds[:-1], bounds[1:], strict=True):
        if phone is not None:
            voiced[first:last] = phone.voiced
            loud[first:last] = rng.uniform(0.7, 1.0) * (1.0 if phone.voiced else 0.35)
    noise = rng.standard_normal(total, dtype=np.float32)
    sound = voiced * pulses.astype(np.float32) + (1 - voiced + speaker.breath) * noise
    return (sound * _glide(loud[:, None], rate // 100)[:, 0]).astype(np.float32)


def _shape(phone: Phone | None, speaker: Speaker, rate: int) -> NDArray[np.float32]:
    """Return the response of the vocal tract at each frequency."""
    f = np.fft.rfftfreq(_SIZE, 1 / rate)
    if phone is None:
        return np.zeros(f.size, np.float32)
    response = np.full(f.size, 0.003)
    for number, formant in enumerate(phone.formants):
        centre = formant * speaker.tract
        width = (70 if phone.voiced else 350) * (1 + centre / 2500)
        response += (0.7**number) / (1 + ((f - centre) / width) ** 2)
    tilt = 1 / np.sqrt(1 + (f / 900) ** 2) if phone.voiced else np.ones_like(f)
    return (response * tilt).astype(np.float32)


def _glide(x: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return a moving mean over the first axis."""
    if width < 2 or len(x) < 2:
        return x
    sums = np.cumsum(
        np.pad(x, ((width // 2 + 1, width - width // 2 - 1), (0, 0)), mode="edge"), axis=0, dtype=np.float64
    )
    return ((sums[width:] - sums[:-width]) / width).astype(np.float32)
