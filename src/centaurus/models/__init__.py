"""The paper's networks: tables as data, and what builds, counts, saves and verifies them."""

from centaurus.models.build import Classifier, Denoiser, Recognizer, build, classifier, denoiser, names, recognizer
from centaurus.models.io import load, load_network, save, shipped
from centaurus.models.network import Network, count, verify
from centaurus.models.tables import ClassifierTable, DenoiserTable, RecognizerTable, Row, SpectralTable, SpotterTable
from centaurus.verification import Verification

__all__ = [
    "Classifier", "ClassifierTable", "Denoiser", "DenoiserTable", "Network", "Recognizer", "RecognizerTable", "Row",
    "SpectralTable", "SpotterTable", "Verification", "build", "classifier", "count", "denoiser", "load",
    "load_network", "names", "recognizer", "save", "shipped", "verify",
]  # fmt: skip
