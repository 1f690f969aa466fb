"""Run a piece of a stream through a layer's equation, from a state to the next, with the kernels of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from centaurus.kernels.modes import chunk_tables, powers, times
from centaurus.kernels.ops import Chunked, joined, split
from centaurus.kernels.pair import align, pair
from centaurus.kernels.scan import Scan
from centaurus.ssm.topology import Topology


@dataclass(frozen=True)
class Route:
    """The contractions of a piece by index strings: operands before the state, the state in chunks, operands after."""

    summed_axes: tuple[int, ...]  # axes of the signal that no operand has: they are summed
    before: tuple[tuple[str, str, str, str], ...]  # letter, its indices, those of the signal and of the result
    link: Chunked
    weighted: str  # indices of the weight of the modes
    after: tuple[tuple[str, str, str, str], ...]  # as ``before``
    order: tuple[int, ...]  # axes of the result in the order of the output


@lru_cache(maxsize=4096)
def route(t: Topology, phases: tuple[str, str], chunk: int) -> Route:
    """Return the route of pieces that are processed in chunks of this many samples."""
    driven, read = phases
    indices = t.expression.operands[t.expression.signal]
    reached = ("b" + t.modes, *_later(t, ""))
    summed_axes = tuple(axis for axis, i in enumerate(indices) if not any(i in later for later in reached))
    indices = "".join(i for axis, i in enumerate(indices) if axis not in summed_axes)
    before, after = [], []
    for letter in t.before():
        own = t.indices(letter) + (driven if t.is_complex(letter) else "")
        out = _result(indices, own, {t.modes, driven, *_later(t, letter)})
        before.append((letter, own, indices, out))
        indices = out
    weighted = t.modes + driven + read
    out = _result(indices, weighted, {read, *_later(t, "K")})
    link = Chunked(indices, t.modes, weighted, driven, out, chunk)
    for letter in t.after():
        own = t.indices(letter) + (read if t.is_complex(letter) else "")
        result = _result(out, own, set(_later(t, letter)))
        after.append((letter, own, out, result))
        out = result
    order = tuple(out.index(i) for i in t.expression.output)
    return Route(summed_axes, tuple(before), link, weighted, tuple(after), order)


@dataclass(frozen=True)
class PieceTables:
    """What a piece needs besides the signal and the state; it depends on the parameters only."""

    operands: Mapping[str, Tensor]
    chunk: Sequence[Tensor]
    log_a: Tensor


def piece_tables(w: Route, operands: Mapping[str, Tensor], weight: Tensor, log_a: Tensor) -> PieceTables:
    """Return the tables of a piece from the parameters."""
    link = w.link
    made = chunk_tables(weight, w.weighted, log_a, link.modes, link.kernel, link.phase, link.chunk)
    return PieceTables(operands, link.prepare(made), log_a)


def advance(w: Route, u: Tensor, known: PieceTables, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output of the piece u and the state after it."""
    if w.summed_axes:
        u = u.sum(w.summed_axes)
    for letter, own, indices, out in w.before:
        u = pair(known.operands[letter], own, u, indices, out)
    y, state = _chunks(w.link, u, known.chunk, state, known.log_a, w.link.modes)
    for letter, own, indices, out in w.after:
        y = pair(known.operands[letter], own, y, indices, out)
    return y.permute(w.order), state


def _later(t: Topology, letter: str) -> list[str]:
    """Return the index strings of the operands after a letter (after K, or all of them for ""), and the output's."""
    order = ["", *t.before(), "K", *t.after()]
    return [t.indices(n) for n in order[order.index(letter) + 1 :] if n != "K"] + [t.expression.output]


def _result(x: str, y: str, later: set[str]) -> str:
    """Return the indices of the contraction of x with y that are needed later, batch and time last."""
    needed = set("".join(later))
    kept = [i for i in dict.fromkeys(y + x) if i in needed and i not in "bt"]
    return "".join(kept) + "bt"


def _chunks(
    link: Chunked, u: Tensor, tables: Sequence[Tensor], state: Tensor, log_a: Tensor, modes: str
) -> tuple[Tensor, Tensor]:
    """Return output and next state of one chunk (in real arithmetic) or several, of which the last may be shorter."""
    _, _, into, out_of = link.indices()
    batched = "b" + modes
    if u.shape[-1] == link.chunk:
        y = pair(u, link.signal[:-1] + "π", tables[0], link.kernel + "πκ", link.out[:-1] + "κ")
        y = y + pair(state, batched + "η", tables[2], out_of, link.out[:-1] + "κ")
        z = pair(u, link.signal[:-1] + "π", tables[1], into, batched + "η")
        return y, times(state, tables[3].expand_as(state)) + z
    axis = link.states.index("γ")
    initial = torch.view_as_complex(align(state, batched + "η", link.states.replace("γ", "") + "η").contiguous())
    blocks = split(u, link.chunk)
    states = link.advance(blocks, tables, lambda z, decay, a: Scan.apply(z, decay, initial, a))
    y = joined(link.read(blocks, states, tables), u.shape[-1])
    whole = u.shape[-1] // link.chunk
    final = torch.view_as_real(states.select(axis, whole))
    final = align(final, link.states.replace("γ", "") + "η", batched + "η")
    rest = u.shape[-1] - whole * link.chunk
    if rest:
        tail = u[..., whole * link.chunk :]
        cut = tables[1].narrow(-2, link.chunk - rest, rest)
        decay = powers(log_a, log_a.new_full((1,), rest))[..., 0, :]
        z = pair(tail, link.signal[:-1] + "π", cut, into, batched + "η")
        final = times(final, decay.expand_as(final)) + z
    return y, final
