"""A training step leaves the host free: on a device nothing is read back, and nothing copied to it.

The ``meta`` device stands for a GPU: a value of one cannot be read there, and what is copied from the host is seen.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from centaurus.models import ClassifierTable, DenoiserTable, RecognizerTable, classifier, denoiser, recognizer
from centaurus.train.objectives import Batch, Classify, Clean, Objective, Recognise
from centaurus.train.optim import parameter_groups
from tests.models.small import narrow_table

ROWS, SAMPLES, CHARACTERS = 2, 16_384, 32
RATE = {"sample_rate": 16_000}


class Copies(TorchDispatchMode):
    """Collects the operations that move numbers between the host and the device."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        moves = func.overloadpacket.__name__ in ("_to_copy", "copy_")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and (x.dim() or moves)]
        if len({x.device for x in (*tensors, *tree_leaves(out)) if isinstance(x, Tensor)}) > 1:
            self.copies.append(str(func))
        return out


def classify(name: str) -> tuple[Objective, Batch]:
    table = narrow_table(name)
    assert isinstance(table, ClassifierTable)
    return Classify(classifier(table, ["a", "b"], settings=RATE)), {"label": torch.zeros(ROWS, dtype=torch.long)}


def clean(losses: str) -> tuple[Objective, Batch]:
    table = narrow_table("denoiser/hybrid")
    assert isinstance(table, DenoiserTable)
    return Clean(denoiser(table, settings=RATE), losses), {"clean": torch.randn(ROWS, 1, SAMPLES)}


def recognise(losses: str) -> tuple[Objective, Batch]:
    table = narrow_table("recognizer/base")
    assert isinstance(table, RecognizerTable)
    net = recognizer(table, vocabulary=3, characters=CHARACTERS, settings={**RATE, "tokens": ["<blank>", "a", "b"]})
    return Recognise(net, losses), {"teacher": torch.randn(ROWS, CHARACTERS, SAMPLES // 320)}


STEPS = {
    "kws": lambda: classify("kws-hybrid-2"),
    "kws with S6": lambda: classify("kws-s6-2"),
    "denoise": lambda: clean("smooth_l1:1, erb:0..1"),
    "denoise by other losses": lambda: clean("residual:1, heard:1, compressed:1, perceptual:1, si_sdr:1"),
    "asr": lambda: recognise("distillation:1"),  # torch's CTC reads lengths on the host: docs/gpu.md
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_neither_reads_nor_copies(name: str) -> None:
    torch.manual_seed(0)
    objective, more = STEPS[name]()
    batch = {"audio": torch.randn(ROWS, 1, SAMPLES), "samples": torch.full((ROWS,), SAMPLES), **more}
    batch = {key: x.to("meta") for key, x in batch.items()}
    objective = objective.to("meta").train()
    optimizer = torch.optim.AdamW(parameter_groups(objective, 0.01), lr=1e-3, foreach=True)
    progress = torch.full((), 0.5, device="meta")
    copies: list[list[str]] = []
    for _ in range(2):  # tables are made in the first
        with Copies() as seen:
            objective(batch, progress)["loss"].backward()
            nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
            optimizer.step()
        copies.append(seen.copies)
    assert copies[1] == []


def test_copies_and_readings_would_be_seen() -> None:
    x = torch.ones(3, device="meta")
    with Copies() as seen:
        x * torch.ones(3).to(x)
    assert seen.copies == ["aten._to_copy.default"]
    with pytest.raises((RuntimeError, NotImplementedError)):
        float(x.sum())
