"""``export_onnx``: write a network's step, for chunks of a fixed length, as an ONNX file that is compared with torch.

Inside the graph a signal is (batch, 1, frames, channels), time before channels: projections, resampling and norms are
then matrix products and reductions over the last axis, without transpositions.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from centaurus.export.layers import Nodes
from centaurus.export.step import Signal, lower
from centaurus.layer import Layer, check_layer
from centaurus.models.network import SAMPLE_RATE, Network
from centaurus.runtime.modelfile import KEY, PEAK, Settings, StateShape
from centaurus.runtime.session import Session
from centaurus.system import FileError, replacing
from centaurus.tasks import LAYERS, TASKS

OPSET, IR_VERSION = 17, 8
BATCH = "batch"


class Graph:
    """An ONNX graph under construction: nodes in the order they are added, and constants, equal ones stored once."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.states: list[StateShape] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._after: dict[str, str] = {}

    def constant(self, value: Any) -> str:
        """Add a constant, float32 or int64, and return its name."""
        array = np.asarray(value)
        array = np.ascontiguousarray(array, np.int64 if array.dtype.kind == "i" else np.float32)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"c{len(self._constants)}"
            self._constants[key] = name
            self._initializers.append(numpy_helper.from_array(array, name))
        return self._constants[key]

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator and return the name of its result."""
        return self.nodes_of(op, 1, *inputs, **attributes)[0]

    def nodes_of(self, op: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Add an operator and return the names of its results."""
        names = [f"{op.lower()}{len(self.nodes)}" + (f".{k}" if outputs > 1 else "") for k in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def reshape(self, x: str, *shape: int) -> str:
        """Return x with another shape after the batch axis."""
        return self.node("Reshape", x, self.constant(np.array([0, *shape])))

    def transpose(self, x: str, *order: int) -> str:
        """Return x with its axes in another order."""
        return self.node("Transpose", x, perm=order)

    def split(self, x: str, sizes: Sequence[int], axis: int = -1) -> list[str]:
        """Split x into pieces of these sizes along an axis."""
        return self.nodes_of("Split", len(sizes), x, self.constant(np.array(sizes)), axis=axis)

    def concat(self, *parts: str, axis: int = -1) -> str:
        """Concatenate along an axis."""
        return self.node("Concat", *parts, axis=axis)

    def part(self, x: str, start: int, stop: int, axis: int) -> str:
        """Return x[start:stop] along an axis."""
        return self.node("Slice", x, *(self.constant(np.array([n])) for n in (start, stop, axis)))

    def add(self, x: str, y: str) -> str:
        """Return the sum, with broadcasting."""
        return self.node("Add", x, y)

    def multiply(self, x: str, y: str) -> str:
        """Return the element-wise product, with broadcasting."""
        return self.node("Mul", x, y)

    def matmul(self, x: str, y: str) -> str:
        """Return the matrix product over the last two axes."""
        return self.node("MatMul", x, y)

    def silu(self, x: str) -> str:
        """Return x · sigmoid(x)."""
        return self.multiply(x, self.node("Sigmoid", x))

    def state(self, name: str, *shape: int) -> str:
        """Add a state (batch, *shape), zero at the start of a stream, and return the name of its input."""
        unique = f"state.{name}"
        self.states.append(StateShape(unique, shape))
        return unique

    def keep(self, state: str, value: str) -> None:
        """Set the value that a state has after the step."""
        self._after[state] = value

    def model(
        self, audio: str, samples: int, output: str, shape: Sequence[int], words: dict[str, str]
    ) -> onnx.ModelProto:
        """Return the graph as a model: audio and states in, output and states out, ``words`` as its metadata."""

        def value(name: str, inner: Sequence[int]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [BATCH, *inner])

        for spec in self.states:
            self.nodes.append(helper.make_node("Identity", [self._after[spec.name]], [after(spec.name)]))
        self.nodes.append(helper.make_node("Identity", [output], ["output"]))
        graph = helper.make_graph(
            _without_identities(self.nodes),
            "centaurus",
            [value(audio, [1, samples]), *(value(s.name, s.shape) for s in self.states)],
            [value("output", shape), *(value(after(s.name), s.shape) for s in self.states)],
            self._initializers,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
        made.producer_name = "centaurus"
        helper.set_model_props(made, words)
        return made


def after(state: str) -> str:
    """Return the name of a state as an output."""
    return state.replace("state.", "next.", 1)


def _without_identities(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes without identities: a value that is an output gets the output's name instead."""
    made = {name for node in nodes if node.op_type != "Identity" for name in node.output}
    outer: dict[str, str] = {}
    kept = []
    for node in nodes:
        if node.op_type == "Identity" and node.input[0] in made and node.input[0] not in outer:
            outer[node.input[0]] = node.output[0]
        else:
            kept.append(node)
    for node in kept:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = outer.get(name, name)
    return kept


TOLERANCE = 1e-3  # largest difference from torch over the largest value; rounding errors are a tenth of it
PIECES = 3  # chunks of the comparison with torch


class ExportError(FileError, ValueError):
    """An exported file whose output differs from the network's."""


class Exported(NamedTuple):
    """A file that was written, and its largest difference from torch, over the largest value."""

    path: Path
    difference: float


def export_onnx(
    model: Layer,
    path: str | os.PathLike[str],
    chunk: int | None = None,
    name: str | None = None,
    card: str | None = None,
    rate: int | None = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Write the step of a network, or of any tree of layers with one input channel, as an ONNX file.

    The states are inputs and outputs of the graph, the batch size is dynamic, and the settings are in the metadata. The
    output is compared with torch: if it differs, ``ExportError`` is raised and no file is written.

    Args:
        model: a network, or layers without a task: with ``classes`` the file is a classifier, with one output sample
            for every input sample a denoiser, otherwise its task is ``layers``.
        path: of the .onnx file.
        chunk: samples of a step, a multiple of the hop; by default one hop, or several if a hop is little work.
        name: of the model, in its metadata; by default that of the file.
        card: model card in Markdown, for the metadata.
        rate: sample rate of layers without a task, 16 kHz by default.
        classes: names of the outputs of layers without a task.
    """
    return export_and_compare(model, Path(path), chunk, name, card, rate, classes).path


def export_and_compare(
    model: Layer,
    path: Path,
    chunk: int | None = None,
    name: str | None = None,
    card: str | None = None,
    rate: int | None = None,
    classes: Sequence[str] | None = None,
) -> Exported:
    """Export as ``export_onnx`` does, and return the difference from torch as well."""
    check_layer(model, "export_onnx takes a centaurus layer or network")
    about = about_model(model, rate, classes)
    samples = default_chunk(model) if chunk is None else chunk
    if samples < 1 or samples % model.hop:
        raise ValueError(f"chunk should be a multiple of the hop {model.hop}, got {samples}")
    net = copy.deepcopy(model).cpu().double().eval()
    with replacing(path) as made:
        made.write_bytes(build(net, samples, name or path.stem, card, about))
        worst = difference(net, made)
        if not worst <= TOLERANCE:
            raise ExportError(
                f"was not written: it differs from the network by {worst:.1e} of the largest value, "
                f"where {TOLERANCE:.0e} is allowed",
                path,
            )
    return Exported(path, worst)


def default_chunk(model: Layer) -> int:
    """Return the hop, or for a network the multiple of it that is nearest to its task's default chunk."""
    if not isinstance(model, Network):
        return model.hop
    least = TASKS[model.task].chunk_seconds * float(model.settings["sample_rate"])
    return model.hop * max(1, round(least / model.hop))


class About(NamedTuple):
    """The metadata of a model besides its shapes: its task, and settings as in ``Network.settings``."""

    task: str
    settings: dict[str, Any]


def about_model(model: Layer, rate: int | None = None, classes: Sequence[str] | None = None) -> About:
    """Return task and settings of a network; those of other layers follow from their outputs."""
    if isinstance(model, Network):
        if rate is not None or classes is not None:
            raise ValueError("rate and classes are for layers without a task; a network has them in its settings")
        return About(model.task, model.settings)
    with torch.no_grad():
        like = next((x for x in model.parameters()), torch.zeros(1))
        outputs = model(like.new_zeros(1, 1, model.hop)).shape[1]
    task = "classifier" if classes else "denoiser" if outputs == 1 and model.ratio == 1 else LAYERS
    return About(task, {"sample_rate": rate or SAMPLE_RATE} | ({"classes": list(classes)} if classes else {}))


@torch.no_grad()
def build(net: Layer, chunk: int, name: str, card: str | None, about: About | None = None) -> bytes:
    """Return the bytes of the ONNX file of a network in double precision."""
    g = Graph()
    audio = Signal(g.reshape("audio", 1, chunk, 1), chunk, 1)
    y = lower(net, Nodes(g), audio, "")
    output = g.reshape(y.name, y.channels, y.frames) if 1 in y[1:] else g.transpose(g.reshape(y.name, *y[1:]), 0, 2, 1)
    settings = describe(net, chunk, name, card, y.channels, tuple(g.states), about)
    words = {KEY: json.dumps(settings.json(), ensure_ascii=False)}
    return g.model("audio", chunk, output, [y.channels, y.frames], words).SerializeToString()


def describe(
    net: Layer,
    chunk: int,
    name: str,
    card: str | None,
    features: int,
    states: tuple[StateShape, ...],
    about: About | None = None,
) -> Settings:
    """Return the metadata of an export; a tree of layers that is not a ``Network`` has the task ``layers``."""
    task, settings = about or (About(net.task, net.settings) if isinstance(net, Network) else About(LAYERS, {}))
    return Settings(
        task=task,
        name=name,
        rate=int(settings.get("sample_rate", SAMPLE_RATE)),
        hop=net.hop,
        chunk=chunk,
        delay=ceil(net.delay),
        latency=chunk + ceil(net.delay),
        ratio=net.ratio,
        features=features,
        classes=_words(settings, "classes"),
        tokens=_words(settings, "tokens"),
        card=card if card is not None else str(settings.get("card", "")),
        states=states,
        threshold=settings.get("threshold"),
        peak=float(settings.get("peak", PEAK)),
        window=settings.get("window"),
        caution=float(settings.get("caution", 0.0)),
    )


def _words(settings: dict[str, Any], key: str) -> tuple[str, ...] | None:
    return tuple(map(str, settings[key])) if settings.get(key) else None


def difference(net: Layer, path: Path) -> float:
    """Return the largest difference between the file, run in chunks, and the network in torch, over the largest value.

    From the second chunk on the states are not zero, and a batch of three finds a graph whose batch size is fixed.
    """
    net, worst = copy.deepcopy(net).cpu().double().eval(), 0.0
    for batch in (1, 3):
        session = Session(path, batch=batch)
        samples = PIECES * session.settings.chunk - net.hop // 3
        generator = torch.Generator().manual_seed(batch)
        signal = 0.1 * torch.randn(batch, 1, samples, generator=generator, dtype=torch.float64)
        with torch.inference_mode():
            expected = net(signal).numpy()
        audio = signal[:, 0].float().numpy()
        actual = np.concatenate([session.process(audio), session.flush()], -1).reshape(expected.shape)
        worst = max(worst, float(np.abs(actual - expected).max() / max(1e-30, np.abs(expected).max())))
    return worst
