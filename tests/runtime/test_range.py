"""Loud samples and saved states: what is outside a model's range is limited, and what is not finite is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from centaurus.runtime import Denoiser, Session, SessionError
from centaurus.runtime.modelfile import KEY, PEAK
from tests.runtime.models import exported

RATE = 16_000


def talk(seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """A tone that comes and goes, in a little noise."""
    t = np.arange(round(seconds * RATE)) / RATE
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(t))
    return (0.1 * np.sin(2 * np.pi * 200 * t) * (np.sin(2 * np.pi * 3 * t) > 0) + noise).astype(np.float32)


@pytest.mark.parametrize("loud", [1e4, 1e38, 1e300])
def test_one_loud_sample_has_no_effect_after_a_second(loud: float) -> None:
    x = talk(3.0)
    hit = x.astype(np.float64)
    hit[RATE // 2] = loud
    expected = Session("denoise-16k").process(x)
    actual = Session("denoise-16k").process(hit)
    assert np.isfinite(actual).all()
    after = slice(round(1.5 * RATE), None)
    assert np.abs(actual - expected)[after].max() < 0.1 * np.abs(expected).max()
    denoiser = Denoiser("denoise-16k")
    whole = np.concatenate([denoiser.process(hit), denoiser.flush()])
    assert denoiser.repaired == 1
    assert np.isfinite(whole).all()


def test_the_range_is_the_models_own(tmp_path: Path) -> None:
    model = onnx.load(exported("denoiser"))
    entry = next(entry for entry in model.metadata_props if entry.key == KEY)
    settings = json.loads(entry.value)
    result = {}
    for peak in (None, 0.5, 100.0):
        entry.value = json.dumps(settings | ({} if peak is None else {"peak": peak}))
        onnx.save(model, tmp_path / "x.onnx")
        session = Session(tmp_path / "x.onnx")
        assert session.settings.peak == (peak or PEAK)
        result[peak] = session.process(np.full(4 * session.settings.chunk, 50.0))
        limited = Session(tmp_path / "x.onnx").process(np.full(4 * session.settings.chunk, min(50.0, peak or PEAK)))
        assert np.array_equal(result[peak], limited)
    assert not np.array_equal(result[0.5], result[100.0])
    for wrong in (0, -1, True, "loud", 1e9):
        entry.value = json.dumps(settings | {"peak": wrong})
        onnx.save(model, tmp_path / "x.onnx")
        with pytest.raises(SessionError, match=r"- at `\$\.peak`"):
            Session(tmp_path / "x.onnx")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_saved_session_with_values_that_are_not_finite_is_refused(value: float) -> None:
    session = Session(exported("denoiser"))
    session.process(talk(0.1))
    before = session.save()
    broken = before[:-4] + np.float32(value).tobytes()
    with pytest.raises(SessionError, match="holds NaN or infinity"):
        session.restore(broken)
    assert session.save() == before
