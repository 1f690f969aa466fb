"""``SSM``: the layer of every equation; whole signals run as planned, pieces of a stream in chunks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from centaurus.kernels.cache import once
from centaurus.kernels.calibrate import current
from centaurus.kernels.modes import times
from centaurus.kernels.pair import align
from centaurus.kernels.precision import check_precision, full_precision, working
from centaurus.kernels.program import Modes, Program
from centaurus.layer import Layer, State, check_channels
from centaurus.planner.device import Device
from centaurus.planner.expression import Expression
from centaurus.planner.named import named_plan
from centaurus.planner.plan import Plan
from centaurus.planner.search import plan_expression
from centaurus.ssm import kernel
from centaurus.ssm.kernel import discretization as discretization_rule
from centaurus.ssm.streaming import PieceTables, Route, advance, piece_tables, route
from centaurus.ssm.topology import EQUATIONS, BlockCounts, Topology, named_sizes, topology

TopologyName = Literal["depthwise", "separable", "grouped", "pointwise", "bottleneck", "full"]
Discretization = Literal["simple", "zoh", "bilinear"]
LONGEST_CHUNK = 256  # samples of a piece of a stream that is one chunk
CHUNK = 64  # samples of a chunk of longer pieces


class SSM(Layer):
    """A state-space layer: signals (batch, in_channels, time) to (batch, out_channels, time), causal and linear.

    Args:
        topology: how channels and states are connected: ``"depthwise"``, ``"separable"``, ``"grouped"``,
            ``"pointwise"``, ``"bottleneck"`` or ``"full"``, each an equation of ``centaurus.ssm.EQUATIONS``. Or an
            equation of your own, from the signal ``u_bit`` through basis kernels ``K_…t`` to ``y_bjt``; it takes
            ``sizes`` instead of channels and states.
        in_channels: channels of the input.
        out_channels: channels of the output; ``in_channels`` if not given.
        states: number of complex states, for each pair of channels (full, grouped), for each channel (depthwise,
            separable), or in total (pointwise, bottleneck).
        substates: modes that are summed in each state of a bottleneck.
        groups: groups of channels of a grouped layer.
        complex: complex B, C and E in place of real ones.
        discretization: ``"simple"``, ``"zoh"`` or ``"bilinear"``.
        sizes: for an equation of your own, the size of every index except b and t.
        band: ``(low, high, rate)`` spreads the initial resonances from ``low`` to ``high`` Hz at a sample rate. The
            paper's initialisation gives every output channel the same few modes, which training on raw waveforms
            separates only slowly: give the first layers of a network the band of their input.
        device: of the parameters, as in ``torch.nn.Conv1d``.
        dtype: of the parameters.

    Shapes:
        ``layer(u)`` maps a whole signal; ``layer(u, lengths)`` a padded batch; ``layer.step(u, state)`` the next piece
        of a stream. The state (``layer.init_state(batch)``) is (batch, states…, 2) and belongs to the caller.

    A whole signal, the same in pieces, and an equation of your own.

        layer = SSM("full", 1, 16, states=4, band=(60, 6000, 16_000))
        y = layer(torch.randn(8, 1, 16_000))                    # (8, 16, 16000)
        y, state = layer.step(torch.randn(8, 1, 160))           # the same, 10 ms at a time
        own = SSM("u_bit B_ni K_nt C_jn -> y_bjt", sizes={"i": 16, "n": 64, "j": 32})
    """

    @overload
    def __init__(
        self,
        topology: TopologyName,
        in_channels: int,
        out_channels: int | None = None,
        states: int = 4,
        substates: int = 1,
        groups: int = 1,
        complex: bool = False,
        discretization: Discretization = "simple",
        *,
        band: tuple[float, float, float] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        topology: str,
        *,
        sizes: Mapping[str, int],
        complex: bool = False,
        discretization: Discretization = "simple",
        band: tuple[float, float, float] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None: ...
    def __init__(
        self,
        topology: str,
        in_channels: int | None = None,
        out_channels: int | None = None,
        states: int = 4,
        substates: int = 1,
        groups: int = 1,
        complex: bool = False,
        discretization: str = "simple",
        sizes: Mapping[str, int] | None = None,
        band: tuple[float, float, float] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(topology, str):
            raise TypeError(
                f"SSM takes a topology or an equation first, got {topology!r}: "
                f"write SSM('pointwise', {topology!r}, …) or another of {', '.join(EQUATIONS)}"
            )
        self.topology_name = topology
        self.topology = _resolve(topology, in_channels, out_channels, states, substates, groups, complex, sizes)
        self.in_channels = self.topology.count(self.topology.channels_in)
        self.out_channels = self.topology.count(self.topology.channels_out)
        self.discretization = discretization
        named = {"states": states, "substates": substates, "groups": groups}
        self._sizes: dict[str, Any] = (
            {"in_channels": in_channels, "out_channels": self.out_channels} | named
            if sizes is None
            else {"sizes": sizes}
        )
        self._complex = complex
        discretization_rule(discretization)
        self.log_dt = nn.Parameter(kernel.log_steps(self.topology))
        frequencies = kernel.frequencies(self.topology)
        self.A_real = nn.Parameter(torch.full_like(frequencies, kernel.REAL_PART))
        self.A_imag = nn.Parameter(frequencies)
        for letter in self.topology.letters():
            shape, fan_in = self.topology.shape(letter), self.topology.fan_in(letter)
            self.register_parameter(letter, nn.Parameter(kernel.kaiming_uniform(*shape, fan_in=fan_in)))
        if band is not None:
            if len(band) != 3:
                raise ValueError(f"band should be (low, high, rate), all in Hz, got {band}")
            self.set_band(*band)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    @torch.no_grad()
    def set_band(self, low: float, high: float, rate: float) -> None:
        """Set the modes to resonate from ``low`` to ``high`` Hz at a sample rate, in random order."""
        real, imaginary = kernel.band_modes(self.A_imag.shape, low, high, rate)
        self.log_dt.fill_(math.log(kernel.BAND_STEP))
        self.A_real.copy_(real)
        self.A_imag.copy_(imaginary)

    def arguments(self) -> dict[str, Any]:
        return {
            "topology": self.topology_name,
            **self._sizes,
            "complex": self._complex,
            "discretization": self.discretization,
        }

    def undecayed(self) -> list[nn.Parameter]:
        """Return the parameters that get no weight decay: A and Δ."""
        return [self.log_dt, self.A_real, self.A_imag]

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{i}={s}" for i, s in self.topology.sizes)
        return f"{EQUATIONS.get(self.topology_name, self.topology_name)}, {sizes}"

    def counts(self, convention: str = "table") -> BlockCounts:
        """Return parameters, FLOPs per step and state floats, as the paper counts them."""
        return self.topology.counts(convention)

    def at_rate(self, factor: float) -> SSM:
        """Return a copy for signals at ``factor`` times the sample rate: Δ is divided by it."""
        if not (isinstance(factor, (int, float)) and math.isfinite(factor) and factor > 0):
            raise ValueError(f"the factor between sample rates is a positive number, got {factor!r}")
        layer = copy.deepcopy(self)
        with torch.no_grad():
            layer.log_dt.sub_(math.log(factor))
        return layer

    def plan(
        self,
        batch: int,
        length: int,
        *,
        backward: bool = True,
        limit: int | None = None,
        device: Device | None = None,
        order: str = "planned",
    ) -> Plan:
        """Return the plan for a signal of this batch and length, without running it.

        ``order`` is one of ``planner.named.NAMES``, by default the fastest plan; ``limit`` bounds the bytes of
        intermediates.
        """
        sizes = (("b", batch), ("t", length), *self._planned_sizes())
        profile = device or current(self.log_dt)
        expression, modes, phase = _planned_expression(self.topology)
        return named_plan(order, expression, dict(sizes), modes, phase, profile, backward, limit)

    def init_state(self, batch: int) -> State:
        """Return zeros (batch, K's indices, 2) in the dtype of the recurrence."""
        shape = (batch, *(self.topology.size[i] for i in self.topology.modes), 2)
        return torch.zeros(shape, device=self.log_dt.device, dtype=working(self.log_dt.dtype))

    def _planned_sizes(self) -> tuple[tuple[str, int], ...]:
        phases = [index for index in _phases(self.topology) if index]
        return (*self.topology.sizes, *((index, 2) for index in phases))

    def _modes(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (log Ā, w), both (K's indices, 2)."""
        t = self.topology
        if self.discretization == "simple" and not torch.compiler.is_compiling():
            log_dt = align(self.log_dt.to(dtype), t.step_indices(), t.modes)
            log_a, w = kernel.Simple.apply(log_dt, self.A_real.to(dtype), self.A_imag.to(dtype))
            return log_a, w
        dt = align(torch.exp(self.log_dt.to(dtype)), t.step_indices(), t.modes)
        re, im = -nn.functional.softplus(self.A_real.to(dtype)), self.A_imag.to(dtype)
        dt = dt.expand_as(re)
        return discretization_rule(self.discretization)(re, im, dt)

    def _weight(self, w: Tensor, dtype: torch.dtype, fold: bool) -> Tensor:
        """Return the weight of the modes, with an axis for each phase index.

        With ``fold`` it includes the operands that have only K's indices.
        """
        t = self.topology
        for letter in t.weights() if fold else []:
            operand = self.get_parameter(letter).to(dtype)
            if t.is_complex(letter):
                w = times(w, align(operand, t.indices(letter) + "η", t.modes + "η").expand_as(w))
            else:
                w = w * align(operand, t.indices(letter), t.modes)[..., None]
        for _ in [index for index in _phases(t) if index]:
            turned = torch.stack((-w[..., 1], w[..., 0]), -1)
            w = torch.stack((w, turned), -2)  # … phase h
        return w

    def run(self, u: Tensor, state: State | None, keep: bool) -> tuple[Tensor, State]:
        check_channels(type(self).__name__, u, self.in_channels)
        dtype = working(self.log_dt.dtype)
        check_precision(u, dtype)
        with full_precision(u):
            signal = _unfold(self.topology, u.to(dtype))
            after: State = ()
            if keep or state is not None:
                y, after = self._stream(signal, state)
            else:
                y = self._whole(signal)
            y = y.reshape(u.shape[0], self.out_channels, u.shape[-1])
        return y.to(torch.promote_types(u.dtype, self.log_dt.dtype)), after

    def run_program(self, program: Program, u: Tensor) -> Tensor:
        """Return the output for a whole signal by this program, e.g. that of a runner-up of ``plan``."""
        y = program(self._operands(_unfold(self.topology, u)))
        return y.reshape(u.shape[0], self.out_channels, u.shape[-1])

    def _operands(self, u: Tensor) -> list[Any]:
        """Return the operands of the planned expression, in its order."""
        t = self.topology
        log_a, w = self._modes(u.dtype)
        operands: dict[str, Any] = {"u": u, "K": Modes(self._weight(w, u.dtype, fold=t.complex), log_a)}
        names = _planned_expression(t)[0].names
        return [operands[n] if n in operands else self.get_parameter(n).to(u.dtype) for n in names]

    def _whole(self, u: Tensor) -> Tensor:
        """Run a whole signal from zero history."""
        if torch.compiler.is_dynamo_compiling():  # Dynamo would trace the planner: half a minute per layer
            return torch.compiler.disable(self._as_planned)(u)
        return self._as_planned(u)

    def _as_planned(self, u: Tensor) -> Tensor:
        expression, modes, phase = _planned_expression(self.topology)
        backward = torch.is_grad_enabled() and (u.requires_grad or self.log_dt.requires_grad)
        sizes = (("b", u.shape[0]), ("t", u.shape[-1]), *self._planned_sizes())
        return _program(expression, sizes, modes, phase, current(u), backward)(self._operands(u))

    def _stream(self, u: Tensor, state: State | None) -> tuple[Tensor, Tensor]:
        """Run a piece of a stream from a state, in one chunk or several, and return the next state too."""
        length = u.shape[-1]
        taken = route(self.topology, _phases(self.topology), length if length <= LONGEST_CHUNK else CHUNK)
        known = once((id(self), taken.link.chunk, u.dtype), lambda: self._tables(taken, u.dtype))
        state = self.init_state(u.shape[0]) if state is None else state
        assert isinstance(state, Tensor)
        return advance(taken, u, known, state)

    def _tables(self, taken: Route, dtype: torch.dtype) -> PieceTables:
        t = self.topology
        log_a, w = self._modes(dtype)
        operands = {n: self.get_parameter(n).to(dtype) for n in [*t.before(), *t.after()]}
        return piece_tables(taken, operands, self._weight(w, dtype, fold=True), log_a)


def _resolve(
    text: str,
    in_channels: int | None,
    out_channels: int | None,
    states: int,
    substates: int,
    groups: int,
    complex: bool,
    sizes: Mapping[str, int] | None,
) -> Topology:
    if "->" in text:
        if sizes is None or in_channels is not None:
            raise ValueError(f"an equation of your own takes sizes={{index: size}} instead of channels: {text!r}")
        return topology(text, tuple(sizes.items()), complex)
    if sizes is not None:
        raise ValueError(f"sizes= goes with an equation of your own; {text!r} takes in_channels, out_channels, states")
    if in_channels is None:
        raise ValueError(f"SSM({text!r}) needs in_channels")
    out = in_channels if out_channels is None else out_channels
    named = named_sizes(text, in_channels, out, states, substates, groups)  # raises for an unknown name
    return topology(EQUATIONS[text], named, complex)


def _unfold(t: Topology, u: Tensor) -> Tensor:
    """Return a signal (batch, channels, time) with its channel axis split into the indices of u."""
    sizes = [t.size[i] for i in t.channels_in]
    return u if len(sizes) == 1 else u.reshape(u.shape[0], *sizes, u.shape[-1])


@lru_cache(maxsize=1024)
def _phases(t: Topology) -> tuple[str, str]:
    """Return the indices over real and imaginary part of the input to the states and of their output, "" if real."""
    used = {i for op in t.expression.operands for i in op} | {"f"}
    free = [c for c in "pqrsvwxyzacdehklo" if c not in used]
    driven = free[0] if any(t.is_complex(n) for n in t.before()) else ""
    read = free[1] if any(t.is_complex(n) for n in t.after()) else ""
    return driven, read


@lru_cache(maxsize=1024)
def _planned_expression(t: Topology) -> tuple[Expression, str, str]:
    """Return the expression for the planner, the modes and the phase index of the states' input.

    In complex layers, phases are indices of size 2, and operands that have only K's indices are part of K.
    """
    e, (driven, read) = t.expression, _phases(t)
    if not t.complex:
        return e, t.modes, ""
    names, operands = [], []
    for name, indices in zip(e.names, e.operands, strict=True):
        if name in t.weights():
            continue
        if name == "K":
            indices = t.modes + driven + read + e.time
        elif name != "u" and t.is_complex(name):
            indices += driven if name in t.before() else read
        names.append(name)
        operands.append(indices)
    return Expression(tuple(operands), e.output, e.time, tuple(names)), t.modes, driven


@lru_cache(maxsize=4096)
def _program(
    expression: Expression,
    sizes: tuple[tuple[str, int], ...],
    modes: str,
    phase: str,
    device: Device,
    backward: bool,
) -> Program:
    return Program(plan_expression(expression, dict(sizes), modes=modes, phase=phase, device=device, backward=backward))
