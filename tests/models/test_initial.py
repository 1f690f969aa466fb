"""Untrained networks pass every frequency of speech, and no layer attenuates or amplifies strongly."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from centaurus.layer import Layer, State
from centaurus.models import Network, build, classifier, recognizer
from centaurus.nn import Block, Hourglass

RATE = 16_000
TONES = (50, 200, 1000, 3000, 7000)
DENOISERS = [f"denoiser/{name}" for name in ("hybrid", "hybrid-slim", "hybrid-conv", "separable", "s6", "full")]
SPOTTERS = ["kws-hybrid-2", "kws-hybrid-8", "kws-separable-4", "kws-pointwise-4", "kws-bottleneck-4", "kws-full-4"]


def tone(hertz: float, samples: int = 8192) -> Tensor:
    """A tone at the level of quiet speech."""
    return (0.1 * torch.sin(2 * math.pi * hertz * torch.arange(samples) / RATE)).view(1, 1, -1)


def level(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


def decibels(ratio: float) -> float:
    return 20 * math.log10(max(ratio, 1e-30))


def scales(net: Network, u: Tensor) -> dict[str, float]:
    """The level of every layer's output during one run."""
    result: dict[str, float] = {}

    def watch(name: str, layer: Layer) -> None:
        run = layer.run

        def noted(x: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
            y, after = run(x, state, keep)
            result[name] = level(y)
            return y, after

        object.__setattr__(layer, "run", noted)

    for name, layer in net.named_modules():
        if isinstance(layer, Layer):
            watch(name, layer)
    with torch.no_grad():
        net(u)
    return result


@pytest.mark.parametrize("name", DENOISERS)
def test_a_denoiser_starts_near_the_identity(name: str) -> None:
    torch.manual_seed(0)
    net = build(name).eval()
    with torch.no_grad():
        gains = {hertz: decibels(level(net(tone(hertz))) / level(tone(hertz))) for hertz in TONES}
    assert all(abs(gain) < 6 for gain in gains.values()), gains


@pytest.mark.parametrize("name", SPOTTERS)
def test_a_classifier_responds_to_every_tone(name: str) -> None:
    torch.manual_seed(0)
    net = classifier(name).eval()
    with torch.no_grad():
        silence = net(torch.zeros(1, 1, 8192))
        gains = {hertz: decibels(level(net(tone(hertz)) - silence) / level(tone(hertz))) for hertz in TONES}
    assert all(-30 < gain < 20 for gain in gains.values()), gains


def test_a_recognizer_responds_to_every_tone() -> None:
    torch.manual_seed(0)
    net = recognizer("base", vocabulary=32).eval()
    with torch.no_grad():
        silence = net(torch.zeros(1, 1, 8192))
        gains = {hertz: decibels(level(net(tone(hertz)) - silence) / level(tone(hertz))) for hertz in TONES}
    assert all(-10 < gain < 30 for gain in gains.values()), gains


@pytest.mark.parametrize("name", ["denoiser/hybrid", "denoiser/hybrid-conv", "kws-hybrid-8", "recognizer/conv"])
def test_activations_neither_vanish_nor_explode(name: str) -> None:
    torch.manual_seed(0)
    net = recognizer("conv", vocabulary=32) if name.startswith("recognizer") else build(name)
    levels = scales(net.eval(), 0.1 * torch.randn(1, 1, 8192))
    assert all(math.isfinite(scale) and scale < 10 for scale in levels.values()), levels
    kinds = dict(net.named_modules())
    blocks = {key: scale for key, scale in levels.items() if isinstance(kinds[key], Block | Hourglass)}
    assert len(blocks) >= 6
    assert min(blocks.values()) > 0.02, blocks
