"""The training script of the spectral denoiser: it goes on exactly, and from a network with fewer blocks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import centaurus as ct
from centaurus.models.tables import SPECTRAL_32

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from denoise_16k import Training, grow

TABLE = replace(SPECTRAL_32, blocks=tuple(replace(row, channels=8, states=8, times=2) for row in SPECTRAL_32.blocks))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = np.random.default_rng(step).standard_normal((2, 2, 1, 16_000)).astype(np.float32)
    return torch.from_numpy(noise[0] + 0.3 * noise[1]), torch.from_numpy(noise[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_resumes_exactly(tmp_path: Path, precision: str) -> None:
    def training() -> Training:
        return Training(tmp_path, 1.0, 0.5, 0, TABLE, "", precision)

    first = training()
    first.spent = 40.0  # the learning rate falls
    first.update(*batch(0))
    first.save()
    second = training()
    assert (second.step, second.spent) == (1, 40.0)
    for each in (first, second):
        each.update(*batch(1))
    for name, p in first.net.state_dict().items():
        assert torch.equal(p, second.net.state_dict()[name]), name
    assert all(torch.equal(p, second.average[name]) for name, p in first.average.items())


@torch.no_grad()
def test_a_deeper_network_starts_as_the_one_with_fewer_blocks() -> None:
    smaller = ct.denoiser(TABLE).eval()
    deeper = ct.denoiser(replace(TABLE, blocks=tuple(replace(row, times=4) for row in TABLE.blocks))).eval()
    for p in smaller.parameters():
        p.add_(0.1 * torch.randn_like(p))
    u = torch.randn(1, 1, 4096)
    assert not torch.allclose(deeper(u), smaller(u))
    grow(deeper, smaller)
    assert torch.equal(deeper(u), smaller(u))
