"""The studio's scripts in Node: their own tests, and what they share with the Python runtime."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from centaurus.decode import Greedy, Smoothing, Spotting, Vocabulary, Words
from centaurus.runtime.denoise import cleaned_share

HERE = Path(__file__).parent
SCRIPTS = HERE.parent.parent / "src" / "centaurus" / "studio" / "static" / "js"
NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")
SECONDS = 0.016

DECODE = """
import {{ Spotting, Transcription }} from "{decode}";
import {{ cleanedShare }} from "{stream}";
const data = JSON.parse(await new Response(process.stdin).text());
const spotting = new Spotting(data.classes, data.seconds, data.smoothing);
const keywords = data.logits.map((frame) => spotting.push(Float32Array.from(frame)).keyword).filter(Boolean);
const transcription = new Transcription(data.tokens, data.seconds);
const words = data.tokenLogits.map((frame) => transcription.push(Float32Array.from(frame)));
words.push(transcription.flush());
const shares = data.amounts.map(([mix, limit]) => cleanedShare(mix, limit));
console.log(JSON.stringify({{ keywords, words: words.filter(Boolean), shares }}));
"""


def node(*arguments: str, text: str = "") -> str:
    done = subprocess.run([str(NODE), *arguments], input=text, capture_output=True, text=True, cwd=HERE)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def smooth_noise(frames: int, features: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Logits that stay up for a while, as those of a network do."""
    noise = np.random.default_rng(seed).normal(size=(frames + 24, features))
    kernel = np.hanning(24)[:, None]
    smooth = [(noise[k : k + 24] * kernel).sum(axis=0) for k in range(frames)]
    return np.asarray(smooth, np.float32) * np.float32(1.6)


def test_the_scripts_pass_their_own_tests() -> None:
    node("--test", "units.test.mjs")


def test_words_equal_those_of_the_runtime() -> None:
    classes = ["yes", "no", "stop", "background"]
    tokens = ["<blank>", "one", "two", "three", "<start>"]
    logits = smooth_noise(1500, len(classes), 1)
    token_logits = smooth_noise(1500, len(tokens), 2)
    smoothing = {"threshold": 0.7, "window": 0.2, "refractory": 0.4, "caution": 0.8}
    amounts = [(1.0, 0), (0.3, 0), (0.8, 12), (1.0, 40)]
    data = {
        "classes": classes,
        "tokens": tokens,
        "seconds": SECONDS,
        "smoothing": smoothing,
        "logits": logits.tolist(),
        "tokenLogits": token_logits.tolist(),
        "amounts": amounts,
    }
    paths = {name: (SCRIPTS / f"{name}.js").as_uri() for name in ("decode", "stream")}
    answer = json.loads(node("--input-type=module", "-e", DECODE.format(**paths), text=json.dumps(data)))

    expected = Spotting(classes, SECONDS, Smoothing(**smoothing)).push(logits.T)
    assert len(expected) > 10
    assert [actual["word"] for actual in answer["keywords"]] == [actual.word for actual in expected]
    for actual, reference in zip(answer["keywords"], expected, strict=True):
        assert actual["time"] == pytest.approx(reference.time)
        assert actual["confidence"] == pytest.approx(reference.confidence, abs=1e-9)

    vocabulary = Vocabulary.of(tokens)
    collapse, words = Greedy(vocabulary, SECONDS), Words(vocabulary, SECONDS)
    spoken = words.push(collapse.push(token_logits.T)) + words.push(collapse.flush()) + words.flush()
    assert len(spoken) > 10
    assert [word["word"] for word in answer["words"]] == [word.text for word in spoken]
    for word, other in zip(answer["words"], spoken, strict=True):
        assert (word["start"], word["end"]) == (pytest.approx(other.start), pytest.approx(other.end))
        assert word["confidence"] == pytest.approx(other.confidence, abs=1e-9)

    shares = [float(cleaned_share(mix, limit or None)) for mix, limit in amounts]
    assert answer["shares"] == pytest.approx(shares, abs=1e-6)
