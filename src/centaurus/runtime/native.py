"""Compile a step that was exported to C, and run it in place of onnxruntime: the same states in, the same states out.

The library is built once for every source, compiler and CPU, and kept in the cache folder under a hash of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from centaurus.native.build import TUNED, cpu_name
from centaurus.runtime.modelfile import WEIGHTS, SessionError, Settings, find_model, read_settings
from centaurus.system import AnyPath, cache_folder, write_file

FLAGS = ("-std=gnu99", "-ffp-contract=fast", "-shared", "-fPIC", "-w")
MARK = re.compile(r"^/\* centaurus: (\{.*\}) \*/$", re.MULTILINE)
SOURCE = ".c"
WRAPPER = Path(__file__).with_name("step.c")  # runs the rows of a batch, also by halves of a step
STEPS = "steps"  # the folder of the cache that has C files and libraries
HEAD = 1 << 22  # characters of a C file that are searched for its metadata
GROUP = 4  # steps that one thread hands to another at once: with 16 hops each, 1 ms of work and 30 µs of waiting
LINE = 16  # floats in a cache line
Samples = NDArray[np.float32]


class Description(msgspec.Struct):
    """The metadata of a C file: the prefix of its functions, and the sizes of its input and states."""

    prefix: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w*$")]
    inputs: int
    state_floats: int
    settings: msgspec.Raw = msgspec.Raw(b"null")


def describe(source: AnyPath) -> Description:
    """Return the metadata of a C file that centaurus wrote."""
    with open(source, encoding="utf-8") as file:
        match = MARK.search(file.read(HEAD))
    if match is None:
        raise SessionError("is not a C file written by centaurus: it has no line '/* centaurus: …'", source)
    try:
        return msgspec.json.decode(match[1], type=Description)
    except msgspec.ValidationError as error:
        raise SessionError(f"has metadata that cannot be used: {error}", source) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise SessionError(f"has metadata that are not JSON: {error}", source) from error


def compile_step(source: Path, target: Path, compiler: list[str], optimize: str = "-O3") -> None:
    """Build a shared library of the step, with one function that runs rows of a batch one after another."""
    about = describe(source)
    defined = [
        f"-DSOURCE=<{source.name}>",  # searched for in the folder of -I first, not in that of the wrapper
        f"-DPREFIX={about.prefix}",
        f"-DINPUTS={about.inputs}",
        f"-DROW={about.state_floats}",
    ]
    with tempfile.TemporaryDirectory(prefix="centaurus-step-") as folder:
        made = Path(folder) / "step.so"
        include = f"-I{source.resolve().parent}"
        command = [*compiler, *FLAGS, optimize, *defined, include, str(WRAPPER), "-o", str(made)]
        done = subprocess.run([*command, TUNED], capture_output=True, text=True)
        if done.returncode:
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            first = (done.stderr.splitlines() or ["no message"])[0]
            raise SessionError(f"{' '.join(compiler)} failed to compile it: {first:.300}", source)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_file(target, made.read_bytes())


def open_native(source: Path, compiler: list[str]) -> tuple[Native, Settings]:
    """Return the compiled step of a C file and its settings."""
    settings = read_settings(bytes(describe(source).settings), source)
    return Native(cached_library(source, compiler)), settings


def find_source(model: AnyPath, hops: int = 1) -> Path | None:
    """Return the C file of a model: itself, or one exported from its weights if torch is installed, else None.

    A C file next to a model is not used, since it is code: it must be named explicitly. An exported one takes ``hops``
    in a step.
    """
    path = Path(model)
    if path.suffix == SOURCE:
        if not path.is_file():
            raise SessionError(f"there is no file {os.fspath(model)!r}")
        return path
    weights = (path if path.suffix == WEIGHTS else find_model(model)).with_suffix(WEIGHTS)
    if not weights.is_file() or any(importlib.util.find_spec(name) is None for name in ("torch", "onnx")):
        return None
    return _written(weights, hops)


def _written(weights: Path, hops: int) -> Path:
    """Return the C file of saved weights, cached by a hash of the weights and of the code that writes it."""
    export = import_module("centaurus.export.c")  # needs torch, which the rest of the runtime does without
    writer = sorted(Path(export.__file__ or "").parent.glob("*.*"))
    key = hashlib.sha256(b"".join(path.read_bytes() for path in [weights, *writer])).hexdigest()[:32]
    source = cache_folder(STEPS) / f"{key}-{hops}" / f"{weights.stem}.c"
    if not source.is_file():
        source.parent.mkdir(parents=True, exist_ok=True)
        net = import_module("centaurus.models").load(weights)
        export.export_c(net, source, hops * net.hop)
    return source


def cached_library(source: Path, compiler: list[str]) -> Path:
    """Return the library of a C file, compiled unless it is cached for this source, compiler and CPU."""
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    header = source.with_suffix(".h")
    if not header.is_file():
        raise SessionError(f"needs its header {header.name} beside it", source)
    words = " ".join([*compiler, *FLAGS, version, cpu_name()])
    parts = [source.read_bytes(), header.read_bytes(), WRAPPER.read_bytes(), words.encode()]
    key = hashlib.sha256(b"\0".join(parts))
    target = cache_folder(STEPS) / f"{key.hexdigest()[:32]}.so"
    if not target.exists():
        compile_step(source, target, compiler)
    return target


class Native:
    """A compiled step that takes and gives states as onnxruntime's io bindings do.

    One ``Native`` is for one thread at a time: a step works in its memory.
    """

    def __init__(self, library: AnyPath) -> None:
        self._library = ctypes.CDLL(os.fspath(library))
        self._library.centaurus_state_floats.restype = ctypes.c_long
        self._library.centaurus_block_floats.restype = ctypes.c_long
        self.state_floats = int(self._library.centaurus_state_floats())
        self._block = np.zeros(int(self._library.centaurus_block_floats()), np.float32)
        self._run = self._library.centaurus_run
        self._run.restype = None
        self._run.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int]
        names = ("centaurus_run_first", "centaurus_run_second")
        self._halves = [self._library[name] for name in names if hasattr(self._library, name)]
        for half in self._halves:
            half.restype = None
            half.argtypes = [*[ctypes.c_void_p] * 2, ctypes.c_long, ctypes.c_void_p, ctypes.c_long, *[ctypes.c_int] * 2]

    @property
    def halves(self) -> bool:
        """Whether ``run_steps`` can run a step in two halves: files of earlier versions have none."""
        return len(self._halves) == 2

    def io_binding(self) -> Binding:
        """Return an empty binding."""
        return Binding()

    def run_with_iobinding(self, bound: Binding) -> None:
        """Run the rows whose arrays are bound."""
        at = bound.addresses
        self._run(self._block.ctypes.data, at["audio"], at["output"], at["state"], at["next"], bound.rows)

    def run_steps(self, audio: Samples, output: Samples, states: Samples, steps: int) -> None:
        """Run steps over audio (rows, samples) into output (rows, features, frames) by two threads.

        While this thread runs the second halves of a group of steps, another runs the first halves of the next group.
        Every half has the same inputs as in one thread, so the results are equal; ``states`` (rows, floats) advance in
        place. All arrays are contiguous.
        """
        rows = len(audio)
        size = -(-(len(self._block) - self.state_floats) // LINE) * LINE
        scratch = np.empty((2, GROUP * rows * size), np.float32)  # of the group that begins, and of the one that ends

        def run(half: Any, array: Samples, start: int) -> None:
            length, count = array.shape[-1], min(GROUP, steps - start)
            at = array.ctypes.data + array.itemsize * (start * (length // steps))
            half(states.ctypes.data, scratch[start // GROUP % 2].ctypes.data, size, at, length, rows, count)

        first, second = self._halves
        with ThreadPoolExecutor(1) as other:
            begun = other.submit(run, first, audio, 0)
            for start in range(0, steps, GROUP):
                begun.result()
                if start + GROUP < steps:
                    begun = other.submit(run, first, audio, start + GROUP)
                run(second, output, start)


class Binding:
    """The addresses of a step's arrays: audio and output, the state before and after."""

    def __init__(self) -> None:
        self.addresses: dict[str, int] = {}
        self.rows = 0

    def bind_input(self, name: str, device: str, index: int, kind: Any, shape: tuple[int, ...], address: int) -> None:
        self.addresses[name.partition(".")[0]] = address

        self.rows = shape[0]

    bind_output = bind_input
