"""Train `kws-30`, the keyword spotter that ships: thirty words and a class for everything else.

    python recipes/kws_30.py DATA RUN [key=value ...]

DATA holds the packs kws, librispeech, vctk and noise (docs/data.md), RUN is a new folder. Every setting can be
overridden; `start=kws-30 minutes=600` goes on from the model that ships, `network=kws-hybrid-2` trains a smaller one.
Afterwards `centaurus eval RUN/last.safetensors` measures it; in src/centaurus/pretrained, `make models` ships it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from centaurus.cli.train import Display
from centaurus.recipes import launch
from centaurus.recipes.kws import KeywordSettings
from centaurus.training.config import override

SETTINGS = KeywordSettings(
    network="kws-hybrid-4",
    dc_block=True,
    words="30",
    background=0.1,
    tuned=4,
    smoothing=0.02,
    minutes=90,
    batch=32,
    lr=6e-3,
    decay=0.05,
    warmup=0.03,
    before=0.5,
    speed=0.15,
    gain_db=12.0,
    shift=0.1,
    noisy=0.6,
    validations=12,
    workers=0,
)

if __name__ == "__main__":
    data, out, *pairs = sys.argv[1:]
    settings = override(SETTINGS, pairs)
    run = launch.start("kws", settings, Path(data), Path(out))
    with Display(settings, quiet=False) as display:
        launch.train(run, "kws", settings, Path(data), display)
