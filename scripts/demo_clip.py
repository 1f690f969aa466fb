"""Make the clip that ships with the package: keywords spoken by espeak-ng, with noise made of formulas.

    apt install espeak-ng && python scripts/demo_clip.py

It contains no recordings. The files are the same for the same espeak-ng: the noise has a fixed seed.
"""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from centaurus.audio import mix, resample, write

ASSETS = Path(__file__).parent.parent / "src" / "centaurus" / "assets"
RATE = 16_000
SNR = 8.0  # dB
LEVEL = -24.0  # dBFS of the noisy clip
GAP = 1.0  # seconds between words
VOICES = ("en-us", "en-gb")
WORDS = ("yes", "stop", "left", "marvin", "right", "go", "seven", "down")


def speak(word: str, voice: str) -> NDArray[np.float32]:
    """Return a word without the silence around it, with its peak at one half."""
    command = ["espeak-ng", "-v", voice, "-s", "140", "-a", "100", "--stdout", word]
    x, rate = soundfile.read(
        io.BytesIO(subprocess.run(command, check=True, capture_output=True).stdout), dtype="float32"
    )
    loud = np.flatnonzero(np.abs(x) > 0.01 * np.abs(x).max())
    return resample(x[loud[0] : loud[-1] + 1] * np.float32(0.5 / np.abs(x).max()), rate, RATE)


def speech() -> tuple[NDArray[np.float32], list[dict[str, object]]]:
    """Return all words, a second apart, and the time of each."""
    pause = np.zeros(round(GAP * RATE), np.float32)
    line, said = pause, []
    for k, word in enumerate(WORDS):
        spoken = speak(word, VOICES[k % len(VOICES)])
        said.append({"word": word, "start": len(line) / RATE, "end": (len(line) + len(spoken)) / RATE})
        line = np.concatenate([line, spoken, pause])
    return line, said


def noise(samples: int) -> NDArray[np.float32]:
    """Return the noise of a fan and its motor: pink noise of changing level, and a hum with its harmonics."""
    rng = np.random.default_rng(2501)
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    spectrum /= np.sqrt(np.maximum(np.fft.rfftfreq(samples, 1 / RATE), 40.0))
    pink = np.fft.irfft(spectrum, samples)
    t = np.arange(samples) / RATE
    swell = 1 + 0.4 * np.sin(2 * np.pi * 0.23 * t)
    hum = sum(np.sin(2 * np.pi * 100 * k * t + k) / k for k in (1, 2, 3, 5, 7))
    return (pink / pink.std() * swell + 0.5 * hum).astype(np.float32)


def main() -> None:
    """Write the noisy clip, the clean one and the words."""
    clean, said = speech()
    noisy, clean = mix(clean, noise(len(clean)), SNR, LEVEL)
    ASSETS.mkdir(exist_ok=True)
    for name, x in (("demo.flac", noisy), ("demo.clean.flac", clean)):
        write(ASSETS / name, x, RATE, subtype="PCM_16", overwrite=True)
        print(f"{name}: {len(x) / RATE:.1f} s, peak {np.abs(x).max():.2f}, {(ASSETS / name).stat().st_size:,} bytes")
    (ASSETS / "demo.json").write_text(json.dumps({"snr_db": SNR, "words": said}, indent=2) + "\n")


if __name__ == "__main__":
    main()
