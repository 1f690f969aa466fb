"""``export_c`` and ``export_wasm``: write a network's step as C or WebAssembly, compared with torch.

The interface of the generated files:

    extern const int NAME_rate, NAME_hop, NAME_delay, NAME_frames, NAME_outputs;
    size_t NAME_state_bytes(void);
    void NAME_init(void *state);
    void NAME_step(void *state, const float *in, float *out);

``in`` has NAME_hop samples, ``out`` NAME_frames frames of NAME_outputs numbers each, frame by frame. ``state`` is
NAME_state_bytes() bytes of the caller's memory for each stream; it may be copied and moved. No other memory is written.

Compiled for WebAssembly, the same file exports ``memory``, ``init()``, ``step()``, ``input()`` and ``output()`` (byte
addresses of the samples and of the result), ``rate()``, ``hop()``, ``delay()``, ``frames()``, ``outputs()``, and
``settings()`` with ``settings_bytes()``: address and length of a JSON text with the model's task, name and classes.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from centaurus.export.c.layers import Calls, Program
from centaurus.export.step import lower
from centaurus.export.write import ExportError, describe
from centaurus.layer import Layer, check_layer
from centaurus.native.build import find_compiler
from centaurus.runtime.modelfile import StateShape
from centaurus.runtime.native import Native, compile_step
from centaurus.system import package_version, write_file

# Largest difference from torch over the largest value. Rounding errors are a tenth of it, except with int8: they are
# large relative to a denoiser's output for noise, which is small.
TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "int16": 5e-3, "int8": 0.5}
SECONDS = 2.0  # of noise for the comparison with torch
QUICK = "-O1"  # optimisation of the library for that comparison
ROW = 12  # numbers in a line of a table
WASM_FLAGS = (  # of clang
    "--target=wasm32",
    "-std=gnu99",
    "-O3",
    "-msimd128",
    "-mbulk-memory",
    "-nostdlib",
    "-Wl,--no-entry",
    "-Wl,--strip-all",
    "-Wl,-z,stack-size=65536",
)


class ExportedC(NamedTuple):
    """The files, the largest difference from torch over the largest value (None: not compared), and sizes."""

    source: Path
    header: Path
    difference: float | None
    weight_bytes: int
    state_bytes: int

    def json(self) -> dict[str, Any]:
        """Return plain data."""
        return self._asdict() | {"source": str(self.source), "header": str(self.header)}


def export_c(
    model: Layer,
    path: str | os.PathLike[str],
    chunk: int | None = None,
    weights: str = "fp32",
    name: str | None = None,
    channels: int = 1,
) -> ExportedC:
    """Write a network's step as C99 to ``path``, and a header next to it.

    If a C compiler is available, the step is compared with torch before the files are written.

    Args:
        model: a network or any tree of layers.
        path: of the .c file.
        chunk: samples of a step, a multiple of the hop; one hop by default.
        weights: format of the weights of matrix products: fp32, fp16, or int16 and int8 with a scale for every column.
        name: prefix of all functions; by default the name of the file.
        channels: input channels of a tree of layers, interleaved in ``in``.
    """
    check_layer(model, "export_c takes a centaurus layer or network")
    target = Path(path)
    if target.suffix != ".c":
        raise ValueError(f"the path of a C file should end in .c, got {target}")
    samples = model.hop if chunk is None else chunk
    if samples < 1 or samples % model.hop:
        raise ValueError(f"chunk should be a multiple of the hop {model.hop}, got {samples}")
    net = copy.deepcopy(model).cpu().double().eval()
    step = build(net, samples, weights, name or target.stem, channels)
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}.") as folder:
        source, header = Path(folder) / target.name, Path(folder) / f"{target.stem}.h"
        source.write_text(step.source(header.name), encoding="utf-8")
        header.write_text(step.header(), encoding="utf-8")
        worst = None
        if compiler is not None:
            library = Path(folder) / "step.so"
            compile_step(source, library, compiler, QUICK)
            worst = difference(net, Native(library), step)
            if not worst <= TOLERANCE[weights]:
                raise ExportError(
                    f"was not written: it differs from the network by {worst:.1e} of the largest value, "
                    f"where {TOLERANCE[weights]:.0e} is allowed",
                    target,
                )
    write_file(target.with_suffix(".h"), step.header())
    write_file(target, step.source(header.name))
    return ExportedC(target, target.with_suffix(".h"), worst, step.program.tables().nbytes, step.state_bytes)


class Step(NamedTuple):
    """A finished program with the names and numbers that its files contain."""

    program: Program
    prefix: str
    rate: int
    hop: int
    delay: int
    inputs: int
    frames: int
    outputs: int
    settings: dict[str, Any]
    lines: list[str]
    scratch_floats: int

    @property
    def state_bytes(self) -> int:
        """Bytes of the caller's memory: state and scratch."""
        return 4 * (self.program.state_floats + self.scratch_floats)

    def about(self) -> dict[str, Any]:
        """Return the metadata of the file."""
        return {
            "prefix": self.prefix,
            "inputs": self.inputs,
            "state_floats": self.program.state_floats,
            "settings": self.settings,
        }

    def header(self) -> str:
        """Return the text of the header."""
        guard = f"{self.prefix.upper()}_H"
        return HEADER.format(guard=guard, title=self._title(), macro=self.prefix.upper(), **self._numbers())

    def source(self, header: str) -> str:
        """Return the text of the C file."""
        parts = [
            f"/* {self._title()} Written by centaurus {package_version()}; C99, no library, no allocation. */\n",
            f"/* centaurus: {_in_comment(json.dumps(self.about()))} */\n",
            f'#include "{header}"\n#include <stdint.h>\n\n#define CT_WEIGHTS_{self.program.weights.upper()}\n',
            self.program.kernels(),
            _table("float", "constants", self.program.constants()),
        ]
        if "ct_product" in "".join(self.lines):
            parts.append(_table("ct_w", "weights", self.program.tables()))
        half = self.program.half()
        first, second = ("\n".join(f"  {line}" for line in lines) for lines in (self.lines[:half], self.lines[half:]))
        settings = _literal(json.dumps(self.settings))
        parts.append(SOURCE.format_map(self._numbers() | {"first": first, "second": second, "settings": settings}))
        return "\n".join(parts)

    def _title(self) -> str:
        title = str(self.settings.get("name") or self.prefix)
        return f"{_in_comment(title)}: {self.hop} samples a step at {self.rate} Hz, {self.program.weights} weights."

    def _numbers(self) -> dict[str, Any]:
        floats = self.program.state_floats
        sizes = {"state_floats": floats, "block_floats": floats + self.scratch_floats}
        return self._asdict() | sizes | {"state_bytes": self.state_bytes}


@torch.no_grad()
def build(net: Layer, samples: int, weights: str, name: str, channels: int = 1) -> Step:
    """Return the step of a network, which is in double precision."""
    program = Program(weights)
    samples_in = program.buffer(samples, channels)
    program.call("copy", "in", samples_in.name, samples_in.size)
    y = lower(net, Calls(program), samples_in, "")
    program.call("copy", y.name, "out", y.size)
    lines, scratch = program.placed()
    for what, numbers in (("constant", program.constants()), ("weight", program.tables())):
        if not np.isfinite(numbers).all():
            raise ValueError(f"a {what} of this network is not a finite number: it cannot be exported")
    states = (StateShape("state.all", (max(1, program.state_floats),)),)
    about = describe(net, samples, name, "", y.channels, states)
    delay, prefix = about.delay, identifier(name)
    return Step(
        program, prefix, about.rate, samples, delay, channels, y.frames, y.channels, about.json(), lines, scratch
    )


def difference(net: Layer, step: Native, made: Step) -> float:
    """Return the largest difference between the steps of two streams and the network in torch, over the largest value.

    Both streams are noise: in digital silence, each norm of an untrained network amplifies rounding errors by 300.
    """
    count = max(3, round(SECONDS * made.rate / made.hop))
    generator = torch.Generator().manual_seed(1)
    signal = 0.1 * torch.randn(2, made.inputs, count * made.hop, generator=generator, dtype=torch.float64)
    with torch.inference_mode():
        expected = net(signal).numpy()
    actual = run(step, made, signal.float().numpy())
    return float(np.abs(actual - expected).max() / max(1e-30, np.abs(expected).max()))


def run(step: Native, made: Step, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Run signals (batch, channels, time) of whole steps through a compiled step, from zero states."""
    batch, channels, length = x.shape
    piece = np.zeros((batch, made.hop, channels), np.float32)
    output = np.zeros((batch, made.outputs, made.frames), np.float32)
    state = np.zeros((batch, max(1, step.state_floats)), np.float32)
    bound = step.io_binding()
    for key, array in {"audio": piece, "output": output, "state": state, "next": state}.items():
        bound.bind_input(key, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    outputs = []
    for start in range(0, length, made.hop):
        piece[:] = x[..., start : start + made.hop].transpose(0, 2, 1)
        step.run_with_iobinding(bound)
        outputs.append(output.copy())
    return np.concatenate(outputs, -1)


def identifier(name: str) -> str:
    """Return a C identifier made of a name: denoise-16k becomes denoise_16k."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if re.match(r"[A-Za-z]", word) else f"model_{word}"


def _in_comment(text: str) -> str:
    """Return text with ``*/`` escaped, so that it does not end a comment: JSON allows ``\\/`` for a slash."""
    return text.replace("*/", "*\\/")


def _literal(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _table(kind: str, name: str, numbers: NDArray[Any]) -> str:
    """Return the definition of an array in C."""
    form = "%.9g" if numbers.dtype.kind == "f" else "%d"
    rows = []
    values = numbers.tolist()
    for start in range(0, len(values), ROW):
        row = values[start : start + ROW]
        rows.append(",".join([form] * len(row)) % tuple(row))
    return f"CT_TABLE {kind} {name}[{len(values)}] = {{\n" + ",\n".join(rows) + "};\n"


HEADER = """\
/* {title} */
#ifndef {guard}
#define {guard}

#include <stddef.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {macro}_STATE_BYTES {state_bytes}

extern const int {prefix}_rate;    /* samples a second: {rate} */
extern const int {prefix}_hop;     /* samples that a step takes: {hop} */
extern const int {prefix}_delay;   /* samples from an input to its output, besides the hop: {delay} */
extern const int {prefix}_frames;  /* frames that a step returns: {frames} */
extern const int {prefix}_outputs; /* numbers per frame: {outputs} */

/* Bytes of memory for the state of a stream, aligned to 4 bytes; faster if aligned to 64. */
size_t {prefix}_state_bytes(void);

/* Initialise the state of a stream. */
void {prefix}_init(void *state);

/* One step: reads hop samples, writes frames * outputs numbers, frame by frame. `out` may be `in`. */
void {prefix}_step(void *state, const float *in, float *out);

#ifdef __cplusplus
}}
#endif
#endif
"""

SOURCE = """\
const int {prefix}_rate = {rate};
const int {prefix}_hop = {hop};
const int {prefix}_delay = {delay};
const int {prefix}_frames = {frames};
const int {prefix}_outputs = {outputs};

size_t {prefix}_state_bytes(void) {{ return {state_bytes}; }}

void {prefix}_init(void *state) {{
  float *s = (float *)state;
  size_t k;
  for (k = 0; k < {block_floats}; k++) s[k] = 0.0f;
}}

/* The two halves of a step share no state: while one thread runs the second half, another may begin the next step,
   with a scratch area t of its own. */
#define CT_HALVES
static void {prefix}_first(float *s, float *t, const float *in) {{
  (void)s;
{first}
}}

static void {prefix}_second(float *s, float *t, float *out) {{
  (void)s;
{second}
}}

void {prefix}_step(void *state, const float *in, float *out) {{
  float *s = (float *)state, *t = s + {state_floats};
  {prefix}_first(s, t, in);
  {prefix}_second(s, t, out);
}}

#ifdef __wasm__
static float ct_block[{block_floats}], ct_in[{hop} * {inputs}], ct_out[{frames} * {outputs}];
static const char ct_settings[] = {settings};
#define CT_EXPORT(name) __attribute__((export_name(name)))
CT_EXPORT("init") void ct_wasm_init(void) {{ {prefix}_init(ct_block); }}
CT_EXPORT("step") void ct_wasm_step(void) {{ {prefix}_step(ct_block, ct_in, ct_out); }}
CT_EXPORT("input") float *ct_wasm_input(void) {{ return ct_in; }}
CT_EXPORT("output") float *ct_wasm_output(void) {{ return ct_out; }}
CT_EXPORT("rate") int ct_wasm_rate(void) {{ return {rate}; }}
CT_EXPORT("hop") int ct_wasm_hop(void) {{ return {hop}; }}
CT_EXPORT("delay") int ct_wasm_delay(void) {{ return {delay}; }}
CT_EXPORT("frames") int ct_wasm_frames(void) {{ return {frames}; }}
CT_EXPORT("outputs") int ct_wasm_outputs(void) {{ return {outputs}; }}
CT_EXPORT("settings") const char *ct_wasm_settings(void) {{ return ct_settings; }}
CT_EXPORT("settings_bytes") int ct_wasm_settings_bytes(void) {{ return (int)sizeof ct_settings - 1; }}
#endif
"""


def find_clang() -> str | None:
    """Return the command of clang if it can link WebAssembly (with wasm-ld), else None."""
    return "clang" if shutil.which("clang") and shutil.which("wasm-ld") else None


def compile_wasm(source: Path, target: Path) -> None:
    """Compile a C file that ``export_c`` wrote to a WebAssembly module."""
    clang = find_clang()
    if clang is None:
        raise ExportError("a WebAssembly module needs clang and lld (Debian: apt install clang lld)")
    done = subprocess.run([clang, *WASM_FLAGS, str(source), "-o", str(target)], capture_output=True, text=True)
    if done.returncode:
        raise ExportError(f"clang failed to compile it: {(done.stderr.splitlines() or ['no message'])[0]:.300}", source)


def export_wasm(
    model: Layer,
    path: str | os.PathLike[str],
    chunk: int | None = None,
    weights: str = "int16",
    name: str | None = None,
) -> ExportedC:
    """Write the network's step as a WebAssembly module; arguments as for ``export_c``."""
    target = Path(path)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}.") as folder:
        made = export_c(model, Path(folder) / f"{target.stem}.c", chunk, weights, name)
        compile_wasm(made.source, Path(folder) / target.name)
        write_file(target, (Path(folder) / target.name).read_bytes())
    return made._replace(source=target, header=target)
