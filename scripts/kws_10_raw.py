"""Train `kws-10-raw`, the paper's largest network for keywords, on raw samples of ten words.

    python scripts/kws_10_raw.py SPEECH_COMMANDS RUN minutes=60 teacher=SPOTTER.safetensors [key=value ...]

SPEECH_COMMANDS is the corpus with its official lists, RUN a new folder; the same command goes on with an unfinished
run. A fifth of the time is for the labels alone (RUN/words), the rest for the outputs of a teacher as well
(RUN/taught): a spotter such as `kws-30`, or a wider one of `scripts/commands.py --spotter`. Without a teacher only the
first part is trained. Every setting can be overridden; `centaurus eval RUN/taught/last.safetensors` measures the model.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from kws_30_raw import SETTINGS as THIRTY
from stages import shorter, train

from centaurus.recipes.kws import KeywordSettings
from centaurus.train.config import override

ALONE = 0.2  # share of the budget for the labels alone
SETTINGS = replace(
    THIRTY, network="kws-hybrid-8", words="10", background=0.0, before=0.0, batch=32, lr=8e-3, minutes=60
)


def stages(settings: KeywordSettings) -> dict[str, KeywordSettings]:
    """Return the settings of both parts, or of the first where there is no teacher."""
    words = replace(shorter(settings, ALONE), teacher="", losses="cross_entropy:1")
    return {"words": words} | ({"taught": shorter(settings, 1 - ALONE)} if settings.teacher else {})


if __name__ == "__main__":
    data, out, *pairs = sys.argv[1:]
    print(train("kws", stages(override(SETTINGS, pairs)), Path(data), Path(out)))
