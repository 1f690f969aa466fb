"""``centaurus denoise``: names, trees, formats, refusals, and the exit code of every fault."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tests.cli.run import Result, run
from tests.runtime.models import exported

Cli = Callable[..., Result]


@pytest.fixture
def denoise(capsys: pytest.CaptureFixture[str]) -> Cli:
    return lambda *words: run(capsys, "denoise", "--model", str(exported("denoiser")), *map(str, words))


def noise(rate: int = 16_000, channels: int = 1, seconds: float = 0.3) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((round(rate * seconds), channels)).astype(np.float32) * 0.1


@pytest.fixture
def wav(tmp_path: Path) -> Path:
    path = tmp_path / "talk.wav"
    soundfile.write(path, noise(), 16_000)
    return path


def left(folder: Path) -> list[str]:
    """Everything below a folder, hidden files too."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_file_gets_a_result_beside_it(denoise: Cli, wav: Path) -> None:
    done = denoise(wav)
    assert done.code == 0, done.err
    assert left(wav.parent) == ["talk.denoised.wav", "talk.wav"]
    assert "talk.denoised.wav" in done.out
    assert soundfile.info(wav.with_name("talk.denoised.wav")).frames == soundfile.info(wav).frames


def test_the_result_is_the_library_s(denoise: Cli, wav: Path) -> None:
    from centaurus.runtime import denoise as library

    assert denoise(wav, "--attn-limit-db", 12, "--mix", 0.5).code == 0
    expected = library(soundfile.read(wav, dtype="float32")[0], 16_000, exported("denoiser"), 0.5, 12)
    got = soundfile.read(wav.with_name("talk.denoised.wav"), dtype="float32")[0]
    assert np.abs(got - expected.clip(-1, 1 - 2**-15)).max() <= 2**-15


@pytest.mark.parametrize(
    ("name", "rate", "channels", "subtype"),
    [
        ("a.wav", 8000, 1, "PCM_16"),
        ("a.wav", 44_100, 2, "PCM_24"),
        ("a.wav", 192_000, 1, "FLOAT"),
        ("a.flac", 48_000, 3, "PCM_24"),
        ("a.ogg", 22_050, 1, "VORBIS"),
    ],
)
def test_rate_channels_length_and_samples_are_kept(
    name: str, rate: int, channels: int, subtype: str, denoise: Cli, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / name, noise(rate, channels), rate, subtype)
    out = tmp_path / f"out.{name[2:]}"
    done = denoise(tmp_path / name, "-o", out, "--json")
    assert done.code == 0, done.err
    before, after = soundfile.info(tmp_path / name), soundfile.info(out)
    for key in ("samplerate", "channels", "frames", "subtype"):
        assert getattr(before, key) == getattr(after, key)
    assert done.json()[0]["frames"] == before.frames
    assert ("above 8 kHz has the gain of the model's top band" in done.err) == (rate > 16_000)
    narrow = denoise(tmp_path / name, "-o", out, "--force", "--band", "narrow")
    assert ("above 8 kHz was removed" in narrow.err) == (rate > 16_000)


def test_an_unknown_band_is_a_usage_error(denoise: Cli, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", noise(16_000, 1), 16_000)
    done = denoise(tmp_path / "a.wav", "--band", "wide")
    assert done.code == 2
    assert "full, narrow" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


@pytest.mark.parametrize("workers", [1, 3])
def test_a_folder_keeps_its_tree(workers: int, denoise: Cli, tmp_path: Path) -> None:
    names = ["a.wav", "deep/b.flac", "deep/er/c.wav"]
    for number, name in enumerate(names):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "in" / name, noise(channels=1 + number % 2), 16_000)
    (tmp_path / "in" / "notes.txt").write_text("no sound")
    (tmp_path / "in" / ".hidden.wav").write_text("no sound")
    assert denoise(tmp_path / "in", "--workers", workers).code == 0
    assert left(tmp_path / "in.denoised") == names
    assert denoise(tmp_path / "in", "-o", tmp_path / "in" / "clean").code == 0
    again = denoise(tmp_path / "in", "-o", tmp_path / "in" / "clean", "-f")  # results are not taken for input
    assert (again.code, left(tmp_path / "in" / "clean")) == (0, names)


def test_several_files_go_into_a_folder(denoise: Cli, wav: Path) -> None:
    soundfile.write(wav.with_name("b.flac"), noise(), 16_000)
    assert denoise(wav, wav.with_name("b.flac"), "-o", wav.parent / "out").code == 0
    assert left(wav.parent / "out") == ["b.flac", "talk.wav"]


def test_nothing_is_overwritten_unasked(denoise: Cli, wav: Path) -> None:
    there = wav.with_name("talk.denoised.wav")
    there.write_text("precious")
    done = denoise(wav)
    assert done.code == 5
    assert "talk.denoised.wav: exists already; -f overwrites" in done.err
    assert there.read_text() == "precious"
    assert denoise(wav, "-f").code == 0
    assert soundfile.info(there).frames == soundfile.info(wav).frames
    assert denoise(wav, "-o", wav).code == 5
    assert denoise(wav, "-o", wav, "-f").code == 0


def test_two_results_of_one_name_are_refused_before_work(denoise: Cli, wav: Path) -> None:
    other = wav.parent / "other"
    other.mkdir()
    soundfile.write(other / "talk.wav", noise(), 16_000)
    done = denoise(wav, other / "talk.wav", "-o", wav.parent / "out")
    assert done.code == 5
    assert "would be the result of two inputs" in done.err
    assert left(wav.parent) == ["other/talk.wav", "talk.wav"]


def test_no_samples_give_no_samples(denoise: Cli, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "none.wav", np.zeros((0, 2)), 44_100)
    assert denoise(tmp_path / "none.wav", "--plot").code == 0
    header = soundfile.info(tmp_path / "none.denoised.wav")
    assert (header.frames, header.channels) == (0, 2)
    assert (tmp_path / "none.denoised.png").stat().st_size > 1000


def test_a_plot_that_cannot_be_drawn_is_an_error_before_the_work(
    denoise: Cli, wav: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = denoise(wav, "--plot")
    assert done.code == 2
    assert "[plot]'" in done.err
    assert left(wav.parent) == ["talk.wav"]


def test_a_plot_is_a_picture(denoise: Cli, wav: Path) -> None:
    done = denoise(wav, "--plot")
    assert done.code == 0
    assert wav.with_name("talk.denoised.png").read_bytes()[:4] == b"\x89PNG"
    assert "talk.denoised.png" in done.out


def damaged(path: Path, how: str) -> None:
    if how == "missing":
        return
    if how == "text":
        path.write_text("this is not audio at all, just a few words", encoding="utf-8")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "not finite":
        x = noise()
        x[7] = np.nan
        soundfile.write(path, x, 16_000, "FLOAT")
    else:
        kind = how.split()[-1]
        soundfile.write(path, noise(seconds=2), 16_000, format=kind)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("how", ["missing", "text", "empty", "not finite", "truncated WAV", "truncated FLAC"])
def test_bad_input_is_one_line_and_code_3(how: str, denoise: Cli, tmp_path: Path) -> None:
    damaged(tmp_path / "bad.wav", how)
    before = left(tmp_path)
    done = denoise(tmp_path / "bad.wav")
    assert done.code == 3, done.err
    assert done.err.count("\n") == 1
    assert "bad.wav" in done.err
    assert left(tmp_path) == before


def test_a_folder_s_bad_file_does_not_stop_the_others(denoise: Cli, tmp_path: Path) -> None:
    for name in ("a.wav", "c.wav"):
        soundfile.write(tmp_path / name, noise(), 16_000)
    (tmp_path / "b.wav").write_text("no sound")
    done = denoise(tmp_path, "-o", tmp_path / "out")
    assert done.code == 3
    assert "b.wav" in done.err
    assert left(tmp_path / "out") == ["a.wav", "c.wav"]


def test_a_folder_without_sound(denoise: Cli, tmp_path: Path) -> None:
    done = denoise(tmp_path)
    assert (done.code, "contains no audio files" in done.err) == (3, True)


@pytest.mark.parametrize("task", ["classifier", "text", "missing"])
def test_a_model_that_cannot_be_used_is_code_4(
    task: str, wav: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = exported("classifier") if task == "classifier" else tmp_path / "model.onnx"
    if task == "text":
        model.write_text("not a model")
    done = run(capsys, "denoise", str(wav), "--model", str(model))
    assert done.code == 4, done.err
    assert done.err.count("\n") == 1
    assert not wav.with_name("talk.denoised.wav").exists()


def test_a_folder_that_exists_takes_the_result(denoise: Cli, wav: Path) -> None:
    (wav.parent / "out.wav").mkdir()
    assert denoise(wav, "-o", wav.parent / "out.wav").code == 0
    assert left(wav.parent) == ["out.wav/talk.wav", "talk.wav"]


@pytest.mark.parametrize("out", ["x.what", "talk.wav/x.wav"])
def test_outputs_that_cannot_be_are_code_5(out: str, denoise: Cli, wav: Path) -> None:
    done = denoise(wav, "-o", wav.parent / out)
    assert done.code == 5, done.err
    assert out.removesuffix("/x.wav") in done.err
    assert left(wav.parent) == ["talk.wav"]


def test_a_full_disk_is_code_5_and_leaves_nothing(denoise: Cli, wav: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: soundfile.SoundFile, data: NDArray[np.float32]) -> None:
        raise AssertionError  # what soundfile does when fewer frames were written than given

    monkeypatch.setattr(soundfile.SoundFile, "write", full)
    done = denoise(wav)
    assert done.code == 5
    assert "disk full" in done.err
    assert left(wav.parent) == ["talk.wav"]


@pytest.mark.parametrize(
    "words",
    [
        ["-", "b.wav"],
        ["a.wav", "--raw", "s16le", "--rate", "16000"],
        ["-", "--raw", "s16le"],
        ["-", "--raw", "mp3", "--rate", "16000"],
        ["-", "--rate", "16000"],
        ["a.wav", "--mix", "2"],
        ["a.wav", "-o", "-", "--plot"],
        [],
    ],
)
def test_a_mistake_in_the_command_line_is_code_2(words: list[str], denoise: Cli) -> None:
    assert denoise(*words).code == 2
