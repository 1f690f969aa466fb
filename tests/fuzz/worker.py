"""Feed damaged files to a reader, in a process of its own: a crash of native code ends this one and names its seed.

python -m tests.fuzz.worker KIND FILE FIRST_SEED SECONDS [INPUTS]
"""

from __future__ import annotations

import io
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.fuzz.mutate import mutate

MEMORY = 6 << 30  # bytes of address space: no header may make a reader ask for more
SLOW = 5.0  # seconds of the processor for one small file


def sound(path: Path) -> None:
    """As ``denoise`` and ``spot`` read a file."""
    from centaurus.audio import AudioError
    from centaurus.runtime.io import from_file

    with suppress(AudioError):
        for block in from_file(path).blocks:
            assert block.ndim == 2


def pipe(path: Path) -> None:
    """As a WAV stream on standard input."""
    from centaurus.audio import AudioError
    from centaurus.runtime.io import Reader

    with suppress(AudioError):
        for block in Reader(io.BytesIO(path.read_bytes())):
            assert block.ndim == 2


def onnx(path: Path) -> None:
    """Opened, and run for two chunks if it can be."""
    import numpy as np

    from centaurus.runtime import Session, SessionError

    with suppress(SessionError):
        session = Session(path)
        if session.settings.chunk <= 1 << 16:
            session.process(np.full(2 * session.settings.chunk, 0.1, np.float32))


def safetensors(path: Path) -> None:
    """Loaded as a model."""
    from centaurus import load

    with suppress(ValueError):
        load(path)


def saved(path: Path) -> None:
    """Restored into a session, which continues."""
    import numpy as np

    from centaurus.runtime import SessionError
    from tests.runtime.models import session

    with suppress(SessionError):
        session("classifier").restore(path.read_bytes())
    session("classifier").process(np.full(2 * session("classifier").settings.chunk, 0.1, np.float32))


SOUNDS = ("wav", "flac", "ogg", "opus", "mp3", "aiff", "w64", "rf64", "au", "caf")
READERS: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(SOUNDS, sound),
    "pipe": pipe,
    "onnx": onnx,
    "saved": saved,
    "safetensors": safetensors,
}


def main(kind: str, name: str, first: int, seconds: float, inputs: int = sys.maxsize) -> int:
    """Print every seed before it is tried, and stop at the first that does something other than an error of ours."""
    read, data = READERS[kind], Path(name).read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"damaged{Path(name).suffix}"
        path.write_bytes(data)
        read(path)  # imports and caches, before the clock starts
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        seed, end = first, time.process_time() + seconds  # of the processor: a busy machine tries as many
        while time.process_time() < end and seed < first + inputs:
            begin = time.process_time()
            sys.stdout.write(f"{seed}\n")
            sys.stdout.flush()
            path.write_bytes(mutate(data, seed))
            try:
                read(path)
            except Exception:  # noqa: BLE001 - whatever it is, it is the finding
                traceback.print_exc()
                return 1
            if time.process_time() - begin > SLOW:
                sys.stderr.write(f"took {time.process_time() - begin:.1f} s\n")
                return 1
            seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), *map(int, sys.argv[5:])))
