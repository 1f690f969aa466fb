"""Short-time spectra, spectrograms in dB, and pictures of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.system import extra, replacing


def stft(x: NDArray[np.float32], size: int = 512, hop: int = 128) -> NDArray[np.complex64]:
    """Spectra (frames, size // 2 + 1) of a signal (t,); frame k is centred on sample k · hop − size / 2 + hop."""
    _check(size, hop)
    frames = frame_count(len(x), size, hop)
    padded = np.zeros(size + (frames - 1) * hop, np.float32)
    padded[size - hop : size - hop + len(x)] = x
    view = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    return np.fft.rfft(view * window(size)).astype(np.complex64, copy=False)


def istft(spectra: NDArray[np.complex64], length: int, size: int = 512, hop: int = 128) -> NDArray[np.float32]:
    """The signal (t,) of ``length`` samples whose spectra these are: overlapped, added and divided by the windows."""
    _check(size, hop)
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
    """Hann's, periodic."""
    return np.hanning(size + 1)[:-1].astype(np.float32)


def _overlap(pieces: NDArray[np.float32], hop: int) -> NDArray[np.float32]:
    count, size = pieces.shape
    parts = size // hop
    total = np.zeros((count + parts - 1, hop), np.float32)
    for part in range(parts):
        total[part : part + count] += pieces[:, part * hop : (part + 1) * hop]
    return total.reshape(-1)


def _check(size: int, hop: int) -> None:
    if hop < 1 or size % hop or size // hop < 2:
        raise ValueError(f"a window of {size} must be two or more whole hops, not {size / hop:g} of {hop}")


Samples = NDArray[np.float32]
COLUMNS = 1200  # more would not be seen
SIZE = 512


def spectrogram(x: Samples, columns: int = COLUMNS) -> Samples:
    """Power in dB, (frequency, time), 0 dB for a full-scale sine; at most ``columns``, each a mean over time."""
    x = np.asarray(x, dtype=np.float32)
    if x.ndim != 1:
        raise ValueError(f"a spectrogram is of one channel (t,), not of shape {x.shape}")
    hop = next((hop for hop in (32, 64, 128) if len(x) / hop <= columns), 256)
    first = SIZE // hop // 2  # frames before lie half outside
    spectra = stft(x, SIZE, hop)[first : first + max(1, -(-len(x) // hop))]
    power = np.square(np.abs(spectra)) / np.float32((SIZE / 4) ** 2)
    together = -(-len(power) // columns)
    whole = max(1, len(power) // together) * together
    mean = power[:whole].reshape(-1, together, power.shape[1]).mean(axis=1)
    return (10 * np.log10(mean.T + 1e-12)).astype(np.float32)


def save_png(
    path: str | os.PathLike[str],
    signals: Mapping[str, Samples],
    rate: int,
    title: str = "",
    floor: float = 80.0,
    overwrite: bool = True,
) -> None:
    """Write spectrograms of the signals, one above the other, each under its name; colours are the same dB in all.

    ``floor`` is how far below the loudest the darkest colour lies. Needs the extra ``plot``.
    """
    if not signals:
        raise ValueError("there is no signal to plot")
    extra("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pictures = {name: spectrogram(x) for name, x in signals.items()}
    # A click or a hum is louder than all else and should not darken it.
    loudest = max(float(np.quantile(picture, 0.9995)) for picture in pictures.values())
    figure: Any = Figure(figsize=(10, 0.8 + 2.3 * len(pictures)), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(pictures), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, picture) in zip(axes, pictures.items(), strict=True):
        seconds = max(1, len(signals[name])) / rate
        image = axis.imshow(
            picture,
            origin="lower",
            aspect="auto",
            cmap="magma",
            vmin=loudest - floor,
            vmax=loudest,
            extent=(0.0, seconds, 0.0, rate / 2000),
            interpolation="nearest",
        )
        axis.set_title(name, loc="left", fontsize=10)
        axis.set_ylabel("kHz")
    axes[-1].set_xlabel("seconds")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.colorbar(image, ax=list(axes), label="dB", pad=0.01, aspect=14 * len(pictures))
    with replacing(path, overwrite) as temporary:
        figure.savefig(temporary, format="png")
