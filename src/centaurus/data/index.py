"""An index of millions of readings: columns on disk, built once by many processes and memory-mapped by all.

For a corpus in the layout of Multilingual LibriSpeech. The texts stay where they are, in ``transcripts.txt``; columns
say where each line begins and how long its sound is. Rows of the utterances whose texts resemble no held-out one are
kept beside them. All is made shard by shard, about 64 MB of texts each: an interrupted build goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus import audio
from centaurus.audio import AudioError
from centaurus.audio.pack import Piece, Rows, fill_rows
from centaurus.data.cache import cache_folder
from centaurus.data.corpus import Clip, Faults, OnFault, Samples, load
from centaurus.data.layouts import SPLITS, TRANSCRIPTS, sound_suffix
from centaurus.data.leaks import HeldOut

SHARD_BYTES = 64 << 20
LEAK_BYTES = 4 << 20  # of texts that are compared at a time: their hashes take some 40 times as much
READERS = 8  # threads of a process that read headers: mostly waiting for the disk
NAMES = 256  # utterances that a thread measures at a time
TAB, NEWLINE, SLASH = 9, 10, 47

Measure = Callable[[Path], tuple[int, int]]
"""From a sound file to its frames and rate."""


@dataclass(frozen=True)
class Source:
    """One split of a corpus: where its texts and its sound are, and the rate it is loaded at."""

    folder: Path
    suffix: str
    rate: int

    @property
    def texts(self) -> Path:
        """The file of names and texts."""
        return self.folder / TRANSCRIPTS

    def path(self, name: str) -> Path:
        """The sound file of an utterance."""
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
    """Readings by number, as a ``Corpus`` has them, and rows of them. Opened by ``open_index``."""

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
        parts = [json.loads((folder / rows / "facts.json").read_text()) for folder in folders]
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
    """The rows of all shards, with recordings numbered through."""

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
    folder: str | os.PathLike[str],
    held_out: Sequence[str],
    length: int,
    *,
    split: str = "train",
    rate: int = 16_000,
    limit: float = 0.5,
    cache: str | os.PathLike[str] | None = None,
    on_fault: OnFault = "skip",
    processes: int | None = None,
    measure: Measure | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Index:
    """Return the index of one split of a folder, from the cache, or built now by as many processes as there are cores.

    Texts that resemble one of ``held_out`` by more than ``limit`` (``without_leaks``) are in no row. What is cached is
    found again while ``transcripts.txt`` is unchanged; other held-out texts, limits and lengths reuse the measured
    lengths. ``measure`` replaces reading the headers of the sound files.
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
        for path, reason in json.loads((place / "faults.json").read_text()).items():
            faults.add(AudioError(reason, path))
    return Index(source, length, folders, rows, faults)


def header_length(path: Path) -> tuple[int, int]:
    """Return frames and rate of a sound file by its header."""
    facts = audio.info(path)
    if not facts.frames:
        raise AudioError("is empty", path)
    if facts.truncated:
        raise AudioError("is shorter than its header says", path)
    return facts.frames, facts.rate


@dataclass(frozen=True)
class _Measured:
    """Makes the columns of a shard: where lines begin and end, how long names are, and the frames of the sound."""

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
                if own < self.source.rate:
                    raise AudioError(f"has {own} Hz, too low for {self.source.rate} Hz", path)
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
        _write_json(folder / "faults.json", faults)
        (folder / "done").touch()


@dataclass(frozen=True)
class _Packed:
    """Makes the rows of a shard from the utterances that resemble no held-out text."""

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
        _write_json(target / "facts.json", asdict(facts))
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


_HELD: dict[tuple[int, float], HeldOut] = {}


def _held_out(texts: tuple[str, ...], limit: float) -> HeldOut:
    """Return the held-out texts, read once in a process, which packs many shards."""
    key = (hash(texts), limit)
    if key not in _HELD:
        _HELD.clear()
        _HELD[key] = HeldOut(texts, limit)
    return _HELD[key]


def _run_missing(work: Callable[[Any], None], jobs: list[Any], processes: int | None) -> None:
    """Do every job, in processes of their own where there is more than one."""
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
    slashes = np.flatnonzero(letters == SLASH)
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
    with audio.replacing(path.with_suffix(".npy")) as temporary, temporary.open("wb") as file:
        np.save(file, column)


def _write_json(path: Path, data: Any) -> None:
    with audio.replacing(path) as temporary:
        temporary.write_text(json.dumps(data))


def _done(folder: Path) -> bool:
    return (folder / "done").is_file()


def _digest(*parts: object) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()
