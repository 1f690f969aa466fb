"""Sound as numpy arrays: files, rates, levels, mixing, packing, masks, measures of quality, pictures. No torch."""

from centaurus.audio.dnsmos import dnsmos
from centaurus.audio.files import Audio, AudioError, Info, Writer, blocks, info, read, replacing, write
from centaurus.audio.filter import filtered
from centaurus.audio.level import dbfs, gain, mix, power, to_level
from centaurus.audio.mask import mask_frequency, mask_time
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
from centaurus.audio.pack import Packing, Piece, assemble, pack_cut, pack_whole
from centaurus.audio.resample import Resampler, resample
from centaurus.audio.spectrogram import save_png, spectrogram
from centaurus.audio.stft import istft, stft

__all__ = [
    "Audio",
    "AudioError",
    "Errors",
    "Info",
    "Packing",
    "Piece",
    "Resampler",
    "Writer",
    "accuracy",
    "assemble",
    "blocks",
    "char_errors",
    "confusion",
    "dbfs",
    "dnsmos",
    "filtered",
    "gain",
    "info",
    "istft",
    "mask_frequency",
    "mask_time",
    "mix",
    "pack_cut",
    "pack_whole",
    "pesq",
    "power",
    "read",
    "replacing",
    "resample",
    "save_png",
    "si_sdr",
    "spectrogram",
    "stft",
    "stoi",
    "to_level",
    "word_errors",
    "write",
]
