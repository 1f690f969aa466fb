"""What a name on the command line means: a table's network, or a trained model by its file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from centaurus.contract import Plan
    from centaurus.layer import Layer, State


def network(name: str) -> Layer:
    """``denoiser/hybrid``, ``classifier/kws-hybrid-8``, ``recognizer/base``, a model file or a shipped model's name."""
    import centaurus as ct

    builders = {"classifier": ct.classifier, "denoiser": ct.denoiser, "recognizer": ct.recognizer}
    kind, _, row = name.partition("/")
    if row and kind in builders and not Path(name).is_file():
        return builders[kind](row)
    return ct.load(name)


def planned_layers(net: Layer, batch: int, length: int) -> list[tuple[str, Plan]]:
    """Every SSM layer of a network with its plan, at the length the signal has there. Nothing is computed."""
    import copy

    import torch

    from centaurus import SSM

    shadow = copy.deepcopy(net).to("meta")
    found: list[tuple[str, Plan]] = []

    def watch(name: str, layer: SSM) -> None:
        run = layer._run

        def noted(u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
            found.append((name, layer.plan(batch=u.shape[0], length=u.shape[-1])))
            return run(u, state, keep)

        object.__setattr__(layer, "_run", noted)

    for name, layer in shadow.named_modules():
        if isinstance(layer, SSM):
            watch(name, layer)
    with torch.no_grad():
        shadow(torch.zeros(batch, 1, length, device="meta"))
    return found


def network_names() -> list[str]:
    """Every network of the tables."""
    from centaurus.models import tables

    return list(tables.NAMES)
