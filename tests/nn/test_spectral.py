"""Spectral layers against the formulas they stand for, written out frame by frame in double precision."""

from __future__ import annotations

from fractions import Fraction
from math import exp

import pytest
import torch
from torch import Tensor

from centaurus.layer import Layer
from centaurus.nn import Analysis, Compress, Delay, Hourglass, Mask, Mel, Pointwise, Residual, Serial, Stream, Synthesis
from tests.check_layer import check_layer

WINDOW, SYNTHESIS, HOP, BINS = 512, 256, 128, 257


def window() -> Tensor:
    past = WINDOW - HOP
    rise = torch.sin(torch.pi * (torch.arange(past, dtype=torch.float64) + 0.5) / (2 * past))
    fall = torch.cos(torch.pi * (torch.arange(HOP, dtype=torch.float64) + 0.5) / (2 * HOP))
    return torch.cat([rise, fall])


def frames(x: Tensor) -> list[Tensor]:
    """The windowed spectrum of the frame that ends with each hop of a signal (t,)."""
    padded = torch.cat([torch.zeros(WINDOW - HOP, dtype=x.dtype), x])
    w = window()
    return [torch.fft.rfft(w * padded[k : k + WINDOW]) / w.square().sum().sqrt() for k in range(0, len(x), HOP)]


def noise(hops: int, batch: int = 1) -> Tensor:
    return torch.randn(batch, 1, hops * HOP, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def spectra(hops: int) -> Tensor:
    return Analysis().double()(noise(hops))


def test_analysis_is_the_spectrum_of_the_frames_that_end_with_each_hop() -> None:
    x = noise(6)
    expected = torch.stack([torch.cat([f.real, f.imag]) for f in frames(x[0, 0])], dim=-1)
    torch.testing.assert_close(Analysis().double()(x)[0], expected, rtol=0, atol=1e-12)


def test_synthesis_adds_the_newest_samples_of_every_frame() -> None:
    x = noise(6)
    n = torch.arange(SYNTHESIS, dtype=torch.float64)
    w = window()
    shape = torch.sin(torch.pi * (n + 0.5) / SYNTHESIS) ** 2 / w[-SYNTHESIS:]
    whole = torch.zeros(6 * HOP + SYNTHESIS, dtype=torch.float64)
    for k, frame in enumerate(frames(x[0, 0])):
        signal = torch.fft.irfft(frame * w.square().sum().sqrt(), WINDOW)
        whole[k * HOP : k * HOP + SYNTHESIS] += signal[-SYNTHESIS:] * shape
    result = Synthesis().double()(spectra(6))[0, 0]
    torch.testing.assert_close(result, whole[: 6 * HOP], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("size", "synthesis", "hop"), [(512, 256, 128), (512, 512, 128), (320, 240, 80), (64, 32, 16)])
def test_synthesis_undoes_analysis_after_its_delay(size: int, synthesis: int, hop: int) -> None:
    both = Serial([Analysis(size, hop), Synthesis(size, synthesis, hop)]).double()
    assert (both.hop, both.ratio, both.delay) == (hop, 1, synthesis - hop)
    x = torch.randn(2, 1, 9 * hop, dtype=torch.float64)
    late = int(both.delay)
    torch.testing.assert_close(both(x)[..., late:], x[..., : 9 * hop - late], rtol=0, atol=1e-12)
    assert both(x)[..., :late].abs().max() < 1e-12


def test_compress_follows_the_level_and_raises_to_the_power() -> None:
    x, power, release = spectra(7), 0.3, 375.0
    decay, num, den = exp(-1 / release), 0.0, 0.0
    result = Compress(BINS, power, release, 2).double()(x)
    for k in range(7):
        re, im = x[0, :BINS, k], x[0, BINS:, k]
        p = re**2 + im**2
        num, den = decay * num + (1 - decay) * p[2:].mean(), decay * den + (1 - decay)
        level = num / den + 1e-10
        r = p / level + 1e-8
        s, c = r ** (power / 2), r ** ((power - 1) / 2) / level.sqrt()
        torch.testing.assert_close(result[0, :, k], torch.cat([s, re * c, im * c]), rtol=1e-10, atol=1e-12)


def test_compressed_spectra_do_not_depend_on_loudness() -> None:
    x = spectra(7)
    torch.testing.assert_close(Compress().double()(100 * x), Compress().double()(x), rtol=1e-6, atol=1e-7)
    bands = Mel(power=0.3, release=100.0).double()
    torch.testing.assert_close(bands(100 * x), bands(x), rtol=1e-6, atol=1e-7)


def test_mel_bands_are_triangles_on_power() -> None:
    x, bands = spectra(4), 20
    power = x[0, :BINS] ** 2 + x[0, BINS:] ** 2
    mels = torch.linspace(*(2595 * torch.log10(1 + torch.tensor([60.0, 7800.0]).double() / 700)), bands + 2).double()
    edges = 700 * (10 ** (mels / 2595) - 1)
    rows = []
    for a, b, c in zip(edges, edges[1:], edges[2:], strict=False):
        hertz = torch.arange(BINS, dtype=torch.float64) * 16_000 / WINDOW
        rows.append((torch.minimum((hertz - a) / (b - a), (c - hertz) / (c - b)).clamp_min(0)[:, None] * power).sum(0))
    expected = 0.2 * torch.log(torch.stack(rows) + 1e-7)
    torch.testing.assert_close(Mel(bands=bands).double()(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_mask_is_a_complex_product_and_starts_at_one() -> None:
    x = spectra(4)
    body = Pointwise(2 * BINS, 2 * BINS).double()
    mask = body(x)
    x_c, m_c = torch.complex(*x.chunk(2, 1)), torch.complex(*mask.chunk(2, 1))
    expected = x_c * (1 + m_c)
    torch.testing.assert_close(Mask(body)(x), torch.cat([expected.real, expected.imag], 1), rtol=0, atol=1e-12)
    torch.nn.init.zeros_(body.weight)
    torch.testing.assert_close(Mask(body)(x), x)


def test_a_mask_of_several_taps_adds_products_of_earlier_frames() -> None:
    x, taps, low = spectra(5), 3, 7
    body = Pointwise(2 * BINS, 2 * (BINS + (taps - 1) * low)).double()
    factors = body(x)
    x_c, m_c = torch.complex(*x.chunk(2, 1)), torch.complex(*factors[:, : 2 * BINS].chunk(2, 1))
    expected = x_c * (1 + m_c)
    for age, factor in enumerate(factors[:, 2 * BINS :].chunk(taps - 1, 1), start=1):
        expected[:, :low, age:] += torch.complex(*factor.chunk(2, 1))[..., age:] * x_c[:, :low, :-age]
    filtered = Mask(body, taps=taps, low=low)
    torch.testing.assert_close(filtered(x), torch.cat([expected.real, expected.imag], 1), rtol=0, atol=1e-12)


def test_a_mask_waits_for_its_body() -> None:
    x = spectra(6)
    body = Serial([Pointwise(2 * BINS, 2 * BINS), Delay(2 * BINS, 2)]).double()
    late = Mask(body)
    assert late.delay == 2
    torch.testing.assert_close(late(x)[..., 2:], Mask(body.layers()[0])(x)[..., :4])


LAYERS: dict[str, tuple[Layer, int]] = {
    "analysis": (Analysis(32, 8), 1),
    "window that is not whole hops": (Analysis(32, 10), 1),
    "synthesis": (Synthesis(32, 16, 8), 34),
    "long synthesis": (Synthesis(32, 32, 8), 34),
    "compress": (Compress(17, release=5.0), 34),
    "compress without level": (Compress(17, release=0.0), 34),
    "mel": (Mel(17, 4), 34),
    "mel over its level": (Mel(17, 4, power=0.3, release=5.0), 34),
    "delay": (Delay(3, 5), 3),
    "mask": (Mask(Serial([Compress(17), Pointwise(51, 34)]), 17), 34),
    "late mask": (Mask(Serial([Pointwise(34, 34), Delay(34, 2)]), 17), 34),
    "filter": (Mask(Serial([Compress(17), Pointwise(51, 34 + 30)]), 17, taps=4, low=5), 34),
    "late filter": (Mask(Serial([Pointwise(34, 68), Delay(68, 2)]), 17, taps=2, low=17), 34),
    "whole": (Serial([Analysis(32, 8), Mask(Serial([Compress(17), Pointwise(51, 34)]), 17), Synthesis(32, 16, 8)]), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_laws(name: str) -> None:
    torch.manual_seed(0)
    check_layer(*LAYERS[name])


def test_delays_add_up_at_their_rates() -> None:
    pair = [Analysis(32, 8), Synthesis(32, 24, 8)]
    assert Serial([*pair, *pair]).delay == 32
    assert Serial([Analysis(32, 8), Delay(34, 3), Synthesis(32, 16, 8)]).delay == 3 * 8 + 8
    assert Residual(Delay(2, 3), Serial([Delay(2, 1), Delay(2, 2)])).delay == 3
    assert Synthesis(32, 24, 8).delay == Fraction(2)


def test_branches_of_different_delay_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the same delay, got 3 and 0 samples"):
        Residual(Delay(2, 3))
    with pytest.raises(ValueError, match="down, inside and up should have no delay"):
        Hourglass(Serial(), Serial(), Delay(2, 1), Serial(), Serial())


def test_a_stream_is_late_by_the_delay() -> None:
    live = Stream(Serial([Analysis(), Synthesis()]))
    x = noise(8).float()
    streamed = torch.cat([*(live(piece) for piece in x.split(100, dim=-1)), live.flush()], dim=-1)
    torch.testing.assert_close(streamed[..., HOP:], x[..., :-HOP], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Analysis(33, 8), "even and longer than the hop"),
        (lambda: Analysis(32, 32), "even and longer than the hop"),
        (lambda: Synthesis(32, 20, 8), "multiple of the hop"),
        (lambda: Synthesis(32, 8, 8), "from two hops"),
        (lambda: Compress(power=0.0), "above 0"),
        (lambda: Compress(17, lowest=17), "from 0 to 16"),
        (lambda: Mel(high=9_000.0), "between 0 and 8000 Hz"),
        (lambda: Mel(17, 40), "too many for 17 bins"),
        (lambda: Mask(Analysis()), "ratio 1 and a delay of whole frames"),
        (lambda: Mask(Pointwise(2, 2), 1, taps=2), "low from 1 to 1"),
        (lambda: Mask(Pointwise(2, 2), 1, low=1), r"low .* \(0 for one tap\), got 1"),
    ],
)
def test_what_cannot_be_is_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
