"""The precision of a layer: at least single, double with double parameters, regardless of autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def working(dtype: torch.dtype) -> torch.dtype:
    """Kernels, transforms and states are never narrower than single precision."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_precision(u: Tensor, dtype: torch.dtype) -> None:
    """A signal is never rounded silently: a double-precision one needs a double-precision layer."""
    if u.dtype == torch.float64 and dtype != torch.float64:
        raise TypeError("this layer is float32 and the signal float64: use layer.double() or u.float()")


def without_autocast(u: Tensor) -> AbstractContextManager[object]:
    """No autocast on the signal's device; some devices, like meta, have none to begin with."""
    kind = u.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
