"""Spectral front ends: short-time spectra in and out, compression, mel bands, and a complex mask.

A spectrum of ``window`` samples is a frame of ``2 · bins`` channels, ``bins = window // 2 + 1``: the real parts of all
bins, then their imaginary parts. Frame k covers the ``window`` samples that end with the last sample of hop k, so no
frame looks ahead. A long analysis window may be used with a short synthesis window: the frequency
resolution is that of the one, the delay that of the other.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import exp, log10, pi
from typing import Any

import torch
from torch import Tensor

from centaurus.layer import Counts, Layer, State, check_channels, state_tensors
from centaurus.nn.containers import Composite, Part, Serial, inner
from centaurus.nn.layers import Delay, Remembering, at_least_one, history, leaky_sum

POWER, RELEASE, LOWEST = 0.3, 375.0, 2  # exponent of magnitudes; 3 s of 125 frames a second; below it lie DC and rumble
RELATIVE_FLOOR = 1e-8  # -80 dB below the level
LEVEL_FLOOR = 1e-10  # of the mean power: -100 dBFS
MOST_WINDOW, MOST_BANDS = 1 << 16, 1024
LOG_FLOOR, LOG_SCALE = 1e-7, 0.2  # of a band's power, and what brings log power to about one


@lru_cache(maxsize=64)
def _windows(window: int, hop: int, synthesis: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.no_grad():
        made = analysis_window(window, hop), synthesis_window(window, hop, synthesis)
        return made[0].to(device, dtype), made[1].to(device, dtype)


def analysis_window(window: int, hop: int) -> Tensor:
    """Return a sine window that falls over the last hop and rises over the rest: (window,), energy one, float64."""
    past = window - hop
    rise = torch.sin(pi * (torch.arange(past, dtype=torch.float64, device="cpu") + 0.5) / (2 * past))
    fall = torch.cos(pi * (torch.arange(hop, dtype=torch.float64, device="cpu") + 0.5) / (2 * hop))
    whole = torch.cat([rise, fall])
    return whole / whole.square().sum().sqrt()


def synthesis_window(window: int, hop: int, synthesis: int) -> Tensor:
    """Return what makes the last ``synthesis`` samples of a frame a Hann window whose overlaps sum to one."""
    n = torch.arange(synthesis, dtype=torch.float64, device="cpu")
    hann = torch.sin(pi * (n + 0.5) / synthesis) ** 2 * (2 * hop / synthesis)
    return hann / analysis_window(window, hop)[-synthesis:]


def mel_filters(bins: int, bands: int, rate: float, low: float, high: float) -> Tensor:
    """Return triangles of height one, evenly spaced on the mel scale: (bands, bins), float64."""
    first, last = (2595 * log10(1 + hertz / 700) for hertz in (low, high))
    edges = 700 * (10 ** (torch.linspace(first, last, bands + 2, dtype=torch.float64, device="cpu") / 2595) - 1)
    at = torch.linspace(0, rate / 2, bins, dtype=torch.float64, device="cpu")
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.minimum((at - left) / (centre - left), (right - at) / (right - centre)).clamp_min(0)


@lru_cache(maxsize=16)
def _filters(shape: tuple[int, int], band: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return mel_filters(*shape, *band).to(device, dtype)


def stages(window: int, rows: int) -> tuple[int, int]:
    """Return how a transform of ``window`` samples is split into two stages: (columns, length), product ``window``.

    The columns also divide ``rows``, the number of samples needed, and ``length`` is even. Of these splits it is the
    one with the fewest products.
    """
    possible = [a for a in range(1, window // 2 + 1) if window % (2 * a) == 0 and rows % a == 0]
    return min(((a, window // a) for a in possible), key=lambda split: transform_products(split[0], split[1], rows))


def transform_products(columns: int, length: int, samples: int) -> int:
    """Return the multiplications of a two-stage transform of a real frame, or of its last ``samples``."""
    groups = length // 2 + 1
    return 2 * groups * samples + groups * (2 * columns) ** 2


def _check_window(window: int, hop: int) -> None:
    at_least_one(window=window, hop=hop)
    if window > MOST_WINDOW:
        raise ValueError(f"a window should have at most {MOST_WINDOW} samples, got {window}")
    if window % 2 or hop >= window:
        raise ValueError(f"a window should be even and longer than the hop, got window={window} and hop={hop}")


class Analysis(Remembering):
    """Short-time spectra: (batch, 1, t) to (batch, 2 · bins, t / hop), real parts and then imaginary parts.

    ``window`` is the length of a frame in samples (even), ``hop`` the samples from frame to frame. The state is the
    last ``window - hop`` samples. White noise of RMS 1 has a power of 1 in every bin but the first and last.
    """

    def __init__(self, window: int = 512, hop: int = 128) -> None:
        _check_window(window, hop)
        super().__init__(1)
        self.window, self.hop, self.ratio = window, hop, Fraction(1, hop)
        self.bins = window // 2 + 1
        self.cost = Counts(flops=Fraction(2 * transform_products(*stages(window, window), window) + window, hop))

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, 1, self.window - self.hop)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("Analysis", u, 1)
        u = u.float() if u.dtype in (torch.bfloat16, torch.float16) else u
        (past,) = history(self, state, u.shape[0])
        x = torch.cat([past.to(u.dtype), u], dim=-1)[:, 0]
        window, _ = _windows(self.window, self.hop, self.hop, x.dtype, x.device)
        spectrum = torch.fft.rfft(x.unfold(-1, self.window, self.hop) * window)  # b k f
        y = torch.cat([spectrum.real, spectrum.imag], dim=-1).transpose(1, 2)
        return y, x[:, None, u.shape[-1] :].clone() if keep else ()


class Synthesis(Remembering):
    """Signals from spectra: (batch, 2 · bins, k) to (batch, 1, k · hop), the inverse of ``Analysis``, delayed.

    Of every frame the newest ``synthesis`` samples are windowed and added to those of the frames before; the oldest hop
    of that sum is complete and goes out. The delay is ``synthesis - hop`` samples.
    """

    def __init__(self, window: int = 512, synthesis: int = 256, hop: int = 128) -> None:
        _check_window(window, hop)
        super().__init__(window + 2)
        if synthesis % hop or not 2 * hop <= synthesis <= window:
            raise ValueError(
                f"a synthesis window should be a multiple of the hop, from two hops to the analysis window, "
                f"got synthesis={synthesis} with hop={hop} and window={window}"
            )
        self.window, self.synthesis, self.step_samples = window, synthesis, hop
        self.ratio = Fraction(hop)
        self.delay = Fraction(synthesis - hop, hop)
        self.cost = Counts(flops=2 * transform_products(*stages(window, synthesis), synthesis) + 2 * synthesis)

    def arguments(self) -> dict[str, Any]:
        return {"window": self.window, "synthesis": self.synthesis, "hop": self.step_samples}

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, 1, self.synthesis - self.step_samples)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("Synthesis", u, self.channels)
        u = u.float() if u.dtype in (torch.bfloat16, torch.float16) else u
        (past,) = history(self, state, u.shape[0])
        hop, frames, overlaps = self.step_samples, u.shape[-1], self.synthesis // self.step_samples
        _, window = _windows(self.window, hop, self.synthesis, u.dtype, u.device)
        real, imaginary = u.transpose(1, 2).chunk(2, dim=-1)
        signal = torch.fft.irfft(torch.complex(real, imaginary), n=self.window)[..., -self.synthesis :] * window
        pieces = signal.unflatten(-1, (overlaps, hop))  # b k overlap hop
        whole = torch.nn.functional.pad(past.to(u.dtype).view(len(u), overlaps - 1, hop), (0, 0, 0, frames))
        for age in range(overlaps):
            whole = whole + torch.nn.functional.pad(pieces[:, :, age], (0, 0, age, overlaps - 1 - age))
        y, rest = whole[:, :frames], whole[:, frames:]
        return y.flatten(1)[:, None], rest.flatten(1)[:, None].clone() if keep else ()


class Leveling(Remembering):
    """A layer on spectra that follows their level: an exponential mean of the power of bins from ``lowest`` on.

    ``release`` is in frames; the mean is corrected for its start, so the first frame has its own level. The state
    (batch, 2, 1) is the mean of the power and the sum of its weights, both zero at the start.
    """

    def __init__(self, bins: int, release: float, lowest: int) -> None:
        at_least_one(bins=bins)
        super().__init__(2 * bins)
        if release < 0:
            raise ValueError(f"the release of a level should be a number of frames from 0, got {release}")
        if not 0 <= lowest < bins:
            raise ValueError(f"the lowest bin of a level should be from 0 to {bins - 1}, got {lowest}")
        self.bins, self.release, self.lowest = bins, release, lowest
        self.decay = exp(-1 / release) if release else 0.0

    def init_state(self, batch: int) -> State:
        return self.like.new_zeros(batch, 2, 1) if self.release else ()

    def power_over_level(self, u: Tensor, state: State | None) -> tuple[Tensor, Tensor, State]:
        """Power over level (b, f, k), the level (b, 1, k) and the state after it; without a release the level is 1."""
        check_channels(type(self).__name__, u, 2 * self.bins)
        power = u[:, : self.bins].square() + u[:, self.bins :].square()
        if not self.release:
            return power, torch.ones_like(power[:, :1]), ()
        (past,) = history(self, state, u.shape[0])
        mean = power[:, self.lowest :].mean(1, keepdim=True)
        both = torch.cat([mean, torch.ones_like(mean)], dim=1) * (1 - self.decay)
        sums = leaky_sum(both, self.decay, past.to(both.dtype))
        level = sums[:, :1] / sums[:, 1:] + LEVEL_FLOOR
        return power / level, level, sums[..., -1:].clone()


class Compress(Leveling):
    """Compressed spectra, independent of the input level: (batch, 2 · bins, k) to (batch, 3 · bins, k).

    Magnitudes over the level to the power ``power``; then real and imaginary parts of that magnitude. ``release`` is
    in frames, ``lowest`` the first bin that counts for the level.
    """

    def __init__(self, bins: int = 257, power: float = POWER, release: float = RELEASE, lowest: int = LOWEST) -> None:
        super().__init__(bins, release, lowest)
        if not 0 < power <= 1:
            raise ValueError(f"the power of a compression should be above 0 and at most 1, got {power}")
        self.power = power

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        relative, level, after = self.power_over_level(u, state)
        relative = relative + RELATIVE_FLOOR
        magnitude = relative ** (self.power / 2)
        scale = magnitude * (relative * level).rsqrt()
        parts = u.unflatten(1, (2, self.bins)) * scale[:, None]
        return torch.cat([magnitude, parts.flatten(1, 2)], dim=1), after if keep else ()


class Mel(Leveling):
    """Mel bands of the power of spectra: (batch, 2 · bins, k) to (batch, bands, k).

    ``bands`` triangles from ``low`` to ``high`` Hz for spectra of a signal at ``rate``. With ``release`` above 0 (in
    frames) the power is taken over its level, as in ``Compress``. The result is that power to ``power / 2``, or with
    ``power=0`` its logarithm.
    """

    def __init__(
        self,
        bins: int = 257,
        bands: int = 48,
        rate: int = 16_000,
        low: float = 60.0,
        high: float = 7_800.0,
        power: float = 0.0,
        release: float = 0.0,
        lowest: int = LOWEST,
    ) -> None:
        super().__init__(bins, release, lowest)
        at_least_one(bands=bands, rate=rate)
        if bins > MOST_WINDOW // 2 + 1 or bands > MOST_BANDS:
            raise ValueError(
                f"there should be at most {MOST_BANDS} bands of {MOST_WINDOW // 2 + 1} bins, got {bands}, {bins}"
            )
        if not 0 <= low < high <= rate / 2:
            raise ValueError(f"mel bands should lie between 0 and {rate / 2:g} Hz, got low={low} and high={high}")
        if not 0 <= power <= 1:
            raise ValueError(f"the power of a compression should be from 0 (a logarithm) to 1, got {power}")
        self.bands, self.power = bands, power
        self.rate, self.low, self.high = int(rate), float(low), float(high)
        self.band = (float(rate), self.low, self.high)
        empty = (mel_filters(bins, bands, *self.band).amax(1) == 0).nonzero().flatten().tolist()
        if empty:
            raise ValueError(f"{bands} mel bands are too many for {bins} bins: band {empty[0]} holds none of them")
        self.cost = Counts(flops=2 * bins * bands)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        relative, _, after = self.power_over_level(u, state)
        bands = _filters((self.bins, self.bands), self.band, u.dtype, u.device) @ relative
        if self.power:
            y = (bands + RELATIVE_FLOOR) ** (self.power / 2)
        else:
            y = LOG_SCALE * (bands + LOG_FLOOR).log()
        return y, after if keep else ()


class Mask(Composite):
    """Multiply spectra by a complex mask: (batch, 2 · bins, k) to the same shape.

    ``body`` takes the spectra and gives the real and imaginary parts (2 · bins channels) of a complex mask less one:
    a body that gives zeros leaves the spectra unchanged. The spectra are delayed by the delay of the body.

    With ``taps`` above 1 the lowest ``low`` bins are filtered over time: after the mask the body gives, for the frame
    before, the one before that and so on, real parts and then imaginary parts (2 · low channels a frame) of what these
    frames are multiplied by; the products are added.
    """

    def __init__(self, body: Layer, bins: int = 257, taps: int = 1, low: int = 0) -> None:
        super().__init__()
        if body.ratio != 1 or body.delay.denominator != 1:
            raise ValueError(
                f"the body of a mask should have ratio 1 and a delay of whole frames, "
                f"got ratio {body.ratio} and delay {body.delay}"
            )
        at_least_one(bins=bins, taps=taps)
        if not (0 < low <= bins if taps > 1 else low == 0):
            raise ValueError(f"a mask of {taps} taps should have low from 1 to {bins} (0 for one tap), got {low}")
        self.body, self.bins, self.taps, self.low = body, bins, taps, low
        self.wait = Delay(2 * bins, int(body.delay)) if body.delay else Serial()
        self.hop, self.delay = body.hop, body.delay
        self.cost = Counts(flops=8 * (bins + (taps - 1) * low))

    def arguments(self) -> dict[str, Any]:
        several = {"taps": self.taps, "low": self.low} if self.taps > 1 else {}
        return {"body": self.body, "bins": self.bins} | several

    def parts(self) -> list[Part]:
        return [Part("body", self.body, Fraction(1)), Part("wait", self.wait, Fraction(1))]

    def init_state(self, batch: int) -> State:
        inside = self.body.init_state(batch), self.wait.init_state(batch)
        return (*inside, self._no_past(batch)) if self.taps > 1 else inside

    def _no_past(self, batch: int) -> Tensor:
        like = next(self.body.parameters(), torch.empty(0))
        return like.new_zeros(batch, 2 * self.low, self.taps - 1)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("Mask", u, 2 * self.bins)
        first, second, *rest = inner(state, 2 if self.taps == 1 else 3)
        mask, first = self.body.run(u, first, keep)
        check_channels("Mask's product", mask, 2 * (self.bins + (self.taps - 1) * self.low))
        u, second = self.wait.run(u, second, keep)
        re, im = u[:, : self.bins], u[:, self.bins :]
        a, b = mask[:, : self.bins], mask[:, self.bins : 2 * self.bins]
        y = u + torch.cat([a * re - b * im, a * im + b * re], dim=1)
        if self.taps == 1:
            return y, (first, second)
        (past,) = state_tensors(self._no_past(len(u)) if rest[0] is None else rest[0])
        x = torch.cat([past.to(u.dtype), torch.cat([re[:, : self.low], im[:, : self.low]], dim=1)], dim=-1)
        added = self._earlier_frames(x, mask[:, 2 * self.bins :])
        more = torch.nn.functional.pad(added, (0, 0, 0, self.bins - self.low)).flatten(1, 2)
        return y + more, (first, second, x[..., u.shape[-1] :].clone() if keep else ())

    def _earlier_frames(self, x: Tensor, factors: Tensor) -> Tensor:
        """Sum the products of earlier frames: x (b, 2 · low, taps - 1 + k), factors by tap, to (b, 2, low, k)."""
        total, frames = x.new_zeros(()), factors.shape[-1]
        for age, factor in enumerate(factors.chunk(self.taps - 1, dim=1), start=1):
            start = self.taps - 1 - age
            re, im = x[..., start : start + frames].chunk(2, dim=1)
            a, b = factor.chunk(2, dim=1)
            total = total + torch.stack([a * re - b * im, a * im + b * re], dim=1)
        return total
