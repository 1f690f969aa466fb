"""Train `kws-30` and `wake-computer`, the spotters that ship, on streams of mel frames.

    python scripts/kws_30.py OUT.safetensors --words FOLDER --speech FOLDER [FOLDER ...] --noise FOLDER --minutes 60
    python scripts/kws_30.py MORE.safetensors --words FOLDER … --start OUT.safetensors --minutes 10
    python scripts/kws_30.py WAKE.safetensors --table wake-mel --words FOLDER WAKE_FOLDER … --minutes 3
    python scripts/kws_30.py OUT.safetensors --table wake-mel --word computer … --start WAKE.safetensors --minutes 7

FOLDER of words is Speech Commands with its official lists, or folders of words; speech is LibriSpeech, VCTK or a pack,
noise a pack or any folder. With ``--word`` one word is told from everything else. With ``--start`` a model of the same
table is trained further: what it hears in other speech and noise is drawn more often, and words that are said there
have no weight. States are carried from stream to stream at the end, and the weights are an exponential average. Minutes
are those of the processor, so that what else it does changes nothing.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from mel_streams import MelStreams, Sound, judged, sounds_of, words_of
from torch import nn

from centaurus.data import Corpus, open_corpus
from centaurus.data.examples.keywords import without_words
from centaurus.decode.keywords import BACKGROUND
from centaurus.layer import State, map_state, reset
from centaurus.models import Classifier, classifier, load_network, save
from centaurus.nn import Serial
from centaurus.recipes.launch import go_on_from
from centaurus.train.optim import Average, muon, set_rate

ROWS, DECAY, POSITIVE, SMOOTHING = 32, 0.02, 3.0, 0.03
CARRIED = 0.75  # from this share of training on states go from stream to stream
RESET = 4  # rows of a batch whose state starts anew
CUT = 16  # frames after the seam of two streams: what was said before it may still be heard
NEGATIVE = 0.35  # share of streams with other speech


def train(net: Classifier, streams: MelStreams, minutes: float, lr: float, negatives: float) -> Classifier:
    """Train for so many minutes; the average of the weights."""
    body = behind_mel(net)
    optimizer, average = muon(net, lr, DECAY), Average(net, 0.998)
    begin, step, state = time.process_time(), 0, None
    while (progress := (time.process_time() - begin) / 60 / minutes) < 1:
        set_rate(optimizer, lr * min(1, (step + 1) / 100) * (0.49 * (1 + math.cos(math.pi * progress)) + 0.02))
        x, labels, weights = streams.batch(ROWS, NEGATIVE)
        if progress < CARRIED:
            logits = body(x)
        else:
            if state is not None:
                weights[:, :CUT] = 0
            logits, state = body.step(x, carried(state, streams))
        logits = logits.roll(1, 1)  # the background is the last class, and label 0 of the streams
        more = torch.where(labels > 0, POSITIVE, negatives) * weights
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


def behind_mel(net: Classifier) -> Serial:
    """The network behind its mel row; the parameters are shared."""
    return Serial({name: layer for name, layer in net.body.named_children() if name != "front"})  # type: ignore[misc]


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
    parser.add_argument("--words", type=Path, nargs="+", required=True)
    parser.add_argument("--speech", type=Path, nargs="+", required=True)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--word", help="one word against everything else")
    parser.add_argument("--table", default="kws-mel", help="kws-mel or wake-mel")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--negatives", type=float, default=2.5, help="weight of the background; that of words is 3")
    parser.add_argument("--start", default="", help="a model of the same table to go on from")
    given = parser.parse_args()
    torch.manual_seed(0)
    corpora = [open_corpus(folder, ("train",), ("word",)) for folder in given.words]
    every = sorted({name for corpus in corpora for name in corpus.values("word")})
    names = [given.word] if given.word else every
    labels = {name: k + 1 for k, name in enumerate(names)}
    words = [word for corpus in corpora for word in words_of(corpus, labels)]
    net = classifier(given.table, [*names, BACKGROUND])
    go_on_from(given.start, net)
    talk = [open_corpus(folder, ("train",), ("speech",)) for folder in given.speech]
    speech = sounds_of(talk if given.start else [free(corpus, names) for corpus in talk])
    noise = sounds_of([open_corpus(given.noise, ("train",), ("noise",))])
    if given.start and net.settings["classes"] == load_network(given.start).settings["classes"]:
        speech, noise = (heard(sounds, net, names) for sounds in (speech, noise))
    streams = MelStreams(words, speech, noise, positive=0.6 if given.word else None)
    save(train(net, streams, given.minutes, given.lr, given.negatives), given.out)


def heard(sounds: list[Sound], net: Classifier, names: list[str]) -> list[Sound]:
    """The sounds with what the network hears in them."""
    body = behind_mel(net)
    return [judged(sound, body, names) for sound in sounds]


def free(speech: Corpus, names: list[str]) -> Corpus:
    """The clips without the words; where there are no transcripts, all of them."""
    return without_words(speech, names) if speech.values("transcript") else speech


if __name__ == "__main__":
    main()
