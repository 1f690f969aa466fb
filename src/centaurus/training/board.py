"""TensorBoard: every figure of the log, and now and then what the network hears and says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from centaurus.training.objective import Example

SECONDS = 10  # of audio for each example


class Board:
    """A TensorBoard folder, written from the step given; records after it, from before a crash, are hidden."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=step + 1)

    def scalars(self, kind: str, record: dict[str, Any]) -> None:
        """Each number of a record under its kind."""
        for name, value in record.items():
            if isinstance(value, int | float) and name != "step":
                self.writer.add_scalar(f"{kind}/{name}", value, record["step"])

    def examples(self, examples: Sequence[Example], rate: int, step: int) -> None:
        """Audio and its spectrogram."""
        for name, samples in examples:
            heard = samples[: SECONDS * rate].detach().float().cpu()
            self.writer.add_audio(name, heard.clamp(-1, 1)[None], step, sample_rate=rate)
            self.writer.add_image(name, spectrogram(heard), step)

    def close(self) -> None:
        """Write what is waiting."""
        self.writer.close()


def spectrogram(x: Tensor, size: int = 512, floor: float = -80.0) -> Tensor:
    """A grey picture (1, frequency, time), high frequencies on top, from ``floor`` decibels below the peak up to it."""
    window = torch.hann_window(size)
    power = torch.stft(x, size, size // 4, window=window, return_complex=True, pad_mode="constant").abs().square()
    decibels = 10 * torch.log10(power + 1e-12)
    decibels = decibels - decibels.max()
    return (1 - decibels.clamp_min(floor) / floor).flip(0)[None]
