"""Run the command line in this process, as a user would type it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from centaurus.cli.main import main


class Result(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return Result(stop.value.code, captured.out, captured.err)
