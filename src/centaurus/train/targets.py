"""Targets for training: transcripts as numbers for CTC, and the outputs of teachers for distillation.

Tokens are word pieces, characters or whole words, with the blank first. Teachers are classifiers for keyword spotting,
and wav2vec2 or stored logits for recognition.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from centaurus.audio import AudioError
from centaurus.data import Corpus, Index
from centaurus.decode import BACKGROUND, MARK, normalise
from centaurus.models import Classifier, load_network
from centaurus.models.tables import SpotterTable
from centaurus.system import ContentError, extra, replacing

BLANK = "<blank>"
UNKNOWN = "[UNK]"
SPECIAL = ("[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The 32 symbols of the character head, in the order of the wav2vec2 models fine-tuned on LibriSpeech; the pad is CTC's
# blank and the bar separates words.
CHARACTERS = ("<pad>", "<s>", "</s>", "<unk>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZ")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a recogniser by index, and how a transcript becomes indices. Index 0 is CTC's blank."""

    names: tuple[str, ...]
    encode: Callable[[str], list[int]]  # can be pickled, for data workers


def read_tokens(kind: str, transcripts: Iterable[str]) -> Tokens:
    """Return the tokens of a kind of vocabulary.

    ``characters`` or ``words`` of these transcripts, ``marked`` words with a token for where one begins, the WordPiece
    vocabulary in a file, or ``used:FILE``: those of its tokens that occur in the transcripts.
    """
    if kind == "characters":
        return _listed({c for text in transcripts for c in normalise(text)} | {" "}, list)
    if kind == "words":
        return _listed({word for text in transcripts for word in normalise(text).split()}, str.split)
    if kind == "marked":
        words = read_tokens("words", transcripts)
        return Tokens((*words.names, MARK), words.encode)
    path = Path(kind.removeprefix("used:"))
    if not path.is_file():
        raise ValueError(f"vocabulary is characters, words, marked, a WordPiece file or used:FILE; there is no {path}")
    return _used(wordpiece(path), transcripts) if kind.startswith("used:") else wordpiece(path)


def _listed(symbols: set[str], split: Callable[[str], list[str]]) -> Tokens:
    names = (BLANK, *sorted(symbols))
    index = {name: k for k, name in enumerate(names)}
    return Tokens(names, partial(_look_up, index, split))


def _look_up(index: dict[str, int], split: Callable[[str], list[str]], text: str) -> list[int]:
    """Return the indices of the names in a text; names without one are left out."""
    return [index[name] for name in split(normalise(text)) if name in index]


def wordpiece(path: Path) -> Tokens:
    """Return a WordPiece vocabulary as BERT has it: one token a line, ``[PAD]`` first, which serves as the blank."""
    names = tuple(path.read_text(encoding="utf-8").splitlines())
    missing = [name for name in SPECIAL if name not in names]
    if missing or names[0] != "[PAD]":
        raise ContentError(f"is not a WordPiece vocabulary: it should begin with [PAD] and have {SPECIAL}", path)
    return Tokens(names, partial(_pieces, str(path)))


def _pieces(path: str, text: str) -> list[int]:
    indices: list[int] = _tokenizer(path).encode(normalise(text), add_special_tokens=False).ids
    return indices


@cache
def _tokenizer(path: str) -> Any:
    """Return the tokenizer of a vocabulary file, loaded when first needed in each process."""
    from tokenizers import BertWordPieceTokenizer

    return BertWordPieceTokenizer(path, lowercase=True)


def _used(tokens: Tokens, transcripts: Iterable[str]) -> Tokens:
    """Return only the tokens that occur in transcripts, so that a small network is not dominated by its vocabulary."""
    needed = {k for text in transcripts for k in tokens.encode(text)}
    kept = sorted(needed | {0, tokens.names.index(UNKNOWN)})
    place = {old: new for new, old in enumerate(kept)}
    unknown = place[tokens.names.index(UNKNOWN)]
    return Tokens(tuple(tokens.names[k] for k in kept), partial(_remap, tokens.encode, place, unknown))


def _remap(encode: Callable[[str], list[int]], place: dict[int, int], unknown: int, text: str) -> list[int]:
    return [place.get(k, unknown) for k in encode(text)]


def characters(text: str) -> list[int]:
    """Return a transcript for the character head: upper-case letters, a bar between words, nothing else."""
    return [CHARACTERS.index(c) for c in normalise(text).upper().replace(" ", "|") if c in CHARACTERS]


# Seconds of silence around a clip for a spotter: it reports a word within 0.34 s of its end. Of 0, 0.1 and 0.3 s before
# a clip, 0.1 gives kws-30 the most of 1,000 validation clips of ten words.
BEFORE, AFTER = 0.1, 0.35
TINY = 1e-8  # the smallest probability of a class

Answers = Callable[[Tensor], Tensor]
"""From audio (batch, 1, samples) to logits (batch, classes)."""


def answers_of(model: str, classes: Sequence[str]) -> Answers:
    """Return a classifier of the same classes: a model of this library by name or file, or any other ``.onnx`` file.

    The ONNX file takes audio (batch, 1, samples), gives logits (batch, classes), and has the list ``classes`` as JSON
    in its metadata. It need not be causal. A spotter on mel frames may have further classes.
    """
    return _from_onnx(model, classes) if Path(model).suffix == ".onnx" else _from_model(model, classes)


def _from_model(model: str, classes: Sequence[str]) -> Answers:
    net = load_network(model).eval().requires_grad_(False)
    if not isinstance(net, Classifier):
        raise ValueError(f"{model} is a {net.task}: a teacher of keywords should be a classifier")
    known = net.settings.get("classes")
    if isinstance(net.table, SpotterTable) and set(classes) <= set(known or ()):
        return _of_frames(net, classes)
    _check(model, known, classes)

    def answer(audio: Tensor) -> Tensor:
        with torch.no_grad():
            return net.to(audio.device)(audio)[..., -1]

    return answer


def _of_frames(net: Classifier, classes: Sequence[str]) -> Answers:
    """Return the classifier of clips that a spotter with an output for every frame makes.

    Its answer is the mean of the probabilities over the spotter's window, where one of the words is most probable: in
    a clip with silence before and after it, since a spotter reports a word once it has ended.
    """
    rate, known = int(net.settings["sample_rate"]), list(net.settings["classes"])
    window = max(1, round(net.settings.get("window", 0.0) * rate / net.hop))
    order = [known.index(name) for name in classes]
    words = [k for k, name in enumerate(classes) if name != BACKGROUND]
    around = round(BEFORE * rate), round(AFTER * rate)

    def answer(audio: Tensor) -> Tensor:
        with torch.no_grad():
            logits = net.to(audio.device)(functional.pad(audio, around)).float()
            means = functional.avg_pool1d(logits.softmax(1)[:, order], window, 1)  # batch, classes, frames
            best = means[:, words].amax(1).argmax(1)
            return means[torch.arange(len(audio), device=audio.device), :, best].clamp(min=TINY).log()

    return answer


def _from_onnx(model: str, classes: Sequence[str]) -> Answers:
    import onnxruntime

    if not Path(model).is_file():
        raise ValueError(f"there is no teacher file {model}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = [value.name for value in session.get_inputs()]
    if len(inputs) != 1:
        raise ValueError(
            f"{model} has the inputs {', '.join(inputs)}: a teacher should take audio (batch, 1, samples) only"
        )
    words = session.get_modelmeta().custom_metadata_map.get("classes")
    _check(model, words and json.loads(words), classes)

    def answer(audio: Tensor) -> Tensor:
        logits = session.run(None, {inputs[0]: np.ascontiguousarray(audio.detach().float().cpu().numpy())})[0]
        return torch.from_numpy(logits).to(audio.device)

    return answer


def _check(model: str, known: object, classes: Sequence[str]) -> None:
    if known != list(classes):
        raise ValueError(f"{model} has the classes {known}, the network to train has {list(classes)}")


FRAME = 320  # samples a frame of wav2vec2 and of the character head
ABSENT = 20.0  # logits of symbols that the teacher lacks are this far below its lowest: a probability of about 1e-9

# The order of the outputs where a model has no vocab.json. torchaudio's release of the same network lacks three symbols
# that never occur (begin, end and unknown); its first output is the blank.
TORCHAUDIO = ("<pad>", "|", *"ETAONIHSRDLUMWCFGYPBVK'XJQZ")
ORDERS = {len(order): order for order in (CHARACTERS, TORCHAUDIO)}


def label_order(vocabulary: Path | None, outputs: int) -> list[int]:
    """Return, for each symbol of the character head, the teacher's output, or -1 where it has none.

    ``vocabulary`` is the ``vocab.json`` of a model, from symbols to outputs; without one the order follows from the
    number of outputs, as the two public releases of wav2vec2 on LibriSpeech have them.
    """
    if vocabulary is not None and vocabulary.is_file():
        symbols = json.loads(vocabulary.read_text(encoding="utf-8"))
        names = {str(name).upper() if len(name) == 1 else name: int(k) for name, k in symbols.items()}
        if "<pad>" not in names and "-" in names:
            names["<pad>"] = names["-"]
    elif outputs in ORDERS:
        names = {name: k for k, name in enumerate(ORDERS[outputs])}
    else:
        raise ValueError(
            f"the teacher has {outputs} outputs and no vocab.json that names them; {sorted(ORDERS)} are known"
        )
    order = [names.get(name, -1) for name in CHARACTERS]
    needed = [name for name in CHARACTERS if name not in ("<s>", "</s>", "<unk>")]
    missing = [name for name in needed if name not in names]
    if missing:
        raise ValueError(f"the teacher's vocabulary lacks {' '.join(missing)}")
    if max(order) >= outputs:
        raise ValueError(f"the teacher's vocabulary names output {max(order)}, it has {outputs}")
    return order


class Wav2Vec2:
    """A wav2vec2 CTC model from a local folder, through ``transformers``; it is never trained nor saved."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_dir():
            raise ValueError(
                f"the teacher should be a local folder of a wav2vec2 model, as transformers saves it, got {path}"
            )
        transformers = extra("transformers")
        model = transformers.Wav2Vec2ForCTC.from_pretrained(str(path), local_files_only=True)
        self.model: Any = model.eval().requires_grad_(False)
        self.order = label_order(Path(path) / "vocab.json", self.model.config.vocab_size)

    @torch.no_grad()
    def __call__(self, audio: Tensor) -> Tensor:
        """Return character logits (batch, characters, frames) for audio (batch, 1, time), each row at unit variance."""
        self.model.to(audio.device)
        rows = audio[:, 0].float()
        rows = (rows - rows.mean(-1, keepdim=True)) / (rows.var(-1, keepdim=True, unbiased=False) + 1e-7).sqrt()
        logits: Tensor = self.model(rows).logits.transpose(1, 2)
        if logits.shape[1] <= max(self.order):
            raise ValueError(f"the teacher gives {logits.shape[1]} outputs, its vocabulary has {max(self.order) + 1}")
        absent = logits.amin(1, keepdim=True) - ABSENT
        return torch.cat([absent if k < 0 else logits[:, k : k + 1] for k in self.order], 1)


class Precomputed:
    """Logits in files, ``ID.npy`` with (characters, frames) for each utterance, placed where the utterance is.

    Files may lie in folders named by what comes before the first ``-`` or ``_`` of an ID (``logits_file``).
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not any(self.folder.rglob("*.npy")):
            raise ContentError("has no teacher's logits: one ID.npy (characters, frames) for each utterance", folder)

    def logits(self, placed: list[tuple[int, str]], samples: int) -> np.ndarray[Any, Any]:
        """Return logits for a row of this many samples with utterances at these starts; blank elsewhere."""
        whole = np.zeros((len(CHARACTERS), samples // FRAME), np.float32)
        whole[0] = 20.0  # a probability of about 1
        for start, name in placed:
            path = self.folder / f"{name}.npy"
            path = path if path.is_file() else logits_file(self.folder, name)
            if not path.is_file():
                raise ContentError(f"the teacher has no logits for utterance {name}: there is no {path.name}", path)
            logits = np.load(path, mmap_mode="r", allow_pickle=False)
            if logits.ndim != 2 or logits.shape[0] != len(CHARACTERS):
                raise ContentError(f"should be ({len(CHARACTERS)}, frames), it is {logits.shape}", path)
            first = start // FRAME
            last = min(first + logits.shape[1], whole.shape[1])
            whole[:, first:last] = logits[:, : last - first]
        return whole


def logits_file(folder: Path, name: str) -> Path:
    """Return the file of an utterance's logits: in a folder of its speaker, so that none holds millions of files."""
    return folder / re.split("[-_]", name, maxsplit=1)[0] / f"{name}.npy"


@dataclass(frozen=True)
class Written:
    """Counts of utterances that were done now and before, and the faults of those that could not be read."""

    done: int
    before: int
    faults: dict[str, str]


def write_logits(
    teacher: Callable[[Tensor], Tensor],
    clips: Corpus | Index,
    folder: Path,
    part: tuple[int, int] = (0, 1),
    device: str = "cpu",
    watch: Callable[[int, int], None] | None = None,
) -> Written:
    """Write a teacher's logits for every utterance, one at a time, half precision; those that have a file are skipped.

    ``part`` (k, n) takes every n-th utterance from the k-th on, for n parallel processes. ``watch`` is called
    with the utterances so far and in all.
    """
    done = before = 0
    numbers = range(part[0], len(clips), part[1])
    faults: dict[str, str] = {}
    for count, number in enumerate(numbers, 1):
        clip = clips[number]
        path = logits_file(folder, clip.id)
        if path.is_file():
            before += 1
            continue
        try:
            samples = clips.load(number)
        except AudioError as error:
            faults[str(error.path)] = error.reason
            continue
        logits = teacher(torch.from_numpy(samples)[None, None].to(device))[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, logits.half().cpu().numpy())
        done += 1
        if watch is not None:
            watch(count, len(numbers))
    return Written(done, before, faults)
