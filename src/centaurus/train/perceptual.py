"""A differentiable loss after the perceptual model of PESQ (ITU-T P.862, as published by Rix et al. 2001).

Both signals are brought to one listening level, split into bands of the Bark scale, and turned into loudness; what is
heard of their difference is summed over bands and time, once as it is and once for what was added to the speech alone.
It is a loss, not a measurement: there is no time alignment, and clipping is smooth so that gradients stay.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from centaurus.train.spectra import Power, constant

RATE = 16_000
SIZE = 512  # 32 ms frames, half overlapping, as in P.862 at 16 kHz
BANDS = 49  # as in P.862 at 16 kHz
LEVEL = 8e7  # mean power of a frame between 325 and 3250 Hz at the listening level of 79 dB SPL
SPEECH_BAND = (325.0, 3250.0)  # Hz, where levels are aligned
EXPONENT = 0.23  # Zwicker's law of loudness
SONE = 0.187  # a 1 kHz tone of 40 dB SPL has about one sone
LARGEST = 45.0  # P.862 clips the disturbance of a frame here
SYMMETRIC, ASYMMETRIC = 0.1, 0.0309  # what a unit of each disturbance costs on the raw PESQ scale
SPLIT, STRIDE = 20, 10  # frames of a split second, in which the worst counts most (L6)
SILENT = 1e-6  # mean square, relative to the input's, below which a row has no speech


class Scale(NamedTuple):
    """The Bark filter bank: each bin's share in each band, the bands' width, centres (Bark) and hearing thresholds."""

    shares: Tensor  # q f
    width: float
    centres: Tensor  # q
    threshold: Tensor  # q


@lru_cache
def bark_scale() -> Scale:
    """Bands of equal width on Zwicker's Bark scale from 0 to half the rate, with Terhardt's threshold in quiet."""
    hertz = np.arange(SIZE // 2 + 1) * RATE / SIZE
    bark = 13 * np.arctan(0.00076 * hertz) + 3.5 * np.arctan((hertz / 7500) ** 2)
    middle = (bark[1:] + bark[:-1]) / 2
    low, high = np.r_[bark[0], middle], np.r_[middle, bark[-1]]
    edges = np.linspace(0, bark[-1], BANDS + 1)
    overlap = np.minimum(edges[1:, None], high) - np.maximum(edges[:-1, None], low)
    shares = overlap.clip(0) / (high - low)
    shares[:, 0] = 0  # DC is not heard
    centres = (edges[1:] + edges[:-1]) / 2
    khz = np.interp(centres, bark, hertz).clip(20) / 1000
    quiet = 3.64 * khz**-0.8 - 6.5 * np.exp(-0.6 * (khz - 3.3) ** 2) + 1e-3 * khz**4
    threshold = 10 ** ((quiet - 3).clip(-5, 77) / 10)
    width = float(edges[1] - edges[0])
    tables = [torch.from_numpy(x).float() for x in (shares, centres, threshold)]
    return Scale(tables[0], width, tables[1], tables[2])


def _shares() -> Tensor:
    return bark_scale().shares


def _centres() -> Tensor:
    return bark_scale().centres


def _threshold() -> Tensor:
    return bark_scale().threshold


def perceptual(estimate: Tensor, clean: Tensor) -> Tensor:
    """Return the mean disturbance of rows that have speech, on the raw PESQ scale: 0 is a perfect copy.

    Both are (batch, 1, samples) at 16 kHz, scaled so that the noisy input has a mean square of one.
    """
    ours, theirs = estimate.flatten(0, -2), clean.flatten(0, -2)
    spoken = (theirs.square().mean(-1) > SILENT).to(ours.dtype)
    symmetric, asymmetric = (over_time(x) for x in disturbances(ours, theirs))
    each = SYMMETRIC * symmetric + ASYMMETRIC * asymmetric
    return (each * spoken).sum() / spoken.sum().clamp_min(1)


def disturbances(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the symmetric and the asymmetric disturbance of every frame (rows, frames) of two (rows, samples)."""
    scale = bark_scale()
    shares, centres, threshold = (constant(table, ours) for table in (_shares, _centres, _threshold))
    threshold = threshold[:, None]
    clean = shares @ _at_listening_level(theirs)  # b q t
    noisy = shares @ _at_listening_level(ours)
    loud = clean.sum(1, keepdim=True)
    audible = (clean > 100 * threshold) & (loud > 1e-5 * loud.amax(-1, keepdim=True))
    # A linear filter between the two disturbs little: half of what it does is followed, within 20 dB.
    filtered = ((noisy * audible).sum(-1, keepdim=True) + 1e3) / ((clean * audible).sum(-1, keepdim=True) + 1e3)
    clean = clean * filtered.clamp(0.01, 100)
    # Nor do slow changes of gain: each frame is brought to the reference's audible power.
    gain = (_audible(clean, threshold) + 5e3) / (_audible(noisy, threshold) + 5e3)
    gain = gain.clamp(3e-4, 5)
    noisy = noisy * torch.cat([gain[..., :1], 0.8 * gain[..., 1:] + 0.2 * gain[..., :-1]], -1)
    reference, degraded = (_loudness(x, centres, threshold) for x in (clean, noisy))
    masked = 0.25 * torch.minimum(reference, degraded)
    difference = ((degraded - reference).abs() - masked).clamp_min(0) * scale.width
    with torch.no_grad():
        added = ((noisy + 50) / (clean + 50)) ** 1.2
        added = torch.where(added < 3, torch.zeros_like(added), added.clamp(max=12))
    weight = ((loud[:, 0] + 1e5) / 1e7) ** 0.04
    symmetric = (difference.square().sum(1) + 1e-6).sqrt() * math.sqrt(BANDS * scale.width)
    return _clip(symmetric / weight), _clip((difference * added).sum(1) / weight)


def over_time(frames: Tensor) -> Tensor:
    """Return one disturbance a row: the sixth-power mean over split seconds, then the root mean square over time."""
    frames = frames.unfold(-1, min(SPLIT, frames.shape[-1]), STRIDE)
    seconds = (frames.pow(6).mean(-1) + 1e-12) ** (1 / 6)
    return (seconds.square().mean(-1) + 1e-12).sqrt()


def _at_listening_level(x: Tensor) -> Tensor:
    """Power spectra (rows, bins, frames), scaled to the listening level in the band of speech."""
    power: Tensor = Power.apply(x, SIZE, SIZE // 2).transpose(1, 2)
    low, high = (int(edge * SIZE / RATE) + 1 for edge in SPEECH_BAND)
    level = power[:, low:high].sum(1).mean(-1)[:, None, None] + 1e-12
    return power / level * LEVEL


def _audible(bands: Tensor, threshold: Tensor) -> Tensor:
    return (bands * (bands > threshold)).sum(1, keepdim=True)


def _loudness(bands: Tensor, centres: Tensor, threshold: Tensor) -> Tensor:
    """Zwicker's loudness of band powers; below 4 Bark the exponent is a little larger."""
    low = (6 / (centres + 2)).clamp(1, 2) ** 0.15
    exponent = EXPONENT * torch.where(centres < 4, low, torch.ones_like(low))[:, None]
    loudness = (threshold / 0.5) ** exponent * ((0.5 + 0.5 * bands / threshold) ** exponent - 1)
    return SONE * loudness.clamp_min(0)


def _clip(x: Tensor) -> Tensor:
    return LARGEST * (1 - torch.exp(-x / LARGEST))
