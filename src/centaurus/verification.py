"""The report of a verification, by torch or by the runtime: each law with its worst error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Law(NamedTuple):
    """One law: its name, the worst error measured and the error allowed."""

    name: str
    worst: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """True when the worst error is a number within the tolerance."""
        return self.worst <= self.tolerance

    def __str__(self) -> str:
        return f"{self.name:<46} {self.worst:>9.2g} {self.tolerance:>9.2g}  {'ok' if self.holds else 'BROKEN'}"


@dataclass(frozen=True)
class Verification:
    """Every law with its worst error; ``holds`` when all of them do."""

    laws: tuple[Law, ...]

    @property
    def holds(self) -> bool:
        """True when no law is broken."""
        return all(law.holds for law in self.laws)

    def json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"holds": self.holds, "laws": [law._asdict() | {"holds": law.holds} for law in self.laws]}

    def __str__(self) -> str:
        head = f"{'law':<46} {'worst':>9} {'allowed':>9}"
        broken = sum(not law.holds for law in self.laws)
        end = "all laws hold" if self.holds else f"{broken} of {len(self.laws)} laws are broken"
        return "\n".join([head, *map(str, self.laws), end])
