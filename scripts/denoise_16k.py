"""Train `denoise-16k` and the other denoisers that ship on recorded pairs and on mixtures of our own.

    python scripts/denoise_16k.py CORPORA RUN [minutes=110] [decay=0.8] [seed=0] [network=spectral-32] [start=FILE]
        [precision=bf16] [rows=16] [seconds=3] [own=0.32] [lr=0.0015] [losses=3,3,1.6] [renew=0.75]
    python scripts/denoise_16k.py CORPORA RUN start=denoise-16k-raw network=same rows=6 seconds=2 losses=1,4,1.6

CORPORA holds folders of sound files, decoded once into a cache:

    voicebank/   VoiceBank+DEMAND: clean_trainset_28spk_wav and noisy_trainset_28spk_wav (p286 and p287 validate)
    speech/      more clean speech, such as VCTK (what HELD_OUT names is left out) and LibriSpeech
    noise/       ambience;   effects/ and music/ are optional (free_sounds.py makes them)

RUN gets `log.jsonl`, a checkpoint every few minutes (the same command goes on from it) and `model.safetensors`. The
learning rate stays constant and falls over the last ``decay`` of the budget. ``start`` is a model to begin with: one
of the same network, of fewer blocks or of a mask with fewer taps, where the rest starts as the identity; with
``network=same`` its own network goes on, whatever it is. ``rows`` of ``seconds`` (of 1.024 s) make an update, a share
``own`` of them mixed here; ``losses`` are the weights of the residual, of what is heard, and of the perceptual loss.
``renew`` is the share of the modes of very long memory that are exchanged at first (renew.py).
``precision=bf16`` rounds the inputs of matrix products, which is 1.5 times as fast on processors with such
instructions. Budgets are CPU time, so that a busy machine trains as long as an idle one.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # rows are short: a second thread gains less than a second process

import numpy as np
import torch
from mixing import Mixer, Sources
from renew import renew

import centaurus as ct
from centaurus.data import Clip, Corpus, open_corpus, pairs, prepared
from centaurus.data.layouts import sound_files
from centaurus.models.tables import SpectralTable
from centaurus.train.losses import RELATIVE_SIZES, heard, perceptual, residual, to_unit
from centaurus.train.optim import muon, set_rate

HELD_OUT = ("p232", "p257", "p286", "p287", "p255", "p310")  # speakers of the test, validation and hard sets
SHORT = ("sneez", "cry", "baby", "chainsaw", "cough", "clock")  # in names of noise that is taken for speech most easily
WEIGHT_DECAY, CLIP = 0.02, 1.0
WARMUP, AVERAGE = 100, 0.9995  # updates; the moving average of the weights is what is saved
EVERY = 300  # seconds of CPU time between checkpoints


@dataclass(frozen=True)
class Settings:
    """What a run is told on the command line; ``losses`` weigh residual, heard and perceptual."""

    minutes: float = 110.0
    decay: float = 0.8
    seed: int = 0
    network: str | SpectralTable = "spectral-32"
    start: str = ""
    precision: str = "fp32"
    rows: int = 16
    seconds: float = 3.0
    own: float = 0.32
    lr: float = 1.5e-3
    losses: str = "3,3,1.6"
    renew: float = 0.0

    @property
    def length(self) -> int:
        """Samples of a row, whole hops of any network here."""
        return round(self.seconds * 2**14)

    def weights(self) -> dict[str, float]:
        """Weights of the losses by name."""
        return dict(zip(("residual", "heard", "perceptual"), map(float, self.losses.split(",")), strict=True))


@torch.no_grad()
def grow(net: torch.nn.Module, other: torch.nn.Module) -> None:
    """Copy the weights of a network with fewer blocks, a mask of fewer taps or a wider FFN.

    What it lacks is made to add nothing; of a wider FFN the units with the largest weights are kept.
    """
    known = other.state_dict()
    for name, p in net.named_parameters():
        if name not in known:
            if name.endswith(("ssm.C", "ffn.body.narrow.weight", "ffn.body.narrow.bias")):
                p.zero_()
            continue
        old = known[name]
        if ".ffn.body." in name and old.shape != p.shape:
            block = name[: name.index(".ffn.body.")]
            into, out = known[f"{block}.ffn.body.wide.weight"], known[f"{block}.ffn.body.narrow.weight"]
            kept = (into.norm(dim=1) * out.norm(dim=0)).topk(net.get_parameter(f"{block}.ffn.body.wide.bias").numel())
            units = kept.indices.sort().values
            old = old[:, units] if name.endswith("narrow.weight") else old[units]
        elif len(old) < len(p):
            p.zero_()
        p[: len(old)] = old


def folder_of(path: Path, kind: str) -> Corpus | None:
    """Every sound file below a folder as a corpus, decoded once; none where there is no such folder."""
    if not path.is_dir():
        return None
    files = [f for f in sound_files(path) if not f.name.startswith(HELD_OUT)]
    return prepared(Corpus(kind, tuple(Clip(f, f.stem, labels={"kind": kind}) for f in files)))


def sources(root: Path) -> Sources:
    """Open the corpora below a folder."""
    voicebank = prepared(open_corpus(root / "voicebank"))
    train = voicebank.split("train")
    speech, noise = folder_of(root / "speech", "speech"), folder_of(root / "noise", "noise")
    if speech is None or noise is None:
        raise SystemExit(f"{root} should hold the folders voicebank, speech and noise")
    short = tuple(clip for clip in noise if any(word in clip.id for word in SHORT))
    return Sources(
        pairs(train),
        [(speech, 0.7), (train.where(kind="clean"), 0.3)],
        noise,
        folder_of(root / "music", "music"),
        folder_of(root / "effects", "effects"),
        noise.of(short) if short else None,
    )


class Training:
    """A network, its optimiser and the average of its weights, which can be stopped and continued."""

    def __init__(self, run: Path, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        self.run, self.settings = run, settings
        self.rounded = settings.precision == "bf16"
        started = ct.load(settings.start) if settings.start else None
        if settings.network == "same":
            if started is None:
                raise SystemExit("network=same goes with start=MODEL")
            self.net: ct.nn.Layer = started
        else:
            self.net = ct.denoiser(settings.network)
            if started is not None:
                grow(self.net, started)
        renew(self.net, share=settings.renew)
        self.net.train()
        self.optimizer = muon(self.net, settings.lr, WEIGHT_DECAY, self.rounded)
        self.average = {name: x.detach().clone() for name, x in self.net.state_dict().items()}
        self.step, self.spent = 0, 0.0
        run.mkdir(parents=True, exist_ok=True)
        if self.checkpoint.is_file():
            self.restore()

    @property
    def checkpoint(self) -> Path:
        return self.run / "checkpoint.pt"

    @property
    def falling(self) -> float:
        """How far the learning rate has fallen: 0 while it is constant, 1 at the end of the budget."""
        settings = self.settings
        return max(0.0, self.spent / 60 / settings.minutes - (1 - settings.decay)) / settings.decay

    def restore(self) -> None:
        kept = torch.load(self.checkpoint, weights_only=True)
        self.net.load_state_dict(kept["net"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.average, self.step, self.spent = kept["average"], kept["step"], kept["spent"]

    def save(self) -> None:
        kept = {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "average": self.average}
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save(kept | {"step": self.step, "spent": self.spent}, temporary)
        temporary.replace(self.checkpoint)

    def update(self, noisy: torch.Tensor, clean: torch.Tensor) -> dict[str, float]:
        """One update; the losses without their weights."""
        warm_up = min(1.0, (self.step + 1) / WARMUP)
        set_rate(self.optimizer, self.settings.lr * warm_up * 0.5 * (1 + math.cos(math.pi * min(1.0, self.falling))))
        late = int(self.net.delay)  # the output belongs to the input that many samples ago
        with torch.autocast("cpu", torch.bfloat16, enabled=self.rounded):
            estimate = self.net(torch.nn.functional.pad(noisy, (0, late)))[..., late:].float()
        ours, theirs = to_unit(noisy, estimate, clean)
        size = RELATIVE_SIZES[self.step % len(RELATIVE_SIZES)]  # one window a step: half the time of both
        terms = {
            "residual": residual(ours, theirs),
            "heard": heard(ours, theirs, [size]),
            "perceptual": perceptual(ours, theirs),
        }
        weights = self.settings.weights()
        loss = sum((weights[name] * term for name, term in terms.items()), torch.zeros(()))
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), CLIP)
        self.optimizer.step()
        self.step += 1
        keep = min(AVERAGE, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.net.state_dict().values()), 1 - keep)
        return {name: float(x.detach()) for name, x in terms.items()}

    def finish(self) -> Path:
        """Save the averaged weights as a model."""
        self.net.load_state_dict(self.average)
        path = self.run / "model.safetensors"
        ct.save(self.net.eval(), path)
        return path


def main(root: Path, run: Path, settings: Settings) -> None:
    """Train until the budget is used up, with a checkpoint every five minutes."""
    torch.set_num_threads(1)
    corpora, training = sources(root), Training(run, settings)
    mixer = Mixer(corpora, settings.length, settings.own)
    begun, shown, recent = time.process_time() - training.spent, training.spent, list[dict[str, float]]()
    while training.spent < 60 * settings.minutes:
        rng = np.random.default_rng((settings.seed, training.step))  # the data are a function of the step
        recent.append(training.update(*map(torch.from_numpy, mixer.batch(rng, settings.rows))))
        training.spent = time.process_time() - begun
        if training.spent - shown > EVERY:
            shown = training.spent
            line: dict[str, Any] = {name: float(np.mean([x[name] for x in recent])) for name in recent[-1]}
            line |= {"step": training.step, "minutes": round(training.spent / 60, 1)}
            recent.clear()
            with (run / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(line, flush=True)
            training.save()
    print(training.finish())


def read_settings(pairs: Sequence[str]) -> Settings:
    """Settings from NAME=VALUE, each with the type of its default."""
    defaults = Settings()
    named = dict(pair.split("=", 1) for pair in pairs)
    unknown = set(named) - {field.name for field in fields(Settings)}
    if unknown:
        raise SystemExit(f"{min(unknown)} is not a setting; these are {', '.join(f.name for f in fields(Settings))}")
    return replace(defaults, **{name: type(getattr(defaults, name))(value) for name, value in named.items()})


if __name__ == "__main__":
    root, run, *named = sys.argv[1:]
    main(Path(root), Path(run), read_settings(named))
