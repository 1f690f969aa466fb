"""Run a plan on tensors: steps without the signal by plain autograd, steps of the signal as one chain.

A chain is one autograd node. It runs in tiles of the batch that fit the cache; backward recomputes intermediates that
are too large to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from centaurus.kernels.bins import Bins
from centaurus.kernels.calibrate import current
from centaurus.kernels.modes import Exponential, chunk_tables, generate, toeplitz
from centaurus.kernels.ops import (
    Chunked,
    Direct,
    Link,
    Mix,
    Multiply,
    Recurrence,
    Scale,
    Spectrum,
    ToFrequency,
    ToTime,
)
from centaurus.kernels.pair import align, pair
from centaurus.kernels.precision import allowed, projecting, without_autocast
from centaurus.planner.cost import KEPT_BYTES, REAL, whole_vectors
from centaurus.planner.device import Device
from centaurus.planner.expression import Expression, parse, sizes_of
from centaurus.planner.plan import Plan, Step, Value
from centaurus.planner.search import plan_expression

SPECTRA = 4  # copies of a tile in memory when it is transformed: padded, spectrum, transposed spectrum, product
LARGE_SHARE = 4  # a batch is large when its largest intermediate exceeds a quarter of a tile's bytes
MOST_ROWS = {"dft": 64, "fft": 32, "rfft": 32}
"""Most rows in a tile of a large batch, by transform: with twice as many, a row takes up to 1.6 times as long."""


@dataclass(frozen=True)
class Chain:
    """The operations that a signal goes through, in order, and the layout of the signal at both ends."""

    links: tuple[Link, ...]
    counts: tuple[int, ...]  # tensors that each link takes
    signal: str  # indices of the input in the caller's order
    held: str  # the same in the order of the first link, channels first
    out: str  # indices of the output in the caller's order
    left: str  # the same in the order of the last link
    batch: str  # index that tiles run over, or ""
    tile: int  # rows of a tile
    keep: bool  # whether forward keeps what backward needs, instead of backward computing it again

    def __call__(self, u: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        """Return the signal after all links, differentiable in the signal and the tensors."""
        out: Tensor = _Run.apply(self, u, *tensors)
        return out

    def groups(self, tensors: Sequence[Any]) -> list[list[Any]]:
        """Return the tensors grouped by link."""
        out, start = [], 0
        for count in self.counts:
            out.append(list(tensors[start : start + count]))
            start += count
        return out

    def whole(self) -> list[bool]:
        """Return which tensors are kept for backward; of the others only the shape is."""
        return [not link.own_copies for link, count in zip(self.links, self.counts, strict=True) for _ in range(count)]

    def tiles(self, x: Tensor, indices: str) -> list[Tensor]:
        """Return tiles along the batch, as views."""
        if not self.batch:
            return [x]
        return list(x.split(self.tile, indices.index(self.batch)))

    def last_with_tensors(self) -> int:
        """Return the position of the last link that has tensors: backward needs no input of a later one."""
        return max((p for p, count in enumerate(self.counts) if count), default=-1)


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, u: Tensor, *tensors: Tensor) -> Tensor:
        prepared = [link.prepare(group) for link, group in zip(chain.links, chain.groups(tensors), strict=True)]
        held = u.permute([chain.signal.index(i) for i in chain.held])
        pieces = chain.tiles(held, chain.held)
        keep = chain.keep and any(ctx.needs_input_grad)
        trails: list[list[tuple[Any, Any]]] = []
        result: Tensor | None = None
        start = 0
        for piece in pieces:
            x, trail = piece, []
            for link, group in zip(chain.links, prepared, strict=True):
                y, kept = link.forward(x, group)
                if keep:
                    trail.append((x if link.wants_input else None, kept))
                x = y
                del y, kept
            if keep:
                trails.append(trail)
            result = _place(chain, u, result, x, start, held)
            start += x.shape[chain.left.index(chain.batch)] if chain.batch else 0
        ctx.allowed = allowed()
        ctx.chain, ctx.trails, ctx.prepared = chain, trails, prepared if any(ctx.needs_input_grad) else []
        kept = [t if whole else u.new_empty(()) for t, whole in zip(tensors, chain.whole(), strict=True)]
        ctx.shapes = [t.shape for t in tensors]
        ctx.save_for_backward(u, *kept)
        assert result is not None
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        with projecting(ctx.allowed):
            return _backward(ctx, grad)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradients of the signal and of every tensor, computed tile by tile."""
    chain: Chain = ctx.chain
    u, *kept_tensors = ctx.saved_tensors
    groups = chain.groups([t.expand(shape) for t, shape in zip(kept_tensors, ctx.shapes, strict=True)])
    needed = chain.groups(ctx.needs_input_grad[2:])
    prepared = ctx.prepared
    first = next((p for p, group in enumerate(needed) if any(group)), len(chain.links))
    inputs = chain.tiles(u.permute([chain.signal.index(i) for i in chain.held]), chain.held)
    outputs = chain.tiles(grad.permute([chain.out.index(i) for i in chain.left]), chain.left)
    totals: list[list[Tensor] | None] = [None] * len(chain.links)
    want_u = bool(ctx.needs_input_grad[1])
    several = want_u and len(inputs) > 1
    du = torch.empty_like(u) if several else None
    pieces = chain.tiles(du.permute([chain.signal.index(i) for i in chain.held]), chain.held) if du is not None else []
    trails, ctx.trails = ctx.trails, []  # a second backward pass (retain_graph=True) computes them again
    for tile, (x, dy) in enumerate(zip(inputs, outputs, strict=True)):
        trail = trails[tile] if trails else _retrace(chain, x, prepared)
        del x
        for p in range(len(chain.links) - 1, -1 if want_u else first - 1, -1):
            source, kept = trail.pop() if p < len(trail) else (None, None)
            back, own = chain.links[p].backward(dy, source, kept, prepared[p], want_u or p > first)
            _accumulate(totals, p, own)
            dy = dy if back is None else back
            del source, kept, back, own
        if several:
            pieces[tile].copy_(dy)
        elif want_u:
            du = _like(dy.permute([chain.held.index(i) for i in chain.signal]), u)
    out: list[Any] = []
    for link, total, group, want in zip(chain.links, totals, groups, needed, strict=True):
        finished = link.finish(total, group) if total else [None] * len(group)
        out += [
            g.reshape(t.shape) if w and g is not None else None for g, t, w in zip(finished, group, want, strict=True)
        ]
    return (None, du, *out)


def _accumulate(totals: list[list[Tensor] | None], position: int, own: list[Tensor]) -> None:
    total = totals[position]
    if total is None:
        totals[position] = own
    else:
        for a, b in zip(total, own, strict=True):
            a.add_(b)


def _like(x: Tensor, like: Tensor) -> Tensor:
    """Return ``x`` in the memory layout of ``like``, without a copy if it has that already."""
    return x if x.stride() == like.stride() else torch.empty_like(like).copy_(x)


def _retrace(chain: Chain, x: Tensor, prepared: Sequence[Sequence[Tensor]]) -> list[tuple[Any, Any]]:
    """Recompute the inputs of the links, as far as backward needs them."""
    trail = []
    last = chain.last_with_tensors()
    for position in range(last + 1):
        link = chain.links[position]
        if position == last:
            trail.append((x if link.wants_input else None, link.recall(x, prepared[position])))
        else:
            y, kept = link.forward(x, prepared[position])
            trail.append((x if link.wants_input else None, kept))
            x = y
            del y, kept
    return trail


def _place(chain: Chain, u: Tensor, result: Tensor | None, x: Tensor, start: int, held: Tensor) -> Tensor:
    """Copy a tile into the output, which has the memory layout of the signal."""
    order = [chain.left.index(i) for i in chain.out]
    if not chain.batch:
        return x.permute(order).contiguous()
    axis = chain.left.index(chain.batch)
    total = u.shape[chain.signal.index(chain.batch)]
    if x.shape[axis] == total:
        return x.contiguous().permute(order) if held.is_contiguous() else x.permute(order).contiguous()
    if result is None:
        shape = list(x.shape)
        shape[axis] = total
        if held.is_contiguous():
            result = x.new_empty(shape).permute(order)
        else:
            result = x.new_empty([shape[a] for a in order])
    result.narrow(chain.out.index(chain.batch), start, x.shape[axis]).copy_(x.permute(order))
    return result


@dataclass(frozen=True)
class Modes:
    """A kernel given by exponential modes: Σ Re(weight · exp(log_a τ)), both with a last axis of 2."""

    weight: Tensor
    log_a: Tensor


Operand = Tensor | Modes
Values = dict[int, Tensor]
Maker = Callable[[Values, Tensor | None], list[Tensor]]


class Program:
    """A plan that is ready to run: the links of the signal's chain, and functions that make their tensors."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.expression = plan.expression
        self.size = dict(plan.sizes)
        self.samples = self.size[self.expression.time]
        self.others = [step for step in plan.steps if not step.output.signal]
        path = [step for step in plan.steps if step.output.signal]
        made = [self._link(step) for step in path]
        self.makers: list[Maker] = [maker for _, _, maker in made]
        self.chain = self._chain(path, tuple(link for link, _, _ in made), tuple(count for _, count, _ in made))
        self.padding = self._padding(path)

    def _chain(self, path: list[Step], links: tuple[Link, ...], counts: tuple[int, ...]) -> Chain:
        """Return the links of the signal's steps as one autograd node, with the order of indices at both ends."""
        e = self.expression
        held = next(value.indices for value in path[0].inputs if value.signal)
        left = path[-1].output.indices
        entering = "".join(i for i in e.operands[e.signal] if i in held)
        batch = next((i for i in held if i in left and self._only_signal(i)), "")
        tile, keep = self._tile(path, batch)
        return Chain(links, counts, entering, held, e.output, left, batch, tile, keep)

    def _padding(self, path: list[Step]) -> int:
        """Return how many zeros to append to the signal so that it has whole chunks.

        It is padded once, before the first link, instead of in every link. The convolution is causal, so zeros after
        the end do not change it.
        """
        chunks = [step.chunk for step in path if step.kind == "chunked"]
        in_time = all(value.domain == "time" for step in path for value in step.inputs[:1])
        time_last = self.chain.signal.endswith(self.expression.time)
        return -self.samples % chunks[0] if len(chunks) == 1 and in_time and time_last else 0

    def _only_signal(self, index: str) -> bool:
        e = self.expression
        return index != e.time and not any(index in op for p, op in enumerate(e.operands) if p != e.signal)

    def _numbers(self, value: Value, batch: str) -> int:
        """Return the real numbers of a value in one row of the batch."""
        count = {"time": self.samples, "frequency": self.plan.fft_length + 2}.get(value.domain, 1)
        for index in value.indices:
            if index not in (batch, self.expression.time, self.expression.frequency):
                count *= self.size[index]
        return count

    def _tile(self, path: list[Step], batch: str) -> tuple[int, bool]:
        """Return the rows of a tile, equal for all tiles but the last, and whether backward finds intermediates kept.

        They are kept while they are small. Many rows are rounded to whole vectors: a product of 29 columns takes as
        long as one of 32. Spectra of a large batch go in tiles of few rows, which are quick to transpose.
        """
        if not batch:
            return 1, True
        total, largest = self.size[batch], self._largest_row(path, batch)
        kinds = {step.kind for step in path}
        rows = max(1, self.plan.tile_bytes // (REAL * largest * (SPECTRA if "rfft" in kinds else 1)))
        large = REAL * total * largest > self.plan.tile_bytes // LARGE_SHARE
        if large:
            rows = min([rows, *(MOST_ROWS[kind] for kind in kinds & MOST_ROWS.keys())])
        rows, lanes = whole_vectors(rows)
        tiles = -(-total // rows)
        tile = min(total, -(-total // (tiles * lanes)) * lanes)
        small = REAL * total * largest * len(path) <= KEPT_BYTES
        return tile, tile == total or small

    def _largest_row(self, path: list[Step], batch: str) -> int:
        """Return the real numbers in a row of the largest intermediate, inside a step or between two."""
        largest = max(self._numbers(v, batch) for step in path for v in (*step.inputs[:1], step.output))
        for step in path:
            if step.kind in ("dft", "fft"):  # spectra of the input and of the output
                for value in (step.inputs[0], step.output):
                    count = self._numbers(value, batch) // self.samples * (self.plan.fft_length + 2)
                    largest = max(largest, count)
            if step.kind == "chunked":
                states = "".join(i for i in self.plan.modes + step.inputs[0].indices if i != batch)
                count = 2 * -(-self.samples // step.chunk)
                for index in set(states) - {self.expression.time, self.plan.phase}:
                    count *= self.size[index]
                largest = max(largest, count)
        return largest

    def _link(self, step: Step) -> tuple[Link, int, Maker]:
        """Return the link of a step, how many tensors it takes, and the function that makes them."""
        x, out, n = step.inputs[0], step.output, self.plan.fft_length
        if step.kind == "rfft":
            return ToFrequency(self.samples, n), 0, lambda values, log_a: []
        if step.kind == "irfft":
            return ToTime(self.samples, n), 0, lambda values, log_a: []
        y = step.inputs[1]
        if step.kind == "contract":
            length = n if out.domain == "frequency" else 0
            return Mix(x.indices, y.indices, out.indices, length), 1, lambda values, log_a: [values[y.number]]
        if step.kind == "multiply":
            return self._multiply(step)
        if step.kind in ("dft", "fft"):
            return self._bins(step)
        if step.kind == "direct":
            return self._direct(step)
        return self._scan(step) if step.kind == "scan" else self._chunked(step)

    def _multiply(self, step: Step) -> tuple[Link, int, Maker]:
        """Return the link of a product of spectra; it includes the kernel's transform if that is a step of the plan."""
        x, y = step.inputs
        source = next((s for s in self.others if s.kind == "rfft" and s.output.number == y.number), None)
        number, samples = y.number, 0
        if source is not None:
            self.others.remove(source)
            number, samples = source.inputs[0].number, self.plan.kernel_length
        link: Link = Scale(x.indices, y.indices, step.output.indices, self.plan.fft_length, samples)
        if any(i in y.indices and i not in step.output.indices for i in x.indices):
            sizes = tuple((i, self.size[i]) for i in y.indices if i in self.size)
            link = Multiply(x.indices, y.indices, step.output.indices, self.plan.fft_length, sizes, samples)
        return link, 1, lambda values, log_a: [values[number][..., :samples] if samples else values[number]]

    def _bins(self, step: Step) -> tuple[Link, int, Maker]:
        x, y = step.inputs
        lags = self.plan.kernel_length
        sizes = tuple((i, self.size[i]) for i in y.indices if i in self.size)
        link = Bins(x.indices, y.indices, step.output.indices, self.plan.fft_length, sizes, step.kind == "fft")
        return link, 1, lambda values, log_a: [values[y.number][..., :lags]]

    def _direct(self, step: Step) -> tuple[Link, int, Maker]:
        x, y = step.inputs
        block = step.chunk
        several = block < self.samples

        def tables(values: Values, log_a: Tensor | None) -> list[Tensor]:
            k = values[y.number][..., :block]
            return [toeplitz(k, block, block), *([toeplitz(k, block, block, block)] if several else [])]

        return Direct(x.indices, y.indices[:-1], step.output.indices, block), 1 + several, tables

    def _chunked(self, step: Step) -> tuple[Link, int, Maker]:
        x, y = step.inputs
        modes, phase = self.plan.modes, self.plan.phase
        link = Chunked(x.indices, modes, y.indices, phase, step.output.indices, step.chunk)

        def tables(values: Values, log_a: Tensor | None) -> list[Tensor]:
            assert log_a is not None
            return chunk_tables(values[y.number], y.indices, log_a, modes, link.kernel, phase, step.chunk)

        return link, 4, tables

    def _scan(self, step: Step) -> tuple[Link, int, Maker]:
        x, y = step.inputs

        def modes(values: Values, log_a: Tensor | None) -> list[Tensor]:
            assert log_a is not None
            return [Exponential.apply(log_a), values[y.number]]

        sizes = tuple((i, self.size[i]) for i in self.plan.modes)
        return Recurrence(x.indices, self.plan.modes, y.indices, step.output.indices, sizes), 2, modes

    def _values(self, operands: Sequence[Operand]) -> tuple[Values, Tensor | None]:
        """Return the operands with their indices in the order of the steps, and log a of the modes if there are any.

        An index that no step has is summed here.
        """
        values: Values = {}
        log_a = None
        for value in {v.number: v for step in self.plan.steps for v in step.inputs}.values():
            if value.number >= len(operands):
                continue
            operand = operands[value.number]
            indices = self.expression.operands[value.number]
            if isinstance(operand, Modes):
                log_a = operand.log_a
                indices, needed = indices.replace(self.expression.time, "") + "η", value.indices + "η"
                values[value.number] = align(operand.weight, indices, needed)
                continue
            if value.number == self.expression.kernel:  # lags beyond the signal have no effect
                operand = operand.narrow(indices.index(self.expression.time), 0, self.plan.kernel_length)
            needed = self.chain.signal if value.signal else value.indices
            summed = [axis for axis, i in enumerate(indices) if i not in needed]
            operand = operand.sum(summed) if summed else operand
            values[value.number] = align(operand, "".join(i for i in indices if i in needed), needed)
        return values, log_a

    def _other(self, step: Step, values: Values, log_a: Tensor | None) -> Tensor:
        """A step that the signal is not part of, by plain autograd."""
        x = step.inputs[0]
        if step.kind == "rfft":
            spectrum: Tensor = Spectrum.apply(values[x.number], self.plan.fft_length)
            return spectrum
        if step.kind == "generate":
            assert log_a is not None
            indices = step.output.indices[:-1]
            return generate(values[x.number], x.indices, log_a, self.plan.modes, indices, self.plan.kernel_length)
        y = step.inputs[1]
        mark = {"modes": "η"}
        return pair(
            values[y.number],
            y.indices + mark.get(y.domain, ""),
            values[x.number],
            x.indices + mark.get(x.domain, ""),
            step.output.indices + mark.get(step.output.domain, ""),
        )

    def __call__(self, operands: Sequence[Operand]) -> Tensor:
        """Return the expression's value, differentiable in every operand."""
        _prime(operands[self.expression.signal])
        values, log_a = self._values(operands)
        for step in self.others:
            values[step.output.number] = self._other(step, values, log_a)
        tensors = [tensor for maker in self.makers for tensor in maker(values, log_a)]
        signal = values[self.expression.signal]
        if not self.padding:
            return self.chain(signal, tensors)
        whole: Tensor = self.chain(torch.nn.functional.pad(signal, (0, self.padding)), tensors)
        return whole.narrow(self.expression.output.index(self.expression.time), 0, self.samples)


_primed = [False]


def _prime(signal: Operand) -> None:
    """Allocate and free 32 MB once, without touching them, which raises glibc's thresholds for ``mmap`` and trimming.

    Below them, freed memory stays with the process. Returning it to the system after each tile and getting it back page
    by page takes as long as the arithmetic.
    """
    if not _primed[0] and isinstance(signal, Tensor) and signal.device.type == "cpu":
        if not torch.compiler.is_compiling():
            torch.empty(int(31.9 * 2**20), dtype=torch.uint8)
        _primed[0] = True


@lru_cache(maxsize=1024)
def _program(
    text: str, time: str, shapes: tuple[tuple[int, ...], ...], device: Device, backward: bool, limit: int | None
) -> Program:
    expression = parse(text, time)
    sizes, kernel_length = sizes_of(expression, shapes)
    return Program(
        plan_expression(expression, sizes, kernel_length=kernel_length, device=device, backward=backward, limit=limit)
    )


def temporal_einsum(
    expression: str, *operands: Tensor, time: str = "t", plan: Plan | None = None, limit: int | None = None
) -> Tensor:
    """Compute an einsum in which the ``time`` index is convolved causally, planned for the operands' shapes.

    The first operand with the time index is the signal and gives the output's length; the second is the kernel. The
    result is differentiable in every operand. ``plan`` (from ``plan_expression``) replaces the fastest plan; ``limit``
    bounds the bytes of intermediates.
    """
    if torch.compiler.is_dynamo_compiling():  # Dynamo would trace the planner too
        return torch.compiler.disable(temporal_einsum)(expression, *operands, time=time, plan=plan, limit=limit)
    parsed = parse(expression, time)
    shapes = tuple(tuple(operand.shape) for operand in operands)
    sizes, kernel_length = sizes_of(parsed, shapes)
    _check_dtypes(parsed.name, operands)
    if plan is not None:
        _check_plan(plan, parsed, sizes, kernel_length)
        program = Program(plan)
    else:
        backward = torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)
        program = _program(expression, time, shapes, current(operands[0]), backward, limit)
    with without_autocast(operands[0]):
        return program(operands)


def _check_plan(plan: Plan, expression: Expression, sizes: dict[str, int], kernel_length: int) -> None:
    lags = min(kernel_length, sizes[expression.time])
    if plan.modes:
        raise ValueError(f"the plan generates the kernel of {plan.expression} from modes, but a tensor was given")
    same = str(plan.expression) == str(expression) and plan.expression.time == expression.time
    if not same or dict(plan.sizes) != sizes or plan.kernel_length != lags:
        raise ValueError(
            f"the plan is for {plan.expression} with {dict(plan.sizes)} and {plan.kernel_length} lags, "
            f"the operands of {expression} have {sizes} and {lags} lags"
        )


def _check_dtypes(name: Callable[[int], str], operands: Sequence[Tensor]) -> None:
    first = operands[0]
    for position, operand in enumerate(operands):
        if operand.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{name(position)} is {operand.dtype}: operands are float32 or all float64")
        if operand.dtype != first.dtype or operand.device != first.device:
            raise TypeError(
                f"{name(position)} is {operand.dtype} on {operand.device}, {name(0)} is {first.dtype} on {first.device}"
            )
