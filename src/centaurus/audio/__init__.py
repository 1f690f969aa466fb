"""Sound as numpy arrays: files, rates, levels, mixing, measures of quality. No torch."""

from centaurus.audio.dnsmos import dnsmos
from centaurus.audio.files import Audio, AudioError, Info, Writer, blocks, info, read, replacing, write
from centaurus.audio.level import dbfs, gain, mix, power, to_level
from centaurus.audio.metrics import (
    Errors,
    accuracy,
    char_errors,
    confusion,
    pesq,
    si_sdr,
    stoi,
    word_errors,
)
from centaurus.audio.resample import Resampler, resample

__all__ = [
    "Audio",
    "AudioError",
    "Errors",
    "Info",
    "Resampler",
    "Writer",
    "accuracy",
    "blocks",
    "char_errors",
    "confusion",
    "dbfs",
    "dnsmos",
    "gain",
    "info",
    "mix",
    "pesq",
    "power",
    "read",
    "replacing",
    "resample",
    "si_sdr",
    "stoi",
    "to_level",
    "word_errors",
    "write",
]
