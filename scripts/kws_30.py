"""Train `kws-30` and `wake-computer`, the spotters that ship, on streams of mel frames.

    python scripts/kws_30.py OUT.safetensors --words FOLDER --speech FOLDER [FOLDER ...] --noise FOLDER --minutes 60
    python scripts/kws_30.py OUT.safetensors --word computer --words FOLDER … --start kws-30 --minutes 15

FOLDER of words is Speech Commands with its official lists, or folders of words; speech is LibriSpeech, VCTK or a pack,
noise a pack or any folder. With ``--word`` one word is told from everything else. Frames of background weigh more and
more, states are carried from stream to stream in the last third, and the weights are an exponential average.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from mel_streams import MelStreams, sounds_of, words_of
from torch import nn

from centaurus.data import Corpus, open_corpus
from centaurus.data.examples.keywords import without_words
from centaurus.decode.keywords import BACKGROUND
from centaurus.layer import State, map_state, reset
from centaurus.models import Classifier, classifier, save
from centaurus.nn import Serial
from centaurus.recipes.launch import go_on_from
from centaurus.train.optim import Average, muon, set_rate

ROWS, DECAY, POSITIVE, SMOOTHING = 32, 0.02, 3.0, 0.05
CARRIED = 0.65  # from this share of training on states go from stream to stream
RESET = 4  # rows of a batch whose state starts anew


def train(net: Classifier, streams: MelStreams, minutes: float, lr: float, negatives: float) -> Classifier:
    """Train for so many minutes; the average of the weights."""
    body = Serial({name: layer for name, layer in net.body.named_children() if name != "front"})  # type: ignore[misc]
    optimizer, average = muon(net, lr, DECAY), Average(net, 0.998)
    begin, step, state = time.monotonic(), 0, None
    while (progress := (time.monotonic() - begin) / 60 / minutes) < 1:
        set_rate(optimizer, lr * min(1, step / 50) * (0.49 * (1 + math.cos(math.pi * progress)) + 0.02))
        x, labels, weights = streams.batch(ROWS, 0.3 + 0.2 * min(1, 1.5 * progress))
        if progress < CARRIED:
            logits = body(x)
        else:
            logits, state = body.step(x, carried(state, streams))
        logits = logits.roll(1, 1)  # the background is the last class, and label 0 of the streams
        more = torch.where(labels > 0, POSITIVE, 1 + (negatives - 1) * min(1, 1.5 * progress)) * weights
        each = nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=SMOOTHING)
        loss = (each * more).sum() / more.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        step += 1
        average.update(net, step)
        if step % 100 == 0:
            print(f"{step} updates, {progress:.0%}, loss {loss.item():.3f}", flush=True)
    return average.net


def carried(state: State | None, streams: MelStreams) -> State | None:
    """The state after the last batch without its gradients, zero in some rows."""
    if state is None:
        return None
    rows = [int(k) for k in streams.rng.integers(ROWS, size=RESET)]
    return reset(map_state(lambda x: x.detach(), state), rows)


def main() -> None:
    """Read, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=Path, required=True)
    parser.add_argument("--speech", type=Path, nargs="+", required=True)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--word", help="one word against everything else")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--negatives", type=float, default=3.0, help="weight of the background at the end")
    parser.add_argument("--start", default="", help="a model of the same table to go on from")
    given = parser.parse_args()
    torch.manual_seed(0)
    words = open_corpus(given.words, ("train",), ("word",))
    names = [given.word] if given.word else list(words.values("word"))
    speech = [free(open_corpus(folder, ("train",), ("speech",)), names) for folder in given.speech]
    noise = open_corpus(given.noise, ("train",), ("noise",))
    labels = {name: k + 1 for k, name in enumerate(names)}
    streams = MelStreams(
        words_of(words, labels), sounds_of(speech), sounds_of([noise]), positive=0.6 if given.word else None
    )
    net = classifier("kws-mel", [*names, BACKGROUND])
    go_on_from(given.start, net)
    save(train(net, streams, given.minutes, given.lr, given.negatives), given.out)


def free(speech: Corpus, names: list[str]) -> Corpus:
    """The clips without the words; where there are no transcripts, all of them."""
    return without_words(speech, names) if speech.values("transcript") else speech


if __name__ == "__main__":
    main()
