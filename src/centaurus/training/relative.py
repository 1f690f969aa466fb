"""Losses for denoising relative to how loud the input is: quiet speech counts as much as loud speech."""

from __future__ import annotations

from collections.abc import Callable

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
    total = estimate.new_zeros(())
    for size in SIZES:
        ours, theirs = (_compressed(x.flatten(0, -2), size) for x in (estimate, clean))
        magnitudes = (ours[0] - theirs[0]).square().mean()
        phases = (ours[1] - theirs[1]).square().sum(-1).mean()
        total = total + MAGNITUDE * magnitudes + (1 - MAGNITUDE) * phases
    return total / len(SIZES)


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


RELATIVE_LOSSES: dict[str, RelativeLoss] = {"residual": residual, "compressed": compressed}
