"""Tables to plain data and back, checked field by field: what a model file says about its network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from centaurus.models.classifier import Classifier
from centaurus.models.denoiser import Denoiser
from centaurus.models.network import Network
from centaurus.models.recognizer import Recognizer
from centaurus.models.tables import (
    ClassifierTable,
    DenoiserTable,
    RecognizerTable,
    Row,
    SpectralTable,
    SpotterTable,
    Table,
)

# The tables of each task; a file's is the first that has all of its fields.
TABLES: dict[str, tuple[type[Table], ...]] = {
    "classifier": (ClassifierTable, SpotterTable),
    "denoiser": (DenoiserTable, SpectralTable),
    "recognizer": (RecognizerTable,),
}
NETWORKS: dict[str, Callable[[Any, Mapping[str, Any]], Network]] = {
    "classifier": Classifier,
    "denoiser": Denoiser,
    "recognizer": Recognizer,
}


def table_to_data(table: Table) -> dict[str, Any]:
    """A table as JSON can hold it."""
    return asdict(table)


def rebuild(task: str, data: Mapping[str, Any], settings: Mapping[str, Any]) -> Network:
    """A new network for this task from the data of its table."""
    if task not in TABLES:
        raise ValueError(f"the task should be one of {', '.join(TABLES)}, got {task!r}")
    fitting = [kind for kind in TABLES[task] if set(data) <= {field.name for field in fields(kind)}]
    return NETWORKS[task](_read((fitting or TABLES[task])[0], data, task), settings)


def _rows(value: Any, where: str) -> tuple[Row, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} should be a list of rows, got {value!r}")
    return tuple(_read(Row, row, f"{where}[{k}]") for k, row in enumerate(value))


def _plain(*kinds: type) -> Callable[[Any, str], Any]:
    def read(value: Any, where: str) -> Any:
        if type(value) not in kinds:
            raise ValueError(f"{where} should be of type {' or '.join(k.__name__ for k in kinds)}, got {value!r}")
        return value

    return read


READERS: dict[str, Callable[[Any, str], Any]] = {
    "str": _plain(str),
    "int": _plain(int),
    "bool": _plain(bool),
    "float": _plain(float, int),
    "int | None": _plain(int, type(None)),
    "tuple[Row, ...]": _rows,
}


def _read(kind: type, data: Any, where: str) -> Any:
    """A dataclass from a mapping: no field unknown, none missing, each of its type."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{where} should be a mapping of fields, got {data!r}")
    known = {field.name: field for field in fields(kind)}
    unknown = sorted(set(data) - set(known))
    missing = [name for name, field in known.items() if field.default is MISSING and name not in data]
    if unknown or missing:
        raise ValueError(f"{where} has unknown fields {unknown} and lacks {missing}")
    return kind(**{name: READERS[str(known[name].type)](value, f"{where}.{name}") for name, value in data.items()})
