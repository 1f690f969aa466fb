"""Speech recognition: CTC of tokens, and characters by CTC or from a teacher."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from centaurus.audio import char_errors, word_errors
from centaurus.decode import Style, Vocabulary
from centaurus.models.network import Network
from centaurus.models.recognizer import Recognizer
from centaurus.training import losses
from centaurus.training.objective import Batch, Objective, Sums
from centaurus.training.teacher import Wav2Vec2
from centaurus.training.tokens import normalise, transcript
from centaurus.training.weights import read_weights

LOSSES = ("tokens", "characters", "distillation", "starts", "ends")
BEGUN = 0.1  # seconds after the start of a word that still are its beginning
EARLY, LATE = 0.1, 0.05  # seconds before and after the end of a word between which its token is


@final
class Recognise(Objective):
    """Losses ``tokens`` and ``characters`` (CTC of each head), and ``distillation`` of characters from a teacher.

    Where the times of words are known, ``starts`` teaches the mark where words begin, and ``ends`` draws their tokens,
    which CTC leaves free to come at any time, to their ends.
    """

    monitor = "cer"
    lower_is_better = True
    net: Recognizer

    def __init__(
        self, net: Recognizer, weights: str = "tokens:1, characters:1", teacher: Wav2Vec2 | None = None
    ) -> None:
        super().__init__(net, read_weights(weights, LOSSES))
        self.teacher = [teacher]  # in a list, lest it become a part that is trained and saved
        self.spelling = any(weight.name in ("characters", "distillation") for weight in self.weights)
        net.characters.requires_grad_(self.spelling)
        self.vocabulary = Vocabulary.of(net.settings["tokens"], blank=0)
        names = {weight.name for weight in self.weights}
        if "starts" in names and self.vocabulary.mark is None:
            raise ValueError("the loss of starts needs an output for them: vocabulary=marked")
        if "ends" in names and self.vocabulary.style is not Style.WORDS:
            raise ValueError(f"the loss of ends is for a vocabulary of words, not of {self.vocabulary.style.value}s")

    def outputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return self.net.heads(batch["audio"]) if self.spelling else (self.net(batch["audio"]),)

    def term(self, name: str, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        samples = batch["samples"]
        if name in ("tokens", "starts", "ends"):
            logits, frames = outputs[0].float(), self._frames(self.net, samples)
            tokens = logits[:, : self.vocabulary.mark]
            if name == "tokens":
                return losses.ctc(tokens, batch["tokens"], frames, batch["tokens_length"])
            target, begun = self.alignment(batch, logits.shape[-1])
            return losses.framed(tokens, target, frames) if name == "ends" else losses.begun(logits, begun, frames)
        frames = self._frames(self.net.body.layers()[0], samples)
        if name == "characters":
            return losses.ctc(outputs[1].float(), batch["letters"], frames, batch["letters_length"])
        model = self.teacher[0]
        return losses.distillation(
            outputs[1].float(), batch["teacher"] if model is None else model(batch["audio"]), frames
        )

    def alignment(self, batch: Batch, frames: int) -> tuple[Tensor, Tensor]:
        """The token of every frame (batch, frames), words being around their ends; and where words begin."""
        if "ends" not in batch:
            raise ValueError("these losses need the times of words, which these recordings do not have")
        words, count = batch["tokens"], batch["tokens_length"]
        centres = (torch.arange(frames, device=words.device) + 0.5) * float(1 / self.net.ratio)
        target = torch.zeros(len(words), frames, dtype=torch.long, device=words.device)
        begun = torch.zeros_like(target, dtype=torch.bool)
        for k in range(words.shape[1]):
            start, end, said = batch["starts"][:, k, None], batch["ends"][:, k, None], (k < count)[:, None]
            begun = begun | (said & (centres >= start) & (centres < start + BEGUN * self.rate))
            over = said & (centres >= end - EARLY * self.rate) & (centres < end + LATE * self.rate)
            target = torch.where(over, words[:, k, None], target)
        return target, begun

    @staticmethod
    def _frames(layer: Any, samples: Tensor) -> Tensor:
        return samples * layer.ratio.numerator // layer.ratio.denominator

    def measure(self, net: Network, batch: Batch) -> Sums:
        logits = net(batch["audio"]).float()
        frames = self._frames(net, batch["samples"])
        loss = float(losses.ctc(logits[:, : self.vocabulary.mark], batch["tokens"], frames, batch["tokens_length"]))
        seconds = float(1 / (net.ratio * self.rate))
        said = [
            transcript(row[:, :n].cpu().numpy(), self.vocabulary, seconds)
            for row, n in zip(logits, frames.tolist(), strict=True)
        ]
        wanted = [text_of(row) for row in batch["text"]]
        letters, words = char_errors(said, wanted), word_errors(said, wanted)
        return {
            "cer": (letters.edits, letters.total),
            "wer": (words.edits, words.total),
            "loss": (loss * len(said), len(said)),
        }


def text_bytes(text: str) -> np.ndarray[Any, Any]:
    """A transcript as an array, to travel with a batch."""
    return np.frombuffer(normalise(text).encode(), np.uint8).copy()


def text_of(row: Tensor) -> str:
    """The transcript of a row that ``text_bytes`` made and padding followed."""
    return bytes(row.to(torch.uint8).tolist()).rstrip(b"\0").decode()
