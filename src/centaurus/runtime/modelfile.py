"""Find a model's file and read the settings in it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from centaurus import system
from centaurus.audio.files import EXTENSIONS
from centaurus.decode import MOST_CAUTION
from centaurus.system import AnyPath, FileError
from centaurus.tasks import LAYERS, TASKS

KEY = "centaurus"
VERSION = 1
# 12 dB above full scale. 0.85 s after one sample of 4 the output of every shipped model is within a tenth of its
# largest value of what it would be without it; after one of 8, denoise-16k-live takes 1.9 s, denoise-16k-raw 2.5 s.
PEAK = 4.0
MOST_STATE_NUMBERS = 1 << 26  # of one stream
# Settings that a file leaves out where they are these.
OPTIONAL = {"threshold": None, "window": None, "caution": 0.0, "peak": PEAK}
# Limits of what a file may ask for, far above any network.
Rate = Annotated[int, Meta(ge=1, le=1_000_000)]
Features = Annotated[int, Meta(ge=1, le=1 << 20)]
Samples = Annotated[int, Meta(ge=1, le=1 << 24)]
Words = Annotated[tuple[str, ...], Meta(max_length=1 << 20)]
Share = Annotated[float, Meta(gt=0, le=1)]
Axis = Annotated[int, Meta(ge=0, le=MOST_STATE_NUMBERS)]
SUFFIX = ".onnx"
WEIGHTS = ".safetensors"
AUDIO = (*EXTENSIONS, ".m4a", ".mp4", ".mkv", ".webm")
CHECKPOINTS = {".pt", ".pth", ".ckpt", ".bin"}


class SessionError(FileError, ValueError):
    """A model's file that cannot be used, or a use that it does not allow."""


@dataclass(frozen=True)
class StateShape:
    """The name of a state and its shape without the batch."""

    name: str
    shape: Annotated[tuple[Axis, ...], Meta(max_length=8)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A model's task, rate, chunk, meaning of outputs, and states.

    ``chunk`` samples go in at a time, a multiple of ``hop``; ``ratio`` frames come out for every sample. The output of
    a sample is ``delay`` samples late, so it is available at most ``latency`` = chunk + delay samples after its input.
    A keyword spotter may have a ``threshold``, the ``window`` in seconds that it averages over, and the ``caution``
    that is added to the logit of its background. Samples beyond ±``peak`` are clipped.
    """

    task: str
    name: str
    rate: Rate
    hop: Features
    chunk: Samples
    delay: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    latency: Samples
    ratio: Fraction
    features: Features
    classes: Words | None
    tokens: Words | None
    card: str
    states: Annotated[tuple[StateShape, ...], Meta(max_length=4096)]
    threshold: Share | None = None
    window: Share | None = None
    caution: Annotated[float, Meta(ge=-MOST_CAUTION, le=MOST_CAUTION)] = 0.0
    peak: Annotated[float, Meta(gt=0, le=1e6)] = PEAK

    def frames(self, samples: int) -> int:
        """Return the output frames for this many samples."""
        return samples * self.ratio.numerator // self.ratio.denominator

    @property
    def state_numbers(self) -> int:
        """Numbers that one stream's states hold."""
        return sum(math.prod(state.shape) for state in self.states)

    def json(self) -> dict[str, Any]:
        """Return plain data, for the file."""
        data = msgspec.to_builtins(self, enc_hook=lambda ratio: [ratio.numerator, ratio.denominator])
        return {"version": VERSION} | {
            name: value for name, value in data.items() if name not in OPTIONAL or value != OPTIONAL[name]
        }


def read_settings(text: str | bytes, path: Path) -> Settings:
    """Return the settings in a file's metadata; what is missing, of a wrong type or out of range is an error."""
    try:
        data = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SessionError(f"its settings are not JSON ({error})", path) from error
    version = data.get("version") if isinstance(data, dict) else VERSION
    if version != VERSION:
        raise SessionError(f"its settings are of format {version!r:.60}, this centaurus reads format {VERSION}", path)
    try:
        settings = msgspec.convert(data, Settings, dec_hook=_read_ratio)
    except msgspec.ValidationError as error:
        raise SessionError(f"its settings cannot be used: {error}", path) from error
    for fault in _faults(settings):
        raise SessionError(f"its settings cannot be used: {fault}", path)
    return settings


def _read_ratio(kind: type, data: Any) -> Fraction:
    return Fraction(*msgspec.convert(data, tuple[Features, Samples]))


def _faults(s: Settings) -> Iterator[str]:
    """Yield the inconsistencies of the settings."""
    if s.task not in (*TASKS, LAYERS):
        yield f"task should be one of {', '.join(TASKS)}, {LAYERS}, got {s.task!r:.60}"
    if s.chunk % s.hop:
        yield f"chunk {s.chunk} should be a multiple of hop {s.hop}"
    if (s.hop * s.ratio).denominator != 1:
        yield f"a hop of {s.hop} samples should give whole frames, the ratio is {s.ratio}"
    for name, words in (("classes", s.classes), ("tokens", s.tokens)):
        if words is not None and len(words) != s.features:
            yield f"there are {len(words)} {name} for {s.features} features"
    if len({state.name for state in s.states}) != len(s.states):
        yield "two states have one name"
    if s.state_numbers > MOST_STATE_NUMBERS:
        yield f"the states of one stream hold {s.state_numbers} numbers, more than {MOST_STATE_NUMBERS}"


def check_kind(path: AnyPath, accepted: tuple[str, ...]) -> None:
    """Raise an error that says what to do if the suffix of a file is not that of a model of the accepted kinds.

    ``accepted`` are ``SUFFIX`` for exported models and ``WEIGHTS`` for those that torch reads.
    """
    suffix = Path(path).suffix.lower()
    if suffix in accepted:
        return
    if suffix == WEIGHTS:
        target = Path(path).with_suffix(SUFFIX)
        raise SessionError(f"holds weights for torch: export it first, centaurus export {path} -o {target}", path)
    if suffix == SUFFIX:
        raise SessionError(f"is an exported model: give the {WEIGHTS} file it was made from", path)
    if suffix in AUDIO:
        raise SessionError("is audio, not a model", path)
    if suffix in CHECKPOINTS:
        raise SessionError(
            f"is a torch pickle, which is not read: use ct.save(net, {Path(path).stem + WEIGHTS!r})", path
        )


def shipped_models() -> list[str]:
    """Return the names of the models that come with the package."""
    return system.shipped_models(SUFFIX)


def find_model(model: AnyPath) -> Path:
    """Return the path of a model given as a path or as a shipped name."""
    try:
        path = system.find_model(model, SUFFIX)
    except system.MissingModelError as error:
        raise SessionError(error.reason) from error
    check_kind(path, (SUFFIX,))
    return path
