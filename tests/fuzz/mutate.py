"""Damage to files, from a seed: bits, bytes, numbers, and pieces that are lost, doubled or out of place."""

from __future__ import annotations

import numpy as np

EXTREME = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
HEAD = 256  # most of what can go wrong is near the beginning


def mutate(data: bytes, seed: int) -> bytes:
    """The data with one to eight kinds of damage; the same for the same seed."""
    rng = np.random.default_rng(seed)
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 9)) if rng.random() < 0.5 else 1):
        out = _damage(out, rng)
    return bytes(out)


def _damage(data: bytearray, rng: np.random.Generator) -> bytearray:
    if not data:
        return data
    span = min(len(data), HEAD) if rng.random() < 0.5 else len(data)
    at = int(rng.integers(span))
    length = int(rng.integers(1, 65))
    kind = int(rng.integers(8))
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        data[at] = int(rng.integers(256))
    elif kind == 2:
        width = int(rng.choice([1, 2, 4, 8]))
        number = EXTREME[rng.integers(len(EXTREME))] % 256**width
        data[at : at + width] = number.to_bytes(width, "little" if rng.random() < 0.5 else "big")
    elif kind == 3:
        del data[at : at + length]
    elif kind == 4:
        data[at:at] = data[at : at + length]
    elif kind == 5:
        data[at:at] = rng.bytes(length)
    elif kind == 6:
        del data[at:]
    else:
        other = int(rng.integers(len(data)))
        data[at : at + length] = data[other : other + length]
    return data
