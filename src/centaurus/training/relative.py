"""Losses for denoising relative to how loud the input is: quiet speech counts as much as loud speech."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

RelativeLoss = Callable[[Tensor, Tensor], Tensor]

SIZES = (512, 1024)  # windows of 32 and 64 ms at 16 kHz, a half apart
COMPRESSION = 0.3  # of magnitudes
MAGNITUDE = 0.85  # the share of magnitudes; the rest is for magnitudes with their phases
ENOUGH = 1e-3  # 30 dB below the input: less of a residual is not asked for
FLOOR = 1e-4  # of a bin's power in the shorter window, where the input's are about 200
SILENT = 1e-5


def residual(estimate: Tensor, clean: Tensor) -> Tensor:
    """What is left of the error, as a logarithm: -1 is a tenth of the input's power."""
    error = (estimate - clean).square().flatten(1).mean(1)
    return torch.log10(error + ENOUGH).mean()


def compressed(estimate: Tensor, clean: Tensor) -> Tensor:
    """Squared differences of compressed magnitudes, and of compressed spectra with their phases."""
    return torch.stack([_differences(estimate, clean, size).mean() for size in SIZES]).mean()


def heard(estimate: Tensor, clean: Tensor) -> Tensor:
    """The same, but frequencies count as the ear spreads them: half of it is below 1.1 kHz at a rate of 16 kHz."""
    each = [_differences(estimate, clean, size) for size in SIZES]
    return torch.stack([(x.mean((0, 2)) * spread(x.shape[1]).to(x)).sum() for x in each]).mean()


@lru_cache
def spread(bins: int, rate: int = 16_000) -> Tensor:
    """The share of each bin on the ERB-rate scale (Glasberg and Moore) from 0 to half the rate."""
    density = 1 / (1 + 0.00437 * torch.linspace(0, rate / 2, bins))
    return density / density.sum()


def _differences(estimate: Tensor, clean: Tensor, size: int) -> Tensor:
    """Squared differences (rows, bins, frames), mostly of magnitudes."""
    ours, theirs = (_compressed(x.flatten(0, -2), size) for x in (estimate, clean))
    phases = (ours[1] - theirs[1]).square().sum(-1)
    return MAGNITUDE * (ours[0] - theirs[0]).square() + (1 - MAGNITUDE) * phases


def _compressed(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """|X|^c, and X scaled to that magnitude, with a trailing axis of 2."""
    window = torch.hann_window(size, device=x.device, dtype=x.dtype)
    spectrum = torch.view_as_real(torch.stft(x, size, size // 2, window=window, return_complex=True))
    magnitude = (spectrum.square().sum(-1) + FLOOR * size / SIZES[0]).sqrt()
    small = magnitude**COMPRESSION
    return small, spectrum * (small / magnitude)[..., None]


def to_unit(noisy: Tensor, *signals: Tensor) -> list[Tensor]:
    """Signals (batch, 1, time) scaled by what brings their row of the input to a mean square of one."""
    scale = noisy.square().mean((1, 2), keepdim=True).sqrt() + SILENT
    return [x / scale for x in signals]


RELATIVE_LOSSES: dict[str, RelativeLoss] = {"residual": residual, "compressed": compressed, "heard": heard}
