"""Corpora on disk and examples made of them, as numpy arrays; independent of networks.

``open_corpus`` finds the clips of a folder in any known layout; ``prepared`` decodes them once. ``Keywords``,
``Phrases``, ``Mixtures``, ``Pairs`` and ``Utterances`` make examples of them: ``size()``, ``draw(epoch, rng)`` and
``example(index, rng)``, whose every number is a function of the epoch, the index and the generator.
"""

from centaurus.data.corpus import Clip, Corpus, Faults, checked, load, measured, open_pack, prepared
from centaurus.data.index import Index, open_index, without_leaks
from centaurus.data.keywords import Keywords, Phrases, Phrasing, Spoken, Variation
from centaurus.data.layouts import LAYOUTS, open_corpus, pairs, recognise
from centaurus.data.rows import Mixing, Mixtures, Pairs, Utterances

__all__ = [
    "LAYOUTS", "Clip", "Corpus", "Faults", "Index", "Keywords", "Mixing", "Mixtures", "Pairs", "Phrases",
    "Phrasing", "Spoken", "Utterances", "Variation", "checked", "load", "measured", "open_corpus", "open_index",
    "open_pack", "pairs", "prepared", "recognise", "without_leaks",
]  # fmt: skip
