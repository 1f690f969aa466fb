"""Modes spread over a band resonate in that band."""

from __future__ import annotations

import pytest
import torch

from centaurus.ssm import SSM


def test_every_mode_resonates_where_it_was_put() -> None:
    torch.manual_seed(0)
    layer = SSM("full", 1, 4, 4, band=(60, 6000, 16_000), dtype=torch.float64)
    step, A = layer.log_dt.exp(), torch.complex(-torch.nn.functional.softplus(layer.A_real), layer.A_imag)
    hertz = (A * step).imag * 16_000 / (2 * torch.pi)
    hertz_sorted = hertz.detach().flatten().sort().values
    assert (float(hertz_sorted[0]), float(hertz_sorted[-1])) == pytest.approx((60, 6000), rel=1e-5)
    assert float((hertz_sorted[1:] - hertz_sorted[:-1]).min()) > 50
    width = -(A * step).real * 16_000 / torch.pi
    torch.testing.assert_close(width, hertz / 3 + 60, rtol=1e-5, atol=0)


@pytest.mark.parametrize("band", [(0.0, 100.0), (200.0, 100.0), (100.0, 9000.0)])
def test_a_band_lies_below_half_the_rate(band: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="8000 Hz"):
        SSM("full", 1, 2, 2, band=(*band, 16_000))


def test_a_band_has_a_rate() -> None:
    with pytest.raises(ValueError, match=r"band should be \(low, high, rate\), all in Hz, got \(60, 6000\)"):
        SSM("full", 1, 2, 2, band=(60, 6000))  # type: ignore[call-overload]
