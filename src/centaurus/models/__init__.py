"""The paper's networks: tables as data, and what builds, counts, saves and verifies them."""

from collections.abc import Callable

from centaurus.models.classifier import Classifier, classifier
from centaurus.models.count import Report, count
from centaurus.models.denoiser import Denoiser, denoiser
from centaurus.models.io import load, load_network, save, shipped
from centaurus.models.network import Network, verify
from centaurus.models.recognizer import Heads, Recognizer, recognizer
from centaurus.models.tables import (
    ClassifierTable,
    DenoiserTable,
    RecognizerTable,
    Row,
    SpectralTable,
    SpotterTable,
    names,
)
from centaurus.verification import Verification

__all__ = [
    "Classifier",
    "ClassifierTable",
    "Denoiser",
    "DenoiserTable",
    "Heads",
    "Network",
    "Recognizer",
    "RecognizerTable",
    "Report",
    "Row",
    "SpectralTable",
    "SpotterTable",
    "Verification",
    "build",
    "classifier",
    "count",
    "denoiser",
    "load",
    "load_network",
    "names",
    "recognizer",
    "save",
    "shipped",
    "verify",
]


def build(name: str) -> Network:
    """A network by any name that ``names()`` lists, such as ``kws-hybrid-8`` or ``denoiser/hybrid``."""
    task, _, row = name.rpartition("/")
    makers: dict[str, Callable[[str], Network]] = {
        "": classifier,
        "classifier": classifier,
        "denoiser": denoiser,
        "recognizer": recognizer,
    }
    if task not in makers:
        raise ValueError(f"there is no network named {name!r}; there are {', '.join(names())}")
    return makers[task](row)
