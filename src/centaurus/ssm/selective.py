"""``S6``: the selective state-space layer with a low-rank Δ, in real arithmetic and bounded memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from centaurus.kernels.precision import check_precision, full_precision, without_autocast, working
from centaurus.kernels.scan import SelectiveScan
from centaurus.layer import Layer, State, check_channels
from centaurus.native.functions import Selective, usable
from centaurus.ssm.kernel import DT_RANGE, kaiming_uniform
from centaurus.ssm.topology import BlockCounts, check_arguments

CHUNK = 32  # samples up to which the recurrence by doubling is faster than sample by sample
LOW_RANK = 16  # channels for each rank of Δ, as in Mamba


class S6(Layer):
    """The selective state-space layer (S6): signals (batch, in_channels, time) to (batch, out_channels, time), causal.

    x[t] = exp(Δ A) x[t-1] + Δ B(u) u, y = Σ_n C(u) E x, with Δ, B and C computed from the input and a negative A.

    Args:
        in_channels: channels of the input, at least 2: Δ, B and C of a channel depend on the others.
        out_channels: channels of the output, mixed by a matrix M; None for the input's channels and no M.
        states: real states of each channel.
        rank: of the projection to Δ; a sixteenth of the channels, rounded up, if not given.
        weighted: whether there is a weight E for each channel and state; False is Mamba's layer.

    A layer with a mixer to 32 channels.

        layer = S6(16, 32, states=8)
        y = layer(torch.randn(4, 16, 1000))                     # (4, 32, 1000)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        states: int = 16,
        rank: int | None = None,
        weighted: bool = True,
    ) -> None:
        super().__init__()
        optional = {"out_channels": out_channels, "rank": rank}
        present = {name: size for name, size in optional.items() if size is not None}
        check_arguments("S6", in_channels=in_channels, states=states, **present)
        if in_channels < 2:
            raise ValueError(
                f"S6 gates channels with each other and needs at least 2, got {in_channels}: use 'separable'"
            )
        self.in_channels, self.out_channels = in_channels, out_channels or in_channels
        self.states, self.default_rank = states, rank is None
        self.rank = rank or math.ceil(in_channels / LOW_RANK)
        self.A_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float()).repeat(in_channels, 1))  # i n
        self.E = nn.Parameter(torch.ones(in_channels, states)) if weighted else None  # i n
        self.B = nn.Parameter(kaiming_uniform(states, in_channels, fan_in=in_channels))  # n i
        self.C = nn.Parameter(kaiming_uniform(states, in_channels, fan_in=in_channels))  # n i
        self.dt_down = nn.Parameter(kaiming_uniform(self.rank, in_channels, fan_in=in_channels))
        self.dt_up = nn.Parameter(kaiming_uniform(in_channels, self.rank, fan_in=self.rank))
        dt = torch.logspace(math.log10(DT_RANGE[0]), math.log10(DT_RANGE[1]), in_channels)
        self.dt_bias = nn.Parameter(torch.log(torch.expm1(dt)))  # softplus of the bias is Δ
        self.M = (
            nn.Parameter(kaiming_uniform(out_channels, in_channels, fan_in=in_channels))
            if out_channels is not None
            else None
        )

    def arguments(self) -> dict[str, Any]:
        return {
            "in_channels": self.in_channels,
            "out_channels": None if self.M is None else self.out_channels,
            "states": self.states,
            "rank": None if self.default_rank else self.rank,
            "weighted": self.E is not None,
        }

    def undecayed(self) -> list[nn.Parameter]:
        """Return the parameters that get no weight decay: A and Δ's bias."""
        return [self.A_log, self.dt_bias]

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, states={self.states}, rank={self.rank}"

    def counts(self, convention: str = "table") -> BlockCounts:
        """Return parameters, FLOPs per step and state floats by the paper's formulas, Δ's rank being a 16th of h.

        Without E there is one parameter and one FLOP less for each channel and state.
        """
        if convention not in ("table", "results"):
            raise ValueError(f"convention is 'table' or 'results', got {convention!r}")
        h, n = self.in_channels, self.states
        gate = math.ceil(h * h / LOW_RANK) if self.default_rank else h * self.rank
        mixer = 0 if self.M is None else h * self.out_channels
        weights = 0 if self.E is None else h * n
        flops = 13 * h * n + weights + (math.ceil(4 * h * h / LOW_RANK) if self.default_rank else 4 * gate) + 2 * mixer
        return BlockCounts(3 * h * n + weights + gate + mixer, flops, h * n)

    def init_state(self, batch: int) -> State:
        """Return zeros of shape (batch, channels, states)."""
        dtype = working(self.A_log.dtype)
        return torch.zeros(batch, self.in_channels, self.states, device=self.A_log.device, dtype=dtype)

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels("S6", u, self.in_channels)
        x = self.init_state(u.shape[0]) if state is None else state
        assert isinstance(x, Tensor)
        check_precision(u, x.dtype)
        with without_autocast(u):
            with full_precision(u):
                y, x = self._scan(u.to(x.dtype), x)
            if self.M is not None:
                y = self.M.to(y.dtype) @ y
        return y.to(torch.promote_types(u.dtype, self.A_log.dtype)), x

    def _scan(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        if u.shape[-1] <= CHUNK:
            return self._by_doubling(u, x)
        if torch.compiler.is_dynamo_compiling():  # torch.compile would unroll the loop over samples
            y, x = torch.compiler.disable(self._by_samples)(u, x)
            return y, x
        return self._by_samples(u, x)

    def _by_samples(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run a signal (b, i, t) from a state (b, i, n) sample by sample, in native code if available."""
        down, up, B, C, A_log = (p.to(u.dtype) for p in (self.dt_down, self.dt_up, self.B, self.C, self.A_log))
        flat = u.transpose(0, 1).reshape(u.shape[1], -1)
        dt = nn.functional.softplus(torch.addmm(self.dt_bias.to(u.dtype)[:, None], up, down @ flat))
        dt = dt.view(u.shape[1], u.shape[0], -1).transpose(0, 1)
        into, out_of = u.transpose(1, 2) @ B.t(), u.transpose(1, 2) @ C.t()  # b t n
        E = torch.ones_like(A_log) if self.E is None else self.E.to(u.dtype)
        scan = Selective if usable(u) else SelectiveScan
        y, last = scan.apply(u, dt, into, out_of, torch.exp(A_log), E, x)
        return y, last

    def _by_doubling(self, u: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run a short signal (b, i, t) from a state (b, i, n) by a parallel scan in log2(t) steps.

        Its products of decays are at most one, and nothing is divided.
        """
        dtype = u.dtype
        low = self.dt_down.to(dtype) @ u
        dt = nn.functional.softplus(self.dt_up.to(dtype) @ low + self.dt_bias.to(dtype)[:, None])  # b i t
        into, out_of = self.B.to(dtype) @ u, self.C.to(dtype) @ u  # b n t
        decay = torch.exp(-dt[:, :, None] * torch.exp(self.A_log.to(dtype))[..., None])  # b i n t
        states = (dt * u)[:, :, None] * into[:, None]
        states = torch.cat((states[..., :1] + decay[..., :1] * x[..., None], states[..., 1:]), -1)
        reach = 1
        while reach < u.shape[-1]:
            states = torch.cat(
                (states[..., :reach], states[..., reach:] + decay[..., reach:] * states[..., :-reach]), -1
            )
            decay = torch.cat((decay[..., :reach], decay[..., reach:] * decay[..., :-reach]), -1)
            reach *= 2
        weighted = states if self.E is None else states * self.E.to(dtype)[..., None]
        return torch.einsum("bint,bnt->bit", weighted, out_of), states[..., -1]
