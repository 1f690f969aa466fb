"""Find a model's file and read the settings it carries."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from centaurus import system
from centaurus.tasks import LAYERS, TASKS

KEY = "centaurus"
VERSION = 1
MOST = {"rate": 1_000_000, "hop": 1 << 20, "chunk": 1 << 24, "latency": 1 << 24, "features": 1 << 20}
MOST_DELAY = 1 << 24
# 12 dB above full scale. 0.85 s after one sample of 4 every shipped model is itself again to a tenth of its largest
# output; after one of 8, denoise-16k-live takes 1.9 s and denoise-16k-raw 2.5 s.
PEAK = 4.0
MOST_PEAK = 1e6
MOST_STATES, MOST_AXES, MOST_STATE_NUMBERS, MOST_WORDS = 4096, 8, 1 << 26, 1 << 20


class SessionError(ValueError):
    """A model's file that cannot be used, or a use that it does not allow: why, and which file if it is one."""

    def __init__(self, reason: str, path: str | os.PathLike[str] | None = None) -> None:
        self.reason, self.path = reason, None if path is None else Path(path)
        super().__init__(reason if path is None else f"{os.fspath(path)}: {reason}")


class StateShape(NamedTuple):
    """The name of a state and its shape without the batch."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """A model's task, rate and pieces, what its outputs mean, and the states it carries.

    ``chunk`` samples go in at a time, a multiple of ``hop``; ``ratio`` frames come out for every sample. The output of
    a sample stands ``delay`` samples after its place, so it comes at most ``latency`` = chunk + delay samples later.
    A keyword spotter may carry the ``threshold`` it was chosen for and the ``window`` in seconds that it averages over.
    Samples beyond ±``peak`` are outside the range of the model and are limited to it.
    """

    task: str
    name: str
    rate: int
    hop: int
    chunk: int
    delay: int
    latency: int
    ratio: Fraction
    features: int
    classes: tuple[str, ...] | None
    tokens: tuple[str, ...] | None
    card: str
    states: tuple[StateShape, ...]
    threshold: float | None = None
    window: float | None = None
    peak: float = PEAK

    def frames(self, samples: int) -> int:
        """Return the output frames for this many samples."""
        return samples * self.ratio.numerator // self.ratio.denominator

    @property
    def state_numbers(self) -> int:
        """Numbers that one stream's states hold."""
        return sum(math.prod(state.shape) for state in self.states)

    def json(self) -> dict[str, Any]:
        """Return plain data, for the file."""
        return {
            "version": VERSION,
            "task": self.task,
            "name": self.name,
            "rate": self.rate,
            "hop": self.hop,
            "chunk": self.chunk,
            "delay": self.delay,
            "latency": self.latency,
            "ratio": [self.ratio.numerator, self.ratio.denominator],
            "features": self.features,
            "classes": None if self.classes is None else list(self.classes),
            "tokens": None if self.tokens is None else list(self.tokens),
            "card": self.card,
            "states": [{"name": state.name, "shape": list(state.shape)} for state in self.states],
            **({} if self.threshold is None else {"threshold": self.threshold}),
            **({} if self.window is None else {"window": self.window}),
            **({} if self.peak == PEAK else {"peak": self.peak}),
        }


def read_settings(text: str, path: Path) -> Settings:
    """Settings from a file's metadata; anything missing, of a wrong type or out of range is an error that names it."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SessionError(f"its settings are not JSON ({error})", path) from error
    try:
        return _settings(data)
    except ValueError as error:
        raise SessionError(f"its settings cannot be used: {error}", path) from error


def _settings(data: Any) -> Settings:
    if not isinstance(data, dict):
        raise ValueError(f"they should be an object, got {_short(data)}")
    if data.get("version") != VERSION:
        raise ValueError(f"they are of format {_short(data.get('version'))}, this centaurus reads format {VERSION}")
    whole = {key: _whole(data, key, most) for key, most in MOST.items()}
    task = _text(data, "task")
    if task not in (*TASKS, LAYERS):
        raise ValueError(f"task should be one of {', '.join(TASKS)}, {LAYERS}, got {_short(task)}")
    if whole["chunk"] % whole["hop"]:
        raise ValueError(f"chunk {whole['chunk']} should be a multiple of hop {whole['hop']}")
    ratio = _ratio(data)
    if (whole["hop"] * ratio).denominator != 1:
        raise ValueError(f"a hop of {whole['hop']} samples should give whole frames, the ratio is {ratio}")
    classes, tokens = _words(data, "classes"), _words(data, "tokens")
    for key, words in (("classes", classes), ("tokens", tokens)):
        if words is not None and len(words) != whole["features"]:
            raise ValueError(f"there are {len(words)} {key} for {whole['features']} features")
    return Settings(
        task=task,
        name=_text(data, "name"),
        rate=whole["rate"],
        hop=whole["hop"],
        chunk=whole["chunk"],
        delay=_delay(data),
        latency=whole["latency"],
        ratio=ratio,
        features=whole["features"],
        classes=classes,
        tokens=tokens,
        card=_text(data, "card"),
        states=_states(data),
        threshold=_share(data, "threshold"),
        window=_share(data, "window"),
        peak=_peak(data),
    )


def _whole(data: Mapping[str, Any], key: str, most: int) -> int:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{key} should be a whole number from 1 to {most}, got {_short(value)}")
    return value


def _delay(data: Mapping[str, Any]) -> int:
    """The delay in samples; files from before there was one have none."""
    value = data.get("delay", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_DELAY:
        raise ValueError(f"delay should be a whole number from 0 to {MOST_DELAY}, got {_short(value)}")
    return value


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} should be text, got {_short(value)}")
    return value


def _words(data: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MOST_WORDS or not all(isinstance(word, str) for word in value):
        raise ValueError(f"{key} should be a list of words or null, got {_short(value)}")
    return tuple(value)


def _share(data: Mapping[str, Any], key: str) -> float | None:
    """A number above 0 and up to 1, or none."""
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{key} should be a number above 0 and up to 1, got {_short(value)}")
    return float(value)


def _peak(data: Mapping[str, Any]) -> float:
    """The largest sample that the model takes."""
    value = data.get("peak", PEAK)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_PEAK:
        raise ValueError(f"peak should be a number above 0 and up to {MOST_PEAK:g}, got {_short(value)}")
    return float(value)


def _ratio(data: Mapping[str, Any]) -> Fraction:
    value = data.get("ratio")
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"ratio should be two whole numbers, got {_short(value)}")
    parts = {"top": value[0], "bottom": value[1]}
    return Fraction(_whole(parts, "top", 1 << 20), _whole(parts, "bottom", 1 << 24))


def _states(data: Mapping[str, Any]) -> tuple[StateShape, ...]:
    value = data.get("states")
    if not isinstance(value, list) or len(value) > MOST_STATES:
        raise ValueError(f"states should be a list of at most {MOST_STATES}, got {_short(value)}")
    states = tuple(_state(item) for item in value)
    if len({state.name for state in states}) != len(states):
        raise ValueError("two states have one name")
    numbers = sum(math.prod(state.shape) for state in states)
    if numbers > MOST_STATE_NUMBERS:
        raise ValueError(f"the states of one stream hold {numbers} numbers, more than {MOST_STATE_NUMBERS}")
    return states


def _state(item: Any) -> StateShape:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not isinstance(item.get("shape"), list):
        raise ValueError(f"a state should have a name and a shape, got {_short(item)}")
    shape = item["shape"]
    fit = all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= MOST_STATE_NUMBERS for n in shape)
    if not fit or len(shape) > MOST_AXES:
        raise ValueError(f"the shape of state {item['name']!r:.60} should be a few whole numbers, got {_short(shape)}")
    return StateShape(item["name"], tuple(shape))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


SUFFIX = ".onnx"
WEIGHTS = ".safetensors"
AUDIO = {".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".m4a", ".mp4", ".mkv", ".webm"}
CHECKPOINTS = {".pt", ".pth", ".ckpt", ".bin"}


def check_kind(path: str | os.PathLike[str], accepted: tuple[str, ...]) -> None:
    """Refuse a file whose suffix says that it is something else than a model of the accepted kinds, and say what to do.

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
            f"is a pickle of torch, which is not read: ct.save(net, {Path(path).stem + WEIGHTS!r})", path
        )


def shipped_models() -> list[str]:
    """The names of the models that come with the package."""
    return system.shipped_models(SUFFIX)


def find_model(model: str | os.PathLike[str]) -> Path:
    """The path of a model given as a path or as a shipped name."""
    try:
        path = system.find_model(model, SUFFIX)
    except FileNotFoundError as error:
        raise SessionError(str(error)) from error
    check_kind(path, (SUFFIX,))
    return path
