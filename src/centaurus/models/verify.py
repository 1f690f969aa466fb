"""The laws of a network, checked for whoever built or trained it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from centaurus.laws import Law, measure
from centaurus.layer import Layer
from centaurus.models.network import Network


@dataclass(frozen=True)
class Verification:
    """Every law with its worst error; ``holds`` when all of them do."""

    laws: tuple[Law, ...]

    @property
    def holds(self) -> bool:
        """True when no law is broken."""
        return all(law.holds for law in self.laws)

    def json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"holds": self.holds, "laws": [law._asdict() | {"holds": law.holds} for law in self.laws]}

    def __str__(self) -> str:
        head = f"{'law':<46} {'worst':>9} {'allowed':>9}"
        broken = sum(not law.holds for law in self.laws)
        end = "all laws hold" if self.holds else f"{broken} of {len(self.laws)} laws are broken"
        return "\n".join([head, *map(_line, self.laws), end])


def _line(law: Law) -> str:
    return f"{law.name:<46} {law.worst:>9.2g} {law.tolerance:>9.2g}  {'ok' if law.holds else 'BROKEN'}"


def verify(model: Layer, channels: int = 1, batch: int = 2, hops: int | None = None, seed: int = 0) -> Verification:
    """Check every law on noise: pieces equal the whole, causal, rows independent, and so on.

    For a network it is the part that streams; heads for training only are left out. The model is not changed.
    """
    layer = model.body if isinstance(model, Network) else model
    few = hops if hops is not None else max(4, -(-100 // layer.hop))
    return Verification(tuple(measure(layer, channels, batch, few, seed)))
