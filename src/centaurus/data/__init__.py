"""Corpora as they lie on disk: readers, caches, synthetic stand-ins. Sound as numpy arrays; nothing of networks."""

from centaurus.data.clips import Clip, Corpus, Faults, checked, load
from centaurus.data.denoising_folders import pairs
from centaurus.data.layouts import LAYOUTS, open_corpus, recognise
from centaurus.data.packed import cache_folder, open_pack, write_pack

__all__ = [
    "LAYOUTS",
    "Clip",
    "Corpus",
    "Faults",
    "cache_folder",
    "checked",
    "load",
    "open_corpus",
    "open_pack",
    "pairs",
    "recognise",
    "write_pack",
]
