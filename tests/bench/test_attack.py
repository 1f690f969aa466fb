"""A little of what ``make attack`` does for half an hour; and a check that it detects faults."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from bench import attack
from tests.train import toy

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a POSIX system")


def test_killed_runs_resume_and_files_are_whole(tmp_path: Path) -> None:
    attack.kill_training(3, random.Random(0), tmp_path)
    attack.kill_writing(4, random.Random(0), tmp_path)


def test_a_run_that_does_not_resume_exactly_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(([1, 2], [1, 2, 2]))
    monkeypatch.setattr(toy, "losses", lambda run: next(lines))
    with pytest.raises(attack.FaultError, match="did not resume exactly"):
        attack.kill_training(1, random.Random(0), tmp_path)


def test_a_reader_that_fails_is_a_fault(tmp_path: Path) -> None:
    attack.fuzz("au", 20, 0, tmp_path)
    with pytest.raises(attack.FaultError, match="wav, seed -1: exit 1"):
        attack.fuzz("wav", 20, -1, tmp_path)  # no generator takes a negative seed
