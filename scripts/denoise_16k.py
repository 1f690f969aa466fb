"""Train `denoise-16k`, the spectral denoiser that ships.

    python scripts/denoise_16k.py CORPORA RUN [minutes=110] [decay=0.8] [seed=0] [network=spectral-32] [start=FILE]
        [precision=bf16]

CORPORA holds folders of sound files, decoded once into a cache:

    voicebank/   VoiceBank+DEMAND: clean_trainset_28spk_wav and noisy_trainset_28spk_wav (p286 and p287 validate)
    speech/      more clean speech, such as VCTK without p232, p257, p286, p287, and LibriSpeech
    noise/       ambience;   effects/ and music/ are optional (free_sounds.py makes them)

RUN gets `log.jsonl`, a checkpoint every few minutes (the same command goes on from it) and `denoise-16k.safetensors`.
The learning rate stays constant and falls over the last ``decay`` of the budget. ``start`` is a model of that network
to begin with; if it has fewer blocks, the others start as the identity. ``precision=bf16`` rounds the inputs of matrix
products, which is 1.5 times as fast on processors with such instructions. Budgets are CPU time, so that a busy machine
trains as long as an idle one.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # rows are short: a second thread gains less than a second process

import numpy as np
import torch
from mixing import Mixer, Sources

import centaurus as ct
from centaurus.data import Clip, Corpus, open_corpus, pairs, prepared
from centaurus.data.layouts import sound_files
from centaurus.models.tables import SpectralTable
from centaurus.train.losses import RELATIVE_SIZES, heard, residual, to_unit
from centaurus.train.optim import muon, set_rate
from centaurus.train.perceptual import perceptual

HELD_OUT = ("p232", "p257", "p286", "p287")  # test and validation speakers
LR, WEIGHT_DECAY, CLIP = 1.5e-3, 0.02, 1.0
WARMUP, AVERAGE = 100, 0.9995  # updates; the moving average of the weights is what is saved
ROWS, LENGTH, OWN = 16, 3 * 2**14, 0.32  # rows of three seconds in an update; 32 % are mixed here
RESIDUAL, HEARD, PERCEPTUAL = 3.0, 3.0, 1.6


@torch.no_grad()
def grow(net: torch.nn.Module, smaller: torch.nn.Module) -> None:
    """Copy the weights of a network that may have fewer blocks; what it lacks is made to add nothing."""
    known = smaller.state_dict()
    for name, p in net.named_parameters():
        if name in known:
            p.copy_(known[name])
        elif name.endswith(("ssm.C", "ffn.body.narrow.weight", "ffn.body.narrow.bias")):
            p.zero_()


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
    return Sources(
        pairs(train),
        [(speech, 0.7), (train.where(kind="clean"), 0.3)],
        noise,
        folder_of(root / "music", "music"),
        folder_of(root / "effects", "effects"),
    )


class Training:
    """A network, its optimiser and the average of its weights, which can be stopped and continued."""

    def __init__(
        self,
        run: Path,
        minutes: float,
        decay: float,
        seed: int,
        network: str | SpectralTable,
        start: str,
        precision: str,
    ) -> None:
        torch.manual_seed(seed)
        self.run, self.minutes, self.decay, self.seed = run, minutes, decay, seed
        self.rounded = precision == "bf16"
        self.net = ct.denoiser(network)
        if start:
            grow(self.net, ct.load(start))
        self.net.train()
        self.optimizer = muon(self.net, LR, WEIGHT_DECAY, self.rounded)
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
        return max(0.0, self.spent / 60 / self.minutes - (1 - self.decay)) / self.decay

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
        falling = self.falling
        set_rate(
            self.optimizer, LR * min(1.0, (self.step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(1.0, falling)))
        )
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
        loss = RESIDUAL * terms["residual"] + HEARD * terms["heard"] + PERCEPTUAL * terms["perceptual"]
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
        path = self.run / "denoise-16k.safetensors"
        ct.save(self.net.eval(), path)
        return path


def main(
    root: Path,
    run: Path,
    minutes: float = 110,
    decay: float = 0.8,
    seed: int = 0,
    network: str = "spectral-32",
    start: str = "",
    precision: str = "fp32",
) -> None:
    """Train until the budget is used up, saving every five minutes."""
    torch.set_num_threads(1)
    found, training = sources(root), Training(run, minutes, decay, seed, network, start, precision)
    mixer = Mixer(found, LENGTH, OWN)
    begun, shown, recent = time.process_time() - training.spent, training.spent, list[dict[str, float]]()
    while training.spent < 60 * minutes:
        rng = np.random.default_rng((seed, training.step))  # the data are a function of the step
        recent.append(training.update(*map(torch.from_numpy, mixer.batch(rng, ROWS))))
        training.spent = time.process_time() - begun
        if training.spent - shown > 300:
            shown = training.spent
            line: dict[str, Any] = {name: float(np.mean([x[name] for x in recent if name in x])) for name in recent[-1]}
            line |= {"step": training.step, "minutes": round(training.spent / 60, 1)}
            recent.clear()
            with (run / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            print(line, flush=True)
            training.save()
    print(training.finish())


if __name__ == "__main__":
    root, run, *settings = sys.argv[1:]
    named = dict(pair.split("=", 1) for pair in settings)
    kinds = {"minutes": float, "decay": float, "seed": int, "network": str, "start": str, "precision": str}
    main(Path(root), Path(run), **{name: kinds[name](value) for name, value in named.items()})
