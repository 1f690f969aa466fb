"""Layers inside torch.compile and torch.export give the same results as outside."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from centaurus.kernels.program import temporal_einsum
from centaurus.layer import Layer
from centaurus.ssm import SSM
from tests.reference import gradients, worst
from tests.ssm.layers import kinds

SAME = 2e-6  # fp32: a compiler may reorder sums; 1.01e-6 was seen with torch of another build
CHOSEN = ("depthwise", "grouped complex", "bottleneck", "bottleneck complex", "S6 with a mixer")
KINDS = [k for k in kinds() if k[0] in CHOSEN]
by_kind = pytest.mark.parametrize(("build", "channels"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])


@pytest.fixture(autouse=True)
def _reset_compiler() -> Iterator[None]:
    torch.compiler.reset()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo's remarks about caches
        yield


def check(
    run: Callable[..., Tensor], compiled: Callable[..., Tensor], actual: list[Tensor], inputs: list[Tensor]
) -> None:
    """Values and gradients of all outputs are the same."""
    expected, got = (x if isinstance(x, tuple) else (x,) for x in (run(*actual), compiled(*actual)))
    assert worst(got, expected) <= SAME
    assert worst(gradients(got, inputs), gradients(expected, inputs)) <= SAME


@by_kind
def test_forward_and_backward(build: Callable[[], Layer], channels: int, device: torch.device) -> None:
    layer, u = build().float().to(device), torch.randn(2, channels, 90, device=device, requires_grad=True)
    check(layer, torch.compile(layer, backend="aot_eager"), [u], [u, *layer.parameters()])


@pytest.mark.parametrize("kind", ["depthwise", "S6 with a mixer"])
def test_step(kind: str) -> None:
    _, build, channels = next(k for k in KINDS if k[0] == kind)
    layer, u = build().float(), torch.randn(2, channels, 20, requires_grad=True)
    state = layer.init_state(2)
    assert isinstance(state, Tensor)
    state = torch.randn_like(state).requires_grad_()
    check(layer.step, torch.compile(layer.step, backend="aot_eager"), [u, state], [u, state, *layer.parameters()])


def test_the_planner_is_not_traced() -> None:
    """One graph before the contraction and one after it, whatever the planner does."""
    graphs = []

    def collect(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    u, k = torch.randn(2, 3, 50), torch.randn(4, 3, 50)

    @torch.compile(backend=collect)
    def run(u: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(temporal_einsum("bit,jit->bjt", torch.sin(u), k))

    torch.testing.assert_close(run(u, k), torch.tanh(temporal_einsum("bit,jit->bjt", torch.sin(u), k)))
    assert len(graphs) == 2
    assert not any("fft" in str(node.target) for graph in graphs for node in graph.graph.nodes)


@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="no C++ compiler")
def test_inductor() -> None:
    """A step of a stream, and training around a layer, compiled to machine code."""
    layer, u = SSM("depthwise", 2, states=2), torch.randn(2, 2, 5, requires_grad=True)
    state = torch.randn(2, 2, 2, 2)
    with torch.no_grad():
        assert worst(torch.compile(layer.step)(u, state), layer.step(u, state)) <= SAME

    def run(u: Tensor) -> Tensor:
        return torch.tanh(layer(torch.tanh(u)))

    check(run, torch.compile(run), [u], [u, *layer.parameters()])


class Step(nn.Module):
    """What a runtime would call: explicit states in and out."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, after = self.layer.step(u, state)
        assert isinstance(after, Tensor)
        return y, after


@pytest.mark.parametrize("samples", [1, 100])
@by_kind
def test_export_of_step(build: Callable[[], Layer], channels: int, samples: int) -> None:
    """The exported graph gives what step gives, in real arithmetic alone."""
    layer = build().float().eval()
    state = layer.init_state(2)
    assert isinstance(state, Tensor)
    arguments = (torch.randn(2, channels, samples), torch.randn_like(state))
    program = torch.export.export(Step(layer), arguments)
    result = [node.meta["val"] for node in program.graph.nodes if "val" in node.meta]
    flat = [x for value in result for x in (value if isinstance(value, tuple | list) else (value,))]
    assert len(flat) > 10
    assert not any(isinstance(x, Tensor) and x.is_complex() for x in flat)
    assert not any("complex" in str(node.target) for node in program.graph.nodes)
    with torch.no_grad():
        assert worst(program.module()(*arguments), layer.step(*arguments)) <= SAME
