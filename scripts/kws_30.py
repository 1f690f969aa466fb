"""Train `kws-30` and `wake-computer`, the spotters that ship, on streams of mel frames.

    python scripts/kws_30.py OUT.safetensors --words FOLDER --speech FOLDER [FOLDER ...] --noise FOLDER … --minutes 60
    python scripts/kws_30.py OUT.safetensors --words FOLDER … --teacher TEACHER.pt --ears kws-30
    python scripts/kws_30.py WAKE.safetensors --table wake-mel --words FOLDER WAKE_FOLDER … --minutes 3
    python scripts/kws_30.py OUT.safetensors --table wake-mel --word computer … --start WAKE.safetensors --minutes 7

FOLDER of words is Speech Commands with its official lists, or folders of words; speech is LibriSpeech, VCTK or a pack,
noise packs or any folders; ``--pairs`` takes VoiceBank+DEMAND, whose noise is used. With ``--word`` one word is told
from everything else. With ``--start`` a model of the same table, or with ``--blocks`` one of fewer, is trained further:
what it hears in other speech and noise is drawn more often, found anew after a third and two thirds, and words that
are said there have no weight. ``--ears`` names another spotter that judges what is heard at first; clips of words that
it gives less than ``--least`` are left out. ``--teacher`` is what scripts/window_teacher.py trains: its answers for the
same words are learnt beside the labels. At first most streams are words that follow each other closely, later there is
more other speech and quiet; states are carried from stream to stream at the end, and the weights are an exponential
average. Products are rounded to bfloat16 where the processor has instructions for it. Minutes are those of the
processor, so that what else it does changes nothing; every five of them a checkpoint OUT.pt is written, from which the
same command goes on. ``--minutes 0 --start FILE --threshold NUMBER`` only sets the threshold, with ``--coarse`` it
rounds weights as well. ``--background`` is taken from the logit of the background when training is over: fewer words
are taken for it where clips are told apart. ``--caution`` gives it back where streams are decoded.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from denoise_16k import grow
from mel_streams import (
    ALONE,
    MASKED,
    WHOLE,
    MelStreams,
    Sound,
    judged,
    noise_of_pairs,
    opened,
    sounds_of,
    targets,
    understood,
    words_of,
)
from renew import shorten
from torch import nn
from window_teacher import Teacher, answers, load

from centaurus.data import Corpus, open_corpus
from centaurus.data.keywords import without_words
from centaurus.decode import BACKGROUND
from centaurus.export.c.layers import LARGEST
from centaurus.kernels.precision import why_no_bf16
from centaurus.layer import State, map_state, reset
from centaurus.models import Classifier, Recognizer, classifier, load_network, save
from centaurus.models.tables import CLASSIFIERS, SpotterTable
from centaurus.nn import Serial
from centaurus.recipes.launch import go_on_from
from centaurus.system import replacing
from centaurus.train.optim import Average, muon, set_rate

ROWS, DECAY, POSITIVE, SMOOTHING = 24, 0.02, 3.0, 0.04
JUDGED = (0.3, 0.65)  # shares of training at which what is taken for words in other sounds is found anew
SPARSE = 0.65  # from this share of training on words are further apart, and more of the streams are other speech
CARRIED = 0.88  # from this share of training on states go from stream to stream
EVERY = 300  # seconds between checkpoints
COARSE = 32  # steps of a 16-bit weight that ``--coarse`` keeps apart
RESET = 4  # rows of a batch whose state starts anew
CUT = 16  # frames after the seam of two streams: what was said before it may still be heard
WINDOW = 0.32  # seconds over which the model that ships averages probabilities
NEGATIVES = (0.15, 0.2)  # shares of streams with other speech, before and after
PAUSED = ((0.5, 0.35, 0.15), (0.4, 0.35, 0.25))  # shares of the ranges of pauses, before and after
TAUGHT = 0.7  # share of a teacher's answers in the loss of a word, the rest is for its label
ASKED = 0.5  # share of the words that a teacher answers


def train(
    net: Classifier,
    streams: MelStreams,
    minutes: float,
    lr: float,
    negatives: float,
    checkpoint: Path,
    teacher: Teacher | None = None,
    talk: Sequence[float] = NEGATIVES,
) -> Classifier:
    """Train for so many minutes, from the checkpoint if there is one; the average of the weights.

    ``talk`` are the shares of streams with other speech, before and after ``SPARSE``.
    """
    body, rounded = behind_mel(net), not why_no_bf16()
    optimizer, average = muon(net, lr, DECAY, rounded), Average(net, 0.9985)
    step, spent = restore(checkpoint, net, optimizer, average, streams)
    begin = time.process_time() - spent
    state: State | None = None
    judged_at = 0
    while (progress := (time.process_time() - begin) / 60 / minutes) < 1:
        set_rate(optimizer, falling(lr, step, progress))
        streams.paused = PAUSED[progress > SPARSE]
        if (due := sum(progress > share for share in JUDGED)) > judged_at:
            judged_at = due
            streams.hear(behind_mel(average.net), net.settings["classes"][:-1])
        x, made = streams.streams(ROWS, talk[progress > SPARSE])
        labels, weights = targets(made)
        with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
            if progress < CARRIED:
                logits = body(x)
            else:
                if state is not None:
                    weights[:, :CUT] = 0
                logits, state = body.step(x, carried(state, streams))
            told = None if teacher is None else answers(teacher, x, made, ASKED, streams.rng)
        loss = spotted(logits, labels, weights, negatives, told)
        descend(net, optimizer, loss)
        step += 1
        average.update(net, step)
        if step % 100 == 0:
            print(f"{step} updates, {progress:.0%}, loss {loss.item():.3f}", flush=True)
        if time.process_time() - begin - spent > EVERY:
            spent = time.process_time() - begin
            keep(checkpoint, net, optimizer, average, step, spent)
    return average.net


def keep(
    path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, average: Average, step: int, spent: float
) -> None:
    """Write a checkpoint."""
    parts = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "average": average.net.state_dict()}
    with replacing(path) as temporary:
        torch.save(parts | {"step": step, "spent": spent}, temporary)


def restore(
    path: Path, net: nn.Module, optimizer: torch.optim.Optimizer, average: Average, streams: MelStreams
) -> tuple[int, float]:
    """Read a checkpoint if there is one; its update and the seconds until then. What is drawn next is new."""
    if not path.is_file():
        return 0, 0.0
    kept = torch.load(path, weights_only=True)
    net.load_state_dict(kept["net"])
    optimizer.load_state_dict(kept["optimizer"])
    average.net.load_state_dict(kept["average"])
    streams.rng = np.random.default_rng((1, kept["step"]))
    return kept["step"], kept["spent"]


def falling(lr: float, step: int, progress: float) -> float:
    """The learning rate: 200 updates of warm-up, then half a cosine to a fiftieth."""
    return lr * min(1, (step + 1) / 200) * (0.49 * (1 + math.cos(math.pi * progress)) + 0.02)


def spotted(
    logits: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
    negatives: float,
    told: torch.Tensor | None = None,
) -> torch.Tensor:
    """Cross-entropy of a spotter's logits (rows, classes, frames), the background weighing ``negatives``.

    ``told`` are a teacher's probabilities (rows, classes, frames), background first and zero in frames without an
    answer. Where there is one it is the larger part of what is learnt.
    """
    logits = logits.float().roll(1, 1)  # the background is the last class, and label 0 of the streams
    more = torch.where(labels > 0, POSITIVE, negatives) * weights
    each = nn.functional.cross_entropy(logits, labels, reduction="none", label_smoothing=SMOOTHING)
    if told is not None:
        each = (1 - TAUGHT * told.sum(1)) * each
        each = each + TAUGHT * nn.functional.cross_entropy(logits, told, reduction="none")
    return (each * more).sum() / more.sum()


def descend(net: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One update."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()


def behind_mel(net: Classifier | Recognizer) -> Serial:
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
    add_corpora(parser)
    parser.add_argument("--word", help="one word against everything else")
    parser.add_argument("--table", default="kws-bands", help="kws-bands, kws-mel or wake-mel")
    parser.add_argument("--teacher", help="weights that scripts/window_teacher.py has written")
    parser.add_argument("--ears", help="a spotter of the same words that judges other sounds at first")
    parser.add_argument("--threshold", type=float, default=0.5, help="probability of a report, kept in the file")
    parser.add_argument("--caution", type=float, default=0.0, help="of its decoder in streams, kept in the file")
    parser.add_argument(
        "--blocks", type=int, help="other than the table's; those that --start lacks add nothing at first"
    )
    parser.add_argument("--expansion", type=float, help="of the FFNs; of wider ones the largest units are kept")
    add_noise(parser)
    parser.add_argument("--whole", type=float, default=WHOLE, help="share of words that keep all of their clip")
    parser.add_argument(
        "--coarse", action="store_true", help="round the FFNs' weights, for a smaller WebAssembly module"
    )
    parser.add_argument("--mean", nargs="*", default=[], help="models of the same table whose weights are averaged in")
    parser.add_argument("--background", type=float, default=0.0, help="taken from the logit of the background")
    parser.add_argument("--negatives", type=float, default=1.0, help="weight of the background; that of words is 3")
    parser.add_argument("--talk", type=float, nargs=2, default=NEGATIVES, help="shares of streams with other speech")
    parser.add_argument("--masked", type=float, default=MASKED, help="probability of each of two masks over bands")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    corpora = [open_corpus(folder, ("train",), ("word",)) for folder in options.words]
    names = [options.word] if options.word else sorted({name for corpus in corpora for name in corpus.values("word")})
    net = classifier(deeper(options.table, options.blocks, options.expansion), [*names, BACKGROUND])
    started = load_network(options.start) if options.start else None
    ears = None
    if started is not None and net.settings["classes"] == started.settings["classes"]:
        grow(net, started)
        ears = net
    else:
        go_on_from(options.start, net)
    if not options.start:
        shorten(net)
    if options.ears:
        loaded = load_network(options.ears)
        assert isinstance(loaded, Classifier)
        ears = loaded
    net.settings |= {"threshold": options.threshold, "window": WINDOW, "caution": options.caution}
    if options.minutes:
        streams = read_streams(options, corpora, names, ears)
        streams.rng = np.random.default_rng(options.seed)
        streams.positive = 0.6 if options.word else None
        streams.whole, streams.masked = options.whole, options.masked
        set_noise(streams, options)
        teacher = load(options.teacher, len(names) + 1) if options.teacher else None
        checkpoint = options.out.with_suffix(".pt")
        net = train(net, streams, options.minutes, options.lr, options.negatives, checkpoint, teacher, options.talk)
    with torch.no_grad():
        for count, other in enumerate(map(load_network, options.mean), 2):
            for mean, weight in zip(net.parameters(), other.parameters(), strict=True):
                mean.lerp_(weight, 1 / count)
    if options.coarse:
        coarsen(net)
    with torch.no_grad():
        net.body.out.bias[-1] -= options.background
    save(net, options.out)


@torch.no_grad()
def coarsen(net: nn.Module) -> None:
    """Round weights to 16-bit integers times a step for each row, as a WebAssembly module has them.

    Those of the FFNs are rounded to 11 bits, so that they compress better. Those of the convolutions over bands keep
    16: their large weights nearly cancel, so a file with others would differ most by them.
    """
    for name, weight in net.named_parameters():
        coarse = COARSE if name.endswith((".wide.weight", ".narrow.weight")) else 1
        if coarse > 1 or name.endswith(".conv.weight"):
            rows = weight.flatten(1)
            largest = rows.abs().amax(1, keepdim=True)
            step, most = largest * coarse / LARGEST["int16"], LARGEST["int16"] // coarse
            rounded = torch.round(rows / step).clamp(-most, most) * step
            weight.copy_(torch.where(rows.abs() == largest, rows, rounded).view_as(weight))


def deeper(name: str, blocks: int | None, expansion: float | None) -> SpotterTable:
    """A table with another number of blocks or other FFNs."""
    table = CLASSIFIERS[name]
    if not isinstance(table, SpotterTable):
        raise SystemExit(f"{name} has no mel frames; kws-bands, kws-mel and wake-mel do")
    last = replace(table.blocks[-1], times=blocks or table.blocks[-1].times)
    return replace(table, blocks=(*table.blocks[:-1], last), expansion=expansion or table.expansion)


def add_corpora(parser: argparse.ArgumentParser) -> None:
    """Add what every training on streams is told: where sound is, what to start from, and for how long."""
    parser.add_argument("out", type=Path)
    parser.add_argument("--words", type=Path, nargs="+", required=True)
    parser.add_argument("--speech", type=Path, nargs="+", required=True)
    parser.add_argument("--noise", type=Path, nargs="+", required=True)
    parser.add_argument("--pairs", type=Path, nargs="*", default=[], help="(noisy, clean) pairs: their noise is used")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--start", default="", help="a model to go on from")
    parser.add_argument("--least", type=float, default=0.0, help="probability of a word below which a clip is left out")


def add_noise(parser: argparse.ArgumentParser) -> None:
    """Add what is done to noise."""
    parser.add_argument("--alone", type=float, default=ALONE, help="share of streams that are noise alone")
    parser.add_argument("--altered", type=float, default=0.0, help="share of that at another speed and pitch")
    parser.add_argument("--bursts", type=float, default=0.0, help="share of that cut into bursts")
    parser.add_argument(
        "--voiced", type=float, default=0.0, help="share of noise alone that is speech, much too slow or fast"
    )


def set_noise(streams: MelStreams, options: argparse.Namespace) -> None:
    """Give streams what ``add_noise`` read."""
    for name in ("alone", "altered", "bursts", "voiced"):
        setattr(streams, name, getattr(options, name))


def read_streams(
    options: argparse.Namespace, corpora: list[Corpus], names: list[str], ears: Classifier | None
) -> MelStreams:
    """Read the sounds. With a spotter's ``ears`` all speech is used, else that without the words."""
    labels = {name: k + 1 for k, name in enumerate(names)}
    words = [word for corpus in corpora for word in words_of(corpus, labels)]
    talk = [opened(folder, "speech") for folder in options.speech]
    speech = sounds_of(talk if ears else [free(corpus, names) for corpus in talk])
    noise = sounds_of([opened(folder, "noise") for folder in options.noise])
    for folder in options.pairs:
        noise += noise_of_pairs(open_corpus(folder, ("train",), ("noisy", "clean")))
    if ears:
        words = understood(words, behind_mel(ears), options.least)
        speech, noise = (heard(sounds, ears, names) for sounds in (speech, noise))
    return MelStreams(words, speech, noise)


def heard(sounds: list[Sound], net: Classifier, names: list[str]) -> list[Sound]:
    """The sounds with what the network hears in them."""
    body = behind_mel(net)
    return [judged(sound, body, names) for sound in sounds]


def free(speech: Corpus, names: list[str]) -> Corpus:
    """The clips without the words; where there are no transcripts, all of them."""
    return without_words(speech, names) if speech.values("transcript") else speech


if __name__ == "__main__":
    main()
