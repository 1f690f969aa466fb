"""The losses, each a function of tensors; computed in single precision under any autocast."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

BETA = 0.5  # of SmoothL1
SIZES = (256, 512, 1024)  # windows of 16, 32 and 64 ms at 16 kHz, a quarter apart
BANDS = 40
COMPRESSION = 0.3  # of magnitudes
BEGINNING = 3.0  # how much more than other frames those weigh in which a word begins
SILENT = 1e-9  # mean square of what is no speech: -90 dBFS
FLOOR = 1e-8  # of powers, where a full-scale sine is about 1

WaveLoss = Callable[[Tensor, Tensor, int], Tensor]


def smooth_l1(estimate: Tensor, clean: Tensor, rate: int) -> Tensor:
    """SmoothL1 on samples, β = 0.5: half the squared error over β below it, linear above."""
    return functional.smooth_l1_loss(estimate, clean, beta=BETA)


def erb(estimate: Tensor, clean: Tensor, rate: int) -> Tensor:
    """Mean difference of compressed powers in bands of equal width on the ERB scale, over three window sizes."""
    both = torch.cat([estimate, clean]).flatten(0, -2)
    total = estimate.new_zeros(())
    for size in SIZES:
        ours, theirs = _bands(both, size, rate).chunk(2)
        total = total + (ours - theirs).abs().mean()
    return total / len(SIZES)


def _bands(x: Tensor, size: int, rate: int) -> Tensor:
    """Compressed band powers (rows, bands, frames) of (rows, time) signals."""
    window = torch.hann_window(size, device=x.device, dtype=x.dtype)
    spectrum = torch.stft(x, size, size // 4, window=window, center=True, pad_mode="constant", return_complex=True)
    power = torch.view_as_real(spectrum).square().sum(-1) * (2 / float(window.sum())) ** 2
    filters = erb_filters(size, rate).to(x)
    return (filters @ power + FLOOR) ** (COMPRESSION / 2)


@lru_cache
def erb_filters(size: int, rate: int, bands: int = BANDS) -> Tensor:
    """Triangles (bands, bins), evenly spaced on the ERB-rate scale from 50 Hz to half the rate; each sums to 1.

    A triangle is never narrower than the spacing of the bins, so that none of the low ones is empty.
    """
    centres = torch.linspace(_erb_rate(50.0), _erb_rate(rate / 2), bands, dtype=torch.float64)
    hertz = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    bins = 21.4 * torch.log10(1 + 0.00437 * hertz)
    slope = 21.4 * 0.00437 / math.log(10) / (10 ** (centres / 21.4))  # ERBs a hertz at each centre
    width = torch.maximum(centres[1] - centres[0], slope * rate / size)
    weight = (1 - (bins - centres[:, None]).abs() / width[:, None]).clamp_min(0)
    return (weight / weight.sum(1, keepdim=True)).float()


def _erb_rate(hertz: float) -> float:
    """Glasberg and Moore's number of equivalent rectangular bandwidths below a frequency."""
    return 21.4 * math.log10(1 + 0.00437 * hertz)


def negative_si_sdr(estimate: Tensor, clean: Tensor, rate: int) -> Tensor:
    """Minus the scale-invariant signal-to-distortion ratio in units of 10 dB, so that it is of the others' size.

    The mean over rows that have speech: without it no ratio has a meaning, and the other losses ask for silence.
    """
    estimate, clean = estimate - estimate.mean(-1, keepdim=True), clean - clean.mean(-1, keepdim=True)
    energy = clean.square().sum(-1, keepdim=True) + FLOOR
    target = clean * (estimate * clean).sum(-1, keepdim=True) / energy
    wanted, rest = target.square().sum(-1), (estimate - target).square().sum(-1)
    spoken = (energy[..., 0] > SILENT * clean.shape[-1]).to(wanted.dtype)
    each = -torch.log10((wanted + FLOOR) / (rest + FLOOR))
    return (each * spoken).sum() / spoken.sum().clamp_min(1)


WAVE_LOSSES: dict[str, WaveLoss] = {"smooth_l1": smooth_l1, "erb": erb, "si_sdr": negative_si_sdr}


def ctc(logits: Tensor, targets: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
    """CTC of (batch, symbols, frames) logits with blank 0; a transcript longer than its frames adds nothing."""
    log_probs = logits.log_softmax(1).permute(2, 0, 1)
    return functional.ctc_loss(log_probs, targets, frames, lengths, blank=0, zero_infinity=True)


def framed(logits: Tensor, target: Tensor, frames: Tensor) -> Tensor:
    """Cross-entropy of (batch, symbols, frames) logits with the symbol of every frame, padding left out."""
    return functional.cross_entropy(logits, target.masked_fill(~_inside(target, frames), -100))


def _inside(target: Tensor, frames: Tensor) -> Tensor:
    """Which frames of (batch, frames) are no padding."""
    return torch.arange(target.shape[1], device=target.device) < frames[:, None]


def begun(logits: Tensor, target: Tensor, frames: Tensor) -> Tensor:
    """Binary cross-entropy of the last (batch, symbols, frames) logits with whether a word begins, without padding.

    Beginnings are rare, so they weigh more: the logit is above 0 where one is a third as likely as not.
    """
    inside, weight = _inside(target, frames), logits.new_tensor(BEGINNING)
    return functional.binary_cross_entropy_with_logits(logits[:, -1][inside], target[inside].float(), pos_weight=weight)


def distillation(student: Tensor, teacher: Tensor, frames: Tensor) -> Tensor:
    """Divergence of the student's distribution from the teacher's: mean over the frames that both have.

    Both are (batch, symbols, frames) logits; row b counts up to its own ``frames[b]``.
    """
    if student.shape[1] != teacher.shape[1]:
        raise ValueError(f"the teacher has {teacher.shape[1]} characters, the character head {student.shape[1]}")
    shorter = min(student.shape[-1], teacher.shape[-1])
    ours, theirs = student[..., :shorter].log_softmax(1), teacher[..., :shorter].log_softmax(1)
    each = (theirs.exp() * (theirs - ours)).sum(1)  # b t
    heard = torch.arange(shorter, device=each.device) < frames[:, None]
    return (each * heard).sum() / heard.sum().clamp_min(1)
