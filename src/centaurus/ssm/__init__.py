"""State-space layers: ``SSM``, whose topologies are one equation each, and the selective ``S6``.

The layers are imported when first used, so that the equations are available without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from centaurus.ssm.topology import EQUATIONS, Topology

if TYPE_CHECKING:
    from centaurus.ssm.layer import SSM
    from centaurus.ssm.selective import S6

_HOMES = {"SSM": "centaurus.ssm.layer", "S6": "centaurus.ssm.selective"}

__all__ = ["EQUATIONS", "S6", "SSM", "Topology"]


def __getattr__(name: str) -> Any:
    """Import a layer from its module, once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'centaurus.ssm' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
