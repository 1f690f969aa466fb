"""What a name on the command line means: a network of the tables, or a trained model by its file or shipped name."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from centaurus.layer import Layer
    from centaurus.planner import Plan


def network(name: str) -> Layer:
    """``kws-hybrid-8``, ``denoiser/hybrid``, ``recognizer/base``, a model file or a shipped model's name."""
    check_file(name)
    from centaurus.models import build, load, shipped
    from centaurus.system import HUB

    file = Path(name).is_file() or name.endswith(".safetensors")
    return load(name) if file or name.startswith(HUB) or name in shipped() else build(name)


def check_file(name: str) -> None:
    """Refuse a file that is not there or not a model that torch reads: before torch is imported, which takes long."""
    from centaurus.runtime.modelfile import SUFFIX, WEIGHTS, SessionError, check_kind, shipped_models

    path = Path(name)
    if path.is_file():
        check_kind(path, (WEIGHTS,))
    elif path.suffix in (WEIGHTS, SUFFIX):
        known = ", ".join(shipped_models())
        raise SessionError(f"there is no model file {name!r:.200}, and no shipped model of that name ({known})")


def is_topology(name: str) -> bool:
    """Whether a layer of that name stands for one of the equations."""
    from centaurus.ssm import EQUATIONS

    return name in EQUATIONS


def planned_layers(net: Layer, batch: int, length: int) -> list[tuple[str, Plan]]:
    """Every SSM layer of a network with its plan, at the length the signal has there."""
    hops = -(-length // net.hop)
    return list(_planned("", net, batch, Fraction(hops * net.hop)))


def _planned(name: str, layer: Layer, batch: int, length: Fraction) -> Iterator[tuple[str, Plan]]:
    from centaurus.nn.containers import Composite
    from centaurus.ssm import SSM

    if isinstance(layer, SSM):
        yield name, layer.plan(batch=batch, length=int(length))
    elif isinstance(layer, Composite):
        for part in layer.parts():
            yield from _planned(f"{name}.{part.name}".lstrip("."), part.layer, batch, length * part.ratio)
