"""Free sounds for training: files of packages, and random songs."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import free_sounds
from free_sounds import BEATS, RATE, TICKS, bar, composed, joined, lay_out, sounds_of, write


@pytest.mark.parametrize("seed", range(20))
def test_songs_sound_in_every_bar_and_are_functions_of_the_seed(seed: int) -> None:
    made = []
    for _ in range(2):
        rng, degrees = np.random.default_rng(seed), dict[int, int]()
        song = composed(rng)
        made.append([list(bar(rng, song, number, degrees)) for number in range(4)])
    assert made[0] == made[1]
    assert sum(map(len, made[0])) >= 4
    for number, notes in enumerate(made[0]):
        for channel, at, lasts, _, loudness in notes:
            assert 0 <= channel < 16
            assert lasts > 0
            assert 1 <= loudness <= 127
            assert number * BEATS * TICKS <= at < (number + 1) * BEATS * TICKS


def test_sounds_become_mono_at_the_common_rate_and_peak(tmp_path: Path) -> None:
    stereo = 0.1 * np.random.default_rng(0).standard_normal((44_100, 2))
    soundfile.write(tmp_path / "a.wav", stereo, 44_100)
    assert write(*next(sounds_of(tmp_path / "a.wav")), tmp_path / "out" / "a.wav")
    x, rate = soundfile.read(tmp_path / "out" / "a.wav")
    assert rate == RATE
    assert x.shape == (RATE,)
    assert np.abs(x).max() == pytest.approx(0.7, abs=1e-3)
    soundfile.write(tmp_path / "b.wav", np.zeros(RATE), RATE)
    assert not write(*next(sounds_of(tmp_path / "b.wav")), tmp_path / "out" / "b.wav")
    assert not (tmp_path / "out" / "b.wav").exists()


def test_only_named_files_are_taken_and_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = free_sounds.Package("CC0", effects=("bang.wav",), music=("tune*.wav",))
    monkeypatch.setattr(free_sounds, "PACKAGES", {"sounds": package})
    with pytest.raises(SystemExit, match=r"sounds does not exist: unpack sounds \(CC0\)"):
        lay_out(tmp_path / "packages", tmp_path / "out")
    folder = tmp_path / "packages" / "sounds" / "deep"
    folder.mkdir(parents=True)
    for name in ("bang", "speech", "tune1", "tune2"):
        soundfile.write(folder / f"{name}.wav", np.sin(np.arange(RATE)), RATE)
    assert lay_out(tmp_path / "packages", tmp_path / "out") == {"effects": 1, "music": 2}
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.wav")) == [
        "sounds_0000.wav", "sounds_0000.wav", "sounds_0001.wav",
    ]  # fmt: skip


def test_short_sounds_of_a_pack_are_joined_without_voices(tmp_path: Path) -> None:
    wave = np.sin(0.3 * np.arange(3 * RATE)).astype(np.float32)
    sounds = {f"cat {k}": 0.01 * (k + 1) * wave for k in range(12)}
    sounds |= {"Voice 1": wave, "nothing": 0 * wave, "long": np.tile(wave, 10)}
    for name, samples in sounds.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, RATE)
    made = list(joined(tmp_path, np.random.default_rng(0)))
    seconds = [len(x) / RATE for x in made]
    assert len(made) == 2
    assert 30 < seconds[0] < 41
    assert 46 < sum(seconds) < 46 + 13 * 0.8  # twelve of three seconds and ten of the long one, with gaps
    for x in made:
        assert x.dtype == np.float32
        levels = [20 * np.log10(np.abs(part).max()) for part in np.split(x, range(RATE, len(x), RATE))]
        assert -34 + 2 < max(levels) < -18 + 4  # a tone's peak is 3 dB above its level


def test_the_sounds_of_a_doom_archive_are_read(tmp_path: Path) -> None:
    wave = (128 + 100 * np.sin(np.arange(3000) / 10)).astype(np.uint8)
    sound = struct.pack("<HHI", 3, 11_025, len(wave)) + wave.tobytes()
    places = [(12, len(sound), b"DSPUNCH\0"), (12, len(sound), b"MAP01\0\0\0")]
    directory = b"".join(struct.pack("<ii8s", *place) for place in places)
    (tmp_path / "a.wad").write_bytes(b"IWAD" + struct.pack("<ii", len(places), 12 + len(sound)) + sound + directory)
    ((samples, rate),) = sounds_of(tmp_path / "a.wad")
    assert rate == 11_025
    np.testing.assert_allclose(samples, wave / 128.0 - 1, atol=1e-6)
