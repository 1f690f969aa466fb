"""DNSMOS: what listeners would say of a recording, without a reference, by the networks that speechmos brings.

Only the weights are taken from the package: its own code needs librosa, which is heavy.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.system import extra

RATE = 16_000
SEGMENT = 144_160  # 9.01 s, what the networks take
_FFT, _HOP, _MELS = 321, 160, 120
# From raw network outputs to the scale of ITU-T P.835, highest power first.
_SCALE = {
    "sig": (-0.08397278, 1.22083953, 0.0052439),
    "bak": (-0.13166888, 1.60915514, -0.39604546),
    "ovrl": (-0.06766283, 1.11546468, 0.04602535),
}


def dnsmos(x: NDArray[np.floating[Any]], rate: int = RATE) -> dict[str, float]:
    """``sig`` (speech), ``bak`` (background), ``ovrl`` (both) of P.835 and ``p808``, each from 1 to 5."""
    if rate != RATE:
        raise ValueError(f"DNSMOS is defined at {RATE} Hz: resample from {rate} Hz first")
    x = np.clip(np.asarray(x, dtype=np.float32), -1, 1)
    if x.ndim != 1 or not x.size:
        raise ValueError(f"DNSMOS takes one channel of at least one sample, not shape {x.shape}")
    x = np.tile(x, 1 << max(0, int(np.ceil(np.log2(SEGMENT / len(x))))))
    # A segment a second. Where i + 9.01 rounds down, the original drops the segment: so do we, or scores would differ.
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
    """Mel power in dB below the loudest, at most 80, as (40 + dB) / 40: (frames, bands)."""
    padded = np.pad(x.astype(np.float64), _FFT // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[::_HOP]
    spectrum = np.fft.rfft(frames * np.hanning(_FFT + 1)[:-1])
    mel = np.maximum(np.square(np.abs(spectrum)) @ _mel_bands().T, 1e-10)
    db = 10 * np.log10(mel)
    db -= db.max()
    return ((np.maximum(db, -80) + 40) / 40).astype(np.float32)


@lru_cache(maxsize=1)
def _mel_bands() -> NDArray[np.float64]:
    """Triangles of equal area on Slaney's mel scale (linear below 1 kHz, logarithmic above): (bands, bins)."""
    step = np.log(6.4) / 27
    top = 15 + np.log(RATE / 2 / 1000) / step
    mels = np.linspace(0, top, _MELS + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(step * (mels - 15)))
    bins = np.fft.rfftfreq(_FFT, 1 / RATE)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    height = 2 / (edges[2:] - edges[:-2])
    return np.maximum(0, np.minimum(rising, falling)) * height[:, None]
