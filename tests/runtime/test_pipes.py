"""Streams of samples: every encoding there and back, headers as other programs write them, damage."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from centaurus.audio import AudioError
from centaurus.runtime.io import Encoding, Layout, Pipe, Reader, decode, encode, wav_header

SUBTYPES = {
    "u8": "PCM_U8",
    "s16le": "PCM_16",
    "s24le": "PCM_24",
    "s32le": "PCM_32",
    "f32le": "FLOAT",
    "f64le": "DOUBLE",
}
STEP = {"u8": 2**-7, "s16le": 2**-15, "s24le": 2**-23, "s32le": 2**-24, "f32le": 0, "f64le": 0}


class Dribble(io.BytesIO):
    """Gives few bytes at a time, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self.size_at_once = size

    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(min(self.size_at_once, size or 0))


def noise(channels: int, frames: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal((channels, frames)) * 0.3).clip(-1, 1).astype(np.float32)


def together(reader: Reader) -> NDArray[np.float32]:
    return np.concatenate([np.zeros((reader.layout.channels, 0), np.float32), *reader], axis=1)


@settings(max_examples=40)
@given(st.sampled_from(list(Encoding)), st.integers(1, 3), st.integers(0, 50), st.integers(1, 40), st.booleans())
def test_decoding_inverts_encoding(encoding: Encoding, channels: int, frames: int, dribble: int, wav: bool) -> None:
    x, layout, out = noise(channels, frames), Layout(16_000, channels, encoding), io.BytesIO()
    pipe = Pipe(out, layout, wav)
    for piece in np.split(x, [frames // 3], axis=1):
        pipe.write(piece)
    reader = Reader(Dribble(out.getvalue(), dribble), None if wav else layout)
    assert reader.layout == layout
    assert np.abs(together(reader) - x).max(initial=0) <= STEP[encoding.value]


@pytest.mark.parametrize("encoding", Encoding)
def test_libsndfile_reads_what_is_written_and_writes_what_is_read(encoding: Encoding, tmp_path: Path) -> None:
    x, layout = noise(2, 100), Layout(44_100, 2, encoding)
    path = tmp_path / "streamed.wav"
    path.write_bytes(wav_header(layout) + encode(x, encoding))
    y, rate = soundfile.read(path, dtype="float32")
    assert rate == 44_100
    assert np.abs(y.T - x).max() <= STEP[encoding.value]
    for name in ("plain.wav", "long.rf64", "extensible.wav"):
        kind = {"plain.wav": "WAV", "long.rf64": "RF64", "extensible.wav": "WAVEX"}[name]
        soundfile.write(tmp_path / name, x.T, 8000, SUBTYPES[encoding.value], format=kind)
        reader = Reader(io.BytesIO((tmp_path / name).read_bytes()))
        assert reader.layout == Layout(8000, 2, encoding)
        got = together(reader)
        assert got.shape == x.shape, name
        assert np.abs(got - x).max() <= STEP[encoding.value] + 1e-7


def header(form: bytes = b"", size: int = 0, junk: bytes = b"", riff: bytes = b"RIFF") -> bytes:
    form = form or struct.pack("<HHIIHH", 1, 1, 16_000, 32_000, 2, 16)
    chunk = b"fmt " + struct.pack("<I", len(form)) + form
    return riff + struct.pack("<I", 0) + b"WAVE" + junk + chunk + b"data" + struct.pack("<I", size)


@pytest.mark.parametrize("size", [0, 0x7FFF0000, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFF00])
def test_a_length_that_was_not_known_means_until_the_end(size: int) -> None:
    reader = Reader(io.BytesIO(header(size=size) + bytes(200)))
    assert together(reader).shape == (1, 100)


def test_chunks_around_the_samples_are_skipped() -> None:
    junk = b"LIST" + struct.pack("<I", 5) + b"hello\0" + b"fact" + struct.pack("<I", 4) + bytes(4)
    stream = io.BytesIO(header(size=6, junk=junk) + bytes(6) + b"LIST" + struct.pack("<I", 4) + b"tail")
    assert together(Reader(stream)).shape == (1, 3)
    assert stream.read() == b""  # drained: the program before the pipe is not cut off


def test_half_a_frame_at_the_end_of_raw_samples_is_left_out() -> None:
    assert together(Reader(io.BytesIO(bytes(11)), Layout(8000, 2))).shape == (2, 2)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"RIFF", "within its WAV header"),
        (header()[:-6], "within its WAV header"),
        (b"fLaC" + bytes(40), "is not a WAV stream"),
        (header(size=100) + bytes(50), "50 bytes before"),
        (header(size=0x90000000) + bytes(50), "ended 2,415,919,054 bytes before"),
        (header(form=struct.pack("<HHIIHH", 17, 1, 16_000, 0, 2, 4)), "format 17"),
        (header(form=struct.pack("<HHIIHH", 1, 1, 16_000, 0, 2, 12)), "12 bits"),
        (header(form=struct.pack("<HHIIHH", 1, 0, 16_000, 0, 0, 16)), "channels"),
        (header(form=struct.pack("<HHIIHH", 1, 60_000, 16_000, 0, 2, 16)), "channels"),
        (header(form=struct.pack("<HHIIHH", 1, 1, 0, 0, 2, 16)), "0 Hz"),
        (header(form=struct.pack("<HHIIHH", 1, 1, 16_000, 0, 4, 16)), "4 bytes per frame"),
        (b"RIFF" + bytes(4) + b"WAVEdata" + bytes(4), "before their format"),
        (header(riff=b"RIFX"), "is not a WAV stream"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(AudioError, match=message) as caught:
        together(Reader(io.BytesIO(data)))
    assert "standard input" in str(caught.value) or "should be" in str(caught.value)


def test_samples_before_an_error_are_returned() -> None:
    result = []
    with pytest.raises(AudioError, match="before the length in its WAV header"):  # noqa: PT012
        for block in Reader(io.BytesIO(header(size=100) + bytes(50))):
            result.append(block.shape[1])
    assert result == [25]


def test_integers_are_rounded_and_clipped() -> None:
    loud = np.array([[2.0, -2.0, 0.4 / 32768, 0.6 / 32768]], np.float32)
    assert struct.unpack("<4h", encode(loud, Encoding.S16)) == (32767, -32768, 0, 1)
    assert encode(loud[:, :2], Encoding.U8) == b"\xff\0"
    assert np.array_equal(decode(encode(loud, Encoding.F32), Layout(8000, 1, Encoding.F32)), loud)
