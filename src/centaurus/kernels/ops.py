"""The operations on the signal in a plan, each with its backward pass: contractions, transforms, convolutions."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from centaurus.kernels.pair import align, laid_out, pair
from centaurus.kernels.precision import rounded_products
from centaurus.kernels.scan import scan_backward, scan_forward
from centaurus.native import functions as native

NARROW = 16  # rows above which a flat transposition of spectra, which torch blocks, is faster: 3 times at 128 rows

Tensors = Sequence[Tensor]
Backward = tuple[Tensor | None, list[Tensor]]


class Link(ABC):
    """One linear operation on the signal, with tensors that do not depend on it."""

    wants_input = True  # whether backward needs x itself

    @property
    def own_copies(self) -> bool:
        """Whether ``prepare`` copies its tensors: backward then needs only the shapes of the originals."""
        return False

    def prepare(self, tensors: Tensors) -> Tensors:
        """Return the tensors in the form that ``forward`` and ``backward`` take, computed once for all tiles."""
        return tensors

    @abstractmethod
    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        """Return the result, and what backward needs besides x."""

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        """Return what backward needs besides x, without computing the result."""
        return None

    @abstractmethod
    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        """Return the gradients of x (None unless ``want_x``) and of the prepared tensors, for this tile.

        ``x`` is the input (None unless ``wants_input``), ``kept`` what ``forward`` or ``recall`` returned.
        """

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        """Return the gradients of the original tensors from those of the prepared ones, summed over tiles."""
        return totals


@dataclass(frozen=True)
class Mix(Link):
    """Contract the signal with a real tensor without time index: a projection, in either domain."""

    signal: str
    other: str
    out: str
    length: int = 0  # transform length, when the signal is a spectrum

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return self._product(tensors[0], self.other, x, self.signal, self.out), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        back = self._product(tensors[0], self.other, grad, self.out, self.signal) if want_x else None
        if not self.length:
            return back, [self._product(grad, self.out, x, self.signal, self.other)]
        scaled = torch.view_as_real(grad * bin_weights(grad, self.length))
        return back, [pair(scaled, self.out + "~", torch.view_as_real(x), self.signal + "~", self.other)]

    def _product(self, x: Tensor, x_indices: str, y: Tensor, y_indices: str, out: str) -> Tensor:
        """Contract in the precision that the layer's caller allows for projections; spectra in full precision."""
        if self.length or x.dtype != torch.float32:
            return pair(x, x_indices, y, y_indices, out)
        with rounded_products() as dtype:
            if dtype is None:
                return pair(x, x_indices, y, y_indices, out)
            return pair(x.to(dtype), x_indices, y.to(dtype), y_indices, out).to(x.dtype)


def bin_weights(spectrum: Tensor, length: int) -> Tensor:
    """Return Parseval's weights of a half spectrum (f last): with them, a sum over bins is the sum over time."""
    weights = torch.full((spectrum.shape[-1],), 2 / length, device=spectrum.device, dtype=spectrum.real.dtype)
    weights[0] = 1 / length
    if length % 2 == 0:
        weights[-1] = 1 / length
    return weights


def padded(x: Tensor, length: int) -> Tensor:
    """Return the signal (…, t) with zeros after the last sample, (…, length)."""
    out = x.new_empty(*x.shape[:-1], length)
    out[..., : x.shape[-1]] = x
    out[..., x.shape[-1] :] = 0
    return out


@dataclass(frozen=True)
class ToFrequency(Link):
    """The rfft over time, zero-padded to ``length``."""

    wants_input = False

    samples: int
    length: int

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return torch.fft.rfft(padded(x, self.length)), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        return torch.fft.irfft(grad, n=self.length)[..., : self.samples] if want_x else None, []


@dataclass(frozen=True)
class ToTime(Link):
    """The irfft over frequency, cut to ``samples``."""

    wants_input = False

    samples: int
    length: int

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return torch.fft.irfft(x, n=self.length)[..., : self.samples], None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        return torch.fft.rfft(padded(grad, self.length)) if want_x else None, []


class Spectrum(torch.autograd.Function):
    """The rfft of a kernel. Its backward is one irfft, where torch uses a full complex transform."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: int) -> Tensor:
        ctx.samples, ctx.length = x.shape[-1], length
        return torch.fft.rfft(padded(x, length))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        spectrum = grad / bin_weights(grad, ctx.length)
        return torch.fft.irfft(spectrum, n=ctx.length)[..., : ctx.samples], None


@dataclass(frozen=True)
class Scale(Link):
    """Multiply the signal's spectrum by the kernel's element by element: no index is summed.

    With ``samples`` the link's tensor is the kernel in time, and the link transforms it.
    """

    signal: str
    other: str
    out: str
    length: int
    samples: int = 0

    @property
    def own_copies(self) -> bool:
        return self.samples > 0

    def prepare(self, tensors: Tensors) -> Tensors:
        return [torch.fft.rfft(padded(tensors[0], self.length))] if self.samples else tensors

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        return pair(tensors[0], self.other, x, self.signal, self.out), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        conjugate = torch.conj_physical(tensors[0])
        back = pair(conjugate, self.other, grad, self.out, self.signal) if want_x else None
        return back, [pair(grad, self.out, torch.conj_physical(x), self.signal, self.other)]

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        return [_outside(totals[0], self.length, self.samples)]


def _outside(total: Tensor, length: int, samples: int) -> Tensor:
    """Return the gradient of the kernel in time (with ``samples``), or of its spectrum as autograd defines it."""
    if samples:
        return torch.fft.irfft(total, n=length)[..., :samples]
    return total * bin_weights(total, length)


@dataclass(frozen=True)
class Multiply(Link):
    """Multiply the signal's spectrum by the kernel's, summing channels: one complex GEMM for every bin.

    Both become matrices (f · shared, rows, columns), bins outermost, by one flat transposition each. With ``samples``
    the link's tensor is the kernel in time, and the link transforms it.
    """

    signal: str
    other: str
    out: str
    length: int
    sizes: tuple[tuple[str, int], ...]  # of the kernel's indices
    samples: int = 0

    wants_input = False

    @property
    def own_copies(self) -> bool:
        return self.samples > 0

    @cached_property
    def _groups(self) -> tuple[str, str, str, str]:
        """Indices that are shared, that are summed, that only the signal has, and that only the kernel has."""
        signal, other = self.signal[:-1], self.other[:-1]
        return (
            "".join(i for i in signal if i in other and i in self.out),
            "".join(i for i in signal if i in other and i not in self.out),
            "".join(i for i in signal if i not in other),
            "".join(i for i in other if i not in signal),
        )

    def _bins(self, x: Tensor, indices: str, rows: str, columns: str) -> Tensor:
        """Reshape (…, f) to matrices (f · shared, rows, columns)."""
        shared = self._groups[0]
        x = x.permute([indices.index(i) for i in shared + rows + columns + indices[-1]])
        s, f, sizes = len(shared), x.shape[-1], x.shape[:-1]
        x = x.movedim(-1, 0).contiguous()
        return x.view(f * math.prod(sizes[:s]), math.prod(sizes[s : s + len(rows)]), -1)

    def _rows(self, bins: Tensor, order: str, sizes: dict[str, int], out: str) -> Tensor:
        """Reshape matrices back to (…, f), in the order of ``out``."""
        f, shape = sizes[out[-1]], [sizes[i] for i in order]
        if math.prod(shape) > NARROW:
            x = bins.view(f, -1).t().contiguous().view([*shape, f])
        else:
            x = bins.view([f, *shape]).movedim(0, -1).contiguous()
        return x.permute([(order + out[-1]).index(i) for i in out])

    def prepare(self, tensors: Tensors) -> Tensors:
        _, summed, _, new = self._groups
        kernel = torch.fft.rfft(padded(tensors[0], self.length)) if self.samples else tensors[0]
        return [self._bins(kernel, self.other, new, summed)]

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        shared, _, own, new = self._groups
        bins = self.recall(x, tensors)
        sizes = dict(self.sizes) | dict(zip(self.signal, x.shape, strict=True))
        return self._rows(torch.bmm(tensors[0], bins), shared + new + own, sizes, self.out), bins

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        _, summed, own, _ = self._groups
        return self._bins(x, self.signal, summed, own)

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        """Return dX = conj(K)ᵀ G and dK = G conj(X)ᵀ.

        Operands are conjugated explicitly: torch would copy a lazily conjugated one for the GEMM.
        """
        shared, summed, own, new = self._groups
        bins = self._bins(grad, self.out, new, own)
        few = bins.shape[2] < tensors[0].shape[2]  # fewer rows than channels: conjugating the signal is cheaper
        if few:
            bins = bins.conj_physical_()
            kernel = torch.bmm(bins, kept.mT).conj_physical_()
        else:
            kernel = torch.bmm(bins, torch.conj_physical(kept).mT)
        if not want_x:
            return None, [kernel]
        sizes = dict(self.sizes) | dict(zip(self.out, grad.shape, strict=True))
        if few:
            back = torch.bmm(tensors[0].mT, bins).conj_physical_()
        else:
            back = torch.bmm(torch.conj_physical(tensors[0]).mT, bins)
        return self._rows(back, shared + summed + own, sizes, self.signal), [kernel]

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        shared, summed, _, new = self._groups
        sizes = dict(self.sizes) | {self.other[-1]: self.length // 2 + 1}
        total = self._rows(totals[0], shared + new + summed, sizes, self.other)
        return [_outside(total, self.length, self.samples)]


def split(x: Tensor, chunk: int) -> Tensor:
    """Reshape (…, t) to (…, chunks, chunk), zero-padded to whole chunks."""
    chunks = math.ceil(x.shape[-1] / chunk)
    if chunks * chunk != x.shape[-1]:
        x = padded(x, chunks * chunk)
    return x.reshape(*x.shape[:-1], chunks, chunk)


def joined(x: Tensor, samples: int) -> Tensor:
    """Reshape (…, chunks, chunk) to (…, samples)."""
    return x.reshape(*x.shape[:-2], -1)[..., :samples]


@dataclass(frozen=True)
class Direct(Link):
    """Convolve with a short kernel by Toeplitz GEMMs: each block of the output from its own block and the one before.

    Tensors: the Toeplitz matrix (kernel p q) and, if there are several blocks, that of the block before.
    """

    signal: str
    kernel: str
    out: str
    block: int

    def _blocks(self, x: Tensor) -> list[Tensor]:
        blocks = split(x, self.block)
        return [blocks] if blocks.shape[-2] == 1 else [blocks, pad(blocks, (0, 0, 1, -1))]

    def _indices(self) -> tuple[str, str, str]:
        return self.signal[:-1] + "γπ", self.kernel + "πκ", self.out[:-1] + "γκ"

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        signal, kernel, out = self._indices()
        parts = [pair(v, signal, t, kernel, out) for v, t in zip(self._blocks(x), tensors, strict=True)]
        return joined(sum(parts[1:], parts[0]), x.shape[-1]), None

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        signal, kernel, out = self._indices()
        blocks = split(grad, self.block)
        own = [pair(v, signal, blocks, out, kernel) for v in self._blocks(x)]
        if not want_x:
            return None, own
        parts = [pair(blocks, out, t, kernel, signal) for t in tensors]
        if len(parts) == 2:
            parts[1] = pad(parts[1], (0, 0, -1, 1))
        return joined(sum(parts[1:], parts[0]), grad.shape[-1]), own


@dataclass(frozen=True)
class Chunked(Link):
    """Convolve with Σ Re(w a^τ) in chunks: a Toeplitz GEMM inside a chunk, states s ← a^Q s + z between chunks.

    Tensors, from ``modes.chunk_tables``: toeplitz (kernel p q), into (modes phase p h), out_of (weight q h), a^Q. In
    index strings γ is the chunk, π and κ are a sample of the input and output inside it, η is real and imaginary part.
    """

    signal: str
    modes: str
    weight: str
    phase: str  # index of the signal over real and imaginary part of a complex input to the states, or ""
    out: str
    chunk: int

    @cached_property
    def kernel(self) -> str:
        """Indices of the kernel inside a chunk."""
        return "".join(i for i in self.weight if i in self.signal or i in self.out)

    @cached_property
    def states(self) -> str:
        """Indices of the states: modes, indices that only the signal has, and the chunk γ."""
        shared = "".join(i for i in self.modes if i in self.signal)
        own = "".join(i for i in self.signal[:-1] if i not in self.modes and i != self.phase)
        return shared + own + "γ" + "".join(i for i in self.modes if i not in shared)

    def indices(self) -> tuple[str, str, str, str]:
        """Return the indices of signal and output in chunks, and of the tables into the states and out of them."""
        return self._indices

    @cached_property
    def _indices(self) -> tuple[str, str, str, str]:
        weight = self.weight.replace(self.phase, "") if self.phase else self.weight
        return self.signal[:-1] + "γπ", self.out[:-1] + "γκ", self.modes + self.phase + "πη", weight + "κη"

    def prepare(self, tensors: Tensors) -> Tensors:
        """Return the tables in the memory layout that the GEMMs of the forward pass read."""
        signal, out, into, out_of = self.indices()
        states = self.states + "η"
        local = (
            tensors[0].contiguous()
            if self._size_one(tensors[0])
            else laid_out(tensors[0], self.kernel + "πκ", signal, out)
        )
        return [
            local,
            laid_out(tensors[1], into, signal, states, turned=True),
            laid_out(tensors[2], out_of, states, out),
            tensors[3],
        ]

    def _size_one(self, local: Tensor) -> str:
        """Return the summed channels of the signal if all have size one and the kernel adds new ones, else "".

        The signal is then expanded over the new channels (a view) instead of summed: one GEMM for each channel, with
        results in the memory layout of the states' part.
        """
        summed = "".join(i for i in self.kernel if i in self.signal and i not in self.out)
        if all(local.shape[self.kernel.index(i)] == 1 for i in summed) and any(
            i not in self.signal for i in self.kernel
        ):
            return summed
        return ""

    def _repeated(self, blocks: Tensor, local: Tensor, single: str) -> tuple[Tensor, str]:
        """Return the blocks without channels of size one, expanded over the new channels, and their indices."""
        signal = self.indices()[0]
        new = "".join(i for i in self.kernel if i not in self.signal)
        sizes = [local.shape[self.kernel.index(i)] for i in new]
        x = blocks.squeeze([signal.index(i) for i in single])
        return x.expand(*sizes, *x.shape), new + "".join(i for i in signal if i not in single)

    def _inside(self, blocks: Tensor, local: Tensor) -> Tensor:
        """Return the part of a chunk's output that comes from its own samples."""
        signal, out, _, _ = self.indices()
        single = self._size_one(local)
        if not single:
            return pair(blocks, signal, local, self.kernel + "πκ", out)
        x, indices = self._repeated(blocks, local, single)
        kernel = "".join(i for i in self.kernel if i not in single)
        return pair(x, indices, local.squeeze([self.kernel.index(i) for i in single]), kernel + "πκ", out)

    def _inside_gradient(self, blocks: Tensor, grad: Tensor, local: Tensor) -> Tensor:
        """Return the gradient of the Toeplitz matrix."""
        signal, out, _, _ = self.indices()
        single = self._size_one(local)
        if not single:
            return pair(blocks, signal, grad, out, self.kernel + "πκ")
        x, indices = self._repeated(blocks, local, single)
        kernel = "".join(i for i in self.kernel if i not in single)
        return pair(x, indices, grad, out, kernel + "πκ").reshape(local.shape)

    def _decay(self, tensors: Tensors) -> Tensor:
        """Return a^Q as a complex tensor that broadcasts with the states."""
        return torch.view_as_complex(align(tensors[3], self.modes + "η", self.states + "η").contiguous())

    def advance(self, blocks: Tensor, tensors: Tensors, scan: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
        """Return the states before every chunk and after the last, from the signal in chunks."""
        signal, _, into, _ = self.indices()
        z = pair(blocks, signal, tensors[1], into, self.states + "η")
        return scan(torch.view_as_complex(z.contiguous()), self._decay(tensors), self.states.index("γ"))

    def read(self, blocks: Tensor, states: Tensor, tensors: Tensors) -> Tensor:
        """Return the output in chunks, each from its samples and the state before it."""
        _, out, _, out_of = self.indices()
        y = self._inside(blocks, tensors[0])
        return pair(self._before(states), self.states + "η", tensors[2], out_of, out, onto=y)

    def _before(self, states: Tensor) -> Tensor:
        axis = self.states.index("γ")
        return torch.view_as_real(states.narrow(axis, 0, states.shape[axis] - 1))

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        blocks = split(x, self.chunk)
        states = self._states(blocks, tensors)
        return joined(self.read(blocks, states, tensors), x.shape[-1]), states

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        return self._states(split(x, self.chunk), tensors)

    def _states(self, blocks: Tensor, tensors: Tensors) -> Tensor:
        return self.advance(blocks, tensors, lambda z, decay, axis: scan_forward(z, decay, None, axis))

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        signal, out, into, out_of = self.indices()
        states, axis = self.states + "η", self.states.index("γ")
        blocks, inputs, before = split(grad, self.chunk), split(x, self.chunk), self._before(kept)
        d_before = torch.view_as_complex(pair(blocks, out, tensors[2], out_of, states).contiguous())
        dz, lost, _ = scan_backward(d_before, None, kept, self._decay(tensors), axis)
        dz = torch.view_as_real(dz.resolve_conj())
        lost = torch.view_as_real(lost.resolve_conj())
        own = [
            self._inside_gradient(inputs, blocks, tensors[0]),
            pair(dz, states, inputs, signal, into),
            pair(before, states, blocks, out, out_of),
            lost.sum([a for a, i in enumerate(states) if i not in self.modes and i != "η"]),
        ]
        order = "".join(i for i in states if i in self.modes + "η")
        own[3] = own[3].permute([order.index(i) for i in self.modes + "η"])
        if not want_x:
            return None, own
        back = pair(blocks, out, tensors[0], self.kernel + "πκ", signal)
        return joined(pair(dz, states, tensors[1], into, signal, onto=back), grad.shape[-1]), own


@dataclass(frozen=True)
class Recurrence(Link):
    """Convolve with Σ Re(w a^τ) by its recurrence, sample by sample, in native code.

    Tensors: a (modes h) and w (weight h), over the same indices. Those are shared by signal and output, summed (only in
    the signal), new (only in the output), or inner (in neither).
    """

    signal: str
    modes: str
    weight: str
    out: str
    sizes: tuple[tuple[str, int], ...]  # of the modes' indices

    @cached_property
    def _groups(self) -> tuple[str, str, str, str, str]:
        """Indices of the modes that are shared, new, summed and inner; then indices that only the signal has."""
        shared = "".join(i for i in self.signal if i in self.modes and i in self.out)
        summed = "".join(i for i in self.signal[:-1] if i in self.modes and i not in self.out)
        new = "".join(i for i in self.out if i in self.modes and i not in self.signal)
        inner = "".join(i for i in self.modes if i not in self.signal and i not in self.out)
        return shared, new, summed, inner, "".join(i for i in self.signal[:-1] if i not in self.modes)

    def prepare(self, tensors: Tensors) -> Tensors:
        """Return both tensors as (shared, new, summed, inner, 2)."""
        shared, new, summed, inner, _ = self._groups
        laid = []
        for x, indices in zip(tensors, (self.modes, self.weight), strict=True):
            groups = [[x.shape[indices.index(i)] for i in group] for group in (shared, new, summed, inner)]
            x = x.permute([*(indices.index(i) for i in shared + new + summed + inner), len(indices)])
            laid.append(x.reshape(*(math.prod(sizes) for sizes in groups), 2).contiguous())
        return laid

    def _rows(self, x: Tensor, indices: str, channels: str) -> Tensor:
        """Reshape (…, t) to (shared, channels, own, t)."""
        shared, own = self._groups[0], self._groups[4]
        sizes = [math.prod([x.shape[indices.index(i)] for i in group]) for group in (shared, channels, own)]
        x = x.permute([indices.index(i) for i in shared + channels + own + indices[-1]])
        return x.reshape(*sizes, x.shape[-1]).contiguous()

    def _back(self, x: Tensor, like: dict[str, int], indices: str, channels: str) -> Tensor:
        """Reshape (shared, channels, own, t) to ``indices``; ``like`` has their sizes."""
        shared, own = self._groups[0], self._groups[4]
        order = shared + channels + own + indices[-1]
        return x.view([like[i] for i in order]).permute([order.index(i) for i in indices])

    def forward(self, x: Tensor, tensors: Tensors) -> tuple[Tensor, Any]:
        _, new, summed, _, _ = self._groups
        y, saved = native.scan_forward(self._rows(x, self.signal, summed), tensors[0], tensors[1], save=True)
        sizes = dict(zip(self.signal, x.shape, strict=True)) | dict(self.sizes)
        return self._back(y, sizes, self.out, new), saved

    def recall(self, x: Tensor, tensors: Tensors) -> Any:
        return self.forward(x, tensors)[1]

    def backward(self, grad: Tensor, x: Any, kept: Any, tensors: Tensors, want_x: bool) -> Backward:
        _, new, summed, _, _ = self._groups
        u, dy = self._rows(x, self.signal, summed), self._rows(grad, self.out, new)
        du, da, dw = native.scan_backward(u, dy, tensors[0], tensors[1], kept)
        sizes = dict(zip(self.signal, x.shape, strict=True))
        return self._back(du, sizes, self.signal, summed), [da, dw]

    def finish(self, totals: list[Tensor], tensors: Tensors) -> list[Tensor]:
        """Return the gradients in the order of the tensors' indices."""
        shared, new, summed, inner, _ = self._groups
        order = shared + new + summed + inner
        done = []
        for total, x, indices in zip(totals, tensors, (self.modes, self.weight), strict=True):
            sizes = [x.shape[indices.index(i)] for i in order]
            done.append(total.view(*sizes, 2).permute([*(order.index(i) for i in indices), len(order)]))
        return done
