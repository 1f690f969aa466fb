"""Decoded audio, cached: packs (many clips in a few files with an index) and corpora decoded once before training."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from centaurus import audio, system
from centaurus.audio import AudioError
from centaurus.data.corpus import Clip, Corpus, Faults, OnFault, checked

INDEX = "index.tsv"
_COLUMNS = ("file", "start", "nsamples", "id")


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """Return where decoded audio is kept, and make it: ``cache``, or ``centaurus/audio`` in the user's cache folder."""
    folder = system.cache_folder("audio") if cache is None else Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def open_pack(
    folder: str | os.PathLike[str],
    cache: str | os.PathLike[str] | None = None,
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
            return _decoded(folder / name, target)
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
            names = rows[0].keys() if rows else _COLUMNS
    except OSError as error:
        raise AudioError(f"cannot be read: {error.strerror}", path) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise AudioError(f"is not a table of clips: {error}", path) from error
    if missing := [name for name in _COLUMNS if name not in names]:
        raise AudioError(f"lacks the columns {', '.join(missing)}", path)
    for number, row in enumerate(rows, start=2):
        short = None in row or None in row.values()
        if short or not (row["start"].isdecimal() and row["nsamples"].isdecimal()):
            raise AudioError(
                f"line {number} does not have {len(names)} columns with integers for start and nsamples", path
            )
    return rows


def write_pack(corpus: Corpus, folder: str | os.PathLike[str], by: str = "split", suffix: str = ".flac") -> None:
    """Write a corpus as a pack: one file for each value of the label ``by``, and the index."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    labels = sorted({name for clip in corpus for name in clip.labels if name not in (*_COLUMNS, "split")})
    lines = ["\t".join([*_COLUMNS, *labels, "split"])]
    for value in corpus.values(by):
        name = f"{value}{suffix}"
        start = 0
        with audio.Writer(folder / name, corpus.rate, subtype="OPUS" if suffix == ".ogg" else None) as file:
            for clip in corpus.where(**{by: value}):
                samples = corpus.load(clip)
                file.write(samples)
                words = [clip.labels.get(key, "") for key in (*labels, "split")]
                lines.append("\t".join([name, str(start), str(len(samples)), clip.id, *map(_plain, words)]))
                start += len(samples)
    with audio.replacing(folder / INDEX) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _plain(text: str) -> str:
    return " ".join(text.split())


def _kind(row: dict[str, str]) -> str:
    """Return the kind of a clip, from its labels: clean or noisy of a pair, word, noise, or speech."""
    stem = Path(row["file"]).stem
    if stem in ("clean", "noisy"):
        return stem
    return "word" if "word" in row else "noise" if "category" in row else "speech"


def _clip(row: dict[str, str], pack: str, path: Path, rate: int) -> Clip:
    labels = {key: value for key, value in row.items() if key not in _COLUMNS}
    labels["file"] = os.path.splitext(row["file"])[0]
    labels.setdefault("set", pack)
    return Clip(path, row["id"], int(row["start"]), int(row["nsamples"]), rate, labels)


def _decoded(source: Path, cache: Path) -> tuple[Path, int, int]:
    """Return the cached samples of a file, their number and rate; decode them if they are not cached."""
    facts = audio.info(source)
    stat = source.stat()
    key = hashlib.blake2b(f"{source.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode(), digest_size=8).hexdigest()
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
    # numpy leaves room for growing along the first axis, so that the final count fits in place.
    np.lib.format.write_array_header_1_0(file, {"shape": (count,), "fortran_order": False, "descr": "<i2"})
    return file.tell()


_CHUNK = 256


def prepared(corpus: Corpus, cache: str | os.PathLike[str] | None = None) -> Corpus:
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
        with audio.replacing(index) as temporary:
            temporary.write_text(json.dumps(facts))
    return _from_cache(corpus, sound, json.loads(index.read_text()))


def measured(corpus: Corpus) -> Corpus:
    """Return the corpus with the length and rate of every clip, from the headers; unreadable headers are faults.

    For corpora that are too large to decode in advance.
    """

    def measure(clip: Clip) -> Clip | AudioError:
        if clip.frames >= 0:
            return clip
        try:
            facts = audio.info(clip.path)
            if not facts.frames or facts.truncated or facts.rate < corpus.rate:
                why = "is empty" if not facts.frames else f"has {facts.rate} Hz, too low for {corpus.rate} Hz"
                raise AudioError(f"{'is shorter than its header says' if facts.truncated else why}", clip.path)
            return replace(clip, frames=facts.frames - clip.start, rate=facts.rate)
        except AudioError as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(measure, corpus, chunksize=_CHUNK))
    for item in results:
        if isinstance(item, AudioError):
            corpus.faults.add(item)
    return corpus.of(item for item in results if isinstance(item, Clip))


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
    for name, why in {**corpus.faults.found, **facts["faults"]}.items():
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
        digest.update(f"{clip.path.absolute()}|{state}|{clip.start}|{clip.frames}\n".encode())
    return digest.hexdigest()
