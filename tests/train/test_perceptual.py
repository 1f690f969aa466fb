"""The perceptual loss: zero for a copy, ordered like PESQ, independent of level, finite everywhere."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from centaurus.data.synthetic import Speaker, speak, word_phones
from centaurus.train.losses import bark_scale, perceptual

LENGTH = 32_000


@pytest.fixture(scope="module")
def speech() -> torch.Tensor:
    rng = np.random.default_rng(0)
    word = [x for k in range(6) for x in word_phones(f"word {k}")]
    x = speak(word, Speaker.draw(rng), rng)
    x = np.resize(x, LENGTH)
    return torch.from_numpy(x / x.std()).float()[None, None]


def noise(seed: int = 0) -> torch.Tensor:
    return torch.randn(1, 1, LENGTH, generator=torch.Generator().manual_seed(seed))


def test_the_bands_divide_the_spectrum_and_share_every_bin_once() -> None:
    scale = bark_scale()
    assert torch.allclose(scale.shares[:, 1:].sum(0), torch.ones(scale.shares.shape[1] - 1), atol=1e-5)
    assert bool((scale.shares.sum(1) > 0).all())
    assert scale.width * len(scale.centres) == pytest.approx(21.3, abs=0.1)  # Bark at 8 kHz


def test_a_copy_is_not_disturbed_and_more_noise_disturbs_more(speech: torch.Tensor) -> None:
    result = [float(perceptual(speech + gain * noise(), speech)) for gain in (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)]
    assert result[0] < 0.01
    assert all(b > a + 0.02 for a, b in pairwise(result))


def test_what_is_added_costs_more_than_what_is_missing(speech: torch.Tensor) -> None:
    hiss = speech + 0.1 * noise()
    added, missing = (float(perceptual(*pair)) for pair in ((hiss, speech), (speech, hiss)))
    assert added > 1.2 * missing


def test_level_and_mild_filters_hardly_matter(speech: torch.Tensor) -> None:
    noisy = float(perceptual(speech + 0.1 * noise(), speech))
    assert float(perceptual(0.5 * speech, speech)) < 0.02 * noisy + 0.01
    assert float(perceptual(0.5 * speech + 0.05 * noise(), speech)) == pytest.approx(noisy, rel=1e-3)


def test_rows_without_speech_do_not_count_and_gradients_are_finite(speech: torch.Tensor) -> None:
    estimate = torch.cat([speech + 0.1 * noise(), noise(1)]).requires_grad_()
    clean = torch.cat([speech, torch.zeros_like(speech)])
    loss = perceptual(estimate, clean)
    alone = perceptual(speech + 0.1 * noise(), speech)
    assert loss.item() == pytest.approx(alone.item(), rel=1e-5)
    loss.backward()
    assert estimate.grad is not None
    assert bool(torch.isfinite(estimate.grad).all())
    assert float(estimate.grad[1].abs().max()) == 0 < float(estimate.grad[0].abs().max())


def test_it_follows_pesq(speech: torch.Tensor) -> None:
    pesq = pytest.importorskip("pesq").pesq
    degraded = [speech + 10 ** (-snr / 20) * noise() for snr in (0, 5, 10, 15, 20, 30)]
    degraded += [speech.clamp(-top, top) for top in (0.3, 1.0)]
    expected = [pesq(16_000, speech[0, 0].numpy(), x[0, 0].numpy(), "wb") for x in degraded]
    actual = [-float(perceptual(x, speech)) for x in degraded]
    ranks = [np.argsort(np.argsort(x)) for x in (expected, actual)]
    assert np.corrcoef(*ranks)[0, 1] > 0.9


def test_rows_are_silent_from_60_db_below_the_input_on(speech: torch.Tensor) -> None:
    """Speech at a mean square of 4e-6 counts, at 2.5e-7 it does not: the threshold is 1e-6."""
    estimate = speech + 0.1 * noise()
    alone = float(perceptual(estimate, speech))
    for gain, counts in ((2e-3, True), (5e-4, False)):
        clean = torch.cat([speech, gain * speech])
        both = float(perceptual(torch.cat([estimate, noise(1)]), clean))
        assert (both != pytest.approx(alone, rel=1e-3)) == counts
