"""The bytes of a saved session: a line of JSON that says whose they are, then numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.runtime.settings import SessionError, Settings

KIND = "centaurus-session-1"
LINE = 1 << 20


def pack(settings: Settings, batch: int, words: dict[str, Any], arrays: Sequence[NDArray[np.float32]]) -> bytes:
    """A line of JSON and the numbers of the arrays."""
    head = {"kind": KIND, "model": fingerprint(settings), "batch": batch} | words
    return json.dumps(head).encode() + b"\n" + b"".join(x.astype("<f4").tobytes() for x in arrays)


def unpack(data: bytes, settings: Settings, batch: int) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """The words and the numbers, checked against the session that wants them."""
    line = data[:LINE].partition(b"\n")[0]
    try:
        words = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SessionError(f"these are not the bytes of a saved session: {error}") from error
    if not isinstance(words, dict) or words.get("kind") != KIND:
        raise SessionError("these are not the bytes of a saved session")
    if words.get("model") != fingerprint(settings):
        raise SessionError(f"this session was saved with another model than {settings.name!r}")
    if words.get("batch") != batch:
        raise SessionError(f"the saved session has {words.get('batch')} rows, this one has {batch}")
    waiting, samples, taken = (words.get(key) for key in ("waiting", "samples", "taken"))
    counts = _wholes(samples, batch, None) and _wholes([waiting], 1, settings.chunk) and _wholes(taken, None, batch)
    numbers = data[len(line) + 1 :]
    if not counts or len(numbers) != 4 * batch * (words["waiting"] + settings.state_numbers):
        raise SessionError("the saved session is damaged")
    return words, np.frombuffer(numbers, "<f4").astype(np.float32)


def fingerprint(settings: Settings) -> str:
    """What must agree for a saved state to have a meaning."""
    return hashlib.sha256(json.dumps(settings.json(), sort_keys=True).encode()).hexdigest()[:16]


def _wholes(values: Any, count: int | None, below: int | None) -> bool:
    """A list of so many whole numbers from zero to below a bound."""
    if not isinstance(values, list) or (count is not None and len(values) != count):
        return False
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in values)
    return whole and (below is None or all(n < below for n in values))
