"""What all tests share: hypothesis without deadlines, the torch path, and the device that tests run on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# The torch path is the reference: tests of the native kernels (tests/native) switch them on.
os.environ.setdefault("CENTAURUS_NATIVE", "0")


def _devices() -> list[str]:
    try:
        import torch
    except ImportError:
        return ["cpu"]
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=_devices())
def device(request: pytest.FixtureRequest) -> Any:
    """The CPU, and CUDA too where there is one."""
    import torch

    return torch.device(request.param)


# Started in the background by a shell, the tests would ignore interrupts, and so would every command they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
