"""Losses against what they are defined to be, and how their weights are written."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from centaurus.train import losses
from centaurus.train.losses import (
    ENOUGH,
    MAGNITUDE,
    RELATIVE_LOSSES,
    RELATIVE_SIZES,
    RUMBLE,
    Power,
    Weight,
    audible,
    compressed,
    erb_share,
    heard,
    read_weights,
    residual,
    to_unit,
)
from tests.reference import gradients, worst

RATE = 16_000


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_smooth_l1_is_quadratic_below_beta_and_linear_above() -> None:
    clean = torch.zeros(1, 1, 1)
    assert float(losses.smooth_l1(clean + 0.25, clean, RATE)) == pytest.approx(0.25**2)  # ½ e² / ½
    assert float(losses.smooth_l1(clean + 2.0, clean, RATE)) == pytest.approx(2.0 - 0.25)


@pytest.mark.parametrize("size", losses.SIZES)
@pytest.mark.parametrize("rate", [8000, 16_000, 48_000])
def test_erb_bands_cover_the_spectrum_and_none_is_empty(size: int, rate: int) -> None:
    filters = losses.erb_filters(size, rate)
    assert filters.shape == (losses.BANDS, size // 2 + 1)
    assert torch.allclose(filters.sum(1), torch.ones(losses.BANDS), atol=1e-5)
    covered = filters.sum(0) > 0
    hertz = torch.arange(size // 2 + 1) * rate / size
    assert bool(covered[hertz >= 50 + rate / size].all())
    peaks = filters.argmax(1)
    assert bool((peaks.diff() >= 0).all())


def test_the_spectral_loss_does_not_hear_phase_but_hears_level() -> None:
    t = torch.arange(RATE) / RATE
    tone = 0.1 * torch.sin(2 * math.pi * 1000 * t)[None, None]
    shifted = 0.1 * torch.cos(2 * math.pi * 1000 * t)[None, None]
    other = 0.1 * torch.sin(2 * math.pi * 1500 * t)[None, None]
    assert float(losses.erb(tone, tone, RATE)) < 1e-9
    assert float(losses.erb(shifted, tone, RATE)) < 0.1 * float(losses.erb(other, tone, RATE))
    assert float(losses.erb(0.5 * tone, tone, RATE)) > float(losses.erb(0.9 * tone, tone, RATE)) > 1e-4


def test_spectral_gradients_are_finite_at_silence() -> None:
    estimate = torch.zeros(2, 1, 4000, requires_grad=True)
    losses.erb(estimate, torch.zeros(2, 1, 4000), RATE).backward()
    assert estimate.grad is not None
    assert bool(estimate.grad.isfinite().all())


@given(scale=st.floats(0.1, 10), ratio=st.floats(-10, 30))
def test_si_sdr_knows_the_ratio_whatever_the_scale(scale: float, ratio: float) -> None:
    clean, error = noise(1, 1, 4000), noise(1, 1, 4000, seed=1)
    clean, error = clean - clean.mean(), error - error.mean()
    error = error - clean * (error * clean).sum() / clean.square().sum()
    error = error * (clean.norm() / error.norm()) * 10 ** (-ratio / 20)
    result = -10 * float(losses.negative_si_sdr(scale * (clean + error), clean, RATE))
    assert result == pytest.approx(ratio, abs=0.02)


def test_ctc_of_a_certain_path_is_nothing_and_long_transcripts_add_nothing() -> None:
    logits = torch.full((2, 3, 4), -20.0)
    for frame, symbol in enumerate([1, 0, 2, 2]):
        logits[:, symbol, frame] = 20.0
    targets = torch.tensor([[1, 2, 0, 0, 0], [1, 1, 1, 1, 1]])
    frames = torch.tensor([4, 4])
    loss = losses.ctc(logits, targets, frames, torch.tensor([2, 5]))
    assert float(loss) == pytest.approx(0, abs=1e-5)
    assert float(losses.ctc(logits, targets, frames, torch.tensor([1, 1]))) > 5


def test_distillation_is_divergence_over_the_frames_both_have() -> None:
    student, teacher = noise(2, 5, 7), noise(2, 5, 6, seed=1)
    frames = torch.tensor([7, 3])
    p, q = teacher.softmax(1), student.softmax(1)
    each = [float((p[b, :, t] * (p[b, :, t] / q[b, :, t]).log()).sum()) for b, n in ((0, 6), (1, 3)) for t in range(n)]
    assert float(losses.distillation(student, teacher, frames)) == pytest.approx(sum(each) / 9, rel=1e-5)
    assert float(losses.distillation(teacher, teacher, frames)) == pytest.approx(0, abs=1e-6)
    with pytest.raises(ValueError, match="teacher has 4 characters, the character head 5"):
        losses.distillation(student, teacher[:, :4], frames)


def test_weights_are_read_and_move() -> None:
    weights = read_weights("smooth_l1:1, erb:0..1", losses.WAVE_LOSSES)
    assert weights == (Weight("smooth_l1", 1, 1), Weight("erb", 0, 1))
    assert [weight.at(0.25) for weight in weights] == [1, 0.25]
    assert read_weights("erb:2.5e-1..0.5", losses.WAVE_LOSSES) == (Weight("erb", 0.25, 0.5),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smooth_l2:1", "no loss 'smooth_l2'.*did you mean smooth_l1"),
        ("erb", "written as name:weight"),
        ("erb:-1", "written as name:weight"),
        ("erb:1,erb:2", "given twice"),
        ("erb:0", "every weight"),
    ],
)
def test_weights_that_make_no_sense_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_weights(text, losses.WAVE_LOSSES)


@pytest.mark.parametrize("name", sorted(RELATIVE_LOSSES))
def test_relative_losses_are_the_same_at_any_level(name: str) -> None:
    noisy, clean, estimate = noise(2, 1, 4096), noise(2, 1, 4096, seed=1), noise(2, 1, 4096, seed=2)
    result = [float(RELATIVE_LOSSES[name](*to_unit(g * noisy, g * estimate, g * clean))) for g in (1.0, 0.02)]
    assert result[0] == pytest.approx(result[1], rel=1e-3, abs=2e-3)
    better = float(RELATIVE_LOSSES[name](*to_unit(noisy, clean + 0.1 * noisy, clean)))
    assert better < result[0]
    assert math.isfinite(float(RELATIVE_LOSSES[name](*to_unit(0 * noisy, 0 * noisy, 0 * noisy))))


def test_the_residual_counts_tens_of_decibels() -> None:
    noisy = noise(3, 1, 1000)
    estimate, clean = to_unit(noisy, math.sqrt(0.1) * noisy, 0 * noisy)
    assert float(residual(estimate, clean)) == pytest.approx(math.log10(0.1 + ENOUGH), abs=1e-3)


def test_compressed_spectra_depend_on_magnitude_and_phase() -> None:
    x = noise(1, 1, 8192)
    assert float(compressed(x, x)) == 0
    assert float(compressed(-x, x)) > 0.1
    assert float(compressed(-x, x)) == pytest.approx(4 * (1 - MAGNITUDE) * _mean_power(x), rel=0.02)


def test_the_heard_loss_weights_low_frequencies_more() -> None:
    x = noise(2, 1, 8192)
    assert float(heard(x, x)) == 0
    time = torch.arange(8192) / 16_000
    tones = [0.3 * torch.sin(2 * math.pi * f * time).expand(2, 1, -1) for f in (500.0, 6000.0)]
    low, high = (float(heard(x + tone, x)) for tone in tones)
    plain = [float(compressed(x + tone, x)) for tone in tones]
    assert low / high > 5 * plain[0] / plain[1]  # the ERB-rate scale is 8.5 times as dense there
    weights = erb_share(257)
    assert float(weights.sum()) == pytest.approx(1)
    below = math.log1p(0.00437 * 1000) / math.log1p(0.00437 * 8000)
    assert float(weights[:33].sum()) == pytest.approx(below, abs=0.03)
    assert float(weights[2] / weights[3]) == pytest.approx((1 + 0.00437 * 93.75) / (1 + 0.00437 * 62.5))


def test_rumble_does_not_count() -> None:
    clean, time = noise(1, 1, RATE), torch.arange(RATE) / RATE
    low, voice = (heard(clean + torch.sin(2 * math.pi * hertz * time), clean) for hertz in (RUMBLE[0] - 5, 120.0))
    assert float(low) < 1e-3 * float(voice)
    for length in (RATE, RATE - 1):  # a tone above is left as it is
        tone = torch.sin(2 * math.pi * 120.0 * time)[None, :length]
        assert float((audible(tone) - tone)[..., 2000:-2000].abs().max()) < 0.01


def _mean_power(x: torch.Tensor) -> float:
    """The mean square of compressed magnitudes: what turning every phase around is measured by."""
    result = []
    for size in RELATIVE_SIZES:
        spectrum = torch.stft(x[0], size, size // 2, window=torch.hann_window(size), return_complex=True)
        result.append(float(spectrum.abs().pow(0.6).mean()))
    return sum(result) / len(result)


def test_band_powers_are_those_of_a_full_scale_sine() -> None:
    """A sine of amplitude one has a power of one in its own bin and a quarter in its neighbours (the Hann window)."""
    tone = torch.sin(2 * math.pi * 1000 * torch.arange(RATE) / RATE)[None]
    for size in losses.SIZES:
        bin_ = 1000 * size // RATE
        power = torch.zeros(size // 2 + 1)
        power[bin_ - 1 : bin_ + 2] = torch.tensor([0.25, 1.0, 0.25])
        expected = losses.erb_filters(size, RATE) @ power
        middle = losses._bands(tone, size, RATE)[0, :, 20]
        assert float((middle ** (2 / losses.COMPRESSION)).max()) == pytest.approx(float(expected.max()), rel=0.02)


@pytest.mark.parametrize(("level", "counts"), [(-91.0, False), (-89.0, True)])
def test_rows_without_speech_do_not_count_in_si_sdr(level: float, counts: bool) -> None:
    """Below -90 dBFS a row has no speech: its ratio has no meaning and leaves the mean as it was."""
    clean, error = noise(2, 1, 4000), noise(2, 1, 4000, seed=1)
    clean = clean - clean.mean(-1, keepdim=True)
    clean[1] *= 10 ** (level / 20) / clean[1].square().mean().sqrt()
    estimate = torch.stack([clean[0] + 0.1 * error[0], clean[1] + error[1]])
    both, alone = (float(losses.negative_si_sdr(x, y, RATE)) for x, y in ((estimate, clean), (estimate[:1], clean[:1])))
    assert (both != pytest.approx(alone, rel=1e-4)) == counts


def test_relative_spectra_have_a_floor() -> None:
    """Where both signals are far below the floor the difference is nothing, and gradients stay finite at silence."""
    loud, quiet = noise(1, 1, 4096), 1e-4 * noise(1, 1, 4096)
    assert float(compressed(quiet, -quiet)) < 1e-3 * float(compressed(loud, -loud))
    silent = torch.zeros(1, 1, 4096, requires_grad=True)
    compressed(silent, torch.zeros(1, 1, 4096)).backward()
    assert silent.grad is not None
    assert bool(silent.grad.isfinite().all())


def op_by_op(estimate: torch.Tensor, clean: torch.Tensor, size: int, shares: torch.Tensor) -> torch.Tensor:
    """The difference of compressed spectra as its definition has it, by torch's own transform and derivatives."""
    result = []
    for x in (estimate, clean):
        spectrum = torch.stft(x[:, 0], size, size // 2, window=torch.hann_window(size).to(x), return_complex=True)
        floor = losses.RELATIVE_FLOOR * size / RELATIVE_SIZES[0]
        magnitude = (torch.view_as_real(spectrum).square().sum(-1) + floor).sqrt()
        small = magnitude**losses.COMPRESSION
        result.append((small, torch.view_as_real(spectrum) * (small / magnitude)[..., None]))
    (ours, parts), (theirs, others) = result
    each = MAGNITUDE * (ours - theirs).square() + (1 - MAGNITUDE) * (parts - others).square().sum(-1)
    return (each.mean((0, 2)) * shares.to(each)).sum()


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("samples", [4096, 5000])
def test_closed_forms_are_the_derivatives(native: str, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENTAURUS_NATIVE", native)
    clean = noise(3, 1, samples)
    clean[1] = 0
    estimate = (0.7 * clean + 0.1 * noise(3, 1, samples, seed=1)).requires_grad_()
    for size in RELATIVE_SIZES:
        shares = erb_share(size // 2 + 1)
        value = heard(estimate, clean, (size,))
        exact = op_by_op(audible(estimate.double()), audible(clean.double()), size, shares)
        assert worst([value, *gradients([value], [estimate])], [exact, *gradients([exact], [estimate])]) < 2e-5
    power = Power.apply(estimate[:, 0], 512, 128)
    window = torch.hann_window(512).double()
    spectrum = torch.stft(estimate[:, 0].double(), 512, 128, window=window, center=False, return_complex=True)
    plain = spectrum.abs().square().transpose(1, 2)
    assert worst([power, *gradients([power], [estimate])], [plain, *gradients([plain], [estimate])]) < 1e-5
