"""Small synthetic corpora, written once for all tests of this folder; a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from centaurus.data import synthetic

WORDS = ("yes", "no", "bed", "left")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of each layout but the pack."""
    root = tmp_path_factory.mktemp("corpora")
    return {
        "speech-commands": synthetic.speech_commands(root / "words", WORDS, clips=10, speakers=10),
        "voicebank": synthetic.voicebank(root / "pairs", train=6, test=2, seconds=1.0, rate=48_000),
        "dns": synthetic.dns(root / "apart", clean=12, noise=5, seconds=1.0),
        "librispeech": synthetic.librispeech(root / "read", train=9, dev=3, test=2, words=2, seconds=0.1),
        "mls": synthetic.mls(root / "many", train=9, dev=3, test=2, words=2, seconds=0.1, suffix=".opus"),
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is kept in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "centaurus" / "audio"
