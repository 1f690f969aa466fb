"""The loop: it learns, stops when it should, resumes bit-exactly, and fails with a message and an intact checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from centaurus.kernels import precision
from centaurus.kernels.precision import why_no_bf16
from centaurus.models import load
from centaurus.train import loop, optim
from centaurus.train.loop import compiles
from centaurus.train.optim import Average, orthogonal
from centaurus.train.run import DiskError, Run, RunError, TrainingError
from tests.train.toy import Tones, losses, new_run, settings, train

ROOT = Path(__file__).parent.parent.parent


def last_step(run: Run) -> int:
    """The step of the newest checkpoint."""
    result = run.last_checkpoint()
    return run.standing(result).step if result is not None else -1


def stopped(run: Run, at: int, corpus: Tones | None = None, **changed: object) -> None:
    """Train, and stop at a step as in a power failure."""
    config = settings(**changed)
    made = [0]

    def count(index: int) -> None:
        made[0] += 1
        if made[0] > at * config.batch:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, config, Tones(hook=count))


def test_a_run_learns_and_its_folder_describes_it(tmp_path: Path) -> None:
    config = settings(steps=120, lr=0.03, log_every=10, ema=0.9)
    run = new_run(tmp_path / "run", config)
    standing = train(run, config)
    assert standing.step == 120
    assert (standing.best or 0) > 0.9
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "config.json", "environment.json", "log.jsonl", "checkpoints", "tensorboard", "best.safetensors",
        "last.safetensors",
    }  # fmt: skip
    kinds = [record["kind"] for record in run.records()]
    assert kinds.count("train") == 12
    assert kinds.count("validation") == 2
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000120"]
    assert load(run.folder / "best.safetensors").settings["classes"] == ["low", "middle", "high"]


@pytest.mark.parametrize(
    "changed", [{}, {"accumulate": 3}, {"workers": 1}, {"precision": "bf16"}, {"optimizer": "muon"}], ids=str
)
def test_a_stopped_run_resumes_exactly(tmp_path: Path, changed: dict[str, Any]) -> None:
    if "precision" in changed and why_no_bf16():
        pytest.skip(why_no_bf16())
    whole = new_run(tmp_path / "whole", settings(**changed))
    train(whole, settings(**changed))
    broken = new_run(tmp_path / "broken", settings(**changed))
    stopped(broken, at=8, **{**changed, "workers": 0})
    assert [path.name for path in broken.checkpoints.iterdir()] == ["step-000000006"]
    train(broken, settings(**changed))
    assert losses(broken) == losses(whole)
    pair = [load(run.folder / "last.safetensors").state_dict() for run in (whole, broken)]
    assert all(torch.equal(x, pair[1][name]) for name, x in pair[0].items())


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "signal 4: .*ONEDNN_MAX_CPU_ISA"),
        ("print(0.5)", "0.5 times"),
        ("raise RuntimeError('no bf16')", "a trial failed: RuntimeError: no bf16"),
    ],
)
def test_bf16_is_refused_where_a_trial_in_another_process_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: str, reason: str
) -> None:
    monkeypatch.setattr(precision, "TRIAL", trial)
    monkeypatch.setattr(loop, "why_no_bf16", why_no_bf16.__wrapped__)
    config = settings(precision="bf16")
    with pytest.raises(ValueError, match=f"precision=bf16 does not help on this CPU: .*{reason}.*; use precision=fp32"):
        train(new_run(tmp_path / "run", config), config)


def test_the_trial_of_bf16_compares_it_with_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow products of bfloat16 are here, one of the two thresholds is above their ratio and one below it."""
    result = []
    for worth in (0.0, 1e9):
        monkeypatch.setattr(precision, "WORTH", worth)
        result.append(why_no_bf16.__wrapped__())
    if "signal" in result[0]:
        pytest.skip(result[0])
    assert result[0] == ""
    assert "times the rate of single precision" in result[1]


@pytest.mark.parametrize(("setting", "rounded"), [("fp32", False), ("bf16", True)])
def test_bf16_rounds_the_products_of_muon_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, rounded: bool
) -> None:
    if setting == "bf16" and why_no_bf16():
        pytest.skip(why_no_bf16())
    types = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        types.append(x.dtype)
        return orthogonal(x)

    monkeypatch.setattr(optim, "orthogonal", watched)
    config = settings(precision=setting, optimizer="muon", steps=2, validations=1)
    train(new_run(tmp_path / "run", config), config)
    assert set(types) == {torch.bfloat16 if rounded else torch.float32}


def test_the_ema_counts_optimiser_steps_from_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decay grows with the step: counted from zero, or constant, the initial weights would keep more weight."""
    steps: list[int] = []
    update = Average.update
    monkeypatch.setattr(Average, "update", lambda self, net, step: (steps.append(step), update(self, net, step))[1])
    config = settings(steps=4, validations=1)
    train(new_run(tmp_path / "run", config), config)
    assert steps == [1, 2, 3, 4]


def test_accumulated_parts_are_one_batch(tmp_path: Path) -> None:
    """Without dropout, parts of a batch give the gradient of the whole, but for rounding."""
    result = []
    for parts in (1, 3):
        config = settings(accumulate=parts, steps=6)
        run = new_run(tmp_path / str(parts), config)
        train(run, config, dropout=0.0)
        result.append([record["loss"] for record in run.records()])
    assert result[0] == pytest.approx(result[1], rel=1e-3)
    assert result[0] != result[1]


def test_a_budget_of_minutes_ends_in_time(tmp_path: Path) -> None:
    config = settings(steps=0, minutes=0.02, validations=1)
    run = new_run(tmp_path / "run", config)
    standing = train(run, config)
    assert 1.2 <= standing.seconds < 3
    rates = [record["lr"] for record in run.records() if record["kind"] == "train"]
    assert rates[-1] < 0.2 * max(rates)
    again = train(run, config)
    assert again == standing


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    config = settings()
    run = new_run(tmp_path / "run", config)
    stopped(run, at=8)
    with pytest.raises(TrainingError, match=r"loss is (nan|inf) at step \d+.*last good checkpoint.*step-000000006"):
        train(run, settings(lr=float("inf")))
    train(run, config)
    assert last_step(run) == 12


def test_weights_that_are_not_numbers_are_not_saved(tmp_path: Path) -> None:
    config = settings(steps=4, validations=4, lr=float("inf"))
    run = new_run(tmp_path / "run", config)
    with pytest.raises(TrainingError, match="no checkpoint has been written"):
        train(run, config)
    assert run.last_checkpoint() is None


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path / "run", settings())
    stopped(run, at=8)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop, "save_file", full)
    with pytest.raises(DiskError, match=r"No space left on device.*last good checkpoint is .*step-000000006"):
        train(run, settings())
    monkeypatch.undo()
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-000000006"]
    whole = new_run(tmp_path / "whole", settings())
    train(whole, settings())
    train(run, settings())
    assert losses(run) == losses(whole)


def test_a_full_disk_while_logging_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path / "run", settings())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Run, "log", full)
    with pytest.raises(DiskError, match="the disk is full"):
        train(run, settings())


def die(index: int) -> None:
    if index == 4 and torch.utils.data.get_worker_info() is not None:
        os._exit(1)


def test_a_dead_data_worker_is_reported(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", settings())
    stopped(run, at=8)
    with pytest.raises(TrainingError, match=r"data worker died.*last good checkpoint is .*step-000000006"):
        train(run, settings(workers=1, steps=40), Tones(hook=die))
    assert last_step(run) == 6


def torchrun(folder: Path, kill_rank: int = -1, kill_step: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone"]
    command += ["-m", "tests.train.toy", str(folder), str(kill_rank), str(kill_step)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=120)


def test_two_processes_of_which_one_was_killed_resume_exactly(tmp_path: Path) -> None:
    whole = torchrun(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    assert len(losses(Run(tmp_path / "whole-next"))) == 4 + 4
    broken = torchrun(tmp_path / "broken", kill_rank=1, kill_step=10)
    assert broken.returncode != 0
    assert "Signal 9" in broken.stderr
    run = Run(tmp_path / "broken")
    assert last_step(run) == 8
    again = torchrun(tmp_path / "broken")
    assert again.returncode == 0, again.stderr
    assert len(losses(run)) == 16 + 4
    assert losses(run) == losses(Run(tmp_path / "whole"))


def test_a_run_resumes_with_as_many_processes(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", settings())
    train(run, settings())
    checkpoint = run.last_checkpoint()
    assert checkpoint is not None
    standing = replace(run.standing(checkpoint), processes=2)
    checkpoint.rename(run.unfinished)
    run.finish_checkpoint(standing)
    with pytest.raises(RunError, match="written by 2 processes, this run has 1"):
        train(run, settings())


def largest_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changed: object) -> tuple[float, float]:
    """The norm and the largest value of the gradient that the optimiser is given in the first step."""
    seen: list[Tensor] = []

    def step(self: torch.optim.AdamW, closure: object = None) -> None:
        parameters = [p for group in self.param_groups for p in group["params"]]
        seen.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    config = settings(steps=1, **changed)
    train(new_run(tmp_path / str(len(list(tmp_path.iterdir()))), config), config)
    return float(seen[0].norm()), float(seen[0].abs().max())


def test_the_norm_or_each_value_is_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm, largest = largest_gradient(tmp_path, monkeypatch, clip=0)
    limit = largest / 2
    clipped, _ = largest_gradient(tmp_path, monkeypatch, clip=norm / 4)
    assert clipped == pytest.approx(norm / 4, rel=1e-3)
    shrunk, value = largest_gradient(tmp_path, monkeypatch, clip=0, clip_value=limit)
    assert value == pytest.approx(limit)
    assert norm / 4 < shrunk < norm


def test_compile_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [compiles(setting) for setting in ("true", "false")] == [True, False]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not compiles("auto")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert compiles("auto")
