"""The laws of a layer, for every layer of this package."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from centaurus import laws
from centaurus.layer import Layer, State
from centaurus.ssm import S6, SSM
from tests.check_layer import check_layer
from tests.ssm.layers import kinds

KINDS = kinds()


@pytest.mark.parametrize(("build", "channels"), [(b, c) for _, b, c in KINDS], ids=[name for name, _, _ in KINDS])
def test_a_layer_keeps_every_law(build: Callable[[], Layer], channels: int) -> None:
    torch.manual_seed(0)
    check_layer(build(), channels)


@pytest.mark.parametrize(("build", "channels"), [(b, c) for _, b, c in KINDS], ids=[name for name, _, _ in KINDS])
def test_moves_between_devices_keep_results(build: Callable[[], Layer], channels: int, device: torch.device) -> None:
    torch.manual_seed(0)
    layer = build().double()
    u = torch.randn(2, channels, 50, dtype=torch.float64)
    expected, (_, state) = layer(u), layer.step(u)
    moved = copy.deepcopy(layer).to(device)
    y = moved(u.to(device))
    assert y.device.type == device.type
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-9, atol=1e-9)
    _, after = moved.step(u.to(device))
    assert isinstance(state, Tensor)
    assert isinstance(after, Tensor)
    torch.testing.assert_close(after.cpu(), state, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved.cpu()(u), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("build", "channels"), [(b, c) for _, b, c in KINDS], ids=[name for name, _, _ in KINDS])
def test_a_layer_built_on_meta_runs_there(build: Callable[[], Layer], channels: int) -> None:
    """Forward, backward and step without data, so nothing is created on a device of its own."""
    with torch.device("meta"):
        layer = build().float()
    u = torch.randn(2, channels, 70 if isinstance(layer, S6) else 300, device="meta", requires_grad=True)
    y, state = layer.step(u)
    y, state = layer.step(u, state)
    (y.sum() + layer(u).sum()).backward()
    assert isinstance(state, Tensor)
    for x in (y, state, u.grad, *(p.grad for p in layer.parameters())):
        assert x is not None
        assert x.device.type == "meta"


class Leaky(SSM):
    """A layer that forgets a thousandth of its state between pieces."""

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        y, after = super().run(u, state, keep)
        return y, after * 0.999 if isinstance(after, Tensor) else after


def test_the_laws_notice_a_broken_state() -> None:
    broken = {law.name for law in laws.measure(Leaky("full", 3, 2), 3) if not law.holds}
    assert {"pieces equal the whole: values", "pieces equal the whole: gradients"} <= broken
