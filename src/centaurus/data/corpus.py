"""Clips (a place in a file, with labels), corpora (clips loaded at one rate), and caches of their decoded audio.

A pack is many clips in a few files with an index; any other corpus can be decoded once before training.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from centaurus import audio, system
from centaurus.audio import AudioError, files
from centaurus.system import AnyPath

Samples = NDArray[np.float32]
OnFault = Literal["skip", "fail"]
SPOTS = 3  # places of a clip that a fingerprint covers: its beginning, middle and end
SPOT = 2048  # bytes of each
NAMED = 3  # clips in a message
SILENT = 2.0**-16  # a peak below this is zero in 16 bits
INDEX = "index.tsv"
COLUMNS = ("file", "start", "nsamples", "id")
_CHUNK = 256  # clips that threads take at a time


@dataclass(frozen=True, slots=True)
class Clip:
    """Frames ``start … start + frames`` of an audio file or of an int16 ``.npy`` file; −1 frames: to its end."""

    path: Path
    id: str
    start: int = 0
    frames: int = -1
    rate: int = 16_000
    labels: dict[str, str] = field(default_factory=dict, hash=False)


class Faults:
    """Files that could not be used, with the reasons. With ``on_fault="fail"`` the first fault is raised."""

    def __init__(self, on_fault: OnFault = "skip") -> None:
        if on_fault not in ("skip", "fail"):
            raise ValueError(f"on_fault is 'skip' or 'fail', not {on_fault!r}")
        self.on_fault = on_fault
        self.reasons: dict[str, str] = {}

    def add(self, error: AudioError) -> None:
        """Record a fault, once per file."""
        if self.on_fault == "fail":
            raise error
        self.reasons.setdefault(str(error.path), error.reason)

    def __len__(self) -> int:
        return len(self.reasons)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.reasons.items())

    def __str__(self) -> str:
        lines = [f"{name}: {why}" for name, why in self]
        return "\n".join([f"{len(self)} files skipped" if len(self) else "no file skipped", *lines])


@dataclass(frozen=True)
class Corpus:
    """Clips with the rate they are loaded at. ``name`` is the layout of their folder."""

    name: str
    clips: tuple[Clip, ...]
    rate: int = 16_000
    faults: Faults = field(default_factory=Faults, compare=False)

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> Clip:
        return self.clips[index]

    def __iter__(self) -> Iterator[Clip]:
        return iter(self.clips)

    @property
    def seconds(self) -> float:
        """Length of all clips whose length is known."""
        return sum(clip.frames / clip.rate for clip in self.clips if clip.frames > 0)

    def of(self, clips: Iterable[Clip]) -> Corpus:
        """Return the same corpus with other clips."""
        return replace(self, clips=tuple(clips))

    def where(self, **labels: str | tuple[str, ...]) -> Corpus:
        """Return the clips with these labels; several values of a label as a tuple."""
        allowed = {key: (value,) if isinstance(value, str) else value for key, value in labels.items()}
        return self.of(
            clip for clip in self.clips if all(clip.labels.get(key) in values for key, values in allowed.items())
        )

    def split(self, *names: str) -> Corpus:
        """Return the clips of some splits: ``train``, ``val``, ``test``. A split without clips is an error."""
        chosen = self.where(split=names)
        if not chosen.clips:
            known = ", ".join(self.values("split")) or "none"
            raise ValueError(f"the {self.name} corpus has no clips in {' and '.join(names)}; splits: {known}")
        return chosen

    def values(self, label: str) -> tuple[str, ...]:
        """Return the values of a label, sorted."""
        return tuple(sorted({clip.labels[label] for clip in self.clips if label in clip.labels}))

    def load(self, clip: Clip | int, start: int = 0, frames: int = -1) -> Samples:
        """Return a clip, or ``frames`` of it from ``start`` on, at the corpus's rate."""
        return load(self.clips[clip] if isinstance(clip, int) else clip, self.rate, start, frames)

    def take(self, index: int, start: int = 0, frames: int = -1) -> tuple[Clip, Samples]:
        """Return a clip and its samples; in place of one that cannot be read, the next one that can."""
        for step in range(len(self.clips)):
            clip = self.clips[(index + step) % len(self.clips)]
            try:
                return clip, self.load(clip, start, frames)
            except AudioError as error:
                self.faults.add(error)
        raise ValueError(f"no clip of the {self.name} corpus can be read\n{self.faults}")


def load(clip: Clip, rate: int | None = None, start: int = 0, frames: int = -1) -> Samples:
    """Return a clip as one channel (t,), or ``frames`` of it from ``start`` on, counted at ``rate``.

    Only the frames that are needed are decoded and resampled. One below ``rate`` is an error: it lacks the upper band.
    """
    rate = rate or clip.rate
    if clip.path.suffix == ".npy":
        x = _cut(mapped(os.fspath(clip.path)), clip, rate, start, frames)
    else:
        x = _decoded(clip, rate, start, frames)
    if not x.size and frames:
        raise AudioError(f"clip {clip.id} is empty", clip.path)
    return x


def checked(clip: Clip, rate: int | None = None) -> Samples:
    """Return a whole clip, which must be neither empty, nor silent, nor shorter than its file's header says."""
    if clip.path.suffix != ".npy" and audio.info(clip.path).truncated:
        raise AudioError("is shorter than its header says", clip.path)
    x = load(clip, rate)
    if np.abs(x).max() < SILENT:
        raise AudioError(f"clip {clip.id} is silent", clip.path)
    return x


@lru_cache(maxsize=4096)
def mapped(path: str) -> NDArray[np.int16]:
    """Return the samples of a ``.npy`` file, read from the disk as they are needed."""
    try:
        samples: NDArray[np.int16] = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise AudioError(f"is not a cache of samples: {error}", path) from error
    return samples


def _cut(samples: NDArray[np.int16], clip: Clip, rate: int, start: int, frames: int) -> Samples:
    end = len(samples) if clip.frames < 0 else clip.start + clip.frames
    if end > len(samples):
        raise AudioError(f"clip {clip.id} ends at {end}, the file at {len(samples)}", clip.path)

    def source(first: int, count: int) -> Samples:
        last = end if count < 0 else min(end, clip.start + first + count)
        return samples[clip.start + first : last].astype(np.float32) * np.float32(1 / 32768)

    return _window(source, clip, clip.rate, rate, start, frames)


def _decoded(clip: Clip, rate: int, start: int, frames: int) -> Samples:
    with files.opened(clip.path) as file:

        def source(first: int, count: int) -> Samples:
            room = (file.frames if clip.frames < 0 else clip.start + clip.frames) - clip.start - first
            count = max(0, room if count < 0 else min(count, room))
            file.seek(min(clip.start + first, file.frames))
            x = file.read(count)
            if x.shape[-1] < count:
                raise AudioError(f"is truncated: {x.shape[-1]} of {count} frames could be decoded", clip.path)
            return audio.Audio(x, file.samplerate).mono

        return _window(source, clip, file.samplerate, rate, start, frames)


def _window(source: Any, clip: Clip, own: int, rate: int, start: int, frames: int) -> Samples:
    """Return frames at ``rate`` of a source at its own rate: a crop with a margin, resampled, and trimmed."""
    check_rate(own, rate, clip.path)
    if own == rate:
        return source(start, frames)
    common = math.gcd(own, rate)
    up, down = rate // common, own // common
    # Both ends fall on whole frames of both rates, so that a crop equals the crop of the whole.
    margin = -(-512 // up)
    first = max(0, start // up - margin)
    count = -1 if frames < 0 else (-(-(start + frames) // up) + margin - first) * down
    x = audio.resample(source(first * down, count), own, rate)
    skip = start - first * up
    return x[skip:] if frames < 0 else x[skip : skip + frames]


def fingerprints(corpora: Iterable[Corpus]) -> dict[str, str]:
    """Return a fingerprint of every clip by its id: its labels, its length, and samples from three places of it.

    Three places only, since a whole corpus would take long to read at every start. Files may move to another folder.
    """
    digests: dict[str, set[str]] = {}
    for corpus in corpora:
        for clip in corpus:
            digests.setdefault(clip.id, set()).add(_fingerprint(clip))
    return {name: digests.pop() if len(digests) == 1 else _hash(*sorted(digests)) for name, digests in digests.items()}


def _fingerprint(clip: Clip) -> str:
    try:
        content = _samples(clip) if clip.path.suffix == ".npy" else _bytes(clip.path)
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror}", clip.path) from error
    return _hash(json.dumps(clip.labels, sort_keys=True), str(clip.frames), content)


def _samples(clip: Clip) -> bytes:
    """Return the bytes of a few places of a clip within a file of decoded samples, 16 bits each."""
    samples = mapped(os.fspath(clip.path))
    end = len(samples) if clip.frames < 0 else clip.start + clip.frames
    own = samples[clip.start : end]
    return b"".join(own[at : at + SPOT // 2].tobytes() for at in _places(len(own), SPOT // 2))


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        spots = [str(size).encode()]
        for at in _places(size, SPOT):
            file.seek(at)
            spots.append(file.read(SPOT))
    return b"".join(spots)


def _places(length: int, spot: int) -> list[int]:
    last = max(0, length - spot)
    return [last * k // (SPOTS - 1) for k in range(SPOTS)]


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode(errors="surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Changes:
    """Clips that were added, removed and changed between two sets of fingerprints, by their ids."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @classmethod
    def between(cls, old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
        """Compare the fingerprints of an earlier start with the present ones."""
        both = old.keys() & new.keys()
        return cls(
            tuple(sorted(new.keys() - old.keys())),
            tuple(sorted(old.keys() - new.keys())),
            tuple(sorted(name for name in both if old[name] != new[name])),
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def __str__(self) -> str:
        kinds = {"added": self.added, "removed": self.removed, "changed": self.changed}
        return "; ".join(f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def cache_folder(cache: AnyPath | None = None) -> Path:
    """Return the folder of decoded audio, created if needed: ``cache``, or ``centaurus/audio`` in the user's cache."""
    folder = system.cache_folder("audio") if cache is None else Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_pack(
    folder: AnyPath,
    cache: AnyPath | None = None,
    splits: Iterable[str] | None = None,
    kinds: Iterable[str] | None = None,
    on_fault: OnFault = "skip",
) -> Corpus:
    """Return the clips of a pack, of some splits and kinds or all; files that are not in the cache are decoded."""
    folder, faults = Path(folder), Faults(on_fault)
    rows = read_index(folder / INDEX)
    for row in rows:
        row.setdefault("kind", _kind(row))
    for label, allowed in (("split", splits), ("kind", kinds)):
        if allowed is not None:
            chosen = set(allowed)
            rows = [row for row in rows if row.get(label) in chosen]
    files = sorted({row["file"] for row in rows})
    target = cache_folder(cache)

    def prepare(name: str) -> tuple[Path, int, int] | AudioError:
        try:
            return _decode_file(folder / name, target)
        except AudioError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        decoded = dict(zip(files, pool.map(prepare, files), strict=True))
    clips = []
    for row in rows:
        result = decoded[row["file"]]
        if isinstance(result, AudioError):
            faults.add(result)
            continue
        path, frames, rate = result
        clip = _clip(row, folder.name, path, rate)
        if clip.frames < 1 or clip.start < 0 or clip.start + clip.frames > frames:
            end = clip.start + clip.frames
            where = f"{folder / row['file']} clip {clip.id}"
            faults.add(AudioError(f"frames {clip.start} … {end} are not in a file of {frames} frames", where))
            continue
        clips.append(clip)
    rates = {clip.rate for clip in clips}
    if len(rates) > 1:
        raise AudioError(f"the files of a pack have one rate, these have {sorted(rates)}", folder)
    return Corpus(folder.name, tuple(clips), rates.pop() if rates else 16_000, faults)


def read_index(path: Path) -> list[dict[str, str]]:
    """Return the rows of an index. Fields are not quoted, so that transcripts may contain quotes."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
            names = rows[0].keys() if rows else COLUMNS
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror}", path) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise AudioError(f"is not a table of clips: {error}", path) from error
    if missing := [name for name in COLUMNS if name not in names]:
        raise AudioError(f"lacks the columns {', '.join(missing)}", path)
    for number, row in enumerate(rows, start=2):
        short = None in row or None in row.values()
        if short or not (row["start"].isdecimal() and row["nsamples"].isdecimal()):
            raise AudioError(
                f"line {number} does not have {len(names)} columns with integers for start and nsamples", path
            )
    return rows


def _kind(row: dict[str, str]) -> str:
    """Return the kind of a clip, from its labels: clean or noisy of a pair, word, noise, or speech."""
    stem = Path(row["file"]).stem
    if stem in ("clean", "noisy"):
        return stem
    return "word" if "word" in row else "noise" if "category" in row else "speech"


def _clip(row: dict[str, str], pack: str, path: Path, rate: int) -> Clip:
    labels = {key: value for key, value in row.items() if key not in COLUMNS}
    labels["file"] = os.path.splitext(row["file"])[0]
    labels.setdefault("set", pack)
    return Clip(path, row["id"], int(row["start"]), int(row["nsamples"]), rate, labels)


def _decode_file(source: Path, cache: Path) -> tuple[Path, int, int]:
    """Return the cached samples of a file, their number and rate; decode them if they are not cached."""
    facts = audio.info(source)
    stat = source.stat()
    state = f"{source.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    key = hashlib.blake2b(state.encode(errors="surrogateescape"), digest_size=8).hexdigest()
    path = cache / f"{source.stem}-{key}.npy"
    if not path.exists():
        save(path, (to_int16(audio.Audio(piece, facts.rate).mono) for piece in audio.blocks(source, 1 << 20)))
    return path, len(np.load(path, mmap_mode="r")), facts.rate


def to_int16(x: NDArray[np.float32]) -> NDArray[np.int16]:
    """Return samples between −1 and 1 as int16, clipped; exact for samples that were decoded from 16 bits."""
    return np.clip(np.rint(x * np.float32(32768)), -32768, 32767).astype(np.int16)


def save(path: Path, pieces: Iterable[NDArray[np.int16]]) -> int:
    """Write pieces as one ``.npy`` array, atomically, and return the number of samples."""
    total = 0
    with audio.replacing(path) as temporary, temporary.open("wb") as file:
        room = _header(file, 0)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype="<i2").data)
            total += len(piece)
        file.seek(0)
        if _header(file, total) != room:
            raise AudioError(f"{total} samples are too many for one file", path)
    return total


def _header(file: Any, count: int) -> int:
    # numpy pads the header for growth along the first axis, so that the final count fits in place.
    np.lib.format.write_array_header_1_0(file, {"shape": (count,), "fortran_order": False, "descr": "<i2"})
    return file.tell()


def prepared(corpus: Corpus, cache: AnyPath | None = None) -> Corpus:
    """Return the corpus with every clip decoded, resampled to its rate and checked, in one memory-mapped file.

    Damaged, empty, silent and truncated files, and those of a lower rate, are listed in ``faults``. A second call
    reuses the file unless a source has changed. 115 MB an hour at 16 kHz.
    """
    if all(clip.path.suffix == ".npy" and clip.rate == corpus.rate for clip in corpus):
        return corpus
    folder = cache_folder(cache)
    stem = f"{corpus.name}-{_key(corpus)}"
    sound, index = folder / f"{stem}.npy", folder / f"{stem}.json"
    if not (sound.exists() and index.exists()):
        facts: dict[str, Any] = {"frames": [], "faults": {}}
        save(sound, _decode(corpus, facts))
        system.write_file(index, json.dumps(facts))
    return _from_cache(corpus, sound, json.loads(index.read_bytes()))


def measured(corpus: Corpus) -> Corpus:
    """Return the corpus with the length and rate of every clip, from the headers; unreadable headers are faults.

    For corpora that are too large to decode in advance.
    """

    def measure(clip: Clip) -> Clip | AudioError:
        if clip.frames >= 0:
            return clip
        try:
            frames, rate = header_length(clip.path)
            check_rate(rate, corpus.rate, clip.path)
            return replace(clip, frames=frames - clip.start, rate=rate)
        except AudioError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(measure, corpus, chunksize=_CHUNK))
    for item in results:
        if isinstance(item, AudioError):
            corpus.faults.add(item)
    return corpus.of(item for item in results if isinstance(item, Clip))


def header_length(path: Path) -> tuple[int, int]:
    """Return frames and rate of an audio file by its header; an empty or truncated file is an error."""
    facts = audio.info(path)
    if facts.truncated:
        raise AudioError("is shorter than its header says", path)
    if not facts.frames:
        raise AudioError("is empty", path)
    return facts.frames, facts.rate


def check_rate(own: int, rate: int, path: Path) -> None:
    """Refuse audio of a lower rate than it is loaded at: it lacks the upper band."""
    if own < rate:
        raise AudioError(f"has {own} Hz, too low for {rate} Hz", path)


def frames_at_rate(corpus: Corpus) -> list[int]:
    """Return the length of each clip at the rate of the corpus; −1 if unknown."""
    rate = corpus.rate
    return [clip.frames if clip.rate == rate or clip.frames < 0 else clip.frames * rate // clip.rate for clip in corpus]


def _decode(corpus: Corpus, facts: dict[str, Any]) -> Iterator[NDArray[np.int16]]:
    def decode(clip: Clip) -> NDArray[np.int16] | AudioError:
        try:
            return to_int16(checked(clip, corpus.rate))
        except AudioError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for first in range(0, len(corpus), _CHUNK):
            for result in pool.map(decode, corpus.clips[first : first + _CHUNK]):
                if isinstance(result, AudioError):
                    corpus.faults.add(result)
                    facts["faults"][str(result.path)] = result.reason
                    facts["frames"].append(0)
                else:
                    facts["frames"].append(len(result))
                    yield result


def _from_cache(corpus: Corpus, sound: Path, facts: dict[str, Any]) -> Corpus:
    faults = Faults(corpus.faults.on_fault)
    for name, why in {**corpus.faults.reasons, **facts["faults"]}.items():
        faults.add(AudioError(why, name))
    clips, start = [], 0
    for clip, frames in zip(corpus, facts["frames"], strict=True):
        if frames:
            clips.append(Clip(sound, clip.id, start, frames, corpus.rate, clip.labels))
        start += frames
    return replace(corpus, clips=tuple(clips), faults=faults)


def _key(corpus: Corpus) -> str:
    digest = hashlib.blake2b(f"{corpus.rate}".encode(), digest_size=8)
    for clip in corpus:
        try:
            stat = clip.path.stat()
            state = f"{stat.st_size}|{stat.st_mtime_ns}"
        except OSError:
            state = "absent"
        line = f"{clip.path.absolute()}|{state}|{clip.start}|{clip.frames}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()
