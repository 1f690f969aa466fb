"""The rates that this process plans with."""

from __future__ import annotations

import torch
from torch import Tensor

from centaurus.native.functions import usable
from centaurus.planner.device import Device


def current(tensor: Tensor) -> Device:
    """Return the rates of a tensor's device on torch's threads, with the native recurrence if it takes the tensor."""
    return Device.load(tensor.device.type, torch.get_num_threads(), usable(tensor))
