"""An index of millions of utterances, without those whose texts resemble held-out ones.

The columns are on disk, built once by many processes and memory-mapped by all, for a corpus in the layout of
Multilingual LibriSpeech. The texts stay where they are, in ``transcripts.txt``; columns say where each line begins and
how long its audio is. It is built shard by shard, about 64 MB of texts each: an interrupted build is continued.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus.audio import AudioError
from centaurus.audio.augment import Piece, Rows, fill_rows
from centaurus.data.corpus import Clip, Corpus, Faults, OnFault, Samples, cache_folder, check_rate, header_length, load
from centaurus.data.layouts import SPLITS, TRANSCRIPTS, sound_suffix
from centaurus.system import AnyPath, replacing, write_file

WORDS_IN_A_ROW = 4
_WORD = re.compile(r"[\w']+")
Run = tuple[str, ...]
_LONGEST = 64  # letters beyond this position are hashed as if they were at it
_FOLDED = np.array([ord(chr(k).lower()) if k < 128 and _WORD.match(chr(k)) else 0 for k in range(256)], np.uint8)
SHARD_BYTES = 64 << 20
LEAK_BYTES = 4 << 20  # of texts that are compared at a time: their hashes take some 40 times as much
READERS = 8  # threads of a process that read headers, which is mostly waiting for the disk
NAMES = 256  # utterances that a thread measures at a time
TAB, NEWLINE, SLASH, BACKSLASH = b"\t\n/\\"


@dataclass(frozen=True)
class Leak:
    """A training clip, the held-out clip it resembles, and the share of the shorter text that both have."""

    clip: Clip
    held_out: Clip
    similarity: float


def without_leaks(train: Corpus, held_out: Iterable[Clip], limit: float = 0.5) -> tuple[Corpus, list[Leak]]:
    """Split training clips into those that resemble no held-out text, and leaks.

    Similarity is the share of runs of four words, of the text that has fewer, that both texts have; texts of fewer
    than four words resemble each other only if they are the same. One pass over the training texts, whatever the
    number of held-out ones.
    """
    held = list(held_out)
    texts = HeldOut([clip.labels.get("transcript", "") for clip in held], limit)
    kept, leaks = [], []
    for clip in train:
        number, similarity = texts.closest(clip.labels.get("transcript", ""))
        if similarity >= limit:
            leaks.append(Leak(clip, held[number], similarity))
        else:
            kept.append(clip)
    return train.of(kept), leaks


class HeldOut:
    """Held-out texts, with which training texts are compared."""

    def __init__(self, texts: Sequence[str], limit: float = 0.5) -> None:
        if not 0 < limit <= 1:
            raise ValueError(f"a similarity should be between 0 and 1, got {limit}")
        self.limit = limit
        runs = [_runs(text) for text in texts]
        self._sizes = [len(own) for own in runs]
        self._where: dict[Run, list[int]] = {}
        for number, own in enumerate(runs):
            for run in own:
                self._where.setdefault(run, []).append(number)
        long = [run for run in self._where if len(run) == WORDS_IN_A_ROW and all(word.isascii() for word in run)]
        self._hashes = np.unique(np.array([_run_hash(run) for run in long], np.uint64))

    def closest(self, text: str) -> tuple[int, float]:
        """Return the number of the held-out text most similar to a text, and the similarity; (-1, 0) if none is."""
        own = _runs(text)
        shared = Counter(number for run in own for number in self._where.get(run, ()))
        alike = {number: count / min(len(own), self._sizes[number]) for number, count in shared.items()}
        worst = max(alike, key=alike.__getitem__, default=-1)
        return worst, alike.get(worst, 0.0)

    def leaks(self, letters: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[int]:
        """Return the indices k of the texts ``letters[starts[k] : ends[k]]`` (UTF-8) that resemble a held-out one."""
        return [
            number
            for number in self.candidates(letters, starts, ends).tolist()
            if self.closest(bytes(letters[starts[number] : ends[number]]).decode("utf-8", "replace"))[1] >= self.limit
        ]

    def candidates(
        self, letters: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return texts that may resemble a held-out one: every one that does, and few others.

        A run of four words is compared by its hash. Texts with other than ASCII letters, and those of fewer than four
        words, are all candidates.
        """
        if not len(starts):
            return np.zeros(0, np.int64)
        inside = np.zeros(len(letters) + 1, np.int8)
        inside[starts] += 1
        np.add.at(inside, ends, -1)
        inside = np.cumsum(inside[:-1], dtype=np.int8)
        foreign = np.searchsorted(starts, np.flatnonzero((letters > 127) & (inside > 0)), "right") - 1
        folded = np.where(inside > 0, _FOLDED[letters], 0)
        words, first = _word_hashes(folded)
        owner = np.searchsorted(starts, first, "right") - 1
        counts = np.bincount(owner, minlength=len(starts))
        runs = np.zeros(max(0, len(words) - WORDS_IN_A_ROW + 1), np.uint64)
        for place in range(WORDS_IN_A_ROW):
            runs += words[place : place + len(runs)] * _PLACES[place]
        whole = owner[: len(runs)] == owner[WORDS_IN_A_ROW - 1 :][: len(runs)]
        position = np.searchsorted(self._hashes, runs)
        same = np.zeros(len(runs), bool)
        known = position < len(self._hashes)
        same[known] = self._hashes[position[known]] == runs[known]
        short = np.flatnonzero(counts < WORDS_IN_A_ROW)
        return np.unique(np.concatenate([owner[: len(runs)][whole & same], short, foreign]))


def _runs(text: str) -> set[Run]:
    """Return every run of four words of a text, without case and punctuation; a shorter text is one run."""
    words = _WORD.findall(text.casefold())
    if not words:
        return set()
    last = max(1, len(words) - WORDS_IN_A_ROW + 1)
    return {tuple(words[i : i + WORDS_IN_A_ROW]) for i in range(last)}


# Hashes: a sum over the letters of a word of (code of the letter) · (power of its position), modulo 2^64.
_random = np.random.default_rng(0)
_NUMBERS = _random.integers(1, 2**63, 256, np.uint64) | np.uint64(1)
_POWERS = _random.integers(1, 2**63, _LONGEST, np.uint64) | np.uint64(1)
_PLACES = _random.integers(1, 2**63, WORDS_IN_A_ROW, np.uint64) | np.uint64(1)


def _word_hashes(folded: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash of every word, and where it begins; ``folded`` is zero between words."""
    inside = folded != 0
    begins = inside.copy()
    begins[1:] &= ~inside[:-1]
    first = np.flatnonzero(begins)
    if not len(first):
        return np.zeros(0, np.uint64), first
    letters = np.flatnonzero(inside)
    word = np.cumsum(begins[letters]) - 1
    place = np.minimum(letters - first[word], _LONGEST - 1)
    values = _NUMBERS[folded[letters]] * _POWERS[place]
    return np.add.reduceat(values, np.searchsorted(letters, first)), first


@cache
def _word_hash(word: str) -> int:
    values = (int(_NUMBERS[ord(c)]) * int(_POWERS[min(k, _LONGEST - 1)]) for k, c in enumerate(word))
    return sum(values) % 2**64


def _run_hash(run: Run) -> int:
    return sum(_word_hash(word) * int(place) for word, place in zip(run, _PLACES, strict=True)) % 2**64


Measure = Callable[[Path], tuple[int, int]]
"""A function from an audio file to its frames and rate."""


@dataclass(frozen=True)
class Source:
    """One split of a corpus: where its texts and its audio are, and the rate it is loaded at."""

    folder: Path
    suffix: str
    rate: int

    @property
    def texts(self) -> Path:
        return self.folder / TRANSCRIPTS

    def path(self, name: str) -> Path:
        """Return the audio file of an utterance."""
        speaker, _, rest = name.partition("_")
        return self.folder / "audio" / speaker / rest.partition("_")[0] / f"{name}{self.suffix}"


@dataclass(frozen=True)
class Facts:
    """Counts of a whole index."""

    utterances: int
    seconds: float
    leaks: int
    discarded: int  # longer than a row
    unreadable: int


class Index:
    """Utterances by number, like those of a ``Corpus``, and rows of them. Opened by ``open_index``."""

    name = "mls"

    def __init__(self, source: Source, length: int, folders: Sequence[Path], rows: str, faults: Faults) -> None:
        self.source, self.length, self.rate, self.faults = source, length, source.rate, faults
        self._columns = [_columns(folder) for folder in folders]
        self._packed = [
            Rows(_mapped(folder / rows / "offsets"), _mapped(folder / rows / "recordings"), columns["frames"])
            for folder, columns in zip(folders, self._columns, strict=True)
        ]
        self._letters = np.memmap(source.texts, np.uint8, "r") if source.texts.stat().st_size else np.zeros(0, np.uint8)
        self._first = [0, *accumulate(len(columns["frames"]) for columns in self._columns)]
        parts = [json.loads((folder / rows / "facts.json").read_bytes()) for folder in folders]
        self.facts = Facts(**{key: sum(facts[key] for facts in parts) for key in Facts.__dataclass_fields__})

    def __len__(self) -> int:
        return self._first[-1]

    @property
    def seconds(self) -> float:
        """Length of all utterances that are in rows."""
        return self.facts.seconds

    def __getitem__(self, index: int) -> Clip:
        shard, place = self._locate(self._first, index)
        columns = self._columns[shard]
        begin, end = int(columns["starts"][place]), int(columns["ends"][place])
        tab = begin + int(columns["names"][place])
        name = bytes(self._letters[begin:tab]).decode()
        folder = self.source.folder.name
        labels = {"kind": "speech", "speaker": name.partition("_")[0], "subset": folder, "split": SPLITS[folder]}
        labels["transcript"] = bytes(self._letters[tab + 1 : end]).decode().strip()
        return Clip(self.source.path(name), name, labels=labels)

    def load(self, index: int, start: int = 0, frames: int = -1) -> Samples:
        """Return an utterance, or some frames of it, at the index's rate."""
        return load(self[index], self.rate, start, frames)

    @cached_property
    def rows(self) -> Sequence[tuple[Piece, ...]]:
        """Return rows of utterances that resemble no held-out text, none longer than ``length``."""
        return _Joined(self)

    def texts(self) -> Iterator[str]:
        """Return the text of every utterance in a row."""
        for row in self.rows:
            for piece in row:
                yield self[piece.recording].labels["transcript"]

    @staticmethod
    def _locate(first: Sequence[int], index: int) -> tuple[int, int]:
        if not 0 <= index < first[-1]:
            raise IndexError(index)
        shard = int(np.searchsorted(first, index, "right")) - 1
        return shard, index - first[shard]


class _Joined(Sequence[tuple[Piece, ...]]):
    """The rows of all shards, with recordings numbered consecutively."""

    def __init__(self, corpus: Index) -> None:
        self.corpus = corpus
        self.first = [0, *accumulate(len(rows) for rows in corpus._packed)]

    def __len__(self) -> int:
        return self.first[-1]

    def __getitem__(self, index: Any) -> Any:
        shard, place = Index._locate(self.first, index)
        before = self.corpus._first[shard]
        return tuple(Piece(p.recording + before, p.start, p.frames, p.at) for p in self.corpus._packed[shard][place])


def open_index(
    folder: AnyPath,
    held_out: Sequence[str],
    length: int,
    *,
    split: str = "train",
    rate: int = 16_000,
    limit: float = 0.5,
    cache: AnyPath | None = None,
    on_fault: OnFault = "skip",
    processes: int | None = None,
    measure: Measure | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Index:
    """Return the index of one split of a folder, from the cache, or built now by as many processes as there are cores.

    Texts that resemble one of ``held_out`` by more than ``limit`` (``without_leaks``) are in no row. What is cached is
    reused while ``transcripts.txt`` is unchanged; other held-out texts, limits and lengths reuse the measured
    lengths. ``measure`` replaces reading the headers of the audio files.
    """
    root = Path(folder) / split
    source = Source(root.absolute(), sound_suffix(root / "audio") if measure is None else ".flac", rate)
    stat = source.texts.stat()
    shards = _shards(source.texts, stat.st_size, shard_bytes)
    key = _digest(str(source.texts), stat.st_size, stat.st_mtime_ns, rate, shard_bytes)
    target = cache_folder(cache) / f"index-{key}"
    rows = f"rows-{_digest(length, limit, *held_out)}"
    folders = [target / f"{number:04d}" for number in range(len(shards))]
    measured = _Measured(source, measure or header_length)
    packed = _Packed(source, length, limit, tuple(held_out), rows)
    _run_missing(measured, [(f, s) for f, s in zip(folders, shards, strict=True) if not _done(f)], processes)
    _run_missing(packed, [(f, s) for f, s in zip(folders, shards, strict=True) if not _done(f / rows)], processes)
    faults = Faults(on_fault)
    for place in folders:
        for path, reason in json.loads((place / "faults.json").read_bytes()).items():
            faults.add(AudioError(reason, path))
    return Index(source, length, folders, rows, faults)


@dataclass(frozen=True)
class _Measured:
    """Writes the columns of a shard: where lines begin and end, the lengths of names, and the frames of the audio."""

    source: Source
    measure: Measure

    def __call__(self, job: tuple[Path, tuple[int, int]]) -> None:
        folder, (begin, end) = job
        letters = np.fromfile(self.source.texts, np.uint8, end - begin, offset=begin)
        starts, tabs, ends = _lines(letters, self.source.texts, begin)
        names = [bytes(letters[a:b]).decode() for a, b in zip(starts.tolist(), tabs.tolist(), strict=True)]
        faults: dict[str, str] = {}

        def frames(name: str) -> int:
            path = self.source.path(name)
            try:
                count, own = self.measure(path)
                check_rate(own, self.source.rate, path)
                return count * self.source.rate // own
            except AudioError as error:
                faults[str(path)] = error.reason
                return 0

        parts = [names[k : k + NAMES] for k in range(0, len(names), NAMES)]
        with ThreadPoolExecutor(READERS) as pool:
            lengths = np.array(
                [n for part in pool.map(lambda own: list(map(frames, own)), parts) for n in part], np.int32
            )
        folder.mkdir(parents=True, exist_ok=True)
        _save(folder / "starts", starts + begin)
        _save(folder / "ends", ends + begin)
        _save(folder / "names", (tabs - starts).astype(np.uint16))
        _save(folder / "frames", lengths)
        write_file(folder / "faults.json", json.dumps(faults))
        (folder / "done").touch()


@dataclass(frozen=True)
class _Packed:
    """Writes the rows of a shard from the utterances that resemble no held-out text."""

    source: Source
    length: int
    limit: float
    held_out: tuple[str, ...]
    rows: str

    def __call__(self, job: tuple[Path, tuple[int, int]]) -> None:
        folder, (begin, end) = job
        columns = _columns(folder)
        frames = np.array(columns["frames"])
        letters = np.fromfile(self.source.texts, np.uint8, end - begin, offset=begin)
        leaks = self._leaks(letters, columns, begin)
        unreadable, discarded = int((frames == 0).sum()), int((frames > self.length).sum())
        usable = frames.copy()
        usable[leaks] = 0
        packed = fill_rows(usable, self.length)
        target = folder / self.rows
        target.mkdir(exist_ok=True)
        _save(target / "offsets", packed.offsets)
        _save(target / "recordings", packed.recordings)
        seconds = float(usable[usable <= self.length].sum(dtype=np.int64)) / self.source.rate
        facts = Facts(len(frames), seconds, len(leaks), discarded, unreadable)
        write_file(target / "facts.json", json.dumps(asdict(facts)))
        (target / "done").touch()

    def _leaks(self, letters: NDArray[np.uint8], columns: dict[str, NDArray[Any]], begin: int) -> list[int]:
        held = _held_out(self.held_out, self.limit)
        starts = columns["starts"] + columns["names"] + 1 - begin
        ends = columns["ends"] - begin
        leaks: list[int] = []
        first = 0
        while first < len(starts):
            last = max(first + 1, int(np.searchsorted(ends, starts[first] + LEAK_BYTES)))
            at = int(starts[first])
            part = letters[at : int(ends[last - 1])]
            leaks += [first + k for k in held.leaks(part, starts[first:last] - at, ends[first:last] - at)]
            first = last
        return leaks


@lru_cache(maxsize=1)
def _held_out(texts: tuple[str, ...], limit: float) -> HeldOut:
    """Return the held-out texts, read once in a process, which packs many shards."""
    return HeldOut(texts, limit)


def _run_missing(work: Callable[[Any], None], jobs: list[Any], processes: int | None) -> None:
    """Run every job, in parallel processes if there are several."""
    count = min(len(jobs), processes or os.cpu_count() or 1)
    if count <= 1:
        for job in jobs:
            work(job)
        return
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        for _ in pool.map(work, jobs):
            pass


def _shards(path: Path, size: int, shard_bytes: int) -> list[tuple[int, int]]:
    """Return byte ranges of whole lines."""
    ends = [0]
    with path.open("rb") as file:
        while ends[-1] < size:
            file.seek(min(size, ends[-1] + shard_bytes))
            file.readline()
            ends.append(min(size, file.tell()))
    return list(pairwise(ends))


def _lines(
    letters: NDArray[np.uint8], path: Path, begin: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where the lines of a shard start, where their tab is, and where they end."""
    ends = np.flatnonzero(letters == NEWLINE)
    if not len(ends) or ends[-1] != len(letters) - 1:
        ends = np.append(ends, len(letters))
    starts = np.concatenate([[0], ends[:-1] + 1])
    tabs = np.append(np.flatnonzero(letters == TAB), len(letters) + 1)
    tabs = tabs[np.searchsorted(tabs, starts)]
    wrong = (tabs >= ends) | (tabs == starts) | (tabs - starts >= 1 << 16)
    slashes = np.flatnonzero((letters == SLASH) | (letters == BACKSLASH))
    line = np.searchsorted(starts, slashes, "right") - 1
    wrong[line[slashes < tabs[line]]] = True
    if wrong.any():
        place = int(starts[np.flatnonzero(wrong)[0]]) + begin
        raise AudioError(f"the line at byte {place} is not a name, a tab and a text", path)
    return starts, tabs, ends


def _columns(folder: Path) -> dict[str, NDArray[Any]]:
    return {name: _mapped(folder / name) for name in ("starts", "ends", "names", "frames")}


def _mapped(path: Path) -> NDArray[Any]:
    column: NDArray[Any] = np.load(path.with_suffix(".npy"), mmap_mode="r")
    return column


def _save(path: Path, column: NDArray[Any]) -> None:
    with replacing(path.with_suffix(".npy")) as temporary, temporary.open("wb") as file:
        np.save(file, column)


def _done(folder: Path) -> bool:
    return (folder / "done").is_file()


def _digest(*parts: object) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(f"{part}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
