"""Softmax and shape checks of logits (features, frames)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def check_frames(logits: NDArray[np.floating], features: int, of: str) -> None:
    """Raise ValueError unless logits are (features, frames)."""
    if logits.ndim != 2 or logits.shape[0] != features:
        raise ValueError(f"logits should be ({features}, frames) for the {features} {of}, got {logits.shape}")


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return probabilities over the first axis, in double precision."""
    x = logits.astype(np.float64)
    x = np.exp(x - x.max(axis=0, keepdims=True, initial=-np.inf)) if x.shape[0] else x
    return np.asarray(x / x.sum(axis=0, keepdims=True))
