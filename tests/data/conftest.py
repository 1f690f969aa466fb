"""Small synthetic corpora, written once for all tests of this folder; a cache of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import corpora

WORDS = ("yes", "no", "bed", "left")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One folder of each layout but the pack."""
    root = tmp_path_factory.mktemp("corpora")
    return {
        "speech-commands": corpora.speech_commands(root / "words", WORDS, clips=10, speakers=10),
        "voicebank": corpora.voicebank(root / "pairs", train=6, test=2, seconds=1.0, rate=48_000),
        "dns": corpora.dns(root / "apart", clean=12, noise=5, seconds=1.0),
        "librispeech": corpora.librispeech(root / "read", train=9, dev=3, test=2, words=2, seconds=0.1),
        "mls": corpora.mls(root / "many", train=9, dev=3, test=2, words=2, seconds=0.1, suffix=".opus"),
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is kept in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "centaurus" / "audio"
