"""A step in C under construction: constants, weights, states, scratch buffers, and the calls in order.

A signal is (frames, channels), time first: resampling is then a matrix product without any copying. Buffers are placed
at the end, when it is known how long each is needed: those that never live together share memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.export.step import Array, Signal

GROUP = 8  # CT_GROUP of kernels.c: states and buffers come in groups of this many floats
PANEL = 16  # columns of a packed table that lie together
SLACK = 16  # floats behind the last one that a vector may read
HALF_LEAST = 2.0**-14  # the least normal number of half precision
LARGEST = {"int16": 32767, "int8": 127}
WEIGHTS = ("fp32", "fp16", "int16", "int8")


class Program:
    """The parts of a C file. ``weights`` is the format of the tables of matrix products."""

    def __init__(self, weights: str = "fp32") -> None:
        if weights not in WEIGHTS:
            raise ValueError(f"weights should be one of {', '.join(WEIGHTS)}, got {weights!r}")
        self.weights = weights
        self.state_floats = 0
        self.lines: list[str] = []
        self._work: list[int] = []  # multiplications of every call, where there are many
        self._kernels: set[str] = set()
        self._constants: dict[bytes, int] = {}
        self._constant_values: list[NDArray[np.float32]] = []
        self._constant_floats = 0
        self._tables: list[NDArray[Any]] = []
        self._table_numbers = 0
        self._buffers: list[int] = []

    def call(self, kernel: str, *arguments: object, work: int = 0) -> None:
        """Call a kernel of kernels.c by its name; ``work`` is how often it multiplies, if that is what takes time."""
        self._kernels.add(kernel)
        self._work.append(work)
        self.lines.append(f"ct_{kernel}({', '.join(map(_text, arguments))});")

    def constant(self, x: Any) -> str:
        """Return where these numbers are among the constants; equal ones are stored once, in single precision."""
        flat = np.ascontiguousarray(x, np.float32).ravel()
        flat = np.pad(flat, (0, -len(flat) % GROUP))
        key = flat.tobytes()
        if key not in self._constants:
            self._constants[key] = self._constant_floats
            self._constant_values.append(flat)
            self._constant_floats += len(flat)
        return f"constants + {self._constants[key]}"

    def state(self, floats: int) -> str:
        """Return where floats are that stay from one step to the next, zero at the start."""
        at = self.state_floats
        self.state_floats += rounded(floats)
        return f"s + {at}"

    def buffer(self, frames: int, channels: int) -> Signal:
        """Return a new signal, which is needed within a step only."""
        self._buffers.append(rounded(frames * channels))
        return Signal(f"@{len(self._buffers) - 1}@", frames, channels)

    def part(self, u: Signal, first: int, count: int) -> Signal:
        """Return ``count`` channels of a signal from the ``first`` on."""
        y = self.buffer(u.frames, count)
        self.call("part", u.name, y.name, u.frames, u.channels, first, count)
        return y

    def product(self, x: Signal, table: Array, bias: Array | None = None) -> Signal:
        """Return every frame times a matrix (in, out), plus a bias (out,)."""
        k, n = table.shape
        if k != x.channels:
            raise ValueError(f"a table of {k} rows cannot take {x.channels} channels")
        y = self.buffer(x.frames, n)
        wide = rounded(n)
        scale, packed = self._packed(np.pad(table, ((0, 0), (0, wide - n))))
        at, self._table_numbers = self._table_numbers, self._table_numbers + len(packed)
        self._tables.append(packed)
        bias_at = 0 if bias is None else self.constant(np.pad(bias, (0, wide - n)))
        scale_at = 0 if scale is None else self.constant(scale)
        self.call(
            "product", x.name, f"weights + {at}", scale_at, bias_at, y.name, x.frames, k, n, work=x.frames * k * n
        )
        return y

    def _packed(self, table: Array) -> tuple[Array | None, NDArray[Any]]:
        """Return a scale for every column, for integer weights, and the table panel by panel."""
        scale = None
        numbers: NDArray[Any]
        if self.weights in LARGEST:
            scale = np.abs(table).max(0) / LARGEST[self.weights]
            numbers = np.round(table / np.where(scale > 0, scale, 1.0)).astype(self.weights)
        elif self.weights == "fp16":
            largest = np.abs(table).max(initial=0.0)
            if largest > 6e4:
                raise ValueError(f"a weight of {largest:.3g} does not fit half precision: export fp32 weights")
            numbers = np.where(np.abs(table) < HALF_LEAST, 0.0, table).astype(np.float16).view(np.uint16)
        else:
            numbers = table.astype(np.float32)
        return scale, _panels(numbers)

    def kernels(self) -> str:
        """Return the text of the kernels that are called, and of what they need."""
        return kernel_text(self._kernels)

    def tables(self) -> NDArray[Any]:
        """Return all tables of matrix products, one after another, padded by what a vector may read behind the last."""
        kind: np.dtype[Any] = self._tables[0].dtype if self._tables else np.dtype(np.int32)
        return np.concatenate([*self._tables, np.zeros(GROUP, kind)])

    def constants(self) -> NDArray[np.float32]:
        """Return all constants, padded by what a vector may read behind the last."""
        return np.concatenate([*self._constant_values, np.zeros(SLACK, np.float32)])

    def half(self) -> int:
        """Return the number of calls, from the first on, that take about half of the work."""
        return 1 + int(np.abs(2 * np.cumsum(self._work[:-1]) - sum(self._work)).argmin())

    def placed(self) -> tuple[list[str], int]:
        """Return the calls with every buffer at its place, and the floats that all of them take."""
        lives: dict[int, tuple[int, int]] = {}
        for when, line in enumerate(self.lines):
            for buffer in map(int, re.findall(r"@(\d+)@", line)):
                lives[buffer] = (lives.get(buffer, (when, when))[0], when)
        offsets = place([(*lives[k], self._buffers[k]) for k in sorted(lives)])
        at = dict(zip(sorted(lives), offsets, strict=True))
        floats = max((at[k] + self._buffers[k] for k in lives), default=0)
        return [re.sub(r"@(\d+)@", lambda m: f"t + {at[int(m[1])]}", line) for line in self.lines], floats + SLACK


def place(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return offsets of buffers (first use, last use, size) such that no two in use together overlap; largest first."""
    offsets = [0] * len(lives)
    placed: list[int] = []
    for k in sorted(range(len(lives)), key=lambda k: -lives[k][2]):
        first, last, size = lives[k]
        beside = [j for j in placed if lives[j][0] <= last and first <= lives[j][1]]
        at = 0
        for j in sorted(beside, key=lambda j: offsets[j]):
            if offsets[j] - at >= size:
                break
            at = max(at, offsets[j] + lives[j][2])
        offsets[k] = at
        placed.append(k)
    return offsets


def rounded(floats: int) -> int:
    """Return the least whole number of groups that holds this many floats."""
    return -(-floats // GROUP) * GROUP


def kernel_text(names: Iterable[str]) -> str:
    """Return the sections of kernels.c with these names and those they need, in the file's order."""
    text = (files("centaurus.export.c") / "kernels.c").read_text(encoding="utf-8")
    parts = re.split(r"^/\*@ (.*?) \*/\n", text, flags=re.MULTILINE)
    sections: dict[str, tuple[list[str], str]] = {}
    for head, body in zip(parts[1::2], parts[2::2], strict=True):
        name, _, needs = head.partition(":")
        sections[name] = (needs.split(), body)
    used: set[str] = set()
    waiting = ["base", *names]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used.add(name)
            waiting += sections[name][0]
    return "".join(body for name, (_, body) in sections.items() if name in used)


def _panels(table: NDArray[Any]) -> NDArray[Any]:
    """Return a table (k, n) column panel by column panel; the last has 8 columns if at most 8 are left."""
    k, n = table.shape
    return np.concatenate([table[:, j : j + PANEL].ravel() for j in range(0, n, PANEL)]) if k * n else table.ravel()


def _text(argument: object) -> str:
    """Return a C literal: a float gets the point and the suffix that make it one."""
    if not isinstance(argument, float):
        return str(argument)
    digits = f"{argument:.9g}"
    return f"{digits}f" if "." in digits or "e" in digits else f"{digits}.0f"
