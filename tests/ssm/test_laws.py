"""The laws of a layer, for every layer of this package."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from centaurus import laws
from centaurus.layer import Layer
from tests.check_layer import check_layer
from tests.ssm.layers import kinds, random_ssm

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
    wanted, (_, state) = layer(u), layer.step(u)
    moved = copy.deepcopy(layer).to(device)
    y = moved(u.to(device))
    assert y.device.type == device.type
    torch.testing.assert_close(y.cpu(), wanted, rtol=1e-9, atol=1e-9)
    _, after = moved.step(u.to(device))
    assert isinstance(state, Tensor)
    assert isinstance(after, Tensor)
    torch.testing.assert_close(after.cpu(), state, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moved.cpu()(u), wanted, rtol=1e-9, atol=1e-9)


def test_meta_layers_step_and_learn_without_data() -> None:
    """Every layer built on the meta device runs there, so that nothing is created on a device of its own."""
    for name, build, channels in KINDS:
        with torch.device("meta"):
            layer = build().float()
        u = torch.randn(2, channels, 300, device="meta", requires_grad=True)
        y, state = layer.step(u)
        y, state = layer.step(u, state)
        (y.sum() + layer(u).sum()).backward()
        grads = [p.grad for p in layer.parameters()]
        assert all(g is not None and g.device.type == "meta" for g in grads), name
        assert isinstance(state, Tensor)
        assert state.device.type == u.grad.device.type == "meta", name


def test_the_laws_notice_a_broken_state() -> None:
    """A layer whose state is scaled between pieces, or that hears one sample late, breaks the laws it should."""

    class Leaky(type(random_ssm("full"))):  # type: ignore[misc]
        def _run(self, u: Tensor, state: Tensor | None, keep: bool) -> tuple[Tensor, Tensor]:
            y, after = super()._run(u, state, keep)
            return y, after * 0.999 if keep else after

    layer = random_ssm("full")
    layer.__class__ = Leaky
    broken = {law.name for law in laws.measure(layer, 3) if not law.holds}
    assert {"pieces equal the whole: values", "pieces equal the whole: gradients"} <= broken
