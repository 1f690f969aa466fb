"""Tables that are kept while parameters stay."""

from __future__ import annotations

import torch

from centaurus.kernels import cache as held
from centaurus.kernels.cache import Store, once
from centaurus.ssm import SSM


def test_made_once_inside_and_every_time_outside() -> None:
    made: list[int] = []
    store: Store = {}

    def make() -> int:
        made.append(1)
        return len(made)

    assert [once("a", make), once("a", make)] == [1, 2]
    with held.held(store):
        assert [once("a", make), once("a", make), once("b", make)] == [3, 3, 4]
    with held.held(store):
        assert once("a", make) == 3
    with held.held({}):
        assert once("a", make) == 5
    assert once("a", make) == 6


def test_a_store_does_not_grow_for_ever() -> None:
    store: Store = {}
    with held.held(store):
        for key in range(3 * held.MOST):
            assert once(key, lambda key=key: key) == key
    assert len(store) <= held.MOST


@torch.no_grad()
def test_layers_in_one_store_keep_their_own_tables() -> None:
    layers = [SSM("full", 2, 2, states=3) for _ in range(3)]
    u = torch.randn(1, 2, 300)
    expected = [layer.step(u)[0] for layer in layers]
    store: Store = {}
    for _ in range(2):
        with held.held(store):
            for layer, right in zip(layers, expected, strict=True):
                pieces, state = [], None
                for piece in u.split([1, 40, 40, 200, 19], -1):
                    y, state = layer.step(piece, state)
                    pieces.append(y)
                torch.testing.assert_close(torch.cat(pieces, -1), right, rtol=1e-4, atol=1e-6)
                assert torch.equal(layer.step(u)[0], right)
