"""A padded batch with lengths gives every row what it gives alone, whatever the padding holds."""

from __future__ import annotations

import pytest
import torch

from centaurus.layer import Layer
from centaurus.ssm import SSM
from tests.models.small import narrow

LAYERS = {
    "ssm": lambda: SSM("full", 2, 3, states=2),
    "classifier": lambda: narrow("kws-hybrid-2"),
    "denoiser": lambda: narrow("denoiser/hybrid-conv"),
}


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_rows_of_a_padded_batch_are_as_alone(name: str) -> None:
    torch.manual_seed(0)
    layer: Layer = LAYERS[name]().double().eval()
    longest = 5 * layer.hop + 1
    lengths = torch.tensor([longest, 2 * layer.hop + layer.hop // 2 + 1, 3 * layer.hop])
    u = torch.randn(3, 2 if name == "ssm" else 1, longest, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        u[row, :, length:] = 1e6
    y = layer(u, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = layer(u[row : row + 1, :, :length])[0]
        torch.testing.assert_close(y[row, :, : alone.shape[-1]], alone, rtol=1e-9, atol=1e-9)
        assert not y[row, :, alone.shape[-1] :].any()


@pytest.mark.parametrize("lengths", [[5], [5, 11], [5, -1], [5.0, 5.0]])
def test_lengths_that_do_not_fit_are_named(lengths: list[float]) -> None:
    with pytest.raises(ValueError, match="2 integers from 0 to 10"):
        SSM("full", 1, 2)(torch.randn(2, 1, 10), lengths)
