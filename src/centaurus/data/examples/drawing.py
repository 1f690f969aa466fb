"""The items of an epoch: some groups whole, of others a different share every time.

Everything here is a function of seed and epoch, so that any number of workers and processes sees the same data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Group:
    """``count`` items, of which an epoch has a ``share``: 1 for all of them, 0.01 for one in a hundred."""

    count: int
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"a share should be above 0 and up to 1, got {self.share}")

    @property
    def size(self) -> int:
        """Items in an epoch, at least one of a group that has any."""
        return min(self.count, max(1, round(self.count * self.share)))


def epoch_size(groups: Sequence[Group]) -> int:
    """Return the number of items in an epoch, which is the same for every epoch."""
    return sum(group.size for group in groups)


def draw(groups: Sequence[Group], seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the items of an epoch in random order, numbered through all groups.

    Epochs take their share of a group one after the other from one shuffled sequence, then from another: 100 epochs of
    1 % see every item once.
    """
    parts, offset = [], 0
    for number, group in enumerate(groups):
        first = epoch * group.size
        places = np.arange(first, first + group.size)
        cycles = places // max(1, group.count)
        part = np.empty(group.size, np.int64)
        for cycle in np.unique(cycles):
            chosen = cycles == cycle
            part[chosen] = _shuffled(group.count, seed, number, int(cycle))[places[chosen] % group.count]
        parts.append(part + offset)
        offset += group.count
    items = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return np.random.default_rng([seed, 1, epoch]).permutation(items)


@lru_cache(maxsize=8)
def _shuffled(count: int, seed: int, group: int, cycle: int) -> NDArray[np.int32]:
    """Return a permutation as int32, equal to the one as int64 with half the memory."""
    return np.random.default_rng([seed, 0, group, cycle]).permutation(np.arange(count, dtype=np.int32))


def evenly_spaced(count: int, limit: int) -> list[int]:
    """Return all indices below ``count``, or ``limit`` of them at equal distances if 0 < limit < count."""
    return [k * count // limit for k in range(limit)] if 0 < limit < count else list(range(count))
