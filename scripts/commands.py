"""Train `commands`, the recogniser of connected words that ships.

    python scripts/commands.py DATA RUN [key=value ...]

DATA holds the packs kws, librispeech, vctk and noise (docs/data.md), RUN is a new folder. The backbone starts with what
`kws-30` has learnt, so train that first (scripts/kws_30.py) where the one that ships is not good enough. Every setting
can be overridden; `start=commands minutes=600` goes on from the model that ships. Afterwards `centaurus eval
RUN/all/last.safetensors --data DATA/kws --noise DATA/noise` measures it; a copy in src/centaurus/pretrained with
`make models` ships it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stages import train

from centaurus.recipes.commands import CommandSettings
from centaurus.train.config import override

SETTINGS = CommandSettings(
    network="commands",
    dc_block=True,
    vocabulary="marked",  # words, and where each begins
    losses="tokens:1, starts:1, ends:1",
    start="kws-30-raw",
    tuned=0,
    minutes=60,
    batch=8,
    lr=3e-3,
    decay=0.05,
    warmup=0.05,
    speed=0.1,
    noisy=0.5,
    wordless=0.06,
    validations=12,
    validation_items=100,
    workers=0,
)

if __name__ == "__main__":
    data, out, *pairs = sys.argv[1:]
    print(train("commands", {"all": override(SETTINGS, pairs)}, Path(data), Path(out)))
