"""Real processes: pipes, interrupts, closed readers, full disks, and no torch anywhere."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from centaurus.runtime import denoise
from centaurus.runtime.io import Encoding, Layout, encode, wav_header
from tests.runtime.models import exported

BLOCKED = "import sys; sys.modules['torch'] = None; from centaurus.cli.main import main; main(sys.argv[1:])"


def command(*words: object) -> list[str]:
    """The command line in an interpreter without torch."""
    return [sys.executable, "-c", BLOCKED, *map(str, words)]


def denoiser(*words: object) -> list[str]:
    return command("denoise", "--model", exported("denoiser"), *words)


def run(words: list[str], data: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, input=data, capture_output=True, timeout=60, check=False, **options)


def noise(seconds: float = 0.5, channels: int = 1) -> NDArray[np.float32]:
    x = np.random.default_rng(0).standard_normal((channels, round(16_000 * seconds))) * 0.1
    return np.round(x * 32768).astype(np.float32) / 32768


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_raw_samples_through_a_pipe() -> None:
    x = noise(channels=2)
    done = run(denoiser("-", "--raw", "f32le", "--rate", 16_000, "--channels", 2), encode(x, Encoding.F32))
    assert done.returncode == 0, done.stderr
    got = np.frombuffer(done.stdout, "<f4").reshape(-1, 2).T
    assert np.array_equal(got, denoise(x, 16_000, exported("denoiser")))
    assert done.stderr == b""


def test_wav_through_a_pipe_with_an_accident_in_it() -> None:
    x = noise()
    x[0, 5] = np.nan
    data = wav_header(Layout(16_000, 1, Encoding.F32)) + encode(x, Encoding.F32)
    done = run(denoiser("-"), data)
    assert done.returncode == 0, done.stderr
    assert b"1 samples were not finite" in done.stderr
    got, rate = soundfile.read(io.BytesIO(done.stdout), dtype="float32")
    assert rate == 16_000
    assert np.array_equal(got, denoise(x, 16_000, exported("denoiser"))[0])


def test_from_a_file_to_a_pipe_and_from_a_pipe_to_a_file(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise().T, 16_000)
    out = run(denoiser(tmp_path / "a.wav", "-o", "-"))
    assert out.returncode == 0, out.stderr
    into = run(denoiser("-", "-o", tmp_path / "b.wav"), (tmp_path / "a.wav").read_bytes())
    assert into.returncode == 0, into.stderr
    one, two = soundfile.read(io.BytesIO(out.stdout))[0], soundfile.read(tmp_path / "b.wav")[0]
    assert np.abs(one - two).max() < 2**-14  # libsndfile rounds samples a little differently


def test_samples_come_out_while_others_go_in() -> None:
    """A pipe is live: a second of input gives nearly a second of output before the input ends."""
    process = subprocess.Popen(
        denoiser("-", "--raw", "s16le", "--rate", 16_000), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(bytes(32_000))
        process.stdin.flush()
        assert len(process.stdout.read(31_000)) == 31_000
        process.stdin.close()
        assert len(process.stdout.read()) == 1000
        assert process.wait(20) == 0
    finally:
        process.kill()


def test_a_reader_that_goes_away_is_code_141() -> None:
    process = subprocess.Popen(
        denoiser("-", "--raw", "s16le", "--rate", 16_000),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        process.stdin.write(bytes(32_000))
        process.stdin.flush()
        process.stdout.read(100)
        process.stdout.close()
        with pytest.raises(BrokenPipeError):
            process.stdin.write(bytes(100_000_000))
        assert process.wait(20) == 141
        message = process.stderr.read()
        assert message.count(b"\n") == 1
        assert b"standard output was closed" in message
    finally:
        process.kill()


def wait_for(condition: Any, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if condition():
            return
        assert process.poll() is None, "ended before the moment of the test"
        time.sleep(0.05)
    raise AssertionError("the moment of the test never came")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_of_a_file(number: int, code: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.zeros(16_000 * 3600, np.int16), 16_000)
    process = subprocess.Popen(denoiser(tmp_path / "long.wav", "--workers", 1), stderr=subprocess.PIPE)
    try:
        wait_for(lambda: len(left(tmp_path)) == 2, process)
        process.send_signal(number)
        _, message = process.communicate(timeout=20)
        assert (process.returncode, message.count(b"\n")) == (code, 1)
        assert left(tmp_path) == ["long.wav"]
    finally:
        process.kill()


def test_an_interrupt_ends_a_recording_and_keeps_it(tmp_path: Path) -> None:
    process = subprocess.Popen(
        denoiser("-", "--raw", "s16le", "--rate", 16_000, "-o", tmp_path / "kept.wav"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        process.stdin.write(bytes(32_000))
        process.stdin.flush()
        wait_for(lambda: any(path.stat().st_size for path in tmp_path.iterdir()), process)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.returncode == 130
        assert left(tmp_path) == ["kept.wav"]
        assert soundfile.info(tmp_path / "kept.wav").frames == 16_000
    finally:
        process.kill()


def test_an_interrupt_ends_listening_and_keeps_the_words() -> None:
    words = command("transcribe", "-", "--raw", "s16le", "--rate", 16_000, "--model", exported("recognizer"))
    process = subprocess.Popen(
        [*words, "--live", "--format", "json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(encode(noise(3), Encoding.S16))
        process.stdin.flush()
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, message = process.communicate(timeout=20)
        assert process.returncode == 130
        told = [json.loads(line) for line in (first + rest).splitlines()]
        begun = next((line["partial"] for line in reversed(told) if "partial" in line), "")
        said = [line["word"] for line in told if "word" in line]
        assert said
        assert " ".join(said).endswith(begun)
        assert message == b"centaurus: interrupted\n"
    finally:
        process.kill()


def test_a_writer_that_dies_loses_no_frame_of_a_recording(tmp_path: Path) -> None:
    """Neither those that wait in the network nor, with -o, the file."""
    x = noise(0.7)
    whole = io.BytesIO()
    soundfile.write(whole, x.T, 16_000, format="WAV", subtype="PCM_16")
    cut = whole.getvalue()[:-2000]
    frames = x.shape[1] - 1000
    piped = run(denoiser("-"), cut)
    assert piped.returncode == 3
    assert (len(piped.stdout) - len(wav_header(Layout(16_000, 1)))) // 2 == frames
    kept = run(denoiser("-", "-o", tmp_path / "r.wav"), cut)
    assert kept.returncode == 3, kept.stderr
    assert b"before the length in its WAV header" in kept.stderr
    assert left(tmp_path) == ["r.wav"]
    assert soundfile.info(tmp_path / "r.wav").frames == frames


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of Windows always block")
def test_a_stdin_that_does_not_block_has_not_ended() -> None:
    x = noise(0.5)
    data = encode(x, Encoding.S16)
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    words = denoiser("-", "--raw", "s16le", "--rate", "16000")
    process = subprocess.Popen(words, stdin=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.close(ours)
    for part in (data[:4000], data[4000:4001], data[4001:]):
        time.sleep(0.3)  # nothing to read, for a while
        os.write(theirs, part)
    os.close(theirs)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert len(out) == len(data)


def test_a_stream_that_ends_early_is_code_3_after_what_there_was() -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, noise().T, 16_000, format="WAV")
    done = run(denoiser("-"), buffer.getvalue()[:8000])
    assert done.returncode == 3
    assert b"before the length in its WAV header" in done.stderr
    assert len(done.stdout) > 7000


@pytest.mark.parametrize("data", [b"", b"OggS and so on, no header of WAV here"])
def test_input_that_is_not_wav_exits_with_3(data: bytes) -> None:
    done = run(denoiser("-"), data)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.count(b"\n") == 1


def test_a_full_disk_is_code_5() -> None:
    with open("/dev/full", "wb") as full:
        words = denoiser("-", "--raw", "s16le", "--rate", 16_000)
        done = subprocess.run(words, input=bytes(64_000), stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 5
    assert b"No space left" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_file_that_cannot_grow_is_code_5_and_gone(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(60).T, 16_000)
    done = run(
        denoiser(tmp_path / "a.wav"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 5, done.stderr
    assert done.stderr.count(b"\n") == 1
    assert left(tmp_path) == ["a.wav"]


def test_spot_and_transcribe_without_torch(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(2).T, 16_000)
    spotted = run(command("spot", tmp_path / "a.wav", "--model", exported("classifier"), "--threshold", 0.34))
    assert spotted.returncode == 0, spotted.stderr
    assert b"confidence" in spotted.stdout
    transcribed = run(command("transcribe", "-", "--model", exported("recognizer")), (tmp_path / "a.wav").read_bytes())
    assert transcribed.returncode == 0, transcribed.stderr
    assert transcribed.stdout.startswith(b"[00:00:0")
