"""Signals: level in dBFS, mixing, resampling, short-time spectra and spectrograms.

0 dBFS is a root mean square of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from centaurus.system import AnyPath, extra, plot_style, replacing

Signal = NDArray[np.floating[Any]]
Samples = NDArray[np.float32]
COLUMNS = 1200  # the width of a picture in pixels
SIZE = 512  # samples of a window
FLOOR = 80.0  # dB from the brightest colour to the darkest
DPI = 120  # of a picture ten inches wide


def power(x: Signal) -> float:
    """Return the mean square over all samples, summed in float64; zero for no samples."""
    x = np.asarray(x)
    if not x.size:
        return 0.0
    flat = x.reshape(-1)
    if flat.dtype == np.float64:
        return float(np.dot(flat, flat)) / flat.size
    # A dot product per thousand samples is as fast as one, and sums of float32 stay exact enough.
    whole = flat.size // 1024 * 1024
    rows = flat[:whole].reshape(-1, 1024)
    total = np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64)
    rest = flat[whole:].astype(np.float64)
    return (float(total) + float(np.dot(rest, rest))) / flat.size


def dbfs(x: Signal) -> float:
    """Return 20 log10 of the root mean square; −inf for silence."""
    mean = power(x)
    return 10 * math.log10(mean) if mean > 0 else -math.inf


def gain(db: float) -> np.float32:
    """Return the amplitude factor of a gain in dB."""
    return np.float32(10 ** (db / 20))


def to_level(x: Signal, level_dbfs: float) -> Signal:
    """Return the signal scaled to a level in dBFS; silence stays silence."""
    now = dbfs(x)
    return x.copy() if math.isinf(now) else x * gain(level_dbfs - now)


def mix(speech: Signal, noise: Signal, snr_db: float, level_dbfs: float | None = None) -> tuple[Signal, Signal]:
    """Return (noisy, clean): noise added at an SNR in dB, both scaled so that noisy has the level in dBFS.

    Where no SNR exists, silent speech gets the noise unchanged, and silent noise changes nothing.
    """
    if speech.shape != noise.shape:
        raise ValueError(f"speech {speech.shape} and noise {noise.shape} differ in shape")
    of_speech, of_noise = dbfs(speech), dbfs(noise)
    if math.isinf(of_noise):
        noisy = speech.copy()
    elif math.isinf(of_speech):
        noisy = noise.copy()
    else:
        noisy = noise * gain(of_speech - snr_db - of_noise)
        noisy += speech
    now = dbfs(noisy)
    if level_dbfs is None or math.isinf(now):
        return noisy, speech.copy()
    factor = gain(level_dbfs - now)
    noisy *= factor
    return noisy, speech * factor


def resample(x: NDArray[np.floating[Any]], rate_in: float, rate_out: float) -> NDArray[Any]:
    """Return the signal at another rate along the last axis: round(t · rate_out / rate_in) frames, the same dtype."""
    _check_rates(rate_in, rate_out)
    x = np.asarray(x)
    if x.dtype not in (np.float32, np.float64):
        raise ValueError(f"resampling takes float32 or float64, got {x.dtype}")
    if rate_in == rate_out or not x.size:
        frames = x.shape[-1] if rate_in == rate_out else 0
        return x.copy() if x.size else np.zeros((*x.shape[:-1], frames), x.dtype)
    if x.ndim == 1:
        return soxr.resample(np.ascontiguousarray(x), rate_in, rate_out)
    rows = x.reshape(-1, x.shape[-1])
    y = np.stack([soxr.resample(np.ascontiguousarray(row), rate_in, rate_out) for row in rows])
    return y.reshape(*x.shape[:-1], -1)


class Resampler:
    """A stream at another rate: pieces of any length in, what is ready out, the rest with ``flush``."""

    def __init__(self, rate_in: float, rate_out: float, channels: int = 1) -> None:
        _check_rates(rate_in, rate_out)
        self.rate_in, self.rate_out, self.channels = rate_in, rate_out, channels
        self._stream: Any = None
        if rate_in != rate_out:
            self._stream = soxr.ResampleStream(rate_in, rate_out, channels, dtype="float32")
        self._flat = False

    def process(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take (channels, n), or (n,) for one channel, and return the samples that are ready, shaped alike."""
        x = np.asarray(x, dtype=np.float32)
        self._flat = x.ndim == 1
        if x.ndim not in (1, 2) or (1 if self._flat else len(x)) != self.channels:
            raise ValueError(f"this resampler has {self.channels} channels, the piece has shape {x.shape}")
        return self._run(x, last=False)

    def flush(self) -> NDArray[np.float32]:
        """Return what the filter still holds, so that all pieces together equal ``resample``, and reset the state."""
        shape = (0,) if self._flat else (self.channels, 0)
        tail = self._run(np.zeros(shape, np.float32), last=True)
        if self._stream is not None:
            self._stream.clear()
        return tail

    def _run(self, x: NDArray[np.float32], last: bool) -> NDArray[np.float32]:
        if self._stream is None:
            return x.copy()
        # soxr takes (time, channels), and (time,) for one channel.
        piece = np.ascontiguousarray(x.reshape(self.channels, -1).T)
        y = self._stream.resample_chunk(piece[:, 0] if self.channels == 1 else piece, last=last)
        y = np.ascontiguousarray(y.reshape(-1, self.channels).T)
        return y[0] if self._flat else y


def _check_rates(rate_in: float, rate_out: float) -> None:
    for rate in (rate_in, rate_out):
        if not (np.isfinite(rate) and rate > 0):
            raise ValueError(f"a sample rate must be positive, not {rate}")


def stft(x: NDArray[np.float32], size: int = 512, hop: int = 128) -> NDArray[np.complex64]:
    """Return spectra (frames, size // 2 + 1) of a signal (t,); frame k has its centre at k · hop − size / 2 + hop."""
    _check_hops(size, hop)
    frames = frame_count(len(x), size, hop)
    padded = np.zeros(size + (frames - 1) * hop, np.float32)
    padded[size - hop : size - hop + len(x)] = x
    view = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    return np.fft.rfft(view * window(size)).astype(np.complex64, copy=False)


def istft(spectra: NDArray[np.complex64], length: int, size: int = 512, hop: int = 128) -> NDArray[np.float32]:
    """Return the signal (t,) of ``length`` samples with these spectra, by weighted overlap-add."""
    _check_hops(size, hop)
    if len(spectra) != frame_count(length, size, hop):
        raise ValueError(f"{len(spectra)} spectra are not those of {length} samples in hops of {hop}")
    pieces = np.fft.irfft(spectra, size).astype(np.float32, copy=False) * window(size)
    total = _overlap(pieces, hop)
    total /= _overlap(np.broadcast_to(np.square(window(size)), pieces.shape), hop) + np.float32(1e-8)
    return total[size - hop : size - hop + length]


def frame_count(length: int, size: int = 512, hop: int = 128) -> int:
    """Return the number of spectra of a signal: every sample lies in ``size / hop`` of them."""
    return max(1, -(-length // hop)) + size // hop - 1


@lru_cache(maxsize=8)
def window(size: int) -> NDArray[np.float32]:
    """Return the periodic Hann window."""
    return np.hanning(size + 1)[:-1].astype(np.float32)


def _overlap(pieces: NDArray[np.float32], hop: int) -> NDArray[np.float32]:
    count, size = pieces.shape
    parts = size // hop
    total = np.zeros((count + parts - 1, hop), np.float32)
    for part in range(parts):
        total[part : part + count] += pieces[:, part * hop : (part + 1) * hop]
    return total.reshape(-1)


def _check_hops(size: int, hop: int) -> None:
    if hop < 1 or size % hop or size // hop < 2:
        raise ValueError(f"a window of {size} must be two or more whole hops, not {size / hop:g} of {hop}")


def spectrogram(x: Samples, columns: int = COLUMNS) -> Samples:
    """Return power in dB, (frequency, time), 0 dB for a full-scale sine; at most ``columns``, each a mean over time."""
    x = np.asarray(x, dtype=np.float32)
    if x.ndim != 1:
        raise ValueError(f"a spectrogram takes one channel (t,), got shape {x.shape}")
    hop = next((hop for hop in (32, 64, 128) if len(x) / hop <= columns), 256)
    first = SIZE // hop // 2  # frames before lie half outside
    spectra = stft(x, SIZE, hop)[first : first + max(1, -(-len(x) // hop))]
    power = np.square(np.abs(spectra)) / np.float32((SIZE / 4) ** 2)
    together = -(-len(power) // columns)
    whole = max(1, len(power) // together) * together
    mean = power[:whole].reshape(-1, together, power.shape[1]).mean(axis=1)
    return (10 * np.log10(mean.T + 1e-12)).astype(np.float32)


def save_png(path: AnyPath, signals: Mapping[str, Samples], rate: int, overwrite: bool = True) -> None:
    """Write spectrograms of the signals, one above the other, each under its name (extra ``plot``).

    The colours stand for the same dB in all of them.
    """
    if not signals:
        raise ValueError("there is no signal to plot")
    extra("matplotlib")
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pictures = {name: spectrogram(x) for name, x in signals.items()}
    # Not the maximum: one click would make everything else dark.
    loudest = max(float(np.quantile(picture, 0.9995)) for picture in pictures.values())
    with matplotlib.style.context(plot_style()):
        figure: Any = Figure(figsize=(10, 0.8 + 2.3 * len(pictures)))
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(pictures), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
            seconds = max(1, len(signals[name])) / rate
            axis.grid(visible=False)
            image = axis.imshow(
                picture,
                origin="lower",
                aspect="auto",
                vmin=loudest - FLOOR,
                vmax=loudest,
                extent=(0.0, seconds, 0.0, rate / 2000),
                interpolation="nearest",
            )
            axis.set(title=name, ylabel="frequency, kHz")
        axes[-1].set_xlabel("time, s")
        figure.colorbar(image, ax=list(axes), label="power, dB", pad=0.01, aspect=14 * len(pictures))
        with replacing(path, overwrite) as temporary:
            figure.savefig(temporary, format="png", dpi=DPI)
