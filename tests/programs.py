"""Programs that tests compare with, where they are installed."""

from __future__ import annotations

import shutil

import pytest


def _ffmpeg() -> str | None:
    """The program on the PATH, else the one that comes with imageio-ffmpeg."""
    result = shutil.which("ffmpeg")
    if result is None:
        try:
            import imageio_ffmpeg
        except ModuleNotFoundError:
            return None
        result = str(imageio_ffmpeg.get_ffmpeg_exe())
    return result


FFMPEG = _ffmpeg()
needs_ffmpeg = pytest.mark.skipif(FFMPEG is None, reason="ffmpeg is not installed")
