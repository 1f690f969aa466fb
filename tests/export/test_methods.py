"""Every method to export an SSM layer, for every equation and chunk, gives the output of torch for the whole signal."""

from __future__ import annotations

import pytest
import torch

from centaurus.export.ssm import Choice, Local, choose, divisors, lower_ssm, methods
from centaurus.export.step import Signal
from centaurus.export.write import Graph
from centaurus.ssm import SSM
from tests.export.graphs import error, run_pieces

TOLERANCE = 2e-5  # single precision against double, of the largest value

LAYERS = {
    "depthwise": lambda: SSM("depthwise", 3, states=4),
    "separable": lambda: SSM("separable", 3, 5, states=4),
    "grouped": lambda: SSM("grouped", 4, 6, states=3, groups=2),
    "pointwise": lambda: SSM("pointwise", 3, 4, states=6),
    "bottleneck": lambda: SSM("bottleneck", 3, 4, states=5, substates=2),
    "full": lambda: SSM("full", 3, 2, states=4),
    "one to one": lambda: SSM("full", 1, 1, states=5),
    "one to many": lambda: SSM("full", 1, 3, states=2),
    "many to one": lambda: SSM("full", 3, 1, states=2),
    "complex bottleneck": lambda: SSM("bottleneck", 3, 4, states=5, substates=2, complex=True),
    "complex full": lambda: SSM("full", 2, 3, states=4, complex=True),
    "complex grouped": lambda: SSM("grouped", 4, 2, states=3, groups=2, complex=True),
    "zoh": lambda: SSM("pointwise", 2, 3, states=4, discretization="zoh"),
    "bilinear": lambda: SSM("bottleneck", 2, 3, states=4, substates=2, discretization="bilinear"),
    "own equation": lambda: SSM("u_bit D_np B_pi K_nt C_jn -> y_bjt", sizes={"i": 2, "p": 3, "n": 4, "j": 2}),
    "own, crossed": lambda: SSM("u_bit E_jn K_jint -> y_bjt", sizes={"i": 2, "j": 3, "n": 4}),
}


def layer(name: str) -> SSM:
    torch.manual_seed(3)
    return LAYERS[name]().double().eval()


def lowered_by(choice: Choice, made: SSM) -> object:
    def run(g: Graph, u: Signal) -> Signal:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("centaurus.export.ssm.choose", lambda local, frames: choice)
            return lower_ssm(made, g, u, "layer")

    return run


@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_every_method_for_a_piece_equals_the_layer(name: str) -> None:
    made, frames = layer(name), 6
    u = torch.randn(2, made.in_channels, 3 * frames, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = made(u).numpy()
    choices = [c for q in divisors(frames) for c in methods(Local(made), frames, q)]
    assert len(choices) >= 7
    for choice in choices:
        actual = run_pieces(lowered_by(choice, made), u.numpy(), frames)
        assert error(actual, expected) < TOLERANCE, (choice.run.__name__, choice.chunk)


@torch.no_grad()
def test_each_method_is_chosen_somewhere() -> None:
    shapes = [
        (SSM("full", 1, 1, states=16), 256),
        (SSM("full", 1, 2, states=4), 2048),
        (SSM("full", 16, 16, states=4), 64),
        (SSM("pointwise", 64, 64, states=128), 2),
        (SSM("separable", 16, 16, states=64), 64),
    ]
    chosen = {choose(Local(made), frames).run.__name__ for made, frames in shapes}
    assert chosen == {"_serial", "_chunks", "_linked", "_crossed", "_rows"}


@pytest.mark.parametrize("frames", [1, 2, 7, 60, 97])
@torch.no_grad()
def test_any_number_of_frames(frames: int) -> None:
    made = layer("bottleneck")
    u = torch.randn(3, 3, 2 * frames, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    result = run_pieces(lambda g, s: lower_ssm(made, g, s, "layer"), u.numpy(), frames)
    assert error(result, made(u).numpy()) < TOLERANCE


@torch.no_grad()
def test_a_long_stream_does_not_drift() -> None:
    made, frames = layer("pointwise"), 16
    u = torch.randn(1, 3, 500 * frames, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    actual, expected = run_pieces(lambda g, s: lower_ssm(made, g, s, "layer"), u.numpy(), frames), made(u).numpy()
    assert error(actual[..., -frames:], expected[..., -frames:]) < TOLERANCE
