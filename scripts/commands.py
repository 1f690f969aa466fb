"""Train `commands`, the recogniser of connected words that ships, on streams of mel frames.

    python scripts/commands.py OUT.safetensors --words FOLDER --speech FOLDER [FOLDER ...] --noise FOLDER --minutes 30
    python scripts/commands.py OUT.safetensors … --shared 7 --lr 0.004 --minutes 52
    python scripts/commands.py OUT.safetensors … --table commands-bands --shared 6 --lr 0.004 --minutes 36

The folders are those of scripts/kws_30.py; ``--start commands`` goes on from the model that ships. A spotter's answer
after the first ``--shared`` blocks is a loss as well. The others are CTC of the words where all that is said is known,
and where words begin and end. States are carried from stream to stream in the last fifth: without that recall falls
after seconds of listening. The spotter inside is saved as well with ``--spotter``. ``--renew``
exchanges modes of very long memory in a model to go on from (renew.py). ``--blank`` is taken from the logit of CTC's
blank when training is over (fewer deletions, more insertions), ``--mark`` is added to that of word starts (earlier
starts in noise). Both are chosen on the validation list; with ``--minutes 0 --start FILE`` nothing else is done.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from kws_30 import (
    CUT,
    EVERY,
    ROWS,
    SPARSE,
    add_corpora,
    add_noise,
    behind_mel,
    carried,
    descend,
    falling,
    keep,
    read_streams,
    restore,
    set_noise,
    spotted,
)
from mel_streams import PER_SECOND, STACK, MelStreams, Stream, targets
from renew import renew, shorten
from torch import nn

from centaurus.data import open_corpus
from centaurus.decode import LATE, MARK
from centaurus.kernels.precision import why_no_bf16
from centaurus.layer import State
from centaurus.models import Classifier, Recognizer, classifier, load_network, recognizer, save
from centaurus.models.tables import SpotterTable
from centaurus.nn import Serial
from centaurus.recipes.asr import COMMAND_TABLES
from centaurus.recipes.launch import go_on_from
from centaurus.train.losses import BEGINNING
from centaurus.train.objectives import BEGUN, EARLY
from centaurus.train.optim import Average, muon, set_rate
from centaurus.train.targets import BLANK

BACKGROUND_WEIGHT = 2.0  # in the loss of the spotter; that of words is 3
CARRIED = 0.8  # from this share of training on states go from stream to stream
FRAMES = PER_SECOND / STACK  # of the network in a second
CTC, SPOTTER, BEGINS = 0.3, 1.0, 0.5  # weights of the losses; that of ends is 1
NEGATIVES = (0.2, 0.3)  # shares of streams with other speech, at first and from SPARSE on
PAUSED = ((0.5, 0.3, 0.2), (0.35, 0.3, 0.35))  # shares of the ranges of pauses


class Both(nn.Module):
    """A recogniser, and a spotter that shares its first blocks; ``models`` are both of them."""

    def __init__(self, net: Recognizer, spotter: Classifier) -> None:
        super().__init__()
        self.models = net, spotter
        shared = len(list(spotter.body.blocks.children()))
        mine = dict(behind_mel(net).named_children())
        blocks = list(mine["blocks"].children())
        before = {name: layer for name, layer in mine.items() if name in ("bands", "into", "norm")}
        self.first = Serial(before | {"blocks": Serial(blocks[:shared])})
        for name, layer in self.first.named_children():
            setattr(spotter.body, name, layer)
        self.spot = Serial({"last": spotter.body.last, "out": spotter.body.out})
        self.rest = Serial({"blocks": Serial(blocks[shared:]), "last": mine["last"], "out": mine["out"]})

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the spotter (rows, classes, frames) and of the recogniser (rows, tokens, frames)."""
        features = self.first(x)
        return self.spot(features), self.rest(features)

    def step(self, x: torch.Tensor, state: State | None) -> tuple[torch.Tensor, torch.Tensor, State]:
        """The same from a state on, and the state after it: three times as slow."""
        first, rest = (None, None) if state is None else state
        features, first = self.first.step(x, first)
        tokens, rest = self.rest.step(features, rest)
        return self.spot(features), tokens, (first, rest)


def train(both: Both, streams: MelStreams, minutes: float, lr: float, checkpoint: Path) -> Both:
    """Train for so many minutes, from the checkpoint if there is one; the average of the weights."""
    rounded = not why_no_bf16()
    optimizer, average = muon(both, lr, 0.02, rounded), Average(both, 0.9985)
    step, spent = restore(checkpoint, both, optimizer, average, streams)
    begin = time.process_time() - spent
    state: State | None = None
    again = True  # other sounds are heard once more where words become sparse
    while (progress := (time.process_time() - begin) / 60 / minutes) < 1:
        set_rate(optimizer, falling(lr, step, progress))
        streams.paused = PAUSED[progress > SPARSE]
        if again and progress > SPARSE:
            again = False
            spotter = average.net.models[1]
            streams.hear(behind_mel(spotter), spotter.settings["classes"][:-1])
        x, made = streams.streams(ROWS, NEGATIVES[progress > SPARSE])
        labels, weights = targets(made)
        if state is not None:
            weights[:, :CUT] = 0
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            if progress < CARRIED:
                spots, tokens = both(x)
            else:
                spots, tokens, state = both.step(x, carried(state, streams))
        loss = SPOTTER * spotted(spots, labels, weights, BACKGROUND_WEIGHT) + recognised(tokens.float(), made)
        descend(both, optimizer, loss)
        step += 1
        average.update(both, step)
        if step % 100 == 0:
            print(f"{step} updates, {progress:.0%}, loss {loss.item():.3f}", flush=True)
        if time.process_time() - begin - spent > EVERY:
            spent = time.process_time() - begin
            keep(checkpoint, both, optimizer, average, step, spent)
    return average.net


def recognised(logits: torch.Tensor, streams: list[Stream]) -> torch.Tensor:
    """The losses of a recogniser's logits (rows, tokens, frames): CTC of words, and where they begin and end."""
    tokens, frames = logits[:, :-1], logits.shape[-1]
    centres = torch.arange(frames) + 0.5
    ends, begins = torch.zeros(len(streams), frames, dtype=torch.long), torch.zeros(len(streams), frames)
    for row, stream in enumerate(streams):
        for label, begin, end in stream.said:
            begins[row, (centres >= begin) & (centres < begin + BEGUN * FRAMES)] = 1
            ends[row, (centres >= end - EARLY * FRAMES) & (centres < end + LATE * FRAMES)] = label
    certain = torch.from_numpy(np.stack([stream.certain for stream in streams]))
    where = nn.functional.cross_entropy(tokens, ends, reduction="none")
    weight = torch.tensor(BEGINNING)
    when = nn.functional.binary_cross_entropy_with_logits(logits[:, -1], begins, reduction="none", pos_weight=weight)
    return CTC * said(tokens, streams) + ((where + BEGINS * when) * certain).sum() / certain.sum()


def said(tokens: torch.Tensor, streams: list[Stream]) -> torch.Tensor:
    """CTC for a word, of the streams in which nothing else is said."""
    rows = [row for row, stream in enumerate(streams) if stream.complete]
    words = torch.tensor([label for row in rows for label, _, _ in streams[row].said])
    if not len(words):
        return tokens.new_zeros(())
    counts = torch.tensor([len(streams[row].said) for row in rows])
    frames = torch.full_like(counts, tokens.shape[-1])
    each = nn.functional.ctc_loss(
        tokens[rows].log_softmax(1).permute(2, 0, 1), words, frames, counts, reduction="sum", zero_infinity=True
    )
    return each / max(1, len(words))


def main() -> None:
    """Read, train, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_corpora(parser)
    add_noise(parser)
    parser.add_argument("--table", choices=("commands", "commands-bands"), default="commands")
    parser.add_argument("--blank", type=float, default=0.0)
    parser.add_argument("--mark", type=float, default=0.0)
    parser.add_argument("--renew", action="store_true")
    parser.add_argument("--spotter", type=Path, help="a file for the spotter inside")
    parser.add_argument("--channels", type=int, help="of the blocks, if others than the table's")
    parser.add_argument("--states", type=int, help="of the blocks, if others than the table's")
    parser.add_argument("--shared", type=int, default=3, help="blocks before the spotter's answer")
    options = parser.parse_args()
    torch.manual_seed(0)
    ears = load_network("kws-30")
    assert isinstance(ears, Classifier)
    classes = list(ears.settings["classes"])
    names = classes[:-1]
    started = load_network(options.start) if options.start else None
    base = started.table if isinstance(started, Recognizer) else COMMAND_TABLES[options.table]
    assert isinstance(base, SpotterTable)
    front, blocks = base.blocks
    blocks = replace(blocks, channels=options.channels or blocks.channels, states=options.states or blocks.states)
    table = replace(base, blocks=(front, blocks))
    net = recognizer(table, len(names) + 2, settings={"sample_rate": 16_000, "tokens": [BLANK, *names, MARK]})
    spotter = classifier(replace(table, blocks=(front, replace(blocks, times=options.shared))), classes)
    spotter.settings |= ears.settings
    if spotter.table == ears.table:
        spotter.load_state_dict(ears.state_dict())
    go_on_from(options.start, net)
    if not options.start:
        shorten(net)
    both = Both(net, spotter)
    if options.renew:
        print(f"renewed modes that made {renew(net):.1%} of the layers' responses", flush=True)
    if options.minutes:
        corpora = [open_corpus(folder, ("train",), ("word",)) for folder in options.words]
        streams = read_streams(options, corpora, names, ears)
        set_noise(streams, options)
        both = train(both, streams, options.minutes, options.lr, options.out.with_suffix(".pt"))
    net, spotter = both.models
    with torch.no_grad():
        net.body.out.bias[0] -= options.blank
        net.body.out.bias[-1] += options.mark
    save(net, options.out)
    if options.spotter:
        save(spotter, options.spotter)


if __name__ == "__main__":
    main()
