"""A plan as plain data: its steps with their estimated costs, and how it is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from centaurus.planner.expression import Expression

WIDTH = 80  # columns of a printed plan
MARKS = {  # of the kinds of steps, in a summary; {} is the chunk
    "generate": "gen ",
    "multiply": "× ",
    "direct": "∗ ",
    "chunked": "∗{} ",
    "scan": "scan ",
    "dft": "dft ",
    "fft": "fft ",
}


@dataclass(frozen=True)
class Value:
    """An intermediate tensor: its number, its indices, and its domain (time, frequency, modes, or none)."""

    number: int
    indices: str
    domain: str  # "time" | "frequency" | "modes" | "none"
    signal: bool = False


@dataclass(frozen=True)
class Step:
    """One operation with its estimated cost."""

    kind: str  # contract | generate | rfft | irfft | multiply | dft | fft | direct | chunked | scan
    inputs: tuple[Value, ...]
    output: Value
    flops: float
    seconds: float  # forward
    backward_seconds: float
    kept: int  # bytes kept for backward
    transient: int  # bytes alive only during the step
    chunk: int = 0  # samples of a chunk, or of a block of a direct convolution

    @property
    def equation(self) -> str:
        """The step as an einsum."""
        return ",".join(value.indices for value in self.inputs) + "->" + self.output.indices


@dataclass(frozen=True)
class Plan:
    """The steps of a contraction in order, with estimates of time and memory, and the next best plans."""

    expression: Expression
    sizes: tuple[tuple[str, int], ...]
    kernel_length: int
    fft_length: int
    modes: str
    phase: str
    steps: tuple[Step, ...]
    device: str
    fixed_bytes: int  # operands, output and their gradients
    tile_bytes: int
    name: str = "planned"
    runners_up: tuple[Plan, ...] = field(default=(), compare=False)

    @property
    def seconds(self) -> float:
        """Estimated seconds of forward and backward."""
        return sum(step.seconds + step.backward_seconds for step in self.steps)

    @property
    def forward_seconds(self) -> float:
        """Estimated seconds of forward."""
        return sum(step.seconds for step in self.steps)

    @property
    def flops(self) -> float:
        """Floating-point operations of the forward pass."""
        return sum(step.flops for step in self.steps)

    @property
    def peak_bytes(self) -> int:
        """Estimated peak of bytes, including operands, output and gradients."""
        return self.fixed_bytes + peak(self.steps)

    def summary(self) -> str:
        """Return the plan on one line."""
        words = []
        for step in self.steps:
            mark = MARKS.get(step.kind, "").format(step.chunk)
            words.append(mark + (step.kind if step.kind in ("rfft", "irfft") else "") + f"[{step.equation}]")
        return " · ".join(words)

    def json(self) -> dict[str, Any]:
        """Return the plan as plain data that JSON can hold."""
        return {
            "name": self.name,
            "expression": str(self.expression),
            "sizes": dict(self.sizes),
            "device": self.device,
            "seconds": self.seconds,
            "forward_seconds": self.forward_seconds,
            "flops": self.flops,
            "peak_bytes": self.peak_bytes,
            "steps": [
                {
                    "kind": step.kind,
                    "equation": step.equation,
                    "domain": step.output.domain,
                    "chunk": step.chunk,
                    "flops": step.flops,
                    "forward_seconds": step.seconds,
                    "backward_seconds": step.backward_seconds,
                    "kept_bytes": step.kept,
                    "transient_bytes": step.transient,
                }
                for step in self.steps
            ],
            "runners_up": [{"name": p.name, "seconds": p.seconds, "plan": p.summary()} for p in self.runners_up],
        }

    def __str__(self) -> str:
        sizes = " ".join(f"{index}={size}" for index, size in self.sizes)
        lines = wrap(f"{self.expression}   {sizes}   ({self.name}, {self.device})", WIDTH, subsequent_indent="  ")
        lines.append(f"{'step':<11}{'einsum':<21}{'domain':<10}{'MFLOP':>9}{'MB':>8}{'fwd ms':>10}{'bwd ms':>10}")
        kept = 0
        for step in self.steps:
            kept += step.kept
            title = f"{step.kind} {step.chunk}" if step.chunk else step.kind
            lines.append(
                f"{title:<11}{step.equation:<21}{step.output.domain:<10}{_fit(step.flops / 1e6, 9, 1)}"
                f"{_fit((self.fixed_bytes + kept + step.transient) / 1e6, 8, 1)}"
                f"{_fit(step.seconds * 1e3, 10, 3)}{_fit(step.backward_seconds * 1e3, 10, 3)}"
            )
        lines.append(
            f"{'total':<11}{'':<31}{_fit(self.flops / 1e6, 9, 1)}{_fit(self.peak_bytes / 1e6, 8, 1)}"
            f"{_fit(self.forward_seconds * 1e3, 10, 3)}{_fit((self.seconds - self.forward_seconds) * 1e3, 10, 3)}"
        )
        for place, other in enumerate(self.runners_up, 2):
            line = f"  {place}. {other.seconds / max(self.seconds, 1e-12):.2f}x  {other.summary()}"
            lines += wrap(line, WIDTH, subsequent_indent=" " * 12, break_on_hyphens=False)
        return "\n".join(lines)


def _fit(number: float, width: int, decimals: int) -> str:
    """Format a number for a column: fixed-point, or scientific if that is too wide."""
    text = f"{number:.{decimals}f}"
    return f"{text if len(text) < width else format(number, '.1e'):>{width}}"


def peak(steps: tuple[Step, ...]) -> int:
    """Return the peak of bytes over the steps: those kept so far plus those of the step itself."""
    kept = worst = 0
    for step in steps:
        kept += step.kept
        worst = max(worst, kept + step.transient)
    return worst
