"""Sound from a microphone, through sounddevice, which is imported only here and only when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 0.02  # seconds at once


class DeviceError(OSError):
    """There is no microphone to listen to; the message says what to install or to choose."""


def sounddevice() -> Any:
    """The module, or a message that says what is missing."""
    try:
        import sounddevice as found
    except ModuleNotFoundError as error:
        raise DeviceError("a microphone needs sounddevice: pip install 'centaurus-ssm[mic]'") from error
    except OSError as error:
        raise DeviceError(
            "a microphone needs the PortAudio library, which is not installed: apt install libportaudio2, "
            "dnf install portaudio or brew install portaudio. Or pipe into the command: arecord -f S16_LE -r 16000 | …"
        ) from error
    return found


class Microphone:
    """Blocks (1, n) as they are heard, until the stream is closed. ``device`` is a number or part of a name."""

    def __init__(self, rate: int, device: str | None = None) -> None:
        self.rate = rate
        self.overruns = 0
        self._heard: SimpleQueue[NDArray[np.float32]] = SimpleQueue()
        module = sounddevice()
        chosen = int(device) if device is not None and device.isdecimal() else device
        try:
            self._stream = module.InputStream(
                samplerate=rate,
                device=chosen,
                channels=1,
                dtype="float32",
                blocksize=round(rate * BLOCK),
                callback=self._hear,
            )
        except (module.PortAudioError, ValueError) as error:
            raise DeviceError(f"no microphone{_named(device)} can be opened at {rate} Hz: {error}") from error

    def _hear(self, block: NDArray[np.float32], frames: int, time: Any, status: Any) -> None:
        self.overruns += bool(status)
        self._heard.put(block.T.copy())

    def __iter__(self) -> Iterator[NDArray[np.float32]]:
        with self._stream:
            while True:
                yield self._heard.get()


def _named(device: str | None) -> str:
    return "" if device is None else f" {device!r}"
