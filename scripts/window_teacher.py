"""Train a teacher for `kws-30`: a residual network on a second of mel frames, which sees whole words and does not ship.

    python scripts/window_teacher.py OUT.pt --words FOLDER --speech FOLDER [FOLDER ...] --noise FOLDER … --minutes 50

The folders are those of scripts/kws_30.py. It learns from windows of the same streams as the spotter, words and other
sound, half of the batches mixed in pairs. With the file as ``--teacher`` of scripts/kws_30.py its answers to the very
windows that the spotter is about to learn are learnt beside the labels.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mel_streams import STACK, MelStreams, Stream, label_frames
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from centaurus.data import open_corpus
from centaurus.kernels.precision import why_no_bf16
from centaurus.system import replacing
from centaurus.train.optim import muon, set_rate

WINDOW = 64  # mel frames, about a second
BEHIND, JITTER, LEAST = 14, 5, 30  # mel frames of a window after the end of a word, give or take; and up to that end
EARLIEST = WINDOW // STACK  # frame of the network from which a window of other sound may end
ROWS, NEGATIVE = 24, 0.1  # streams in a batch, and the share of them with other speech
SMOOTHING, DECAY, AVERAGED, EVERY = 0.05, 0.02, 0.998, 300.0


class Residual(nn.Module):
    """Two convolutions beside a skip connection; it starts as the skip connection alone."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.na = nn.BatchNorm2d(outputs)
        self.b = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.nb = nn.BatchNorm2d(outputs)
        shorter = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Identity() if inputs == outputs and stride == 1 else shorter
        nn.init.zeros_(self.nb.weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.nb(self.b(torch.relu(self.na(self.a(x))))))


class Teacher(nn.Module):
    """Logits (windows, classes) of mel frames (windows, bands, frames); class 0 is the background."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        first = nn.Conv2d(1, width, 5, (2, 1), 2, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        sizes = [(1, 1, 1), (1, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1)]
        blocks = [Residual(i * width, o * width, stride) for i, o, stride in sizes]
        self.body = nn.Sequential(*first, *blocks).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        images = (x - x.mean((1, 2), keepdim=True))[:, None]
        y = self.body(images.contiguous(memory_format=torch.channels_last)).mean((2, 3))
        return self.out(self.drop(y))


def last_frame(end: float, frames: int, jitter: int = 0) -> int | None:
    """Return the mel frame after the window of a word that ends at a frame of the network; None if it does not fit."""
    last = round(end * STACK) + BEHIND + jitter
    return max(last, WINDOW) if LEAST <= last <= frames else None


def windows(x: Tensor, streams: Sequence[Stream], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return the windows (n, bands, frames) of the words in streams and one of other sound in each, and labels (n,)."""
    found: list[Tensor] = []
    labels: list[int] = []
    for row, stream in zip(x, streams, strict=True):
        for label, _, end in stream.said:
            last = last_frame(end, x.shape[-1], int(rng.integers(-JITTER, JITTER + 1)))
            if last is not None:
                found.append(row[:, last - WINDOW : last])
                labels.append(label)
        others = np.flatnonzero((stream.labels == 0) & (stream.weights > 0))
        others = others[others >= EARLIEST]
        if len(others):
            last = (int(rng.choice(others)) + 1) * STACK
            found.append(row[:, last - WINDOW : last])
            labels.append(0)
    return torch.stack(found), torch.tensor(labels)


@torch.no_grad()
def answers(teacher: Teacher, x: Tensor, streams: Sequence[Stream], share: float, rng: np.random.Generator) -> Tensor:
    """Return the probabilities (rows, classes, frames) of a teacher for some of the words, where these are labelled.

    They are zero in all other frames. ``share`` is that of the words which the teacher is asked about.
    """
    probabilities = torch.zeros(len(streams), teacher.out.out_features, len(streams[0].labels))
    asked: list[Tensor] = []
    places: list[tuple[int, slice]] = []
    for row, stream in enumerate(streams):
        for label, _, end in stream.said:
            last = last_frame(end, x.shape[-1])
            if label and last is not None and rng.random() < share:
                asked.append(x[row, :, last - WINDOW : last])
                places.append((row, label_frames(end)))
    if asked:
        told = teacher(torch.stack(asked)).float().softmax(1)
        for (row, frames), each in zip(places, told, strict=True):
            probabilities[row, :, frames] = each[:, None]
    return probabilities


def train(net: Teacher, streams: MelStreams, minutes: float, lr: float, out: Path) -> Teacher:
    """Train for so many CPU-minutes; the average of the weights, which is also written every few minutes."""
    from kws_30 import falling

    rounded, rng = not why_no_bf16(), np.random.default_rng(5)
    optimizer = muon(net, lr, DECAY, rounded)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(AVERAGED), use_buffers=True)
    begin, written, step = time.process_time(), 0.0, 0
    while (progress := (time.process_time() - begin) / 60 / minutes) < 1:
        set_rate(optimizer, falling(lr, step, progress))
        x, labels = windows(*streams.streams(ROWS, NEGATIVE), rng)
        share = 1.0 if rng.random() < 0.5 else float(rng.beta(0.4, 0.4))
        other = torch.randperm(len(x))
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            logits = net(x if share == 1 else share * x + (1 - share) * x[other]).float()
        first, second = (
            nn.functional.cross_entropy(logits, names, label_smoothing=SMOOTHING) for names in (labels, labels[other])
        )
        optimizer.zero_grad()
        (share * first + (1 - share) * second).backward()
        optimizer.step()
        average.update_parameters(net)
        step += 1
        if step % 200 == 0:
            print(f"{step} updates, {progress:.0%}, loss {first.item():.3f}", flush=True)
        if time.process_time() - begin - written > EVERY:
            written = time.process_time() - begin
            keep(average.module, out)
    keep(average.module, out)
    return average.module


def keep(net: nn.Module, out: Path) -> None:
    """Write the weights."""
    with replacing(out) as temporary:
        torch.save(net.state_dict(), temporary)


def load(path: str, classes: int) -> Teacher:
    """Read a teacher of so many classes, the background included."""
    teacher = Teacher(classes).eval()
    teacher.load_state_dict(torch.load(path, weights_only=True))
    return teacher


def main() -> None:
    """Read, train, save."""
    from kws_30 import add_corpora, add_noise, read_streams, set_noise

    parser = argparse.ArgumentParser(description=__doc__)
    add_corpora(parser)
    add_noise(parser)
    options = parser.parse_args()
    torch.manual_seed(0)
    corpora = [open_corpus(folder, ("train",), ("word",)) for folder in options.words]
    names = sorted({name for corpus in corpora for name in corpus.values("word")})
    streams = read_streams(options, corpora, names, None)
    set_noise(streams, options)
    streams.paused = (0.5, 0.4, 0.1)
    train(Teacher(len(names) + 1), streams, options.minutes, options.lr, options.out)


if __name__ == "__main__":
    main()
