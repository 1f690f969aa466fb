"""A stream gives what the whole signal gives, however the signal is split, and can be stopped, moved and resumed."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from centaurus.layer import Layer
from centaurus.nn import AvgPool, CausalConv, DCBlock, Down, Hourglass, Pointwise, RunningMean, Serial, Stream, Up
from centaurus.nn.stream import pack, unpack


def hourglass() -> Layer:
    torch.manual_seed(0)
    core = Hourglass(CausalConv(3), Down(3, 4, 3), CausalConv(4), Up(4, 3, 3), CausalConv(3))
    return Serial([DCBlock(2), Pointwise(2, 3), core]).double()


def spotter() -> Layer:
    torch.manual_seed(0)
    return Serial([CausalConv(2), AvgPool(4), CausalConv(2), RunningMean(2), Pointwise(2, 3)]).double()


MODELS = {"hourglass": hourglass(), "spotter": spotter()}
pieces = st.lists(st.integers(0, 9), min_size=1, max_size=8)
models = st.sampled_from(sorted(MODELS))


def noise(batch: int, samples: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, 2, samples, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def whole(model: Layer, u: Tensor) -> Tensor:
    with torch.no_grad():
        return model(u) if u.shape[-1] else u.new_zeros(u.shape[0], 3, 0)


def close(given: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(given, expected, rtol=1e-9, atol=1e-9)


@given(name=models, sizes=pieces, batch=st.integers(1, 3))
def test_any_pieces_and_a_flush_make_the_whole(name: str, sizes: list[int], batch: int) -> None:
    model, u = MODELS[name], noise(batch, sum(sizes))
    live = Stream(model, batch)
    outputs = [live(piece) for piece in u.split(sizes, dim=-1)]
    assert live.samples == [sum(sizes)] * batch
    close(torch.cat([*outputs, live.flush()], dim=-1), whole(model, u))


@given(name=models, sizes=pieces)
def test_frames_come_as_soon_as_their_hop_is_there(name: str, sizes: list[int]) -> None:
    model, live, samples = MODELS[name], Stream(MODELS[name]), 0
    for piece in noise(1, sum(sizes)).split(sizes, dim=-1):
        y, samples = live(piece), samples + piece.shape[-1]
        ready = model.frames(samples // model.hop * model.hop)
        assert live.frames == [ready]
        assert y.shape[:2] == (1, 3)


@given(name=models, before=pieces, after=pieces, row=st.integers(0, 2))
def test_a_row_is_reset_alone(name: str, before: list[int], after: list[int], row: int) -> None:
    model, live = MODELS[name], Stream(MODELS[name], batch=3)
    first, second = noise(3, sum(before)), noise(3, sum(after), seed=1)
    early = torch.cat([live(piece) for piece in first.split(before, dim=-1)], dim=-1)
    waiting = sum(before) % model.hop
    live.reset([row])
    assert (live.samples[row], live.frames[row]) == (0, 0)
    late = torch.cat([*(live(piece) for piece in second.split(after, dim=-1)), live.flush()], dim=-1)
    padded = torch.cat([torch.zeros(1, 2, waiting, dtype=torch.float64), second[row : row + 1]], dim=-1)
    close(late[row : row + 1], whole(model, padded))
    others = [r for r in range(3) if r != row]
    expected = whole(model, torch.cat([first, second], dim=-1))[others]
    close(torch.cat([early, late], dim=-1)[others], expected)


@settings(max_examples=30)
@given(name=models, before=pieces, after=pieces)
def test_a_saved_stream_continues_exactly(name: str, before: list[int], after: list[int]) -> None:
    model, live = MODELS[name], Stream(MODELS[name], batch=2)
    for piece in noise(2, sum(before)).split(before, dim=-1):
        live(piece)
    other = Stream(copy.deepcopy(model), batch=2)
    other.restore(live.save())
    assert (other.samples, other.frames) == (live.samples, live.frames)
    for piece in noise(2, sum(after), seed=1).split(after, dim=-1):
        assert torch.equal(live(piece), other(piece))
    assert torch.equal(live.flush(), other.flush())


def test_flush_resets_the_stream() -> None:
    model, u = MODELS["hourglass"], noise(1, 14)
    live = Stream(model)
    for _ in range(2):
        close(torch.cat([live(u), live.flush()], dim=-1), whole(model, u))
    live(u)
    live.reset()
    close(torch.cat([live(u), live.flush()], dim=-1), whole(model, u))


def test_a_stream_keeps_no_gradients_and_no_dropout() -> None:
    model = spotter().train()
    y = Stream(model)(noise(1, 8))
    assert y.is_inference()
    assert not model.training


def test_errors_name_the_wrong_argument() -> None:
    live = Stream(MODELS["spotter"], batch=2)
    with pytest.raises(RuntimeError, match="nothing to flush"):
        live.flush()
    with pytest.raises(ValueError, match=r"\(2, channels, time\) pieces, got shape \(1, 2, 4\)"):
        live(noise(1, 4))
    live(noise(2, 3))
    with pytest.raises(ValueError, match="2 channels so far, got 1"):
        live(noise(2, 3)[:, :1])
    with pytest.raises(IndexError, match=r"rows 0 to 1, cannot reset \[2\]"):
        live.reset([0, 2])
    with pytest.raises(ValueError, match="batch=0"):
        Stream(MODELS["spotter"], batch=0)


def test_a_saved_stream_fits_only_its_own_model() -> None:
    live = Stream(MODELS["spotter"], batch=2)
    live(noise(2, 9))
    data = live.save()
    with pytest.raises(ValueError, match="has 2 rows, this one has 1"):
        Stream(MODELS["spotter"]).restore(data)
    with pytest.raises(ValueError, match="'hop': '4'"):
        Stream(MODELS["hourglass"], batch=2).restore(data)
    with pytest.raises(ValueError, match="saved state"):
        Stream(Serial([CausalConv(3), AvgPool(4), CausalConv(3), RunningMean(2)]).double(), batch=2).restore(data)
    with pytest.raises(ValueError, match="state tensors"):
        Stream(AvgPool(4), batch=2).restore(data)
    with pytest.raises(ValueError, match="the saved stream is not a complete safetensors file"):
        Stream(MODELS["spotter"], batch=2).restore(data[:-1])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("state.0", float("nan"), "holds NaN or infinity in 'state.0'"),
        ("rest", float("inf"), "holds NaN or infinity in 'rest'"),
        ("samples", -1, "samples that are not counts"),
        ("other", 0.0, "has 'other', which no stream has"),
    ],
)
def test_the_values_of_a_saved_stream_are_checked(name: str, value: float, message: str) -> None:
    live = Stream(MODELS["spotter"])
    live(noise(1, 9))
    tensors, words = unpack(live.save())
    tensors[name] = tensors.get(name, torch.zeros(1)).clone()
    tensors[name].view(-1)[0] = value
    before = unpack(live.save())[0]
    with pytest.raises(ValueError, match=message):
        live.restore(pack(tensors, words))
    assert all(torch.equal(x, before[name]) for name, x in unpack(live.save())[0].items())
    del tensors["samples"]
    with pytest.raises(ValueError, match="has 0 rows, this one has 1"):
        live.restore(pack(tensors, words))
