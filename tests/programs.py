"""Programs that tests compare with, where they are installed."""

from __future__ import annotations

import shutil

import pytest


def _ffmpeg() -> str | None:
    """The program on the PATH, else the one that comes with imageio-ffmpeg."""
    found = shutil.which("ffmpeg")
    if found is None:
        try:
            import imageio_ffmpeg
        except ModuleNotFoundError:
            return None
        found = str(imageio_ffmpeg.get_ffmpeg_exe())
    return found


FFMPEG = _ffmpeg()
needs_ffmpeg = pytest.mark.skipif(FFMPEG is None, reason="ffmpeg is not installed")
