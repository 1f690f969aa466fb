"""Sound as numpy arrays: files, rates, levels, mixing, measures of quality. No torch."""

from centaurus.audio.files import Audio, AudioError, Info, Writer, blocks, info, read, replacing, write
from centaurus.audio.level import dbfs, gain, mix, power, to_level
from centaurus.audio.resample import Resampler, resample

__all__ = [
    "Audio",
    "AudioError",
    "Info",
    "Resampler",
    "Writer",
    "blocks",
    "dbfs",
    "gain",
    "info",
    "mix",
    "power",
    "read",
    "replacing",
    "resample",
    "to_level",
    "write",
]
