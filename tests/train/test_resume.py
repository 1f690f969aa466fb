"""Exact resume or a refusal: checkpoints with checksums, a lock, and data that must be those of the start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest
import soundfile
import torch

from centaurus.data.corpus import Changes, fingerprints
from centaurus.data.layouts import open_corpus
from centaurus.models import load
from centaurus.train.run import Run, RunError
from tests import corpora
from tests.cli.run import run
from tests.train.test_fit import last_step, stopped
from tests.train.toy import Tones, losses, new_run, settings, train

FEW = ("steps=4", "batch=4", "workers=0", "validations=2", "before=0", "log_every=1", "--small")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A short run with its checkpoint."""
    made = new_run(tmp_path_factory.mktemp("runs") / "run", settings(steps=2))
    train(made, settings(steps=2))
    return made


def files_of(finished: Run) -> list[str]:
    checkpoint = finished.last_checkpoint()
    assert checkpoint is not None
    return sorted(path.name for path in checkpoint.iterdir())


def damaged(finished: Run, folder: Path, name: str, how: str) -> Run:
    """A copy of the run with one file of its checkpoint missing, with a flipped bit, or cut."""
    shutil.copytree(finished.folder, folder)
    checkpoint = Run(folder).last_checkpoint()
    assert checkpoint is not None
    path = checkpoint / name
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2])
    return Run(folder)


@pytest.mark.parametrize("how", ["missing", "flipped", "cut"])
def test_a_damaged_checkpoint_is_refused_by_name(finished: Run, tmp_path: Path, how: str) -> None:
    names = files_of(finished)
    assert {"random_states_0.pkl", "checksums.json", "standing.json", "average.safetensors"} <= set(names)
    for name in names:
        broken = damaged(finished, tmp_path / name, name, how)
        with pytest.raises(RunError, match=f"is damaged.*{'' if name == 'checksums.json' else name}"):
            train(broken, settings(steps=2))


class Program:
    """What a pickle can run when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["optimizer.bin", "random_states_0.pkl"])
def test_a_checkpoint_runs_no_program_and_is_refused(finished: Run, tmp_path: Path, name: str) -> None:
    """Also random numbers that cannot be restored: accelerate would continue without them."""
    shutil.copytree(finished.folder, tmp_path / "run")
    copy = Run(tmp_path / "run")
    checkpoint = copy.last_checkpoint()
    assert checkpoint is not None
    torch.save({"state": Program(tmp_path / "was run")}, checkpoint / name)
    sums = {path.name: sha256(path.read_bytes()).hexdigest() for path in checkpoint.iterdir()}
    del sums["checksums.json"]
    (checkpoint / "checksums.json").write_text(json.dumps(sums), encoding="utf-8")
    with pytest.raises(RunError, match="cannot be restored"):
        train(copy, settings(steps=4))
    assert not (tmp_path / "was run").exists()


def test_a_run_in_use_is_refused(finished: Run) -> None:
    with finished.locked(), pytest.raises(RunError, match="is in use"), Run(finished.folder).locked():
        pass
    with finished.locked():
        pass


def test_an_early_kill_repeats_no_log_lines(tmp_path: Path) -> None:
    whole = new_run(tmp_path / "whole", settings())
    train(whole, settings())
    broken = new_run(tmp_path / "broken", settings())
    stopped(broken, at=3)
    assert broken.last_checkpoint() is None
    assert losses(broken)
    train(broken, settings())
    assert losses(broken) == losses(whole)


@pytest.mark.parametrize("file", ["standing.json", "checksums.json", "step-000000004", "last.safetensors"])
def test_a_kill_after_any_file_of_the_end_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    whole = new_run(tmp_path / "whole", settings(steps=4))
    train(whole, settings(steps=4))
    broken, replace, kills = new_run(tmp_path / "broken", settings(steps=4)), os.replace, []

    def kill(source: Path, target: Path) -> None:
        replace(source, target)
        if Path(target).name == file and list(broken.records())[-1]["step"] == 4:
            kills.append(file)
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        train(broken, settings(steps=4))
    monkeypatch.undo()
    train(broken, settings(steps=4))
    assert kills == [file]
    assert losses(broken) == losses(whole)
    for name in ("best.safetensors", "last.safetensors"):
        first, second = (load(run.folder / name).state_dict() for run in (whole, broken))
        assert all(torch.equal(x, second[key]) for key, x in first.items()), name


def test_a_finished_run_is_extended_with_its_validations(tmp_path: Path) -> None:
    longer = new_run(tmp_path / "run", settings(steps=4))
    train(longer, settings(steps=4))
    train(longer, settings(steps=8), Tones())
    assert last_step(longer) == 8
    steps = [record["step"] for record in longer.records() if record["kind"] == "validation"]
    assert steps == [2, 4, 8]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return corpora.speech_commands(tmp_path / "data", ("yes", "no"), clips=10, speakers=10)


def test_changed_data_are_refused_by_name(capsys: pytest.CaptureFixture[str], words: Path, tmp_path: Path) -> None:
    first = run(capsys, "train", "kws", *FEW, "--data", str(words), "--out", "run")
    assert first.code == 0, first.err
    for line in ("classes  2: no, yes", "clips", "word hours"):
        assert line in first.err
    clip = sorted((words / "yes").iterdir())[0]
    sound, rate = soundfile.read(clip)
    shutil.copy(clip, words / "yes" / "added_nohash_9.wav")
    soundfile.write(clip, -sound, rate)
    sorted((words / "no").iterdir())[0].rename(tmp_path / "elsewhere.wav")
    again = run(capsys, "train", "--resume", "run", "steps=6")
    assert again.code == 3
    assert "1 added (yes/added_nohash_9" in again.err
    assert "1 removed (no/" in again.err
    assert f"1 changed (yes/{clip.stem}" in again.err
    allowed = run(capsys, "train", "--resume", "run", "steps=6", "--allow-changed-data")
    assert allowed.code == 0, allowed.err
    assert "6 steps" in allowed.out
    (words / "maybe").mkdir()
    for k in range(4):
        soundfile.write(words / "maybe" / f"{k:08x}_nohash_0.wav", sound, rate)
    classes = run(capsys, "train", "--resume", "run", "--allow-changed-data")
    assert classes.code == 4
    assert "classes" in classes.err


def test_a_finished_run_is_reported_and_can_be_extended(capsys: pytest.CaptureFixture[str], words: Path) -> None:
    assert run(capsys, "train", "kws", *FEW, "--data", str(words), "--out", "run").code == 0
    again = run(capsys, "train", "--resume", "run")
    assert again.code == 0
    assert "finished already" in " ".join(again.out.split())
    extended = run(capsys, "train", "--resume", "run", "steps=6", "--json")
    assert extended.json()["step"] == 6
    assert Run("run").description()["extended_from"] == [{"steps": 4}]
    other = run(capsys, "train", "--resume", "run", "lr=1")
    assert other.code == 2
    assert "only epochs, steps, minutes can be changed" in other.err


def test_out_is_an_empty_folder_and_a_start_that_fails_leaves_nothing(
    capsys: pytest.CaptureFixture[str], words: Path, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").touch()
    refused = run(capsys, "train", "kws", *FEW, "--data", str(words), "--out", "photos")
    assert refused.code == 5
    assert "not empty and not a run" in refused.err
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.png"]
    failed = run(capsys, "train", "kws", *FEW, "words=maybe", "--data", str(words), "--out", "deep/in/run")
    assert failed.code in (2, 3)
    assert not (tmp_path / "deep").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_in_the_data_does_not_block(words: Path) -> None:
    os.mkfifo(words / "yes" / "pipe_nohash_0.wav")
    corpus = open_corpus(words)
    assert not any("pipe" in clip.id for clip in corpus)


@pytest.mark.parametrize("name", ["config.json", "data.json", "clips.json", "log.jsonl"])
@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"\xff\xfe", b"[1]", b'{"settings": 3}'])
def test_damaged_files_of_a_run_are_errors_of_one_line(
    capsys: pytest.CaptureFixture[str], finished: Run, tmp_path: Path, name: str, text: bytes
) -> None:
    shutil.copytree(finished.folder, tmp_path / "run")
    described = {"recipe": "kws", "data": "nowhere", "settings": {}}
    broken = Run(tmp_path / "run")
    broken.write_json("config.json", described)
    (tmp_path / "run" / name).write_bytes(text)
    if name == "config.json":
        result = run(capsys, "train", "--resume", str(tmp_path / "run"))
        assert result.code == 4, result.err
        assert result.err.count("\n") == 1
    elif name == "log.jsonl":
        assert list(broken.records()) == []
    else:
        with pytest.raises(RunError, match="is damaged"):
            broken.read_json(name) if text != b'{"settings": 3}' else broken.read_json("nothing")


def test_fingerprints_see_labels_lengths_and_content(words: Path) -> None:
    corpus = open_corpus(words)
    first = fingerprints([corpus])
    assert first == fingerprints([open_corpus(words)])
    assert not Changes.between(first, first)
    assert len(set(first.values())) == len(first)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_training_with_their_code(words: Path, tmp_path: Path, number: int, code: int) -> None:
    """After the first step, which leaves a run to resume."""
    command = [sys.executable, "-m", "centaurus", "train", "kws", *FEW, "steps=100000", "--data", str(words)]
    process = subprocess.Popen([*command, "--out", "run"], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    log = tmp_path / "run" / "log.jsonl"
    end = time.monotonic() + 180
    while not (log.exists() and log.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == code, error
    assert "Traceback" not in error
    assert "centaurus train --resume run" in error
