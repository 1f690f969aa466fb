"""The training script of the spectral denoiser: exact resume, and start from a network with fewer blocks."""

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

from denoise_16k import Settings, Training, grow, read_settings

TABLE = replace(SPECTRAL_32, blocks=tuple(replace(row, channels=8, states=8, times=2) for row in SPECTRAL_32.blocks))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    noise = np.random.default_rng(step).standard_normal((2, 2, 1, 16_000)).astype(np.float32)
    return torch.from_numpy(noise[0] + 0.3 * noise[1]), torch.from_numpy(noise[0])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_checkpoint_resumes_exactly(tmp_path: Path, precision: str) -> None:
    def training() -> Training:
        return Training(tmp_path, Settings(minutes=1.0, decay=0.5, network=TABLE, precision=precision))

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


def test_modes_of_long_memory_are_exchanged_where_that_is_asked(tmp_path: Path) -> None:
    start = tmp_path / "start.safetensors"
    ct.save(ct.denoiser(TABLE), start)
    kept, renewed = (
        Training(tmp_path / str(share), Settings(network=TABLE, start=str(start), renew=share)) for share in (0.0, 0.75)
    )
    before = ct.load(start).state_dict()
    assert all(torch.equal(x, before[name]) for name, x in kept.net.state_dict().items())
    changed = {name.split(".")[-1] for name, x in renewed.net.state_dict().items() if not torch.equal(x, before[name])}
    assert changed == {"log_dt", "A_real", "A_imag", "B", "C"}
    assert all(torch.equal(x, renewed.net.state_dict()[name]) for name, x in renewed.average.items())


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


@torch.no_grad()
def test_a_mask_of_more_taps_and_a_narrower_ffn_start_as_the_network_before() -> None:
    wide = ct.denoiser(replace(TABLE, expansion=2, taps=1, low=0)).eval()
    for name, p in wide.named_parameters():
        p.add_(0.1 * torch.randn_like(p))
        if name.endswith("narrow.weight"):
            p[:, [3, 7]] = 0  # two units that do nothing
    net = ct.denoiser(replace(TABLE, expansion=14 / 8, taps=3, low=20)).eval()
    grow(net, wide)
    u = torch.randn(1, 1, 4096)
    torch.testing.assert_close(net(u), wide(u), rtol=0, atol=1e-5)


def test_a_model_goes_on_with_a_network_of_its_own(tmp_path: Path) -> None:
    small = ct.denoiser(replace(TABLE, taps=1, low=0))
    ct.save(small, tmp_path / "small.safetensors")
    settings = read_settings([f"start={tmp_path / 'small.safetensors'}", "network=same", "losses=0,1,0", "rows=2"])
    assert (settings.rows, settings.weights()) == (2, {"residual": 0.0, "heard": 1.0, "perceptual": 0.0})
    training = Training(tmp_path / "run", settings)
    training.update(*batch(0))
    assert ct.load(training.finish()).table == small.table
    for wrong, said in ((["rows=2", "row=3"], "row is not a setting"), (["network=same"], "goes with start=MODEL")):
        with pytest.raises(SystemExit, match=said):
            Training(tmp_path / "other", read_settings(wrong))
