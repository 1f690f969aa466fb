"""Train `denoise-16k`, the denoiser that ships, from packs of speech and noise.

    python scripts/denoise_16k.py DATA RUN [key=value ...]

DATA holds the packs vctk, librispeech and noise (docs/data.md), RUN is a new folder. First with every kind of noise
(RUN/first), then with less that is made up and more weight on what is heard (RUN/fine, RUN/last); what ships,
RUN/denoise-16k, may keep some of its input (KEPT). Every setting but the losses can be overridden; `start=denoise-16k
minutes=600` goes on from the model that ships, without the first stage. Afterwards `centaurus eval
RUN/denoise-16k.safetensors` measures it; a copy in src/centaurus/pretrained with `make models` ships it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from stages import save_kept, shorter, train

from centaurus.recipes.denoise import DenoiseSettings
from centaurus.train.config import override

KEPT = 0.0  # more of it harms speech less, where a network takes too much
SETTINGS = DenoiseSettings(
    network="hybrid",
    dc_block=True,
    level=125.0,  # the level falls to 1/e in two seconds
    minutes=150,
    batch=8,
    length=2**14,  # many cheap updates: a second of audio in a row
    cut=True,
    lr=3e-3,
    decay=0.02,
    optimizer="muon",
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
    rumble=0.4,
    residue=0.1,  # 20 dB less noise, but speech unharmed
    validations=12,
    validation_items=48,
    workers=0,
    decode_once=True,
)


def stages(settings: DenoiseSettings) -> dict[str, DenoiseSettings]:
    """To take noise away, then to sound well, then only that; a trained model goes on with the second."""
    first = replace(settings, losses="residual:1, compressed:4")
    fine = replace(settings, losses="residual:0.5, heard:3", lr=0.7 * settings.lr, snr_low=0.0, variety=0.3)
    last = replace(
        shorter(fine, 0.4), losses="residual:0.2, heard:4", lr=0.4 * settings.lr, snr_high=20.0, residue=0.05
    )
    return {"fine": fine, "last": last} if settings.start else {"first": first, "fine": fine, "last": last}


if __name__ == "__main__":
    data, out, *pairs = sys.argv[1:]
    model = train("denoise", stages(override(SETTINGS, pairs)), Path(data), Path(out))
    print(save_kept(model, KEPT, Path(out) / "denoise-16k.safetensors"))
