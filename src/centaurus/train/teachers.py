"""Teachers for distillation: classifiers for keyword spotting, wav2vec2 or stored logits for recognition."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from centaurus.models import Classifier, load_network
from centaurus.train.tokens import CHARACTERS

Answers = Callable[[Tensor], Tensor]
"""From audio (batch, 1, samples) to logits (batch, classes)."""


def answers_of(model: str, classes: Sequence[str]) -> Answers:
    """A classifier of the same classes: a model of this library by name or file, or any other's ``.onnx``.

    The ONNX file takes audio (batch, 1, samples), gives logits (batch, classes), and has the list ``classes`` as JSON
    in its metadata. It need not be causal.
    """
    return _from_onnx(model, classes) if Path(model).suffix == ".onnx" else _from_model(model, classes)


def _from_model(model: str, classes: Sequence[str]) -> Answers:
    net = load_network(model).eval().requires_grad_(False)
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
        raise ValueError(f"there is no teacher file {model}")
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


FRAME = 320  # samples a frame of wav2vec2 and of the character head


class Wav2Vec2:
    """A wav2vec2 CTC model from a local folder, through ``transformers``; it is never trained nor saved."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_dir():
            raise ValueError(f"the teacher is a local folder of a wav2vec2 model, as transformers saves it: no {path}")
        try:
            from transformers import Wav2Vec2ForCTC  # type: ignore[import-not-found, unused-ignore]
        except ModuleNotFoundError as error:
            raise ImportError(
                "a wav2vec2 teacher needs transformers (pip install transformers); without it, give logits that were "
                "computed before: teacher=FOLDER with one NAME.npy (characters, frames) for each utterance"
            ) from error
        self.model: Any = Wav2Vec2ForCTC.from_pretrained(str(path), local_files_only=True).eval().requires_grad_(False)

    @torch.no_grad()
    def __call__(self, audio: Tensor) -> Tensor:
        """Character logits (batch, characters, frames) for audio (batch, 1, time), each row at unit variance."""
        self.model.to(audio.device)
        rows = audio[:, 0].float()
        rows = (rows - rows.mean(-1, keepdim=True)) / (rows.var(-1, keepdim=True, unbiased=False) + 1e-7).sqrt()
        logits: Tensor = self.model(rows).logits.transpose(1, 2)
        if logits.shape[1] != len(CHARACTERS):
            raise ValueError(f"the teacher has {logits.shape[1]} characters, the character head {len(CHARACTERS)}")
        return logits


class Precomputed:
    """Logits in files, ``ID.npy`` with (characters, frames) for each utterance, placed where the utterance stands."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not any(self.folder.rglob("*.npy")):
            raise ValueError(f"{folder} has no teacher's logits: one ID.npy (characters, frames) for each utterance")

    def logits(self, placed: list[tuple[int, str]], samples: int) -> np.ndarray[Any, Any]:
        """Return logits for a row of this many samples with utterances at these starts; blank elsewhere."""
        whole = np.zeros((len(CHARACTERS), samples // FRAME), np.float32)
        whole[0] = 20.0  # as good as certain
        for start, name in placed:
            path = self.folder / f"{name}.npy"
            if not path.is_file():
                raise ValueError(f"the teacher has no logits for utterance {name}: there is no {path}")
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if found.ndim != 2 or found.shape[0] != len(CHARACTERS):
                raise ValueError(f"{path} should be ({len(CHARACTERS)}, frames), it is {found.shape}")
            first = start // FRAME
            last = min(first + found.shape[1], whole.shape[1])
            whole[:, first:last] = found[:, : last - first]
        return whole
