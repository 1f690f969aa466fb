"""Damaged files of every kind are refused or read: never a crash, a hang, a traceback or gigabytes of memory.

CENTAURUS_FUZZ_SECONDS (for each kind of file; 2 if not set) and CENTAURUS_FUZZ_SEED let it search further.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.fuzz.mutate import mutate
from tests.runtime.models import exported, session

FORMATS = {"opus": "OGG", "rf64": "RF64", "w64": "W64", "aiff": "AIFF", "au": "AU", "caf": "CAF"}
JOINED = ("flac", "au", "caf", "w64")  # two recordings one after another, both of which are read
ROOT = Path(__file__).parent.parent.parent
SECONDS = float(os.environ.get("CENTAURUS_FUZZ_SECONDS", "2"))
FIRST = int(os.environ.get("CENTAURUS_FUZZ_SEED", "0"))
# The fewest mutations that are tried in that time.
LEAST = {"wav": 100, "flac": 100, "ogg": 50, "mp3": 50, "w64": 100, "pipe": 100}
LEAST |= {"onnx": 30, "saved": 30, "safetensors": 30}


def sample(kind: str, folder: Path) -> Path:
    """An undamaged file of a kind, as small as it can be."""
    if kind == "onnx":
        return exported("classifier")
    if kind == "saved":
        live = session("classifier")
        live.process(np.full(1000, 0.1, np.float32))
        (folder / "whole.saved").write_bytes(live.save())
        return folder / "whole.saved"
    path = folder / f"whole.{'wav' if kind == 'pipe' else kind}"
    if kind == "safetensors":
        import torch

        import centaurus as ct
        from tests.models.small import narrow

        torch.manual_seed(0)
        ct.save(narrow("kws-hybrid-2"), path)
        return path
    x = np.random.default_rng(0).standard_normal((600, 2)) * 0.1
    data = b""
    for length in (600, 300) if kind in JOINED else (600,):
        soundfile.write(path, x[:length], 16_000, format=FORMATS.get(kind), subtype="OPUS" if kind == "opus" else None)
        data += path.read_bytes()
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("kind", LEAST)
def test_damaged_files(kind: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.fuzz.worker", kind, sample(kind, tmp_path), FIRST, SECONDS]
    done = subprocess.run(
        [str(word) for word in words], cwd=ROOT, capture_output=True, text=True, timeout=60 + 30 * SECONDS, check=False
    )
    seeds = done.stdout.split()
    last = seeds[-1] if seeds else "none"
    assert done.returncode == 0, f"seed {last} of {kind}: exit {done.returncode}\n{done.stderr[-3000:]}"
    assert len(seeds) >= LEAST[kind], f"only {len(seeds)} mutations of {kind} were tried"


def test_mutations_damage_and_repeat() -> None:
    data = bytes(range(256)) * 8
    changed = [mutate(data, seed) for seed in range(200)]
    assert changed == [mutate(data, seed) for seed in range(200)]
    assert sum(x != data for x in changed) > 180
    assert len({len(x) for x in changed}) > 20
