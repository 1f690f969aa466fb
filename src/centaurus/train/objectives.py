"""Training objectives: a network with its losses for training and its metrics for validation, one class per task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from centaurus.audio import char_errors, word_errors
from centaurus.decode import LATE, Style, Vocabulary, normalise, transcript
from centaurus.kernels.precision import without_autocast
from centaurus.models.build import Classifier, Denoiser, Recognizer
from centaurus.models.network import Network
from centaurus.train import losses
from centaurus.train.losses import RELATIVE_LOSSES, Weight, read_weights, to_unit
from centaurus.train.targets import Answers, Wav2Vec2

Batch = dict[str, Tensor]
Terms = dict[str, Tensor]
POSITIVE = 3.0  # weight of a frame at the end of a word: there are far fewer of them than of background
TEMPERATURE = 2.0  # of distillation: above 1, the probabilities of the other classes count more
Sums = dict[str, tuple[float, float]]  # a figure is its first sum over its second


class Example(NamedTuple):
    """A signal for the log of a run."""

    name: str
    samples: Tensor


class Objective(nn.Module, ABC):
    """Called with a batch and the fraction of training done: the weighted losses by name, and their sum as ``loss``."""

    monitor: ClassVar[str]  # the figure that decides which model is best
    lower_is_better: ClassVar[bool] = False

    def __init__(self, net: Network, weights: tuple[Weight, ...]) -> None:
        super().__init__()
        self.net = net
        self.weights = weights

    @property
    def rate(self) -> int:
        """Sample rate in Hz."""
        return int(self.net.settings["sample_rate"])

    @final  # type: ignore[misc]
    def forward(self, batch: Batch, progress: float | Tensor) -> Terms:
        """Return every loss with its weight, by name, and the sum.

        ``progress`` is a tensor so that torch.compile does not recompile for every value.
        """
        chosen = [weight for weight in self.weights if weight.first or weight.last]
        outputs = self.outputs(batch)
        with without_autocast(batch["audio"]):
            terms = {w.name: w.at(progress) * self.term(w.name, outputs, batch) for w in chosen}
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    @abstractmethod
    def outputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the outputs of the network for a batch."""

    @abstractmethod
    def term(self, name: str, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """Return one loss by its name, without its weight."""

    @abstractmethod
    def measure(self, net: Network, batch: Batch) -> Sums:
        """Return sums of figures over the rows of a validation batch, for this network (the average)."""

    def examples(self, net: Network, batch: Batch) -> list[Example]:
        """Return signals of a validation batch for the log: audio and spectrograms."""
        return [Example("input", batch["audio"][0, 0])]


@final
class Classify(Objective):
    """Keyword spotting: the last frame's logits against labels, smoothed while training, and a teacher's logits.

    The teacher gets the same augmented audio as the network.
    """

    monitor = "accuracy"

    def __init__(
        self, net: Classifier, weights: str = "cross_entropy:1", smoothing: float = 0.0, teacher: Answers | None = None
    ) -> None:
        super().__init__(net, read_weights(weights, ("cross_entropy", "taught")))
        if any(weight.name == "taught" for weight in self.weights) != (teacher is not None):
            raise ValueError(f"a teacher and a weight of 'taught' belong together: the losses are {weights!r}")
        self.smoothing, self.teacher = smoothing, teacher

    def outputs(self, batch: Batch) -> tuple[Tensor, ...]:
        answers = () if self.teacher is None else (self.teacher(batch["audio"]),)
        return (self.net(batch["audio"])[..., -1], *answers)

    def term(self, name: str, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        if name == "taught":
            ours, theirs = (functional.log_softmax(x.float() / TEMPERATURE, 1) for x in outputs)
            return TEMPERATURE**2 * functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)
        return functional.cross_entropy(outputs[0].float(), batch["label"], label_smoothing=self.smoothing)

    def measure(self, net: Network, batch: Batch) -> Sums:
        logits, rows = net(batch["audio"])[..., -1].float(), len(batch["label"])
        right = int((logits.argmax(1) == batch["label"]).sum())
        loss = float(functional.cross_entropy(logits, batch["label"], reduction="sum"))
        return {"accuracy": (right, rows), "loss": (loss, rows)}


@final
class Spot(Objective):
    """Keyword spotting in streams: cross entropy of every frame against its label.

    ``negatives`` is the weight of a frame of background; one at the end of a word weighs ``POSITIVE``. A validation
    gives the weighted loss, the share of words whose label is never the most probable (``misses``) and the share of
    background frames in which a word is (``alarms``).
    """

    monitor = "loss"
    lower_is_better = True

    def __init__(self, net: Classifier, negatives: float = 3.0, smoothing: float = 0.05) -> None:
        super().__init__(net, read_weights("frames:1", ("frames",)))
        self.negatives, self.smoothing = negatives, smoothing

    def outputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (self.net(batch["audio"]),)

    def term(self, name: str, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        return self._loss(outputs[0].float(), batch, self.smoothing)

    def _loss(self, logits: Tensor, batch: Batch, smoothing: float = 0.0) -> Tensor:
        labels = batch["labels"]
        each = functional.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
        weights = batch["weights"] * torch.where(labels == logits.shape[1] - 1, self.negatives, POSITIVE)
        return (each * weights).sum() / weights.sum().clamp_min(1e-6)

    def measure(self, net: Network, batch: Batch) -> Sums:
        logits, labels, rows = net(batch["audio"]).float(), batch["labels"], len(batch["labels"])
        background = logits.shape[1] - 1
        said, counted = logits.argmax(1), batch["weights"] > 0
        quiet = counted & (labels == background)
        words, hits = 0, 0
        for row, right in zip(labels, said == labels, strict=True):
            edges = (torch.diff(row, prepend=row.new_tensor([background])) != 0).nonzero().flatten().tolist()
            for first, last in pairwise([*edges, len(row)]):
                if row[first] != background:
                    words, hits = words + 1, hits + bool(right[first:last].any())
        return {
            "loss": (float(self._loss(logits, batch)) * rows, rows),
            "misses": (words - hits, max(1, words)),
            "alarms": (int((quiet & (said != background)).sum()), max(1, int(quiet.sum()))),
        }


@final
class Clean(Objective):
    """Denoising: losses between the network's samples and the clean ones; the best network has the lowest loss."""

    monitor = "loss"
    lower_is_better = True

    def __init__(self, net: Denoiser, weights: str = "smooth_l1:1, erb:0..1") -> None:
        super().__init__(net, read_weights(weights, (*losses.WAVE_LOSSES, *RELATIVE_LOSSES)))

    def outputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (self.net.aligned(batch["audio"]),)

    def term(self, name: str, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        estimate, clean = outputs[0].float(), batch["clean"]
        if name in RELATIVE_LOSSES:
            return RELATIVE_LOSSES[name](*to_unit(batch["audio"], estimate, clean))
        return losses.WAVE_LOSSES[name](estimate, clean, self.rate)

    def measure(self, net: Network, batch: Batch) -> Sums:
        clean, lengths = batch["clean"], batch["samples"].tolist()
        estimate = net.aligned(batch["audio"]).float()
        final = sum(w.last * self.term(w.name, (estimate,), batch) for w in self.weights)
        sums: Sums = {"loss": (float(final) * len(lengths), len(lengths))}
        for name, signal in (("si_sdr", estimate), ("si_sdr_before", batch["audio"])):
            ratios = [losses.negative_si_sdr(signal[k, :, :n], clean[k, :, :n], 0) for k, n in enumerate(lengths)]
            sums[name] = float(np.sum([-10 * float(ratio) for ratio in ratios])), len(lengths)  # dB
        return sums

    def examples(self, net: Network, batch: Batch) -> list[Example]:
        samples = int(batch["samples"][0])
        named = {"noisy": batch["audio"], "clean": batch["clean"], "estimate": net.aligned(batch["audio"])}
        return [Example(name, x[0, 0, :samples]) for name, x in named.items()]


LOSSES = ("tokens", "characters", "distillation", "starts", "ends")
BEGUN = 0.1  # seconds after the start of a word that count as its start
EARLY = 0.1  # seconds before the end of a word at which its token starts; it lasts until LATE after it


@final
class Recognise(Objective):
    """Losses ``tokens`` and ``characters`` (CTC of each head), and ``distillation`` of characters from a teacher.

    Where the times of words are known, ``starts`` trains the mark where words begin, and ``ends`` moves their tokens,
    which CTC may place anywhere, to their ends.
    """

    monitor = "cer"
    lower_is_better = True
    net: Recognizer

    def __init__(
        self, net: Recognizer, weights: str = "tokens:1, characters:1", teacher: Wav2Vec2 | None = None
    ) -> None:
        super().__init__(net, read_weights(weights, LOSSES))
        self.teacher = [teacher]  # in a list, so that it is not registered as a submodule
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
        """Return the token of every frame (batch, frames), words being around their ends; and where words begin."""
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
        rows = [row[:, :n].cpu().numpy() for row, n in zip(logits, frames.tolist(), strict=True)]
        said = [transcript(row, self.vocabulary, seconds) for row in rows]
        references = [text_of(row) for row in batch["text"]]
        letters, words = char_errors(said, references), word_errors(said, references)
        return {
            "cer": (letters.edits, letters.total),
            "wer": (words.edits, words.total),
            "loss": (loss * len(said), len(said)),
        }


def text_bytes(text: str) -> np.ndarray[Any, Any]:
    """Return a transcript as an array, which can be part of a batch."""
    return np.frombuffer(normalise(text).encode(), np.uint8).copy()


def text_of(row: Tensor) -> str:
    """Return the transcript of a row that ``text_bytes`` made and collation padded."""
    return bytes(row.to(torch.uint8).tolist()).rstrip(b"\0").decode()
