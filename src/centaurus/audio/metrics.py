"""Metrics of audio and text: SI-SDR, PESQ, STOI, DNSMOS, word and character error rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.system import extra

Signal = NDArray[np.floating[Any]]

# DNSMOS: sample rate, samples of a segment (9.01 s, what the networks take), and its mel spectrogram.
RATE, SEGMENT = 16_000, 144_160
_FFT, _HOP, _MELS = 321, 160, 120
# From raw network outputs to the scale of ITU-T P.835, highest power first.
_SCALE = {
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
}


class MetricError(ValueError):
    """A metric without a value for this recording: silent, too short, or of a rate it is not defined at."""


def si_sdr(estimate: Signal, reference: Signal) -> float:
    """Return the scale-invariant signal-to-distortion ratio in dB, of signals without their mean (Le Roux, 2019)."""
    estimate, reference = _pair(estimate, reference)
    estimate, reference = estimate - estimate.mean(), reference - reference.mean()
    energy = float(np.dot(reference, reference))
    if energy == 0:
        raise MetricError("SI-SDR is not defined for a silent reference")
    target = float(np.dot(estimate, reference)) / energy * reference
    error = estimate - target
    signal, distortion = float(np.dot(target, target)), float(np.dot(error, error))
    if signal == 0:
        return -math.inf
    return 10 * math.log10(signal / distortion) if distortion else math.inf


def pesq(estimate: Signal, reference: Signal, rate: int = 16_000) -> float:
    """Return PESQ: ITU-T P.862.2 wideband at 16 kHz, P.862 narrowband at 8 kHz, −0.5 … 4.64 (extra ``eval``)."""
    if rate not in (8000, 16_000):
        raise MetricError(f"PESQ is defined at 8000 and 16000 Hz: resample from {rate} Hz first")
    module = extra("pesq")
    estimate, reference = _pair(estimate, reference)
    try:
        return float(module.pesq(rate, reference, estimate, "wb" if rate == 16_000 else "nb"))
    except module.PesqError as error:
        raise MetricError(f"PESQ could not be computed over {len(reference) / rate:.2f} s: {_words(error)}") from error


def stoi(estimate: Signal, reference: Signal, rate: int = 16_000) -> float:
    """Return the short-time objective intelligibility, 0 … 1 (extra ``eval``)."""
    module = extra("pystoi")
    estimate, reference = _pair(estimate, reference)
    if not reference.any():
        raise MetricError("STOI is not defined for a silent reference")
    return float(module.stoi(reference, estimate, rate))


@dataclass(frozen=True)
class Errors:
    """An edit distance against references of ``total`` words or characters."""

    substitutions: int
    deletions: int
    insertions: int
    total: int

    @property
    def edits(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Edits per word or character of the references: WER or CER; above one if most words are insertions."""
        return self.edits / self.total if self.total else float(self.edits > 0)


def word_errors(hypotheses: str | Sequence[str], references: str | Sequence[str]) -> Errors:
    """Return the edits in words over all utterances (jiwer, extra ``eval``). Texts are not normalised."""
    hypotheses, references = _texts(hypotheses, references)
    return _errors(extra("jiwer").process_words(references, hypotheses)) if references else Errors(0, 0, 0, 0)


def char_errors(hypotheses: str | Sequence[str], references: str | Sequence[str]) -> Errors:
    """Return the edits in characters over all utterances, spaces included (jiwer, extra ``eval``)."""
    hypotheses, references = _texts(hypotheses, references)
    if not references:
        return Errors(0, 0, 0, 0)
    return _errors(extra("jiwer").process_characters(references, hypotheses))


def _pair(estimate: Signal, reference: Signal) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if estimate.shape != reference.shape or estimate.ndim != 1 or not estimate.size:
        raise ValueError(f"estimate {estimate.shape} and reference {reference.shape} must be one channel of one length")
    return estimate.astype(np.float64), reference.astype(np.float64)


def _texts(hypotheses: str | Sequence[str], references: str | Sequence[str]) -> tuple[list[str], list[str]]:
    one, other = ([texts] if isinstance(texts, str) else list(texts) for texts in (hypotheses, references))
    if len(one) != len(other):
        raise ValueError(f"{len(one)} hypotheses for {len(other)} references")
    return one, other


def _errors(counts: Any) -> Errors:
    total = counts.hits + counts.substitutions + counts.deletions
    return Errors(counts.substitutions, counts.deletions, counts.insertions, total)


def _words(error: Exception) -> str:
    reason = error.args[0] if error.args else "no reason given"
    return reason.decode() if isinstance(reason, bytes) else str(reason)


def dnsmos(x: Signal, rate: int = RATE) -> dict[str, float]:
    """Return DNSMOS: ``sig`` (speech), ``bak`` (background), ``ovrl`` (both) of P.835 and ``p808``, each 1 to 5.

    An estimate of listeners' scores without a reference, by the networks of ``speechmos`` (extra ``eval``).
    """
    if rate != RATE:
        raise MetricError(f"DNSMOS is defined at {RATE} Hz: resample from {rate} Hz first")
    x = np.clip(np.asarray(x, dtype=np.float32), -1, 1)
    if x.ndim != 1 or not x.size:
        raise ValueError(f"DNSMOS takes one channel of at least one sample, not shape {x.shape}")
    x = np.tile(x, 1 << max(0, int(np.ceil(np.log2(SEGMENT / len(x))))))
    # One segment per second. Where i + 9.01 rounds down, the original drops the segment, and so must this.
    starts = [i for i in range(max(1, int(len(x) // RATE - 9.01) + 1)) if int((i + 9.01) * RATE) - i * RATE >= SEGMENT]
    pieces = np.stack([x[RATE * i : RATE * i + SEGMENT] for i in starts])
    primary, p808 = _networks()
    raw = primary.run(None, {"input_1": pieces})[0].astype(np.float64)
    mel = np.stack([_log_mel(piece[:-_HOP]) for piece in pieces])
    scores = {name: np.polyval(_SCALE[name], raw[:, i]) for i, name in enumerate(("sig", "bak", "ovrl"))}
    scores["p808"] = p808.run(None, {"input_1": mel})[0][:, 0]
    return {name: float(values.mean()) for name, values in scores.items()}


@lru_cache(maxsize=1)
def _networks() -> tuple[Any, Any]:
    extra("speechmos")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    folder = resources.files("speechmos") / "dnsmos_models"
    weights = [(folder / name).read_bytes() for name in ("sig_bak_ovr.onnx", "model_v8.onnx")]
    first, second = (
        onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]) for data in weights
    )
    return first, second


def _log_mel(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return mel power in dB below the loudest, at most 80, as (40 + dB) / 40: (frames, bands)."""
    padded = np.pad(x.astype(np.float64), _FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    spectrum = np.fft.rfft(frames * np.hanning(_FFT + 1)[:-1])
    mel = np.maximum(np.square(np.abs(spectrum)) @ _mel_bands().T, 1e-10)
    db = 10 * np.log10(mel)
    db -= db.max()
    return ((np.maximum(db, -80) + 40) / 40).astype(np.float32)


@lru_cache(maxsize=1)
def _mel_bands() -> NDArray[np.float64]:
    """Return triangles of equal area on Slaney's mel scale (linear below 1 kHz, logarithmic above): (bands, bins)."""
    step = np.log(6.4) / 27
    top = 15 + np.log(RATE / 2 / 1000) / step
    mels = np.linspace(0, top, _MELS + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    bins = np.fft.rfftfreq(_FFT, 1 / RATE)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    height = 2 / (edges[2:] - edges[:-2])
    return np.maximum(0, np.minimum(rising, falling)) * height[:, None]
