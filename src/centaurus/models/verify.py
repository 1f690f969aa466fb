"""The laws of a network, checked for whoever built or trained it."""

from __future__ import annotations

from centaurus.laws import measure
from centaurus.layer import Layer
from centaurus.models.network import Network
from centaurus.verification import Verification


def verify(model: Layer, channels: int = 1, batch: int = 2, hops: int | None = None, seed: int = 0) -> Verification:
    """Check every law on noise: pieces equal the whole, causal, rows independent, and so on.

    For a network it is the part that streams; heads for training only are left out. The model is not changed.
    """
    layer = model.body if isinstance(model, Network) else model
    few = hops if hops is not None else max(4, -(-100 // layer.hop))
    return Verification(tuple(measure(layer, channels, batch, few, seed)))
