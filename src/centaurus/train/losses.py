"""Loss functions, computed in single precision, and their weights over training.

Spectra have backwards in closed form: torch's own transform goes back through a complex transform of twice the size and
a scattered addition, these through one inverse real transform and a few shifted sums. ``perceptual`` follows the model
of PESQ (ITU-T P.862, as published by Rix et al. 2001): both signals are brought to one listening level, split into
bands of the Bark scale and turned into loudness; the audible part of their difference is summed over bands and time,
once as it is and once for what was added to the speech alone. There is no time alignment, and clipping is smooth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from centaurus.native import functions as native
from centaurus.train.config import nearest

BETA = 0.5  # of SmoothL1
SIZES = (256, 512, 1024)  # windows of 16, 32 and 64 ms at 16 kHz; the hop is a quarter
BANDS = 40
COMPRESSION = 0.3  # of magnitudes
BEGINNING = 3.0  # weight of frames in which a word begins, against other frames
SILENT = 1e-9  # mean square below which a row has no speech: -90 dBFS
FLOOR = 1e-8  # of powers, where a full-scale sine is about 1


def constant(make: Callable[..., Tensor], x: Tensor, *arguments: object) -> Tensor:
    """Return a table, ``make(*arguments)``, with the dtype and on the device of ``x``: there it is made once.

    A copy to a GPU in every step would make the host wait for all queued work.
    """
    return _constant(make, x.dtype, x.device, *arguments)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@lru_cache(maxsize=64)
def _constant(make: Callable[..., Tensor], dtype: torch.dtype, device: torch.device, *arguments: object) -> Tensor:
    with torch.inference_mode(False):
        return make(*arguments).to(device, dtype)


def _window(size: int) -> Tensor:
    return torch.hann_window(size, dtype=torch.float64)


def frames_of(x: Tensor, size: int, hop: int) -> Tensor:
    """Return spectra (rows, frames, bins) of Hann windows of (rows, time) signals, without padding."""
    return torch.fft.rfft(x.unfold(-1, size, hop) * constant(_window, x, size))


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Return Σ x y over a last axis of 2, three times as fast as a sum over so short an axis."""
    (a, b), (c, d) = x.unbind(-1), y.unbind(-1)
    return torch.addcmul(a * c, b, d)


def _back(grad: Tensor, size: int, hop: int, samples: int) -> Tensor:
    """Return the gradient of the signal from that of its spectra (rows, frames, bins); overwrites ``grad``."""
    grad[..., 1:-1] *= 0.5  # the inverse transform counts these bins twice
    pieces = torch.fft.irfft(grad, n=size, norm="forward") * constant(_window, grad.real, size)
    rows, frames = pieces.shape[:2]
    overlaps = size // hop
    pieces = pieces.unflatten(-1, (overlaps, hop))
    whole = pieces.new_zeros(rows, frames + overlaps - 1, hop)
    for age in range(overlaps):
        whole[:, age : age + frames] += pieces[:, :, age]
    whole = whole.flatten(1)[:, :samples]
    return functional.pad(whole, (0, samples - whole.shape[1]))


class Power(torch.autograd.Function):
    """Power spectra (rows, frames, bins) of Hann windows of (rows, time) signals; ``hop`` divides ``size``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, hop: int) -> Tensor:
        spectrum = frames_of(x, size, hop)
        ctx.save_for_backward(spectrum)
        ctx.form = size, hop, x.shape[-1]
        parts = torch.view_as_real(spectrum)
        return dot(parts, parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (spectrum,) = ctx.saved_tensors
        return _back(spectrum * (2 * grad), *ctx.form), None, None


class CompressedDifference(torch.autograd.Function):
    """The weighted sum of differences of compressed spectra of (rows, time) signals, a number.

    Magnitudes to the power ``power`` count for ``share`` of it, spectra of those magnitudes with their phases for the
    rest; ``floor`` is added to powers, ``weights`` are of the bins. The second signal is a target without gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        estimate: Tensor,
        clean: Tensor,
        weights: Tensor,
        size: int,
        hop: int,
        floor: float,
        power: float,
        share: float,
    ) -> Tensor:
        ours, theirs = (torch.view_as_real(frames_of(x, size, hop)) for x in (estimate, clean))
        run = native.compressed_differences if native.usable(ours, theirs, weights) else differences
        total, grad = run(ours.flatten(0, 1), theirs.flatten(0, 1), weights.contiguous(), floor, power, share)
        ctx.save_for_backward(_back(torch.view_as_complex(grad.view_as(ours)), size, hop, estimate.shape[-1]))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (own,) = ctx.saved_tensors
        return own * grad, *[None] * 7


def differences(
    ours: Tensor, theirs: Tensor, weights: Tensor, floor: float, power: float, share: float
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of differences of compressed spectra (frames, bins, 2), and the gradient of ``ours``."""
    p, p2 = (dot(x, x).add_(floor) for x in (ours, theirs))
    small, small2 = p ** (power / 2), p2 ** (power / 2)
    scale, scale2 = small * p.rsqrt(), small2 * p2.rsqrt()
    magnitudes = small - small2
    parts = (ours * scale[..., None]).sub_(theirs * scale2[..., None])
    each = dot(parts, parts).mul_(1 - share).addcmul_(magnitudes, magnitudes, value=share)
    total = (each.sum(0) * weights).sum()
    # d |X|^c = c |X|^c / p X·dX, and dZ = scale dX + (c - 1) scale / p X (X·dX)
    along = dot(parts, ours).mul_(scale).mul_(2 * (1 - share) * (power - 1))
    along = along.addcmul_(magnitudes, small, value=2 * share * power).div_(p).mul_(weights)
    grad = parts.mul_((scale * weights).mul_(2 * (1 - share))[..., None])
    return total, grad.addcmul_(ours, along[..., None])


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

    The mean over rows that have speech: without speech the ratio is undefined, and the other losses train silence.
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

RELATIVE_SIZES = (512, 1024)  # windows of 32 and 64 ms at 16 kHz; the hop is a half
RUMBLE = (45.0, 85.0)  # Hz, transition of the high-pass filter: zero below the first, one above the second
MAGNITUDE = 0.85  # weight of magnitudes; the rest is for complex spectra
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


PESQ_RATE = 16_000
PESQ_SIZE = 512  # 32 ms frames, half overlapping, as in P.862 at 16 kHz
PESQ_BANDS = 49  # as in P.862 at 16 kHz
LEVEL = 8e7  # mean power of a frame between 325 and 3250 Hz at the listening level of 79 dB SPL
SPEECH_BAND = (325.0, 3250.0)  # Hz, where levels are aligned
EXPONENT = 0.23  # Zwicker's law of loudness
SONE = 0.187  # a 1 kHz tone of 40 dB SPL has about one sone
LARGEST = 45.0  # P.862 clips the disturbance of a frame here
SYMMETRIC, ASYMMETRIC = 0.1, 0.0309  # weight of each disturbance on the raw PESQ scale
SPLIT, STRIDE = 20, 10  # frames of a split second, in which the worst counts most (L6)
PESQ_SILENT = 1e-6  # mean square, relative to the input's, below which a row has no speech


class Scale(NamedTuple):
    """The Bark filter bank: each bin's share in each band, the bands' width, centres (Bark) and hearing thresholds."""

    shares: Tensor  # q f
    width: float
    centres: Tensor  # q
    threshold: Tensor  # q


@lru_cache
def bark_scale() -> Scale:
    """Bands of equal width on Zwicker's Bark scale from 0 to half the rate, with Terhardt's threshold in quiet."""
    hertz = np.arange(PESQ_SIZE // 2 + 1) * PESQ_RATE / PESQ_SIZE
    bark = 13 * np.arctan(0.00076 * hertz) + 3.5 * np.arctan((hertz / 7500) ** 2)
    middle = (bark[1:] + bark[:-1]) / 2
    low, high = np.r_[bark[0], middle], np.r_[middle, bark[-1]]
    edges = np.linspace(0, bark[-1], PESQ_BANDS + 1)
    overlap = np.minimum(edges[1:, None], high) - np.maximum(edges[:-1, None], low)
    shares = overlap.clip(0) / (high - low)
    shares[:, 0] = 0  # DC is inaudible
    centres = (edges[1:] + edges[:-1]) / 2
    khz = np.interp(centres, bark, hertz).clip(20) / 1000
    quiet = 3.64 * khz**-0.8 - 6.5 * np.exp(-0.6 * (khz - 3.3) ** 2) + 1e-3 * khz**4
    threshold = 10 ** ((quiet - 3).clip(-5, 77) / 10)
    width = float(edges[1] - edges[0])
    tables = [torch.from_numpy(x).float() for x in (shares, centres, threshold)]
    return Scale(tables[0], width, tables[1], tables[2])


def _bark_table(name: str) -> Tensor:
    table: Tensor = getattr(bark_scale(), name)
    return table


def perceptual(estimate: Tensor, clean: Tensor) -> Tensor:
    """Return the mean disturbance of rows that have speech, on the raw PESQ scale: 0 is a perfect copy.

    Both are (batch, 1, samples) at 16 kHz, scaled so that the noisy input has a mean square of one.
    """
    ours, theirs = estimate.flatten(0, -2), clean.flatten(0, -2)
    spoken = (theirs.square().mean(-1) > PESQ_SILENT).to(ours.dtype)
    symmetric, asymmetric = (over_time(x) for x in disturbances(ours, theirs))
    each = SYMMETRIC * symmetric + ASYMMETRIC * asymmetric
    return (each * spoken).sum() / spoken.sum().clamp_min(1)


def disturbances(ours: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the symmetric and the asymmetric disturbance of every frame (rows, frames) of two (rows, samples)."""
    scale = bark_scale()
    shares, centres, threshold = (constant(_bark_table, ours, name) for name in ("shares", "centres", "threshold"))
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
    symmetric = (difference.square().sum(1) + 1e-6).sqrt() * math.sqrt(PESQ_BANDS * scale.width)
    return _clip(symmetric / weight), _clip((difference * added).sum(1) / weight)


def over_time(frames: Tensor) -> Tensor:
    """Return one disturbance a row: the sixth-power mean over split seconds, then the root mean square over time."""
    frames = frames.unfold(-1, min(SPLIT, frames.shape[-1]), STRIDE)
    seconds = (frames.pow(6).mean(-1) + 1e-12) ** (1 / 6)
    return (seconds.square().mean(-1) + 1e-12).sqrt()


def _at_listening_level(x: Tensor) -> Tensor:
    """Power spectra (rows, bins, frames), scaled to the listening level in the band of speech."""
    power: Tensor = Power.apply(x, PESQ_SIZE, PESQ_SIZE // 2).transpose(1, 2)
    low, high = (int(edge * PESQ_SIZE / PESQ_RATE) + 1 for edge in SPEECH_BAND)
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


RELATIVE_LOSSES: dict[str, RelativeLoss] = {loss.__name__: loss for loss in (residual, compressed, heard, perceptual)}
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
