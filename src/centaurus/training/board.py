"""TensorBoard: every figure of the log, and now and then what the network hears and says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from centaurus.audio.spectrogram import Samples, spectrogram
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
            self.writer.add_image(name, picture(heard.numpy()), step)

    def close(self) -> None:
        """Write what is waiting."""
        self.writer.close()


def picture(x: Samples, floor: float = 80.0) -> Samples:
    """A grey spectrogram (1, frequency, time), high frequencies on top, from so many decibels below its peak to it."""
    decibels = spectrogram(x)
    return (1 + (decibels - decibels.max()).clip(-floor, 0) / floor)[None, ::-1]
