"""A trained classifier whose answers are learnt beside the labels, or instead of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from centaurus.models import Classifier, load

Answers = Callable[[Tensor], Tensor]
"""From audio (batch, 1, samples) to logits (batch, classes)."""


def answers_of(model: str, classes: Sequence[str]) -> Answers:
    """A classifier of the same classes: a model of this library by name or file, or any other's ``.onnx``.

    The ONNX file takes audio (batch, 1, samples), gives logits (batch, classes), and has the list ``classes`` as JSON
    in its metadata. It may hear whole words at once, as nothing that streams can.
    """
    return _from_onnx(model, classes) if Path(model).suffix == ".onnx" else _from_model(model, classes)


def _from_model(model: str, classes: Sequence[str]) -> Answers:
    net = load(model).eval().requires_grad_(False)
    if not isinstance(net, Classifier):
        raise ValueError(f"{model} is a {net.task}, and a classifier is what could teach one")
    _check(model, net.settings.get("classes"), classes)

    def hear(audio: Tensor) -> Tensor:
        with torch.no_grad():
            return net.to(audio.device)(audio)[..., -1]

    return hear


def _from_onnx(model: str, classes: Sequence[str]) -> Answers:
    import onnxruntime

    if not Path(model).is_file():
        raise ValueError(f"there is no file {model} to be taught by")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = [given.name for given in session.get_inputs()]
    if len(inputs) != 1:
        raise ValueError(
            f"{model} wants {', '.join(inputs)}: a teacher takes audio (batch, 1, samples) and nothing else"
        )
    words = session.get_modelmeta().custom_metadata_map.get("classes")
    _check(model, words and json.loads(words), classes)

    def hear(audio: Tensor) -> Tensor:
        logits = session.run(None, {inputs[0]: np.ascontiguousarray(audio.detach().float().cpu().numpy())})[0]
        return torch.from_numpy(logits).to(audio.device)

    return hear


def _check(model: str, known: object, classes: Sequence[str]) -> None:
    if known != list(classes):
        raise ValueError(f"{model} knows the classes {known}, and {list(classes)} are to be learnt")
