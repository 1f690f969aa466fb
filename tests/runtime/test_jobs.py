"""Long files in constant memory, and workers that do not share a stream."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile

from centaurus.audio import read
from centaurus.runtime import denoise
from centaurus.runtime.denoise import FileDenoiser, Options, denoise_files
from centaurus.runtime.files import Job, plan_jobs
from tests.runtime.models import exported
from tests.runtime.test_denoise import echo

__all__ = ["echo"]


@pytest.mark.usefixtures("echo")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    peaks = []
    for minutes in (1, 6):
        source = tmp_path / f"{minutes}.wav"
        soundfile.write(source, np.ones(minutes * 60 * 44_100, np.int16), 44_100)
        tracemalloc.start()
        report = FileDenoiser(Options()).run(Job(source, tmp_path / "out.wav"), overwrite=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert report.frames == minutes * 60 * 44_100
    assert peaks[1] < 1.2 * peaks[0] + 100_000
    assert peaks[1] < 5e6


def test_files_at_the_same_time_are_the_files_alone(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(6):
        channels, rate = 1 + number % 2, (16_000, 22_050)[number // 3]
        x = 0.1 * rng.standard_normal((2000 + 300 * number, channels))
        soundfile.write(tmp_path / f"{number}.wav", x, rate, "FLOAT")
    jobs, skipped = plan_jobs([tmp_path], str(tmp_path / "out"))
    assert not skipped
    seconds: list[float] = []
    results = dict(denoise_files(jobs, Options(str(exported("denoiser"))), workers=3, on_seconds=seconds.append))
    assert len(results) == 6
    for job in jobs:
        x = read(job.source)
        assert np.allclose(read(job.output).samples, denoise(x.samples, x.rate, exported("denoiser")), atol=1e-6)
    assert sum(seconds) == pytest.approx(sum(read(job.source).seconds for job in jobs))


def test_several_workers_have_a_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int | None] = []
    module = sys.modules[denoise_files.__module__]
    monkeypatch.setattr(module, "FileDenoiser", lambda options: seen.append(options.threads))
    for options, workers in ((Options(), 2), (Options(), 1), (Options(threads=3), 2)):
        assert not list(denoise_files([], options, workers))
    assert seen == [1, 1, None, 3, 3]
