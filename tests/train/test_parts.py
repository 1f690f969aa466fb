"""The small parts of training: schedule, weight decay, average, settings, the order of the data."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn

from centaurus.models import classifier, denoiser
from centaurus.train import config
from centaurus.train.config import from_data, override, to_data
from centaurus.train.loop import Keyed, Order, collate
from centaurus.train.objectives import Clean
from centaurus.train.optim import (
    OPTIMIZERS,
    Average,
    Budget,
    adamw,
    cosine,
    decayed_and_not,
    muon,
    orthogonal,
    shared_out,
)
from tests.models.small import narrow
from tests.train.toy import TABLE, Tones, settings


def test_the_rate_rises_on_a_line_and_falls_on_a_cosine() -> None:
    assert [cosine(p, 0.1) for p in (0, 0.05, 0.1)] == pytest.approx([0, 0.5, 1])
    assert cosine(0.55, 0.1) == pytest.approx(0.5)
    assert cosine(1.0, 0.1) == pytest.approx(0)
    assert cosine(0.0, 0.0) == 1
    with pytest.raises(ValueError, match="fraction of training"):
        cosine(0.5, 1.0)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9), st.floats(0, 0.9))
def test_the_rate_never_rises_after_the_warm_up(points: list[float], warmup: float) -> None:
    later = sorted(p for p in points if p >= warmup)
    values = [cosine(p, warmup) for p in later]
    assert values == sorted(values, reverse=True)
    assert all(0 <= value <= 1 for value in values)


def test_a_budget_is_steps_or_minutes() -> None:
    assert Budget(steps=4).progress(1, 99.0) == 0.25
    assert [Budget(steps=4).coming(k, 0) for k in range(4)] == [0.125, 0.375, 0.625, 0.875]
    assert Budget(minutes=2).progress(1, 30.0) == 0.25
    with pytest.raises(ValueError, match="steps or of minutes"):
        Budget(steps=1, minutes=1)


@pytest.mark.parametrize("name", ["kws-hybrid-2", "kws-s6-2", "denoiser/hybrid-conv", "recognizer/mamba"])
def test_weight_decay_spares_what_it_would_harm(name: str) -> None:
    net = narrow(name)
    decayed, free = decayed_and_not(net)
    names = {id(p): n for n, p in net.named_parameters()}
    assert len(decayed) + len(free) == len(names)
    spared = {names[id(p)].rpartition(".")[2] for p in free}
    kept = {names[id(p)].rpartition(".")[2] for p in decayed}
    assert not {"log_dt", "A_real", "A_imag", "A_log", "dt_bias", "bias", "D"} & kept
    assert not {"B", "C", "M"} & spared
    groups = adamw(net, 0.1, 0.02).param_groups
    assert [group["weight_decay"] for group in groups] == [0.02, 0.0]
    assert groups[0]["betas"] == (0.9, 0.999)


@given(st.integers(1, 3), st.integers(2, 12), st.integers(2, 24), st.floats(1e-6, 1e3))
def test_a_matrix_is_turned_into_an_orthogonal_one(count: int, rows: int, columns: int, scale: float) -> None:
    x = torch.randn(count, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(rows * columns))
    u, sizes, v = torch.linalg.svd(scale * x, full_matrices=False)
    inside = u.mT @ orthogonal(scale * x) @ v.mT  # diagonal, if the singular vectors stay
    result = inside.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(inside, torch.diag_embed(result), atol=1e-6, rtol=0)
    large = sizes > 0.05 * sizes.square().sum(1, keepdim=True).sqrt()
    assert ((result > 0.6) & (result < 1.3))[large].all()


def test_one_step_of_muon_is_the_formula_for_matrices_and_adamw_for_the_rest() -> None:
    ours, theirs = classifier(TABLE, classes=3), classifier(TABLE, classes=3)
    theirs.load_state_dict(ours.state_dict())
    optimizers = muon(ours, 0.1, 0.02), adamw(theirs, 0.1, 0.02)
    before = {name: p.detach().clone() for name, p in ours.named_parameters()}
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    gradients = {name: q.grad for name, q in theirs.named_parameters()}
    for optimizer in optimizers:
        optimizer.step()
    matrices = {id(p) for group in optimizers[0].param_groups if group.get("matrices") for p in group["params"]}
    assert {n.rpartition(".")[2] for n, p in ours.named_parameters() if id(p) in matrices} == {"B", "C", "E", "weight"}
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        if id(p) in matrices:
            turned = orthogonal(gradients[name].flatten(1)[None])[0].reshape(p.shape)
            size = 0.1 * 0.2 * max(p.flatten(1).shape) ** 0.5
            torch.testing.assert_close(
                p.detach(), (1 - 0.1 * 0.02) * before[name] - size * turned, atol=1e-5, rtol=1e-5
            )
        else:
            assert torch.equal(p, q), name


def test_muon_in_bfloat16_turns_matrices_nearly_as_far() -> None:
    exact, rounded = classifier(TABLE, classes=3), classifier(TABLE, classes=3)
    rounded.load_state_dict(exact.state_dict())
    for p, q in zip(exact.parameters(), rounded.parameters(), strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    muon(exact, 0.1, 0.0).step()
    muon(rounded, 0.1, 0.0, rounded=True).step()
    differ = False
    for (name, p), q in zip(exact.named_parameters(), rounded.named_parameters(), strict=True):
        differ |= not torch.equal(p, q[1])
        size = 0.1 * 0.2 * max(p.flatten(1).shape) ** 0.5 if p.dim() > 1 else 1.0
        torch.testing.assert_close(p, q[1], atol=0.05 * size, rtol=0, msg=name)
    assert differ  # the rounding did take place


def _step_in_two_processes(rank: int, folder: str) -> None:
    """One step of Muon as one of two processes, with the weights written to a file."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    net = _with_gradients()
    muon(net, 0.1, 0.02).step()
    torch.save(net.state_dict(), f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def _with_gradients() -> nn.Module:
    torch.manual_seed(0)
    net = classifier(TABLE, classes=3)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    return net


def test_two_processes_share_the_matrices_of_muon(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_step_in_two_processes, (str(tmp_path),), nprocs=2)
    alone = _with_gradients()
    muon(alone, 0.1, 0.02).step()
    for rank in range(2):
        result = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, p in alone.state_dict().items():
            torch.testing.assert_close(result[name], p, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("shapes", "processes", "parts"),
    [
        ([(2, 2), (4, 4), (2, 2)], 1, [[0, 1, 2]]),
        ([(2, 2), (4, 8), (2, 2)], 2, [[1], [0, 2]]),
        ([(4, 4), (8, 4), (4, 4)], 2, [[1], [0, 2]]),
        ([(2, 2)], 3, [[0], [], []]),
    ],
)
def test_matrices_are_shared_out_by_their_work(
    shapes: list[tuple[int, int]], processes: int, parts: list[list[int]]
) -> None:
    assert shared_out(shapes, processes) == parts


def test_muon_takes_no_closure() -> None:
    with pytest.raises(ValueError, match="does not take a closure"):
        muon(classifier(TABLE, classes=3), 0.1, 0.0).step(lambda: 0.0)


def test_the_optimizers_that_may_be_named_are_there() -> None:
    assert tuple(OPTIMIZERS) == config.OPTIMIZERS
    with pytest.raises(ValueError, match="optimizer should be one of adamw, muon, got 'sgd'"):
        settings(optimizer="sgd")


def test_the_average_follows_as_its_formula_says() -> None:
    net = classifier(TABLE, classes=3)
    average = Average(net, 0.2)
    expected = {name: x.clone() for name, x in net.state_dict().items()}
    for step in range(1, 4):
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn_like(p))
        decay = min(0.2, (1 + step) / (10 + step))  # 2/11, then 0.2
        expected = {name: decay * expected[name] + (1 - decay) * x for name, x in net.state_dict().items()}
        average.update(net, step)
    assert all(torch.allclose(x, expected[name], atol=1e-6) for name, x in average.net.state_dict().items())
    with pytest.raises(ValueError, match="below 1"):
        Average(net, 1.0)


def test_no_average_is_the_network_itself() -> None:
    net = denoiser("hybrid-slim", states=2)
    average = Average(net, 0.0)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1.5)
    average.update(net, 1)
    assert all(torch.equal(x, average.net.state_dict()[name]) for name, x in net.state_dict().items())


def test_settings_are_overridden_by_pairs() -> None:
    config = settings()
    changed = override(config, ["minutes=1.5", "lr=1e-3", "compile=true", "batch=12", "precision=bf16"])
    assert (changed.minutes, changed.steps, changed.lr, changed.batch) == (1.5, 0, 1e-3, 12)
    assert changed.compile == "true"
    assert changed.precision == "bf16"
    assert from_data(type(config), to_data(changed)) == changed
    again = override(override(config, ["minutes=3"]), ["epochs=0.5"])
    assert override(replace(again, epochs=0, minutes=180), ["minutes=0.25"]).minutes == 0.25


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("bach=3", "no setting 'bach'; did you mean batch"),
        ("zzz=3", "no setting 'zzz'; there are accumulate, batch"),
        ("batch", "key=value"),
        ("batch=many", "batch should be a whole number, got 'many'"),
        ("lr=fast", "lr should be a number"),
        ("compile=perhaps", "compile should be one of auto, true, false"),
        ("batch=0", "batch should be above 0"),
        ("precision=fp8", "precision should be one of"),
        ("accumulate=4", "batch 6 cannot be split into 4 equal parts"),
        ("steps=0", "give one of epochs, steps and minutes"),
    ],
)
def test_bad_settings_are_named(pair: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(settings(), [pair])


def keys(**given: Any) -> list[tuple[int, int]]:
    """The first keys of all processes, in order of the endless sequence."""
    ranks, steps = given.get("ranks", 1), given.pop("steps")
    orders = [
        islice(Order(Tones(30), 7, given["batch"], rank, ranks, given.get("start", 0)), steps) for rank in range(ranks)
    ]
    return [key for shares in zip(*orders, strict=True) for share in shares for key in share]


@given(ranks=st.sampled_from([1, 2, 3, 4]), share=st.integers(1, 4), start=st.integers(0, 5))
def test_the_order_is_the_same_for_any_number_of_processes_and_any_start(ranks: int, share: int, start: int) -> None:
    batch = ranks * share
    alone = keys(batch=batch, steps=start + 8)
    assert keys(batch=batch, ranks=ranks, steps=8, start=start) == alone[start * batch :]


def test_every_epoch_has_every_example_once_in_an_order_of_its_own() -> None:
    order = keys(batch=6, steps=10)
    first, second = [i for e, i in order if e == 0], [i for e, i in order if e == 1]
    assert sorted(first) == sorted(second) == list(range(30))
    assert first != second
    assert first != list(range(30))


def test_the_order_refuses_what_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="batch of 5 rows cannot be shared equally by 2"):
        Order(Tones(), 0, 5, 0, 2)
    with pytest.raises(ValueError, match="no examples"):
        Order(Tones(0), 0, 4)


def test_shorter_arrays_are_padded() -> None:
    items = [{"audio": np.ones((1, n), np.float32), "label": np.array(n)} for n in (2, 4)]
    batch = collate(items)
    assert batch["audio"].tolist() == [[[1, 1, 0, 0]], [[1, 1, 1, 1]]]
    assert batch["label"].tolist() == [2, 4]


def test_augmentation_differs_by_epoch_and_is_the_same_in_any_process() -> None:
    first, again = Keyed(Tones(), seed=3), Keyed(Tones(), seed=3)
    audio = {key: first[key]["audio"] for key in ((0, 5), (1, 5), (0, 8))}
    assert np.array_equal(audio[0, 5], again[0, 5]["audio"])
    assert not np.array_equal(audio[0, 5], audio[1, 5]), "the epoch is part of the key"
    assert not np.array_equal(audio[0, 5], audio[0, 8])
    assert not np.array_equal(audio[0, 5], Keyed(Tones(), seed=4)[0, 5]["audio"])


def test_a_denoiser_is_judged_by_its_final_losses() -> None:
    """Weights move over training: validation uses the last ones throughout, so that its losses can be compared."""
    net = narrow("denoiser/hybrid-conv")
    objective = Clean(net, "smooth_l1:1..0, si_sdr:0..2")  # type: ignore[arg-type]
    audio, clean = torch.randn(2, 1, 512), torch.randn(2, 1, 512)
    batch = {"audio": audio, "clean": clean, "samples": torch.tensor([512, 512])}
    with torch.no_grad():
        total, rows = objective.measure(net, batch)["loss"]
        expected = 2 * objective.term("si_sdr", (net(audio).float(),), batch)
    assert total / rows == pytest.approx(float(expected), rel=1e-5)
