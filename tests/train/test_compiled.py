"""Compiled networks give the same gradients, and never use up the compiler's limit of versions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from centaurus.recipes import asr, denoise, kws, launch
from centaurus.train import loop
from centaurus.train.config import override
from tests import corpora
from tests.models.small import narrow, narrow_table
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
        expected, actual = net(u), compiled(u)
        assert worst([actual], [expected]) <= VALUES
        assert worst(gradients([actual], inputs), gradients([expected], inputs)) <= GRADIENTS


TASKS: dict[str, tuple[Any, str, Callable[[Path], Path], tuple[str, ...]]] = {
    "kws": (
        kws, "kws-hybrid-2", lambda folder: corpora.speech_commands(folder, ("yes", "no"), clips=12, speakers=12),
        ("dropout=0", "words=yes,no"),
    ),
    "denoise": (
        denoise, "denoiser/hybrid", lambda folder: corpora.dns(folder, clean=16, noise=8, seconds=1.2),
        ("length=16384", "validation_items=4"),
    ),
    "asr": (
        asr, "recognizer/base", corpora.librispeech,
        ("losses=tokens:1,characters:0.3", "vocabulary=characters", "length=65536", "validation_items=4"),
    ),
}  # fmt: skip
# The rows of the recogniser end in silence, whose rounding errors norms over four channels bring to full size.
SAME_LOSS = {"kws": 1e-4, "denoise": 1e-4, "asr": 2e-2}
STEPS, WARM = 6, 4  # the recogniser's texts have another length in each batch: their sizes have become dynamic by then
C_COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.mark.parametrize(("task", "backend"), [("kws", "inductor"), ("denoise", "aot_eager"), ("asr", "eager")])
def test_training_compiles_once(task: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's runs, made narrow: the same losses as without the compiler, and nothing compiled in later steps."""
    if backend == "inductor" and not C_COMPILER:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe, network, corpus, changed = TASKS[task]
    monkeypatch.setitem(recipe.TABLES, "narrow", narrow_table(network))
    data, graphs, after = corpus(tmp_path / "data"), [0], []
    compile_module, step = nn.Module.compile, loop._step

    def counted(module: nn.Module) -> None:
        def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
            graphs[0] += 1
            return lookup_backend(backend)(graph, inputs)

        compile_module(module, backend=count)

    def watched(*arguments: Any) -> Any:
        result = step(*arguments)
        after.append(graphs[0])
        return result

    monkeypatch.setattr(nn.Module, "compile", counted)
    monkeypatch.setattr(loop, "_step", watched)
    runs = []
    for compiled in ("false", "true"):
        arguments = (f"compile={compiled}", f"steps={STEPS}", "network=narrow", "batch=4", "workers=0", "validations=1")
        config = override(launch.configure(task), [*arguments, "lr=1e-4", "log_every=1", *changed])
        runs.append(launch.start(task, config, data, tmp_path / compiled))
        launch.train(runs[-1], task, config, data)
    plain, result = ([r["loss"] for r in run.records() if r["kind"] == "train"] for run in runs)
    assert result == pytest.approx(plain, rel=SAME_LOSS[task])
    assert after[:STEPS] == [0] * STEPS
    assert after[-1] == after[STEPS + WARM - 1] > 5


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


def test_a_nan_loss_is_detected_late_but_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_in_step", lambda device, config: False)
    config = settings(log_every=4, steps=12, validations=1, lr=float("inf"))
    run = new_run(tmp_path / "run", config)
    with pytest.raises(loop.TrainingError, match=r"loss is (nan|inf) at step 4"):
        train(run, config)
    assert not list(run.checkpoints.glob("step-*"))
