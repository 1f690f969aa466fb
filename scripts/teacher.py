"""A teacher for `kws-30`: a small residual network on spectrograms, which sees a whole word at once and does not ship.

Of few recordings it learns more than a network on raw sound does, and passes it on. `scripts/kws_30.py` trains it.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from centaurus.data import Keywords
from centaurus.recipes import kws
from centaurus.recipes.kws import KeywordSettings
from centaurus.system import replacing
from centaurus.train.loop import Order, batches
from centaurus.train.optim import Budget, cosine, muon, set_rate

BANDS, POINTS, WINDOW, HOP = 40, 512, 400, 160


class Residual(nn.Module):
    """Two convolutions and a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.around(x) + self.second_norm(self.second(y)))


class Spectrogram(nn.Module):
    """Logarithms of powers in mel bands, less their mean: (batch, 1, samples) to (batch, 1, bands, frames)."""

    waves: Tensor
    bands: Tensor

    def __init__(self, rate: int = 16_000) -> None:
        super().__init__()
        bins = POINTS // 2 + 1
        turns = torch.outer(torch.arange(bins), torch.arange(WINDOW)) * (2 * math.pi / POINTS)
        waves = torch.cat([turns.cos(), turns.sin()]) * torch.hann_window(WINDOW)
        edges = 700 * (10 ** (torch.linspace(mel(40), mel(0.475 * rate), BANDS + 2) / 2595) - 1)[:, None]
        hertz = torch.linspace(0, rate / 2, bins)
        up, down = hertz - edges[:-2], edges[2:] - hertz
        bands = torch.minimum(up / (edges[1:-1] - edges[:-2]), down / (edges[2:] - edges[1:-1])).clamp(min=0)
        self.register_buffer("waves", waves[:, None], persistent=False)
        self.register_buffer("bands", bands / bands.sum(1, keepdim=True), persistent=False)

    def forward(self, audio: Tensor) -> Tensor:
        padded = functional.pad(audio, (WINDOW // 2, WINDOW // 2), mode="reflect")
        real, imaginary = functional.conv1d(padded, self.waves, stride=HOP).chunk(2, 1)
        logs = (self.bands @ (real.square() + imaginary.square()) + 1e-6).log()
        return (0.3 * (logs - logs.mean((1, 2), keepdim=True)))[:, None]


class Listener(nn.Module):
    """Logits (batch, classes) of the last second of audio (batch, 1, samples)."""

    def __init__(self, classes: int, width: int = 32, rate: int = 16_000) -> None:
        super().__init__()
        self.rate = rate
        self.spectrogram = Spectrogram(rate)
        stem = (nn.Conv2d(1, width, 5, 2, 2, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        residuals = Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)
        self.body = nn.Sequential(*stem, *residuals).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, audio: Tensor) -> Tensor:
        x = self.spectrogram(audio[..., -self.rate :])
        x = masked(masked(x, 2, 8), 3, 15) if self.training else x
        return self.head(self.dropout(self.body(x).mean((2, 3))))


def mel(hertz: float) -> float:
    """Return a frequency on the mel scale, on which the bands have equal widths."""
    return 2595 * math.log10(1 + hertz / 700)


def masked(x: Tensor, axis: int, widest: int) -> Tensor:
    """Return rows with two stretches of an axis set to the mean, which is zero."""
    place = torch.arange(x.shape[axis]).view([-1 if k == axis else 1 for k in range(x.dim())])
    for _ in range(2):
        width = torch.randint(0, widest, (len(x), 1, 1, 1))
        start = (torch.rand(len(x), 1, 1, 1) * (x.shape[axis] - width)).long()
        x = x.masked_fill((place >= start) & (place < start + width), 0)
    return x


def teach(settings: KeywordSettings, data: Path, path: Path) -> Path:
    """Train for as long as the settings say and write ``path``, an ONNX file. It starts anew if interrupted."""
    torch.manual_seed(settings.seed)
    corpus = kws.prepare(replace(settings, losses="cross_entropy:1", teacher="", start=""), data).data.train
    assert isinstance(corpus, Keywords)
    net = Listener(len(corpus.classes), rate=settings.rate)
    optimizer = muon(net, settings.lr, settings.decay)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.998), use_buffers=True)
    source = batches(corpus, settings.seed, Order(corpus, settings.seed, settings.batch), settings.workers, False)
    budget = Budget(0 if settings.minutes else settings.total_steps(corpus.size()), settings.minutes)
    start = time.perf_counter()
    for step, batch in enumerate(source):
        progress = budget.progress(step, time.perf_counter() - start)
        if progress >= 1:
            break
        set_rate(optimizer, settings.lr * cosine(progress, settings.warmup))
        loss = mixed_loss(net, batch["audio"], batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(net)
        if step % 200 == 0:
            print(f"teacher: {100 * progress:.0f} %, step {step}, loss {float(loss.detach()):.2f}")
    assert isinstance(average.module, Listener)
    export(average.module, list(corpus.classes), path)
    return path


def mixed_loss(net: Listener, audio: Tensor, label: Tensor) -> Tensor:
    """Return the cross-entropy, in half of the batches of mixtures of two words, with the labels of both."""
    share = 1.0 if torch.rand(()) < 0.5 else float(torch.distributions.Beta(0.4, 0.4).sample())
    other = torch.randperm(len(audio))
    logits = net(share * audio + (1 - share) * audio[other] if share < 1 else audio)
    first, second = (functional.cross_entropy(logits, names, label_smoothing=0.05) for names in (label, label[other]))
    return share * first + (1 - share) * second


def export(net: Listener, classes: list[str], path: Path) -> None:
    """Write the network as an ONNX file with the names of its classes."""
    import onnx

    waves = torch.zeros(2, 1, net.rate + 480)
    open_axes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("samples", min=net.rate)}
    program = torch.onnx.export(net.eval(), (waves,), dynamo=True, dynamic_shapes={"audio": open_axes}, verbose=False)
    assert program is not None
    model = program.model_proto
    onnx.helper.set_model_props(model, {"classes": json.dumps(classes)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        onnx.save(model, temporary)
