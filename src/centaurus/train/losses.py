"""Loss functions, computed in single precision, and their weights over training."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from centaurus.train.config import nearest
from centaurus.train.perceptual import perceptual
from centaurus.train.spectra import CompressedDifference, Power, constant

BETA = 0.5  # of SmoothL1
SIZES = (256, 512, 1024)  # windows of 16, 32 and 64 ms at 16 kHz, a quarter apart
BANDS = 40
COMPRESSION = 0.3  # of magnitudes
BEGINNING = 3.0  # weight of frames in which a word begins, against other frames
SILENT = 1e-9  # mean square below which a row has no speech: -90 dBFS
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
    power = Power.apply(functional.pad(x, (size // 2, size // 2)), size, size // 4)  # rows frames bins
    scale = 4 / size  # of a full-scale sine at the middle of a Hann window of sum size / 2
    filters = constant(erb_filters, x, size, rate) * scale**2
    return (filters @ power.transpose(1, 2) + FLOOR) ** (COMPRESSION / 2)


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

    The mean over rows that have speech: without speech the ratio is meaningless, and the other losses ask for silence.
    """
    estimate, clean = estimate - estimate.mean(-1, keepdim=True), clean - clean.mean(-1, keepdim=True)
    energy = clean.square().sum(-1, keepdim=True) + FLOOR
    target = clean * (estimate * clean).sum(-1, keepdim=True) / energy
    signal, rest = target.square().sum(-1), (estimate - target).square().sum(-1)
    spoken = (energy[..., 0] > SILENT * clean.shape[-1]).to(signal.dtype)
    each = -torch.log10((signal + FLOOR) / (rest + FLOOR))
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
    """Return which frames of (batch, frames) are not padding."""
    return torch.arange(target.shape[1], device=target.device) < frames[:, None]


def begun(logits: Tensor, target: Tensor, frames: Tensor) -> Tensor:
    """Binary cross-entropy of the last (batch, symbols, frames) logits with whether a word begins, without padding.

    Beginnings are rare, so they weigh more: the logit is above 0 where one is a third as likely as not.
    """
    inside, weight = _inside(target, frames), logits.new_full((), BEGINNING)
    wanted = target.to(logits.dtype)
    each = functional.binary_cross_entropy_with_logits(logits[:, -1], wanted, pos_weight=weight, reduction="none")
    return (each * inside).sum() / inside.sum()


def distillation(student: Tensor, teacher: Tensor, frames: Tensor) -> Tensor:
    """Divergence of the student's distribution from the teacher's: mean over the frames that both have.

    Both are (batch, symbols, frames) logits; row b counts up to its own ``frames[b]``.
    """
    if student.shape[1] != teacher.shape[1]:
        raise ValueError(f"the teacher has {teacher.shape[1]} characters, the character head {student.shape[1]}")
    shorter = min(student.shape[-1], teacher.shape[-1])
    ours, theirs = student[..., :shorter].log_softmax(1), teacher[..., :shorter].log_softmax(1)
    each = (theirs.exp() * (theirs - ours)).sum(1)  # b t
    valid = torch.arange(shorter, device=each.device) < frames[:, None]
    return (each * valid).sum() / valid.sum().clamp_min(1)


RelativeLoss = Callable[[Tensor, Tensor], Tensor]

RELATIVE_SIZES = (512, 1024)  # windows of 32 and 64 ms at 16 kHz, a half apart
RUMBLE = (45.0, 85.0)  # Hz: below the first nothing is heard, above the second everything
MAGNITUDE = 0.85  # the share of magnitudes; the rest is for magnitudes with their phases
ENOUGH = 4e-4  # 34 dB below the input: a smaller residual is not rewarded
RELATIVE_FLOOR = 1e-4  # of a bin's power in the shorter window, where the input's are about 200
RELATIVE_SILENT = 1e-5  # of an input's RMS: digital silence stays finite


def residual(estimate: Tensor, clean: Tensor) -> Tensor:
    """Return the log10 of the error's power over the input's, with a floor: -1 is a tenth of the power."""
    error = (estimate - clean).square().flatten(1).mean(1)
    return torch.log10(error + ENOUGH).mean()


def compressed(estimate: Tensor, clean: Tensor) -> Tensor:
    """Return squared differences of compressed magnitudes, and of compressed spectra with their phases."""
    return torch.stack([_difference(estimate, clean, size, even_share) for size in RELATIVE_SIZES]).mean()


def heard(estimate: Tensor, clean: Tensor, sizes: Sequence[int] = RELATIVE_SIZES) -> Tensor:
    """``compressed`` with frequencies weighted by their ERB width: half of the weight is below 1.1 kHz at 16 kHz.

    Rumble is removed from both: compressed, it would count as much as a voice.
    """
    ours, theirs = audible(estimate), audible(clean)
    return torch.stack([_difference(ours, theirs, size, erb_share) for size in sizes]).mean()


def audible(x: Tensor, rate: int = 16_000) -> Tensor:
    """Return signals (..., time) without what lies below ``RUMBLE``."""
    spectrum = torch.fft.rfft(x)
    low, high = (hertz * 2 / rate * (spectrum.shape[-1] - 1) for hertz in RUMBLE)
    places = torch.arange(spectrum.shape[-1], device=x.device, dtype=x.dtype)
    return torch.fft.irfft(spectrum * ((places - low) / (high - low)).clamp(0, 1), x.shape[-1])


def even_share(bins: int) -> Tensor:
    """The same share for every bin."""
    return torch.full((bins,), 1 / bins)


def erb_share(bins: int, rate: int = 16_000) -> Tensor:
    """The share of each bin on the ERB-rate scale (Glasberg and Moore)."""
    density = 1 / (1 + 0.00437 * torch.linspace(0, rate / 2, bins))
    return density / density.sum()


def _difference(estimate: Tensor, clean: Tensor, size: int, shares: Callable[[int], Tensor]) -> Tensor:
    """The mean over rows and frames of squared differences of compressed spectra, summed with the bins' shares."""
    hop = size // 2
    ours, theirs = (
        functional.pad(x.flatten(0, -2)[:, None], (hop, hop), mode="reflect")[:, 0] for x in (estimate, clean)
    )
    frames = ours.shape[0] * (1 + (ours.shape[1] - size) // hop)
    floor = RELATIVE_FLOOR * size / RELATIVE_SIZES[0]
    weights = constant(shares, ours, size // 2 + 1) / frames
    total: Tensor = CompressedDifference.apply(ours, theirs.detach(), weights, size, hop, floor, COMPRESSION, MAGNITUDE)
    return total


def to_unit(noisy: Tensor, *signals: Tensor) -> list[Tensor]:
    """Signals (batch, 1, time) scaled by what brings their row of the input to a mean square of one."""
    scale = noisy.square().mean((1, 2), keepdim=True).sqrt() + RELATIVE_SILENT
    return [x / scale for x in signals]


RELATIVE_LOSSES: dict[str, RelativeLoss] = {
    "residual": residual,
    "compressed": compressed,
    "heard": heard,
    "perceptual": perceptual,
}


NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
TERM = re.compile(rf"\s*(?P<name>\w+)\s*:\s*(?P<first>{NUMBER})(?:\.\.(?P<last>{NUMBER}))?\s*")


@dataclass(frozen=True)
class Weight:
    """A loss by name, and its weight at the start and at the end of training, on a line between."""

    name: str
    first: float
    last: float

    def at(self, progress: float | Tensor) -> float | Tensor:
        """The weight after this fraction of training: a number if it stays the same."""
        return self.first if self.first == self.last else self.first + (self.last - self.first) * progress


def read_weights(text: str, known: Iterable[str]) -> tuple[Weight, ...]:
    """``"smooth_l1:1, erb:0..1"``: every name once, known, with a weight or a weight that moves."""
    names = list(known)
    weights: list[Weight] = []
    for part in text.split(","):
        match = TERM.fullmatch(part)
        if match is None:
            raise ValueError(f"losses are written as name:weight or name:from..to with commas between: got {part!r}")
        name, first, last = match["name"], float(match["first"]), float(match["last"] or match["first"])
        if name not in names:
            raise ValueError(f"there is no loss {name!r} for this task{nearest(name, names)}")
        if name in {weight.name for weight in weights}:
            raise ValueError(f"the loss {name!r} is given twice")
        weights.append(Weight(name, first, last))
    if not any(weight.first or weight.last for weight in weights):
        raise ValueError(f"every weight in {text!r} is zero: there is nothing to train on")
    return tuple(weights)
