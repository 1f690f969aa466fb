"""What is learnt: a network with its losses for training and its figures for validation, one class a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from centaurus.models.classifier import Classifier
from centaurus.models.denoiser import Denoiser
from centaurus.models.network import Network
from centaurus.training import losses
from centaurus.training.answers import Answers
from centaurus.training.relative import RELATIVE_LOSSES, to_unit
from centaurus.training.weights import Weight, read_weights

Batch = dict[str, Tensor]
Terms = dict[str, Tensor]
SOFTNESS = 2.0  # of a teacher's answers: what it thinks of the other classes counts too
Sums = dict[str, tuple[float, float]]  # a figure is its first sum over its second


class Example(NamedTuple):
    """A signal to listen to while training."""

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
        """Samples a second."""
        return int(self.net.settings["sample_rate"])

    @final  # type: ignore[misc]
    def forward(self, batch: Batch, progress: float) -> Terms:
        """Every loss with its weight, by name, and the sum."""
        chosen = [weight for weight in self.weights if weight.first or weight.last]
        outputs = self.outputs(batch)
        with torch.autocast(device_type=batch["audio"].device.type, enabled=False):
            terms = {w.name: w.at(progress) * self.term(w.name, outputs, batch) for w in chosen}
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    @abstractmethod
    def outputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """What the network gives for a batch."""

    @abstractmethod
    def term(self, name: str, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        """One loss by its name, without its weight."""

    @abstractmethod
    def measure(self, net: Network, batch: Batch) -> Sums:
        """Sums of figures over the rows of a validation batch, for the network given (the average)."""

    def examples(self, net: Network, batch: Batch) -> list[Example]:
        """Signals of a validation batch worth hearing."""
        return [Example("input", batch["audio"][0, 0])]


@final
class Classify(Objective):
    """Keyword spotting: the last frame's logits against labels, smoothed while training, and a teacher's answers.

    The teacher hears what the network hears, variations and all: there is no end of such examples.
    """

    monitor = "accuracy"

    def __init__(
        self,
        net: Classifier,
        weights: str = "cross_entropy:1",
        smoothing: float = 0.0,
        teacher: Answers | None = None,
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
            ours, theirs = (functional.log_softmax(x.float() / SOFTNESS, 1) for x in outputs)
            return SOFTNESS**2 * functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)
        return functional.cross_entropy(outputs[0].float(), batch["label"], label_smoothing=self.smoothing)

    def measure(self, net: Network, batch: Batch) -> Sums:
        logits, rows = net(batch["audio"])[..., -1].float(), len(batch["label"])
        right = int((logits.argmax(1) == batch["label"]).sum())
        loss = float(functional.cross_entropy(logits, batch["label"], reduction="sum"))
        return {"accuracy": (right, rows), "loss": (loss, rows)}


@final
class Clean(Objective):
    """Denoising: losses between the network's samples and the clean ones; the best network has the least of them."""

    monitor = "loss"
    lower_is_better = True

    def __init__(self, net: Denoiser, weights: str = "smooth_l1:1, erb:0..1") -> None:
        super().__init__(net, read_weights(weights, (*losses.WAVE_LOSSES, *RELATIVE_LOSSES)))

    def outputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (self.net(batch["audio"]),)

    def term(self, name: str, outputs: tuple[Tensor, ...], batch: Batch) -> Tensor:
        estimate, clean = outputs[0].float(), batch["clean"]
        if name in RELATIVE_LOSSES:
            return RELATIVE_LOSSES[name](*to_unit(batch["audio"], estimate, clean))
        return losses.WAVE_LOSSES[name](estimate, clean, self.rate)

    def measure(self, net: Network, batch: Batch) -> Sums:
        clean, lengths = batch["clean"], batch["samples"].tolist()
        estimate = net(batch["audio"]).float()
        final = sum(w.last * self.term(w.name, (estimate,), batch) for w in self.weights)
        sums: Sums = {"loss": (float(final) * len(lengths), len(lengths))}
        for name, signal in (("si_sdr", estimate), ("si_sdr_before", batch["audio"])):
            each = [_si_sdr(signal[k, 0, :n], clean[k, 0, :n]) for k, n in enumerate(lengths)]
            sums[name] = float(np.sum(each)), len(lengths)
        return sums

    def examples(self, net: Network, batch: Batch) -> list[Example]:
        samples = int(batch["samples"][0])
        named = {"noisy": batch["audio"], "clean": batch["clean"], "estimate": net(batch["audio"])}
        return [Example(name, x[0, 0, :samples]) for name, x in named.items()]


def _si_sdr(estimate: Tensor, clean: Tensor) -> float:
    """In dB, of one signal."""
    return -10 * float(losses.negative_si_sdr(estimate[None], clean[None], 0))
