"""A piece of a stream through one equation: the same chunks as in training, from a given state to the next."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from centaurus.ssm.topology import Topology
from centaurus.tensor.blocks import Chunked
from centaurus.tensor.modes import chunk_tables, powers, times
from centaurus.tensor.pairs import align, pair
from centaurus.tensor.scan import Scan


def advance(
    t: Topology,
    phases: tuple[str, str],
    u: Tensor,
    operands: Mapping[str, Tensor],
    weight: Tensor,
    log_a: Tensor,
    state: Tensor,
    longest: int,
) -> tuple[Tensor, Tensor]:
    """Output and the state after the piece. Pieces up to ``longest`` samples are one chunk."""
    driven, read = phases
    indices = t.expression.operands[t.expression.signal]
    lone = [axis for axis, i in enumerate(indices) if not any(i in later for later in ("b" + t.modes, *_later(t, "")))]
    if lone:  # channels that are only summed
        u, indices = u.sum(lone), "".join(i for axis, i in enumerate(indices) if axis not in lone)
    for letter in t.before():
        own = t.indices(letter) + (driven if t.is_complex(letter) else "")
        out = _result(t, indices, own, {t.modes, driven, *_later(t, letter)})
        u, indices = pair(operands[letter], own, u, indices, out), out
    weighted = t.modes + driven + read
    out = _result(t, indices, weighted, {read, *_later(t, "K")})
    length = u.shape[-1]
    chunk = length if length <= longest else 64
    link = Chunked(indices, t.modes, weighted, driven, out, chunk)
    tables = chunk_tables(weight, weighted, log_a, t.modes, link.kernel, driven, chunk)
    y, state = _chunks(link, u, tables, state, log_a, t.modes)
    for letter in t.after():
        own = t.indices(letter) + (read if t.is_complex(letter) else "")
        result = _result(t, out, own, set(_later(t, letter)))
        y, out = pair(operands[letter], own, y, out, result), result
    order = [out.index(i) for i in t.expression.output]
    return y.permute(order), state


def _later(t: Topology, letter: str) -> list[str]:
    """Index strings of what comes after an operand (or after K, or after nothing), the output included."""
    order = ["", *t.before(), "K", *t.after()]
    return [t.indices(n) for n in order[order.index(letter) + 1 :] if n != "K"] + [t.expression.output]


def _result(t: Topology, x: str, y: str, later: set[str]) -> str:
    """Indices left after contracting x with y: batch and time stay last."""
    needed = set("".join(later))
    found = [i for i in dict.fromkeys(y + x) if i in needed and i not in "bt"]
    return "".join(found) + "bt"


def _chunks(
    link: Chunked, u: Tensor, tables: list[Tensor], state: Tensor, log_a: Tensor, modes: str
) -> tuple[Tensor, Tensor]:
    """One chunk in real arithmetic, several by the scan; the last may be shorter than the others."""
    _, _, into, out_of = link.indices()
    batched = "b" + modes
    if u.shape[-1] == link.chunk:
        y = pair(u, link.signal[:-1] + "π", tables[0], link.kernel + "πκ", link.out[:-1] + "κ")
        y = y + pair(state, batched + "η", tables[2], out_of, link.out[:-1] + "κ")
        z = pair(u, link.signal[:-1] + "π", tables[1], into, batched + "η")
        return y, times(state, tables[3].expand_as(state)) + z
    axis = link.states.index("γ")
    initial = torch.view_as_complex(align(state, batched + "η", link.states.replace("γ", "") + "η").contiguous())
    states = link.advance(u, tables, lambda z, decay, a: Scan.apply(z, decay, initial, a))
    y = link.read(u, states, tables)
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
