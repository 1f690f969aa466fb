"""Train `kws-30-raw`, the keyword spotter on raw samples: thirty words and a class for everything else.

    python scripts/kws_30_raw.py DATA RUN [key=value ...]

DATA holds the packs kws, librispeech, vctk and noise (docs/data.md), RUN is a new folder. First a teacher that does not
ship is trained (RUN/teacher.onnx, unless teacher=FILE gives another), then the words by themselves with its logits
(RUN/words), then, at a lower learning rate, words after other audio as in a stream (RUN/live). The result is a weighted
mean of the last two, which has fewer false alarms at almost the same accuracy. Every setting can be overridden;
`start=kws-30-raw minutes=600` continues from the model that ships, `network=kws-hybrid-2` trains a smaller one. Then
`centaurus eval RUN/kws-30-raw.safetensors` measures it; in src/centaurus/pretrained, `make models` ships it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from stages import save_mean, shorter, train
from teacher import teach

from centaurus.recipes.kws import KeywordSettings
from centaurus.train.config import override

SHARES = {"words": 0.7, "live": 0.3}
SETTINGS = KeywordSettings(
    network="kws-hybrid-4",
    dc_block=True,
    words="30",
    background=0.1,
    tuned=4,
    smoothing=0.02,
    minutes=180,
    batch=64,
    lr=5e-3,
    decay=0.05,
    warmup=0.03,
    before=0.03,
    speed=0.12,
    gain_db=12.0,
    shift=0.1,
    noisy=0.2,
    tone_db=6.0,
    mixed=0.2,
    optimizer="muon",
    dropout=0.0,
    losses="cross_entropy:0.3, taught:1",
    validations=12,
    workers=0,
)


def taught(settings: KeywordSettings, data: Path, path: Path) -> KeywordSettings:
    """Return the settings with a teacher, which is trained in a quarter of the time."""
    if not settings.teacher and not path.is_file():
        if "RANK" in os.environ:
            raise ValueError("many processes need teacher=FILE: one of them would train it while the others wait")
        varied = replace(settings, batch=64, lr=5e-3, background=0.15, speed=0.15, gain_db=10.0, noisy=0.3, mixed=0.0)
        teach(replace(shorter(varied, 0.25), before=0.0), data, path)
    return replace(settings, teacher=settings.teacher or str(path))


def live(settings: KeywordSettings) -> KeywordSettings:
    """Return the settings of the second stage: half a second of other audio before each word, as in a stream."""
    return replace(shorter(settings, 0.15), before=0.5, noisy=0.5, background=0.2, lr=0.3 * settings.lr, tuned=0)


if __name__ == "__main__":
    data, out, *pairs = sys.argv[1:]
    words = taught(override(SETTINGS, pairs), Path(data), Path(out) / "teacher.onnx")
    train("kws", {"words": words, "live": live(words)}, Path(data), Path(out))
    ends = {Path(out) / stage / "last.safetensors": share for stage, share in SHARES.items()}
    print(save_mean(ends, Path(out) / "kws-30-raw.safetensors"))
