"""Train `denoise-16k`, the denoiser that ships, from packs of speech and noise.

    python recipes/denoise_16k.py DATA RUN [key=value ...]

DATA holds the packs vctk, librispeech and noise (docs/data.md), RUN is a new folder. Every setting can be overridden;
`start=denoise-16k minutes=600` goes on from the model that ships. Afterwards `centaurus eval RUN/last.safetensors`
measures it and a copy at src/centaurus/pretrained with `make models` ships it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from centaurus.cli.train import Display
from centaurus.recipes import launch
from centaurus.recipes.denoise import DenoiseSettings
from centaurus.training.config import override

SETTINGS = DenoiseSettings(
    network="hybrid",
    dc_block=True,
    level=125.0,  # the level falls to 1/e in two seconds
    losses="residual:0.3, compressed:8",
    minutes=150,
    batch=8,
    length=2**14,  # many cheap updates: a second of audio in a row
    cut=True,
    lr=3e-3,
    decay=0.02,
    warmup=0.02,
    snr_low=-5.0,
    snr_high=25.0,
    level_low=-38.0,
    level_high=-14.0,
    time_masks=0,
    frequency_masks=0,
    variety=1.0,
    silent_speech=0.04,
    clean_input=0.1,
    residue=0.12,  # 18 dB less noise, but speech unharmed
    validations=12,
    validation_items=48,
    workers=0,
    decode_once=True,
)

if __name__ == "__main__":
    data, out, *pairs = sys.argv[1:]
    settings = override(SETTINGS, pairs)
    run = launch.start("denoise", settings, Path(data), Path(out))
    with Display(settings, quiet=False) as display:
        launch.train(run, "denoise", settings, Path(data), display)
