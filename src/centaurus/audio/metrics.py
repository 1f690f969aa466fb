"""Metrics of audio and text: SI-SDR, PESQ, STOI, word and character error rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.system import extra

Signal = NDArray[np.floating[Any]]


def si_sdr(estimate: Signal, reference: Signal) -> float:
    """Scale-invariant signal-to-distortion ratio in dB, both signals without their mean (Le Roux et al., 2019)."""
    estimate, reference = _pair(estimate, reference)
    estimate, reference = estimate - estimate.mean(), reference - reference.mean()
    energy = float(np.dot(reference, reference))
    if energy == 0:
        raise ValueError("SI-SDR has no meaning for a silent reference")
    target = float(np.dot(estimate, reference)) / energy * reference
    error = estimate - target
    signal, distortion = float(np.dot(target, target)), float(np.dot(error, error))
    if signal == 0:
        return -math.inf
    return 10 * math.log10(signal / distortion) if distortion else math.inf


def pesq(estimate: Signal, reference: Signal, rate: int = 16_000) -> float:
    """ITU-T P.862.2 wideband at 16 kHz, P.862 narrowband at 8 kHz: −0.5 … 4.64 (extra ``eval``)."""
    if rate not in (8000, 16_000):
        raise ValueError(f"PESQ is defined at 8000 and 16000 Hz: resample from {rate} Hz first")
    module = extra("pesq")
    estimate, reference = _pair(estimate, reference)
    try:
        return float(module.pesq(rate, reference, estimate, "wb" if rate == 16_000 else "nb"))
    except module.PesqError as error:
        raise ValueError(f"PESQ could not be computed over {len(reference) / rate:.2f} s: {_words(error)}") from error


def stoi(estimate: Signal, reference: Signal, rate: int = 16_000, extended: bool = False) -> float:
    """Short-time objective intelligibility, 0 … 1 (extra ``eval``)."""
    module = extra("pystoi")
    estimate, reference = _pair(estimate, reference)
    if not reference.any():
        raise ValueError("STOI has no meaning for a silent reference")
    return float(module.stoi(reference, estimate, rate, extended=extended))


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
    """Edits in words over all utterances together (jiwer, extra ``eval``). Nothing is normalised here."""
    hypotheses, references = _texts(hypotheses, references)
    return _errors(extra("jiwer").process_words(references, hypotheses)) if references else Errors(0, 0, 0, 0)


def char_errors(hypotheses: str | Sequence[str], references: str | Sequence[str]) -> Errors:
    """Edits in characters over all utterances together, spaces included (jiwer, extra ``eval``)."""
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
