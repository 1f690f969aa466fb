"""Augmentation of waveforms: speed, shift, noise, filters, masks; and packing recordings into rows of one length."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from centaurus.audio.signal import dbfs, gain, power, to_level

Samples = NDArray[np.float32]
BLOCK, GUARD, TOGETHER = 8192, 1024, 4  # samples of a transform and of its overlap, blocks in one call of the FFT
EDGE = 40.0  # Hz of the transition at either end of a stopped band: a steeper one rings


def change_speed(x: Samples, factor: float) -> Samples:
    """Return the signal faster (factor above one) or slower, with its pitch: round(t / factor) frames."""
    if not 0.1 < factor < 10:
        raise ValueError(f"the speed factor should be between 0.1 and 10, got {factor}")
    if factor == 1 or not len(x):
        return x.copy()
    return soxr.resample(np.ascontiguousarray(x), factor, 1.0, quality="MQ").astype(np.float32, copy=False)


def shift(x: Samples, frames: int) -> Samples:
    """Return the signal shifted later by a number of frames, or earlier if negative, padded with zeros."""
    y = np.zeros_like(x)
    if frames >= 0:
        y[frames:] = x[: max(0, len(x) - frames)]
    else:
        y[:frames] = x[-frames:]
    return y


def fit(x: Samples, frames: int, at: int = 0) -> Samples:
    """Return the signal with exactly this many frames: cut at the end, or padded with zeros and placed at ``at``."""
    if len(x) >= frames:
        return x[:frames].copy()
    at = min(at, frames - len(x))
    y = np.zeros(frames, np.float32)
    y[at : at + len(x)] = x
    return y


def add_noise(x: Samples, noise: Samples, snr_db: float) -> Samples:
    """Return the signal at its own level with noise at an SNR in dB; unchanged if either is silent."""
    of_signal, of_noise = dbfs(x), dbfs(noise)
    if math.isinf(of_signal) or math.isinf(of_noise):
        return x.copy()
    return x + noise * gain(of_signal - snr_db - of_noise)


def preceded(x: Samples, before: Samples, fade: int = 160) -> Samples:
    """Return a signal preceded by another, joined by a crossfade of ``fade`` frames within ``before``."""
    if not len(before):
        return x.copy()
    y = np.concatenate([before, x])
    edge = min(fade, len(before), len(x))
    ramp = np.linspace(0, 1, edge, dtype=np.float32)
    y[len(before) - edge : len(before)] *= ramp[::-1]
    return y


Response = Callable[[NDArray[np.floating[Any]]], NDArray[np.floating[Any]]]


def filtered(x: Samples, response: Response, rate: int = 16_000) -> Samples:
    """Return the signal with every frequency multiplied by ``response(hertz)``, without delay.

    Each block is transformed with a guard of 64 ms (at 16 kHz) on both sides, the memory that a response may have:
    one with edges of 20 Hz or more is exact to −70 dB. A few blocks at a time share the transform's tables.
    """
    if not len(x):
        return x.copy()
    keep = np.asarray(response(np.fft.rfftfreq(BLOCK, 1 / rate)), dtype=np.float32)
    hop = BLOCK - 2 * GUARD
    count = -(-len(x) // hop)
    padded = np.zeros(count * hop + 2 * GUARD, np.float32)
    padded[GUARD : GUARD + len(x)] = x
    blocks = np.lib.stride_tricks.sliding_window_view(padded, BLOCK)[::hop]
    y = np.empty((count, hop), np.float32)
    for first in range(0, count, TOGETHER):
        spectra = np.fft.rfft(blocks[first : first + TOGETHER])
        spectra *= keep
        y[first : first + TOGETHER] = np.fft.irfft(spectra, BLOCK)[:, GUARD:-GUARD]
    return y.reshape(-1)[: len(x)]


def mask_time(rng: np.random.Generator, x: Samples, count: int = 2, longest: int = 3200, fade: int = 64) -> Samples:
    """Return the signal with up to ``longest`` frames silenced at ``count`` random places, with fades."""
    y = x.copy()
    for _ in range(count):
        width = int(rng.integers(0, min(longest, len(x)) + 1))
        start = int(rng.integers(0, len(x) - width + 1))
        edge = min(fade, width // 2)
        y[start : start + width] *= _notch(width, edge)
    return y


def mask_frequency(
    rng: np.random.Generator, x: Samples, count: int = 2, widest: float = 0.1, rate: int = 16_000
) -> Samples:
    """Return the signal without ``count`` random bands, each up to ``widest`` of the mel scale, over all frames."""
    bands = draw_bands(rng, count, widest, rate)

    def response(hertz: NDArray[np.floating[Any]]) -> Samples:
        keep = np.ones(hertz.size, np.float32)
        for low, high in bands:
            first, last = (int(np.searchsorted(hertz, edge)) for edge in (low, high))
            edge = min((last - first) // 2, int(EDGE / hertz[1]))
            keep[first:last] *= _notch(last - first, edge)
        return keep

    return filtered(x, response, rate)


def draw_bands(
    rng: np.random.Generator, count: int = 2, widest: float = 0.1, rate: int = 16_000
) -> list[tuple[float, float]]:
    """Return random bands in Hz, of random width on the mel scale."""
    top = _mel(rate / 2)
    bands = []
    for _ in range(count):
        width = rng.uniform(0, widest) * top
        low = rng.uniform(0, top - width)
        bands.append((_hertz(low), _hertz(low + width)))
    return bands


def _notch(width: int, edge: int) -> Samples:
    """Return a raised-cosine gain: one, falling to zero over ``edge`` frames, and back at the end."""
    notch = np.zeros(width, np.float32)
    if edge:
        ramp = (0.5 + 0.5 * np.cos(np.pi * (np.arange(edge) + 0.5) / edge)).astype(np.float32)
        notch[:edge], notch[width - edge :] = ramp, ramp[::-1]
    return notch


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))


def _hertz(mel: float) -> float:
    return float(700 * (10 ** (mel / 2595) - 1))


def coloured(rng: np.random.Generator, frames: int, slope: float | None = None, rate: int = 16_000) -> Samples:
    """Return noise whose amplitude falls as frequency^−slope: 0 white, ½ pink, 1 brown; a random slope by default."""
    slope = rng.uniform(-0.3, 1.3) if slope is None else slope
    white = rng.standard_normal(frames, dtype=np.float32)
    return unit(filtered(white, lambda hertz: (np.maximum(hertz, 30) / 1000) ** -slope, rate))


def hum(rng: np.random.Generator, frames: int, mains: float | None = None, rate: int = 16_000) -> Samples:
    """Return mains hum: 50 or 60 Hz, a little off, with up to eleven harmonics of random strength and phase."""
    base = (rng.choice([50.0, 60.0]) if mains is None else mains) * (1 + rng.uniform(-0.005, 0.005))
    count = int(rng.integers(1, 12))
    order = np.arange(1, count + 1)
    strength = (1 - rng.uniform(0, 0.9, count)) / order ** rng.uniform(0.3, 1.2)
    # One complex rotation gives every harmonic as its powers: a single sine and cosine for each sample.
    turn = np.exp(2j * np.pi * np.mod(base / rate * np.arange(frames), 1)).astype(np.complex64)
    total = np.zeros(frames, np.complex64)
    for weight, phase in zip(strength[::-1], rng.uniform(0, 2 * np.pi, count), strict=True):
        total = (total + np.complex64(weight * np.exp(1j * phase))) * turn
    return unit(np.ascontiguousarray(total.imag))


def rumble(rng: np.random.Generator, frames: int, rate: int = 16_000) -> Samples:
    """Return noise below 15 to 60 Hz, as of traffic, wind and handling: barely audible, but often most of the power."""
    corner, slope = rng.uniform(15, 60), rng.uniform(2, 5)
    white = rng.standard_normal(frames, dtype=np.float32)
    return unit(filtered(white, lambda hertz: 1 / (1 + (hertz / corner) ** slope), rate))


def babble(voices: Sequence[Samples]) -> Samples:
    """Return the sum of several voices at equal levels."""
    if not voices:
        raise ValueError("babble needs at least one voice")
    return unit(np.sum([unit(voice) for voice in voices], axis=0, dtype=np.float32))


def combine(first: Samples, *others: tuple[Samples, float]) -> Samples:
    """Return a noise with others added, each at its level in dB relative to the first."""
    total = unit(first)
    for other, db in others:
        total = total + unit(other) * gain(db)
    return unit(total)


def equalised(rng: np.random.Generator, x: Samples, depth_db: float, points: int = 6, rate: int = 16_000) -> Samples:
    """Return the signal through a smooth random equaliser, up to ±depth at points over log frequency."""
    curve = rng.uniform(-depth_db, depth_db, points)

    def response(hertz: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        octave = np.log(np.maximum(hertz, 50) / 50) / np.log(rate / 100)
        return 10 ** (np.interp(octave, np.linspace(0, 1, points), curve) / 20)

    return filtered(x, response, rate)


def looped(rng: np.random.Generator, x: Samples, frames: int) -> Samples:
    """Return ``frames`` of a recording from a random place; a short one is repeated, crossfaded over 10 ms."""
    if not len(x):
        return np.zeros(frames, np.float32)
    if len(x) >= frames:
        start = int(rng.integers(0, len(x) - frames + 1))
        return x[start : start + frames]
    fade = min(160, len(x) // 2)
    ring = x.copy()
    if fade:
        ramp = np.linspace(0, 1, fade, dtype=np.float32)
        ring = x[:-fade].copy()
        ring[:fade] = x[:fade] * ramp + x[-fade:] * (1 - ramp)
    start = int(rng.integers(0, len(ring)))
    return np.resize(np.roll(ring, -start), frames)


def limited(noisy: Samples, clean: Samples, peak: float = 0.99) -> tuple[Samples, Samples]:
    """Return both signals, scaled down together if either exceeds ±peak: a recording cannot exceed full scale."""
    top = max(float(x.max(initial=0)) for x in (noisy, clean))
    top = max(top, *(-float(x.min(initial=0)) for x in (noisy, clean)))
    if top <= peak:
        return noisy, clean
    return noisy * np.float32(peak / top), clean * np.float32(peak / top)


def unit(x: Samples) -> Samples:
    """Return the signal at 0 dBFS; silence stays silence."""
    return to_level(x, 0.0) if power(x) > 1e-12 else x.copy()


DENOISING_ROW = 2**17  # samples: 8.2 s at 16 kHz, the training rows of the paper's denoiser
RECOGNITION_ROW = 327_680  # samples: 20.48 s at 16 kHz, those of its recognisers
CLASSES = 4096  # buckets of free room


@dataclass(frozen=True, slots=True)
class Piece:
    """Frames ``start … start + frames`` of a recording, put at ``at`` in its row."""

    recording: int
    start: int
    frames: int
    at: int


@dataclass(frozen=True)
class Packing:
    """Rows of pieces, and the recordings that are left out: those longer than a row, and empty ones."""

    length: int
    rows: tuple[tuple[Piece, ...], ...]
    discarded: tuple[int, ...] = ()

    @property
    def fill(self) -> float:
        """The share of the rows that is audio and not padding."""
        used = sum(piece.frames for row in self.rows for piece in row)
        return used / (self.length * len(self.rows)) if self.rows else 0.0


def pack_cut(frames: Sequence[int], length: int) -> Packing:
    """Concatenate recordings and cut them into rows; only the last row is padded. For long readings."""
    _check(frames, length)
    rows: list[list[Piece]] = []
    position = 0
    for recording, count in enumerate(frames):
        start = 0
        while start < count:
            row, at = divmod(position, length)
            if row == len(rows):
                rows.append([])
            taken = min(count - start, length - at)
            rows[row].append(Piece(recording, start, taken, at))
            start, position = start + taken, position + taken
    return Packing(length, tuple(map(tuple, rows)))


def pack_whole(frames: Sequence[int], length: int) -> Packing:
    """Pack recordings without splitting any, each into the fullest row that has room, longest first.

    Those longer than a row are discarded, as are empty ones.
    """
    _check(frames, length)
    counts = np.asarray(frames, np.int64)
    rows = fill_rows(counts, length)
    discarded = np.flatnonzero((counts < 1) | (counts > length))
    return Packing(length, tuple(rows), tuple(discarded.tolist()))


class Rows(Sequence[tuple[Piece, ...]]):
    """Rows as arrays, which may be memory-mapped: row k has the recordings ``offsets[k] … offsets[k + 1]``."""

    def __init__(self, offsets: NDArray[np.int64], recordings: NDArray[np.int32], frames: NDArray[Any]) -> None:
        self.offsets, self.recordings, self.frames = offsets, recordings, frames

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        """Return one row, with its recordings concatenated."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        pieces, at = [], 0
        for recording in self.recordings[self.offsets[index] : self.offsets[index + 1]].tolist():
            count = int(self.frames[recording])
            pieces.append(Piece(recording, 0, count, at))
            at += count
        return tuple(pieces)


def fill_rows(frames: NDArray[Any], length: int) -> Rows:
    """Return the rows of ``pack_whole`` as arrays; recordings that are empty or longer than a row are in none."""
    order = np.argsort(-frames.astype(np.int64), kind="stable")
    order = order[(frames[order] > 0) & (frames[order] <= length)]
    rooms, rows, row_of = _Rooms(length), 0, []
    for count in frames[order].tolist():
        room, row = rooms.take(count) or (length, rows)
        rows += row == rows
        row_of.append(row)
        rooms.add(room - count, row)
    numbers = np.array(row_of, np.int64)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=rows))]).astype(np.int64)
    return Rows(offsets, order[np.argsort(numbers, kind="stable")].astype(np.int32), frames)


class _Rooms:
    """Rows in buckets by their free room, sorted within each bucket: fast with millions of rows."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.classes: list[list[tuple[int, int]]] = [[] for _ in range(CLASSES + 1)]
        self.filled = 0  # one bit for every bucket that has rows

    def add(self, room: int, row: int) -> None:
        number = room * CLASSES // self.length
        if number:  # else the row is practically full
            insort(self.classes[number], (room, row))
            self.filled |= 1 << number

    def take(self, count: int) -> tuple[int, int] | None:
        """Remove and return the row with the least room that fits this many frames."""
        number = count * CLASSES // self.length
        place = bisect_left(self.classes[number], (count, -1))
        if place == len(self.classes[number]):
            above = self.filled >> (number + 1)
            if not above:
                return None
            number, place = number + (above & -above).bit_length(), 0
        taken = self.classes[number].pop(place)
        if not self.classes[number]:
            self.filled ^= 1 << number
        return taken


def assemble(
    row: Sequence[Piece], length: int, load: Callable[[int, int, int], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """Return a row as samples; ``load(recording, start, frames)`` gives those of a piece, padding is zero."""
    samples = np.zeros(length, np.float32)
    for piece in row:
        samples[piece.at : piece.at + piece.frames] = load(piece.recording, piece.start, piece.frames)
    return samples


def _check(frames: Sequence[int], length: int) -> None:
    if length < 1:
        raise ValueError(f"a row needs at least one frame, not {length}")
    for recording, count in enumerate(frames):
        if count < 0:
            raise ValueError(f"recording {recording} has unknown length: measure it first")
