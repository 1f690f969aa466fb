"""Compiled networks give the same gradients, and never use up the compiler's limit of versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from centaurus.train import loop
from tests.models.small import narrow
from tests.reference import gradients, worst
from tests.train.toy import new_run, settings, train

VALUES = 1e-4  # fp32 through a whole network, of the largest value
GRADIENTS = 2e-3  # the same back through 18 norms over four channels, which compiled code computes in another order


@pytest.fixture(autouse=True)
def _strict_compiler() -> Iterator[None]:
    torch.compiler.reset()
    limits = {"recompile_limit": 8, "accumulated_recompile_limit": 256}
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, **limits):
        yield
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("name", "backend", "batches"),
    [("kws-hybrid-2", "aot_eager", (3, 2)), ("denoiser/hybrid", "eager", (3,)), ("recognizer/base", "eager", (3,))],
)
def test_networks_compile_within_the_limit(name: str, backend: str, batches: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net: nn.Module = narrow(name).eval()
    loop.allow_versions(net)
    compiled = torch.compile(net, backend=backend)
    for rows in batches:
        u = torch.randn(rows, 1, 2 * net.hop)
        inputs = list(net.parameters())
        wanted, found = net(u), compiled(u)
        assert worst([found], [wanted]) <= VALUES
        assert worst(gradients([found], inputs), gradients([wanted], inputs)) <= GRADIENTS


def test_figures_that_wait_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: read every third step, at validations and at the end; the weights and the losses are the same."""
    config = settings(log_every=3, steps=8, validations=2)
    read = new_run(tmp_path / "read", config)
    train(read, config)
    monkeypatch.setattr(loop, "_in_step", lambda device, config: False)
    late = new_run(tmp_path / "late", config)
    standing = train(late, config)
    losses = [
        [(record["step"], record["loss"]) for record in run.records() if record["kind"] == "train"]
        for run in (read, late)
    ]
    assert losses[0] == losses[1]
    assert [step for step, _ in losses[0]] == [3, 6, 8]
    assert standing.step == 8


def test_a_loss_that_is_not_a_number_is_found_late_but_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_in_step", lambda device, config: False)
    config = settings(log_every=4, steps=12, validations=1, lr=float("inf"))
    run = new_run(tmp_path / "run", config)
    with pytest.raises(loop.TrainingError, match=r"loss is (nan|inf) at step 4"):
        train(run, config)
    assert not list(run.checkpoints.glob("step-*"))
