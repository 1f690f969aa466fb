"""The load test of the server, small: every stream is answered and ends well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.models import exported

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc and keeps processes on cores")
def test_the_load_test_of_the_server(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "serving.py"), "--model", str(exported("denoiser"))]
    command += ["--streams", "3", "--seconds", "1", "--repeat", "2", "--output", str(tmp_path / "report.json")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    [report] = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert (report["streams"], report["complete_after_sigterm"], report["exit_code"]) == (3, 3, 0)
    assert report["count"] == 2
    assert max(max(both) for both in report["p99_ms_of_all"].values()) == report["slowest_p99_ms"]
    for phase in ("good_clients", "beside_bad_clients"):
        assert report[phase]["blocks"] >= 10  # of about a hundred: how many are back in time depends on the machine
        assert 0 < report[phase]["p50_ms"] <= report[phase]["p99_ms"]
        assert len(report["p99_ms_of_all"][phase]) == 2
