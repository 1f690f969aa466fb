"""Corpora as they lie on disk: readers, caches, synthetic stand-ins. Sound as numpy arrays; nothing of networks."""

from centaurus.data.clips import Clip, Corpus, Faults, checked, load
from centaurus.data.packed import cache_folder, open_pack, write_pack

__all__ = [
    "Clip",
    "Corpus",
    "Faults",
    "cache_folder",
    "checked",
    "load",
    "open_pack",
    "write_pack",
]
