"""The order of the data, a pure function of seed, epoch and index, and batches in that order for this process.

All epochs are one endless sequence of positions; an optimiser step takes the next ``batch`` of them, whatever the
number of processes, and a resumed run starts at the position where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from centaurus.data.examples.rows import evenly_spaced

Item = dict[str, np.ndarray[Any, Any]]
Key = tuple[int, int]


class Examples(Protocol):
    """Examples to train or validate on. Whatever is random in an example comes from the generator it is given."""

    def size(self) -> int:
        """Examples in an epoch."""

    def draw(self, epoch: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """The examples of this epoch, ``size()`` of them, in order: a permutation, or a fresh selection."""

    def example(self, index: int, rng: np.random.Generator) -> Item:
        """One example: arrays by name, ``audio`` (1, time) among them."""


class Keyed(Dataset[Item]):
    """A corpus by (epoch, index): the same key gives the same numbers in any process."""

    def __init__(self, corpus: Examples, seed: int) -> None:
        self.corpus, self.seed = corpus, seed

    def __getitem__(self, key: Key) -> Item:
        return self.corpus.example(key[1], np.random.default_rng([self.seed, 1, *key]))


class Order(Sampler[list[Key]]):
    """Batches of keys for one process from a step on, without end."""

    def __init__(self, corpus: Examples, seed: int, batch: int, rank: int = 0, ranks: int = 1, start: int = 0) -> None:
        if corpus.size() < 1:
            raise ValueError("there is nothing to train on: the corpus has no examples")
        if batch % ranks:
            raise ValueError(f"a batch of {batch} rows cannot be shared equally by {ranks} processes")
        self.share, self.rank, self.batch, self.start = batch // ranks, rank, batch, start
        self.size = corpus.size()

        @lru_cache(maxsize=2)
        def order(epoch: int) -> np.ndarray[Any, Any]:
            drawn = corpus.draw(epoch, np.random.default_rng([seed, 0, epoch]))
            if len(drawn) != self.size:
                raise ValueError(f"epoch {epoch} has {len(drawn)} examples, the first had {self.size}")
            return drawn

        self.order = order

    def __iter__(self) -> Iterator[list[Key]]:
        for step in count(self.start):
            first = step * self.batch + self.rank * self.share
            yield [self.key(position) for position in range(first, first + self.share)]

    def key(self, position: int) -> Key:
        """Return the key at a position of the endless sequence."""
        epoch, place = divmod(position, self.size)
        return epoch, int(self.order(epoch)[place])


def collate(items: Sequence[Item]) -> dict[str, torch.Tensor]:
    """Arrays of one name stacked; where their last axes differ, zeros follow the shorter ones."""
    return {name: torch.from_numpy(_stack([item[name] for item in items])) for name in items[0]}


def _stack(arrays: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    if arrays[0].ndim == 0 or len({a.shape for a in arrays}) == 1:
        return np.stack(arrays)
    longest = max(a.shape[-1] for a in arrays)
    stacked = np.zeros((len(arrays), *arrays[0].shape[:-1], longest), arrays[0].dtype)
    for row, a in zip(stacked, arrays, strict=True):
        row[..., : a.shape[-1]] = a
    return stacked


def batches(corpus: Examples, seed: int, order: Order, workers: int, pin: bool = False) -> DataLoader[Item]:
    """The endless training batches of this process."""
    return _loader(Keyed(corpus, seed), order, workers, pin)


def validation(corpus: Examples, batch: int, limit: int, rank: int, ranks: int, workers: int) -> DataLoader[Item]:
    """This process's share of the validation examples, once, the same every time."""
    keys = [(0, index) for index in evenly_spaced(corpus.size(), limit)[rank::ranks]]
    groups = [keys[k : k + batch] for k in range(0, len(keys), batch)]
    return _loader(Keyed(corpus, 0), groups, min(workers, len(groups)), False)


def _loader(dataset: Keyed, order: Order | list[list[Key]], workers: int, pin: bool) -> DataLoader[Item]:
    """A generator of its own: torch's global one belongs to the network, and a resumed run must find it untouched."""
    return DataLoader(
        dataset,
        batch_sampler=order,
        num_workers=workers,
        collate_fn=collate,
        prefetch_factor=4 if workers else None,
        pin_memory=pin,
        generator=torch.Generator(),
    )
