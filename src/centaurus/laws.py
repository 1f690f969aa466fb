"""The invariants of every layer and network, each a function that measures the worst violation.

Streaming equals offline, the map is causal, and rows, copies, dtypes and memory layouts do not change the result.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from centaurus.layer import Layer, map_state, reset, state_tensors
from centaurus.verification import Law

TIGHT = 1e-9
SINGLE_VALUES = 1e-4
SINGLE_GRADIENTS = 1e-3
IMPULSES = 8  # at different places of a hop
DELAY_SHARE = 16  # a trained filter may move the peak of an impulse by this fraction of a hop


class Case(NamedTuple):
    """A layer in evaluation mode, a copy of it that is never run, and a test signal of whole hops."""

    layer: Layer
    unused: Layer
    signal: Tensor
    seed: int


Check = Callable[[Case], Law]


def make_case(layer: Layer, channels: int, batch: int = 2, hops: int | None = None, seed: int = 0) -> Case:
    """Return a double-precision copy of the layer and white noise of at least seven hops and 100 samples."""
    hops = hops or max(7, -(-100 // layer.hop))
    generator = torch.Generator().manual_seed(seed)
    signal = torch.randn(batch, channels, hops * layer.hop, generator=generator, dtype=torch.float64)
    unused = copy.deepcopy(layer).cpu().double().eval()
    return Case(copy.deepcopy(unused), unused, signal, seed)


def relative_error(actual: Tensor, expected: Tensor, floor: float = 1e-30) -> float:
    """Return the largest difference over the largest expected value; infinity for another shape, NaN or infinity."""
    if actual.shape != expected.shape:
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    error = (actual.double() - expected.double()).abs().max() / expected.double().abs().max().clamp_min(floor)
    return float(error) if torch.isfinite(error) else float("inf")


def splits(hops: int, seed: int = 0) -> list[list[int]]:
    """Return splits of a signal into pieces, in hops: single hops at first, halves, and at random places."""
    singles = min(hops, 8)
    cuts = sorted(random.Random(seed).sample(range(1, hops), min(hops - 1, 4)))
    cuts_in_hops = [
        [1] * singles + [hops - singles] * (hops > singles),
        [hops - hops // 2] + [hops // 2] * (hops > 1),
        [b - a for a, b in zip([0, *cuts], [*cuts, hops], strict=True)],
    ]
    return list({tuple(sizes): sizes for sizes in cuts_in_hops}.values())


def run(layer: Layer, u: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """Return the output for the whole signal, or piece by piece: ``sizes`` is the size of each piece in hops."""
    if sizes is None:
        return layer(u)
    outputs, state = [], layer.init_state(u.shape[0])
    for piece in u.split([size * layer.hop for size in sizes], dim=-1):
        y, state = layer.step(piece, state)
        outputs.append(y)
    return torch.cat(outputs, dim=-1)


@torch.no_grad()
def values(layer: Layer, u: Tensor, seed: int, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Return the output."""
    return [run(layer, u, sizes)]


def gradients(layer: Layer, u: Tensor, seed: int, sizes: Sequence[int] | None = None) -> list[Tensor]:
    """Return the gradients of a random projection of the output: that of the input, then of each parameter."""
    u = u.clone().requires_grad_()
    learned = [u, *(p for p in layer.parameters() if p.requires_grad)]
    y = run(layer, u, sizes)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64).to(y)
    grads = torch.autograd.grad((y * weights).sum(), learned, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(learned, grads, strict=True)]


def worst_error(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Return the worst relative error; tensors below 1e-3 of the largest are compared with that instead."""
    floor = 1e-3 * max((float(x.abs().max()) for x in expected if x.numel()), default=0.0)
    return max(relative_error(x, y, max(floor, 1e-30)) for x, y in zip(actual, expected, strict=True))


def split(what: str, find: Callable[..., list[Tensor]], dtype: torch.dtype, tolerance: float) -> Check:
    """Return the law that any split into hops gives the values, or the gradients, of the whole signal.

    The error may be ten times the rounding error of the whole signal in this dtype.
    """

    def law(case: Case) -> Law:
        layer, u, seed = copy.deepcopy(case.layer).to(dtype), case.signal.to(dtype), case.seed
        whole = find(layer, u, seed)
        rounding = worst_error(whole, find(case.layer, case.signal, seed)) if dtype != torch.float64 else 0.0
        worst = max(worst_error(find(layer, u, seed, sizes), whole) for sizes in splits(u.shape[-1] // layer.hop, seed))
        return Law(f"pieces equal the whole: {what}", worst, max(tolerance, 10 * rounding))

    return law


@torch.no_grad()
def output_length(case: Case) -> Law:
    """A signal of t samples gives floor(t · ratio) frames, whether or not t is whole hops."""
    layer, hop, total = case.layer, case.layer.hop, case.signal.shape[-1]
    lengths = {t for t in (1, hop - 1, hop, hop + 1, 2 * hop + hop // 2, total - 1, total) if 1 <= t <= total}
    wrong = sum(layer.frames(t) != t * layer.ratio // 1 for t in lengths)
    wrong += sum(layer(case.signal[..., :t]).shape[-1] != layer.frames(t) for t in lengths)
    wrong += layer.step(case.signal[..., :hop])[0].shape[-1] != hop * layer.ratio
    return Law("output has frames(t) frames", wrong, 0)


@torch.no_grad()
def padded_end(case: Case) -> Law:
    """A signal that ends inside a hop gives the frames of the same signal followed by zeros."""
    samples = max(1, case.signal.shape[-1] - max(1, case.layer.hop // 2))
    padded = case.signal.clone()
    padded[..., samples:] = 0
    whole = case.layer(padded)[..., : case.layer.frames(samples)]
    return Law("the end is padded with zeros", relative_error(case.layer(case.signal[..., :samples]), whole), TIGHT)


@torch.no_grad()
def state_shape(case: Case) -> Law:
    """A state stays real, batch first, of one structure, shape and dtype, in double and in single precision."""
    wrong = 0
    for layer, u in ((case.layer, case.signal), (copy.deepcopy(case.layer).float(), case.signal.float())):
        start = layer.init_state(u.shape[0])
        _, after = layer.step(u[..., : layer.hop], start)
        _, late = layer.step(u[..., : layer.hop], after)
        for x, first, last in zip(*map(state_tensors, (start, after, late)), strict=True):
            same = x.shape == first.shape == last.shape and x.dtype == first.dtype == last.dtype
            wrong += not same or x.is_complex() or x.shape[0] != u.shape[0]
    return Law("state keeps shape and dtype", wrong, 0)


def no_mutation(case: Case) -> Law:
    """Inputs, states, parameters and buffers are not modified in place."""
    layer, hop = copy.deepcopy(case.layer), case.layer.hop
    u = case.signal[..., : 2 * hop].clone().requires_grad_()
    _, state = layer.step(case.signal[..., :hop], layer.init_state(u.shape[0]))
    state = map_state(lambda x: x.detach().clone(), state)
    watched = [u, *state_tensors(state), *layer.parameters(), *layer.buffers()]
    before = [x.detach().clone() for x in watched]
    y, after = layer.step(u, state)
    (y.sum() + sum(x.sum() for x in state_tensors(after)) + layer(u).sum()).backward()
    changed = sum(not torch.equal(x.detach(), old) for x, old in zip(watched, before, strict=True))
    return Law("no input, state or parameter is modified", changed, 0)


@torch.no_grad()
def rows_independent(case: Case) -> Law:
    """A row of a batch gives the output it has alone, independent of the other rows."""
    layer, u = case.layer, case.signal
    whole = layer(u)
    worst = 0.0
    for row in range(u.shape[0]):
        loud = u * 100
        loud[row] = u[row]
        worst = max(worst, relative_error(layer(u[row : row + 1])[0], whole[row]))
        worst = max(worst, relative_error(layer(loud)[row], whole[row]) / 100)
    return Law("rows are independent", worst, TIGHT)


@torch.no_grad()
def rows_reset(case: Case) -> Law:
    """Resetting a row clears its history and leaves the other rows unchanged."""
    layer, u = case.layer, case.signal
    half = u.shape[-1] // layer.hop // 2 * layer.hop
    first, second = u[..., :half], u[..., half:]
    _, state = layer.step(first, layer.init_state(u.shape[0]))
    going, restarted = layer.step(second, state)[0], layer.step(second)[0]
    worst = 0.0
    for row in range(u.shape[0]):
        expected = going.clone()
        expected[row] = restarted[row]
        worst = max(worst, relative_error(layer.step(second, reset(state, [row]))[0], expected))
    return Law("a reset changes only its rows", worst, TIGHT)


@torch.no_grad()
def causal(case: Case) -> Law:
    """No output depends on an input of a later hop: perturb from each hop on, compare the frames before it."""
    layer, u = case.layer, case.signal
    whole, hops = layer(u), u.shape[-1] // layer.hop
    worst = 0.0
    for hop in range(1, hops, max(1, hops // 8)):
        start = hop * layer.hop
        changed = torch.cat([u[..., :start], u[..., start:].flip(-1) + 1], dim=-1)
        frames = layer.frames(start)
        worst = max(worst, relative_error(layer(changed)[..., :frames], whole[..., :frames], float(whole.abs().max())))
    return Law("causal, hop by hop", worst, TIGHT)


@torch.no_grad()
def any_layout(case: Case) -> Law:
    """A signal gives the same output whether it is stored batch first, channel first or with gaps."""
    u = case.signal
    channel_first = u.transpose(0, 1).contiguous().transpose(0, 1)
    gaps = torch.stack([u, -u], dim=-1)[..., 0]
    whole = case.layer(u)
    worst = max(relative_error(case.layer(x), whole) for x in (channel_first, gaps))
    return Law("memory layout does not matter", worst, TIGHT)


def every_parameter_learns(case: Case) -> Law:
    """With random parameters, every parameter tensor gets a finite gradient that is not zero."""
    layer = randomized(case.layer, case.seed)
    grads = gradients(layer, case.signal, case.seed)
    silent = sum(not bool(torch.isfinite(g).all()) or float(g.abs().max()) == 0 for g in grads)
    return Law("every parameter gets a gradient", silent, 0)


@torch.no_grad()
def randomized(layer: Layer, seed: int = 0) -> Layer:
    """Return a copy of the layer with noise on every parameter, so that none is still initialised to zero."""
    layer = copy.deepcopy(layer)
    generator = torch.Generator().manual_seed(seed + 2)
    for p in layer.parameters():
        p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p))
    return layer


@torch.no_grad()
def copies_agree(case: Case) -> Law:
    """A deep copy and a layer loaded from a state dict give the same output; no cache holds old parameters."""
    whole = case.layer(case.signal)
    other = randomized(case.unused, case.seed)
    other(case.signal)
    other.load_state_dict(case.layer.state_dict())
    worst = max(relative_error(x(case.signal), whole) for x in (copy.deepcopy(case.layer), other))
    return Law("deepcopy and state_dict keep results", worst, TIGHT)


@torch.no_grad()
def dtype_moves(case: Case) -> Law:
    """Single precision gives the double-precision output, rounded, in its own dtype, and moving back works."""
    whole = case.layer(case.signal)
    single = copy.deepcopy(case.layer).float()
    y = single(case.signal.float())
    back = single.double()(case.signal)
    kept = y.dtype == torch.float32 and back.dtype == torch.float64
    worst = max(relative_error(y, whole), relative_error(back, whole)) if kept else float("inf")
    return Law("dtype moves keep results", worst, SINGLE_GRADIENTS)


def meta_device(case: Case) -> Law:
    """Forward, backward and step work without data, for shapes and counts."""
    layer, u = copy.deepcopy(case.layer).to("meta"), case.signal.to("meta").requires_grad_()
    y = layer(u)
    y.sum().backward()
    stepped, state = layer.step(u, layer.init_state(u.shape[0]))
    tensors = [y, stepped, *state_tensors(state)]
    wrong = sum(x.device.type != "meta" for x in tensors)
    wrong += any(x.shape[-1] != layer.frames(u.shape[-1]) for x in (y, stepped))
    return Law("runs on the meta device", wrong, 0)


@torch.no_grad()
def delay_measured(case: Case) -> Law:
    """The delay measured with impulses in noise, against the declared one, in input samples."""
    layer, declared = case.layer, int(case.layer.delay)
    at = [2 * layer.hop + k * (layer.hop // IMPULSES + 1) for k in range(IMPULSES)]
    span = 2 * declared + 4 * layer.hop
    hops = -(-(at[-1] + span) // layer.hop)
    generator = torch.Generator().manual_seed(case.seed)
    shape = (1, case.signal.shape[1], hops * layer.hop)
    noise = 0.01 * torch.randn(shape, generator=generator, dtype=torch.float64)
    struck = noise.repeat(IMPULSES, 1, 1)
    struck[range(IMPULSES), :, at] += 1
    response = (layer(struck) - layer(noise)).abs().sum(1)
    aligned = torch.stack([row[k : k + span] for row, k in zip(response, at, strict=True)])
    measured = int(aligned.sum(0).argmax())
    return Law("measured delay is the declared one, in samples", abs(measured - declared), layer.hop // DELAY_SHARE)


SPLITS: list[Check] = [
    split("values", values, torch.float64, TIGHT),
    split("gradients", gradients, torch.float64, TIGHT),
    split("values, float32", values, torch.float32, SINGLE_VALUES),
    split("gradients, float32", gradients, torch.float32, SINGLE_GRADIENTS),
]
SHAPES: list[Check] = [output_length, padded_end, state_shape, no_mutation, rows_independent, rows_reset, causal]
MOVES: list[Check] = [any_layout, every_parameter_learns, copies_agree, dtype_moves, meta_device]


def measure(layer: Layer, channels: int, batch: int = 2, hops: int | None = None, seed: int = 0) -> list[Law]:
    """Return every law for one layer on noise of ``channels`` channels; the layer is not changed."""
    case = make_case(layer, channels, batch, hops, seed)
    late = layer.ratio == 1 and any(isinstance(x, Layer) and x.delay for x in layer.modules())
    return [law(case) for law in (*SPLITS, *SHAPES, *MOVES, *[delay_measured] * late)]
