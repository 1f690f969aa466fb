"""The one test of a layer: every law holds."""

from __future__ import annotations

from centaurus.laws import measure
from centaurus.layer import Layer


def check_layer(layer: Layer, channels: int, batch: int = 2, hops: int | None = None, seed: int = 0) -> None:
    """Assert every law for this layer on noise of ``channels`` channels."""
    broken = [law for law in measure(layer, channels, batch, hops, seed) if not law.holds]
    assert not broken, "\n".join(f"{x.name}: worst {x.worst:.3g}, allowed {x.tolerance:.3g}" for x in broken)
