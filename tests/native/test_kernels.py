"""The C kernels against the recurrences in fp64, forward and backward, for shapes that fill no vector."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import centaurus as ct
from centaurus.kernels.calibrate import current
from centaurus.kernels.program import Program
from centaurus.kernels.scan import SelectiveScan
from centaurus.native import functions
from centaurus.native.build import status
from centaurus.nn.fused import EPS, _plain
from centaurus.planner.search import enumerate_plans, fast_length
from centaurus.ssm import S6, SSM
from centaurus.ssm.layer import _planned_expression
from tests.reference import gradients, recurrence, selective, worst

FINE = 2e-5  # of single precision, against double


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CENTAURUS_NATIVE", "1")
    if not status().used:
        pytest.skip(f"no native kernels: {status().reason}")


def scanned(u: Tensor, a: Tensor, w: Tensor) -> Tensor:
    """x[t] = a x[t-1] + u[t], y = Σ Re(w x), sample by sample; a and w are complex (s, j, i, m)."""
    x = torch.zeros(*a.shape, u.shape[2], dtype=a.dtype)
    outputs = []
    for sample in u.unbind(-1):  # s i b
        x = a[..., None] * x + sample[:, None, :, None]
        outputs.append((w[..., None] * x).real.sum((2, 3)))
    return torch.stack(outputs, -1)


@settings(max_examples=20)
@given(st.data())
def test_the_recurrence_is_that_of_every_sample(data: st.DataObject) -> None:
    s, i, j, m, b = (data.draw(st.integers(1, top), name) for name, top in zip("sijmb", (9, 3, 3, 5, 18), strict=True))
    t, threads = data.draw(st.integers(1, 100), "t"), data.draw(st.sampled_from((1, 2)), "threads")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99), "seed"))
    u, dy = (torch.randn(s, c, b, t, generator=generator) for c in (i, j))
    a = torch.polar(*(torch.rand(s, j, i, m, generator=generator) * top for top in (1.0, 3.0)))
    w = torch.randn(s, j, i, m, 2, generator=generator)
    split, functions.SPLIT = functions.SPLIT, 0
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        modes = torch.view_as_real(a).contiguous()
        y, saved = functions.scan_forward(u, modes, w, save=True)
        assert saved is not None
        actual = functions.scan_backward(u, dy, modes, w, saved)
    finally:
        torch.set_num_threads(before)
        functions.SPLIT = split
    exact = [x.double().requires_grad_() for x in (u, torch.view_as_real(a), w)]
    expected = scanned(exact[0], *(torch.view_as_complex(x) for x in exact[1:]))
    assert worst([y, *actual], [expected, *torch.autograd.grad(expected, exact, dy.double())]) < FINE


LAYERS = {
    "full": {"in_channels": 3, "out_channels": 5, "states": 3},
    "pointwise": {"in_channels": 4, "out_channels": 6, "states": 9},
    "bottleneck": {"in_channels": 4, "out_channels": 3, "states": 8, "substates": 3},
    "depthwise": {"in_channels": 5, "states": 4},
    "separable": {"in_channels": 5, "states": 4, "out_channels": 3},
    "grouped": {"in_channels": 4, "out_channels": 6, "states": 4, "groups": 2},
}


SUMMING = [name for name in LAYERS if name not in ("depthwise", "grouped")]  # kernels that sum all input channels


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "scan") for name in LAYERS), *product(SUMMING, ("fft", "dft"))], ids=str
)
@pytest.mark.parametrize(("batch", "length"), [(3, 100), (1, 1)])
def test_every_plan_of_a_kind_is_the_layer(name: str, kind: str, batch: int, length: int) -> None:
    torch.manual_seed(0)
    layer = SSM(name, **LAYERS[name])
    u = torch.randn(batch, layer.in_channels, length, requires_grad=True)
    inputs = [u, *layer.parameters()]
    y, _ = recurrence(layer, u)
    expected = [y, *gradients([y], inputs)]
    expression, modes, phase = _planned_expression(layer.topology)
    sizes = {"b": batch, "t": length, **layer.topology.size}
    plans = enumerate_plans(expression, sizes, modes=modes, phase=phase, device=current(u))
    chosen = [plan for plan in plans if any(step.kind == kind for step in plan.steps)]
    assert chosen
    for plan in chosen[:20]:
        y = layer.run_program(Program(plan), u)
        assert worst([y, *gradients([y], inputs)], expected) < FINE, plan.summary()


def test_a_plan_with_native_spectra_runs_on_tensors_that_are_not_for_native_code() -> None:
    layer = SSM("full", **LAYERS["full"]).double()
    u = torch.randn(2, 3, 50, dtype=torch.float64, requires_grad=True)
    inputs = [u, *layer.parameters()]
    expression, modes, phase = _planned_expression(layer.topology)
    sizes = {"b": 2, "t": 50, **layer.topology.size}
    plans = enumerate_plans(expression, sizes, modes=modes, phase=phase, device=current(torch.zeros(1)))
    plan = next(plan for plan in plans if any(step.kind == "fft" for step in plan.steps))
    y, (z, _) = layer.run_program(Program(plan), u), recurrence(layer, u)
    assert worst([y, *gradients([y], inputs)], [z, *gradients([z], inputs)]) < 1e-10


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 100), st.integers(1, 3))
def test_spectra_and_their_adjoint(rows: int, samples: int, more: int, threads: int) -> None:
    length = fast_length(samples + more)
    u, spectra = torch.randn(rows, samples), torch.randn(length // 2 + 1, 2, rows)
    before, split = torch.get_num_threads(), functions.SPLIT
    try:
        torch.set_num_threads(threads)
        functions.SPLIT = 0
        actual, back = functions.spectrum(u, length), functions.signal(spectra, samples, length)
    finally:
        torch.set_num_threads(before)
        functions.SPLIT = split
    exact = u.double().requires_grad_()
    expected = torch.view_as_real(torch.fft.rfft(exact, n=length)).permute(1, 2, 0)
    adjoint = torch.autograd.grad(expected, exact, spectra.double())[0]
    assert worst([actual, back], [expected, adjoint]) < FINE


def test_double_precision_and_complex_layers_stay_with_torch() -> None:
    double = torch.zeros(1, dtype=torch.float64)
    assert current(torch.zeros(1)).scan > 0
    assert current(torch.zeros(1)).spectra > 0
    assert current(double).scan == current(double).spectra == 0
    plan = SSM("pointwise", 4, states=8, complex=True).plan(8, 512)
    assert all(step.kind != "scan" for p in (plan, *plan.runners_up) for step in p.steps)


@settings(max_examples=20)
@given(st.data())
def test_norm_activation_and_skips(data: st.DataObject) -> None:
    c, b, t = (data.draw(st.integers(low, top), name) for name, low, top in (("c", 6, 40), ("b", 1, 4), ("t", 1, 200)))
    scaled, before, after, activate = (data.draw(st.booleans(), name) for name in ("scale", "before", "after", "silu"))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99), "seed"))

    def signal(expected: bool = True) -> Tensor | None:
        return torch.randn(c, b, t, generator=generator).requires_grad_() if expected else None

    u, x, y = signal(), signal(before), signal(after)
    weight, bias = (torch.randn(c, generator=generator).requires_grad_() for _ in range(2))
    scale = torch.empty(c, b, 1).bernoulli_(0.7, generator=generator) / 0.7 if scaled else None
    result = functions.Norm.apply(u, weight, bias, scale, x, y, activate, EPS).transpose(0, 1)
    inputs = [z for z in (u, weight, bias, x, y) if z is not None]

    def plain(z: Tensor | None) -> Tensor | None:
        return None if z is None else z.double().transpose(0, 1)

    exact = _plain(plain(u), weight.double(), bias.double(), plain(scale), plain(x), plain(y), activate)
    assert worst([result, *gradients([result], inputs)], [exact, *gradients([exact], inputs)]) < FINE


@settings(max_examples=30)
@given(st.data())
def test_products_of_small_matrices(data: st.DataObject) -> None:
    """As many bins of any shape, with either factor transposed, and written nowhere else."""
    f, m, k, n = (data.draw(st.integers(1, top), name) for name, top in zip("fmkn", (5, 20, 40, 70), strict=True))
    torch.manual_seed(data.draw(st.integers(0, 9), "seed"))
    a = torch.randn(f, k, m).mT if data.draw(st.booleans(), "a transposed") else torch.randn(f, m, k)
    b = torch.randn(f, n, k).mT if data.draw(st.booleans(), "b transposed") else torch.randn(f, k, n)
    assert worst([functions.products(a, b)], [a.double() @ b.double()]) < FINE


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("step", [1, 1 << 14])  # one chunk in a segment, or several
@pytest.mark.parametrize(("channels", "states", "batch", "length"), [(4, 5, 3, 100), (16, 40, 1, 300), (2, 70, 2, 130)])
def test_the_selective_recurrence(
    native: str, step: int, channels: int, states: int, batch: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole signals, and pieces with a state, whose gradients go both ways."""
    monkeypatch.setenv("CENTAURUS_NATIVE", native)
    monkeypatch.setattr("centaurus.kernels.scan.SEGMENT", 40 * batch * channels * states)  # several segments
    monkeypatch.setattr("centaurus.kernels.scan.STEP", step)
    torch.manual_seed(0)
    layer = S6(channels, 3, states=states)
    u = torch.randn(batch, channels, length, requires_grad=True)
    state = torch.randn(batch, channels, states, requires_grad=True)
    inputs = [u, *layer.parameters()]
    y, (exact, _) = layer(u), selective(layer, u)
    assert worst([y, *gradients([y], inputs)], [exact, *gradients([exact], inputs)]) < FINE
    y, last = layer.step(u, state)
    exact, after = selective(layer, u, state)
    assert isinstance(last, Tensor)
    result, right = (gradients(pair, [*inputs, state]) for pair in ([y, last], [exact, after]))
    assert worst([y, last, *result], [exact, after, *right]) < FINE


@pytest.mark.parametrize("step", [1, 16])
def test_the_selective_recurrence_in_torch_is_its_own_derivative(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("centaurus.kernels.scan.SEGMENT", 40)  # two segments
    monkeypatch.setattr("centaurus.kernels.scan.STEP", step)
    torch.manual_seed(0)
    b, i, n, t = 1, 2, 2, 21
    shapes = [(b, i, t), (b, i, t), (b, t, n), (b, t, n), (i, n), (i, n), (b, i, n)]
    inputs = [torch.rand(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(SelectiveScan.apply, inputs)


def test_a_network_trains_alike_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ct.classifier("kws-hybrid-2", classes=5).train()
    u = torch.randn(3, 1, 2048)
    result = []
    for switch in ("1", "0"):
        monkeypatch.setenv("CENTAURUS_NATIVE", switch)
        torch.manual_seed(0)  # of dropout
        y = net(u)
        result.append([y, *gradients([y], list(net.parameters()))])
    assert worst(result[0], result[1]) < 1e-3  # many layers of single precision
