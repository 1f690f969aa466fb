"""Audio as numpy arrays: files, rates, levels, mixing, augmentation, packing, metrics, spectrograms. No torch."""

from centaurus.audio.augment import Packing, assemble, filtered, mask_frequency, mask_time, pack_cut, pack_whole
from centaurus.audio.files import Audio, AudioError, Writer, blocks, info, read, write
from centaurus.audio.metrics import char_errors, dnsmos, pesq, si_sdr, stoi, word_errors
from centaurus.audio.signal import Resampler, dbfs, istft, mix, power, resample, save_png, spectrogram, stft, to_level
from centaurus.system import OutputError, replacing

__all__ = [
    "Audio", "AudioError", "OutputError", "Packing", "Resampler", "Writer", "assemble", "blocks", "char_errors",
    "dbfs", "dnsmos", "filtered", "info", "istft", "mask_frequency", "mask_time", "mix", "pack_cut", "pack_whole",
    "pesq", "power", "read", "replacing", "resample", "save_png", "si_sdr", "spectrogram", "stft", "stoi",
    "to_level", "word_errors", "write",
]  # fmt: skip
