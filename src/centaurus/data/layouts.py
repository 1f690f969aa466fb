"""Public corpora: where they come from, how their folders are recognised, and the clips in them.

Speech Commands, or any folder of word folders:
    WORD/SPEAKER_nohash_N.wav   validation_list.txt   testing_list.txt   _background_noise_/*.wav
VoiceBank+DEMAND, in pairs:
    clean_trainset_28spk_wav/*.wav  noisy_trainset_28spk_wav/*.wav  clean_testset_wav/*.wav  noisy_testset_wav/*.wav
The DNS challenge, clean speech and noise to be mixed:
    datasets_fullband/clean_fullband/{vctk_wav48_silence_trimmed,read_speech,…}/**.wav  …/noise_fullband/**.wav
LibriSpeech and Multilingual LibriSpeech, with texts:
    LibriSpeech/SUBSET/SPEAKER/CHAPTER/SPEAKER-CHAPTER-N.flac  …/SPEAKER-CHAPTER.trans.txt
    {train,dev,test}/transcripts.txt  {train,dev,test}/audio/SPEAKER/BOOK/SPEAKER_BOOK_N.{flac,opus}
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path, PurePosixPath
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec

from centaurus.audio import AudioError
from centaurus.audio.files import EXTENSIONS
from centaurus.data.corpus import INDEX, Clip, Corpus, Faults, OnFault, open_pack
from centaurus.system import AnyPath, FileError, replacing

LAYOUTS = {
    "pack": f"{INDEX} (a pack), or folders that have one",
    "librispeech": "train-*, dev-* or test-* with SPEAKER/CHAPTER/*.trans.txt (LibriSpeech)",
    "mls": "train, dev or test with transcripts.txt (Multilingual LibriSpeech)",
    "voicebank": "clean_*/ and noisy_*/ (VoiceBank+DEMAND pairs)",
    "dns": "clean/ and noise/, or datasets_fullband/ with clean_fullband/ and noise_fullband/ (DNS challenge)",
    "speech-commands": "folders of words with audio files (Speech Commands)",
}
# DNS: book_00000_chp_0009_reader_06709_0_seg_1; VCTK and VoiceBank: p226_001.
_SPEAKER = re.compile(r"reader_(\d+)|(?:^|_)([ps]\d{1,4})(?=_|$)|^(\d+)-\d+-\d{4}$")  # the last as in LibriSpeech
LARGEST_GROUP = 1 / 3  # of the clips: of a folder of one's own recordings not all are held out
COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
_OTHERS = ("bed", "bird", "cat", "dog", "eight", "five", "four", "happy", "house", "marvin", "nine", "one")
_MORE = ("seven", "sheila", "six", "three", "tree", "two", "wow", "zero")
WORDS_30 = tuple(sorted(COMMANDS + _OTHERS + _MORE))
WORDS_35 = tuple(sorted((*WORDS_30, "backward", "follow", "forward", "learn", "visual")))
SUBSETS: dict[int, tuple[str, ...]] = {10: COMMANDS, 30: WORDS_30, 35: WORDS_35}
NOISE_FOLDER = "_background_noise_"
LISTS = {"validation_list.txt": "val", "testing_list.txt": "test"}
_PAIRED = re.compile(r"(clean|noisy)(?:_(\w+?))?(?:_wav)?(?:_\d+k)?$")
_SPEECH = re.compile(r"(clean|speech)(_fullband|_wideband)?$")
_NOISE = re.compile(r"noises?(_fullband|_wideband)?$")
VALIDATION_SPEAKERS = ("p286", "p287")
SPLITS = {"train": "train", "dev": "val", "val": "val", "valid": "val", "test": "test"}
TRANSCRIPTS = "transcripts.txt"
CHUNK = 1 << 20  # bytes read at once
PATIENCE = 10.0  # seconds without a response after which a host counts as unreachable


def recognise(folder: AnyPath) -> str:
    """Return the name of the folder's layout, one of ``LAYOUTS``; the error lists them."""
    root = Path(folder)
    if not root.is_dir():
        raise AudioError("no such folder", root)
    if packs(root):
        return "pack"
    for name, (is_this, _) in KNOWN.items():
        if is_this(root):
            return name
    known = "".join(f"\n  {name}: {what}" for name, what in LAYOUTS.items())
    raise AudioError(f"the layout is not known; known layouts:{known}", root)


def packs(root: Path) -> list[Path]:
    """Return the folder if it is a pack, else its subfolders that are."""
    if (root / INDEX).is_file():
        return [root]
    return [path.parent for path in sorted(root.glob(f"*/{INDEX}"))]


def open_corpus(
    folder: AnyPath,
    splits: Iterable[str] | None = None,
    kinds: Iterable[str] | None = None,
    rate: int = 16_000,
    cache: AnyPath | None = None,
    on_fault: OnFault = "skip",
) -> Corpus:
    """Return the clips of a folder in any known layout, of some splits and kinds or all, loaded at ``rate``.

    Labels are the same for every layout: ``kind`` (word, speech, noise, clean, noisy), ``split`` (train, val, test),
    ``speaker``, ``word``, ``transcript``.
    """
    layout, root, faults = recognise(folder), Path(folder), Faults(on_fault)
    if layout == "pack":
        packed = [open_pack(path, cache, splits, kinds, on_fault) for path in packs(root)]
        for corpus in packed:
            faults.reasons |= corpus.faults.reasons
        clips = [clip for corpus in packed for clip in corpus]
    else:
        clips = list(KNOWN[layout][1](root, faults))
    corpus = Corpus(layout, tuple(clips), rate, faults)
    if splits is not None:
        # Background noise belongs to every split.
        chosen = {*splits}
        corpus = corpus.of(clip for clip in corpus if clip.labels.get("split", next(iter(chosen), "")) in chosen)
    if kinds is not None:
        corpus = corpus.where(kind=tuple(kinds))
    return replace(corpus, faults=faults)


def sound_files(folder: Path) -> Iterator[Path]:
    """Yield every audio file below a folder, except pipes and devices, in sorted order."""
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        paths = (Path(place, name) for name in sorted(names) if _is_sound(name))
        yield from (path for path in paths if path.is_file())


def sound_files_in(folder: Path) -> Iterator[Path]:
    """Yield the audio files directly in a folder, sorted."""
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if _is_sound(entry.name) and entry.is_file())
    yield from (folder / name for name in names)


def speaker_of(path: Path) -> str:
    """Return the speaker's name, from the name of the file or else its folder."""
    match = _SPEAKER.search(path.stem)
    return match[match.lastindex or 0] if match else path.parent.name


def hold_out(clips: Iterable[Clip], group: Callable[[Clip], str], share: float = 0.02) -> list[Clip]:
    """Assign a share of the groups, at least one, to ``val`` and the rest to ``train``, by a hash of their names.

    A group with more than ``LARGEST_GROUP`` of the clips is not held out as a whole: its clips are groups of their own.
    """
    clips = list(clips)
    sizes = Counter(map(group, clips))
    units = [_id(clip) if sizes[group(clip)] > LARGEST_GROUP * len(clips) else group(clip) for clip in clips]
    names = sorted(set(units), key=_order)
    held = set(names[: max(1, round(share * len(names)))]) if len(names) > 1 else set()
    splits = ("val" if unit in held else "train" for unit in units)
    return [replace(clip, labels={**clip.labels, "split": split}) for clip, split in zip(clips, splits, strict=True)]


def _order(name: str) -> bytes:
    """Return a random order of names that is the same everywhere, also for a name that is not UTF-8."""
    return hashlib.blake2b(name.encode(errors="surrogateescape")).digest()


def _is_sound(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def _id(clip: Clip) -> str:
    return clip.id


def subset(words: int | Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    """Return the words of the 35-, 30- or 10-word task, or ``words``; all must be among ``available``."""
    if isinstance(words, int):
        if words not in SUBSETS:
            raise ValueError(f"there are tasks of {', '.join(map(str, sorted(SUBSETS)))} words, not of {words}")
        chosen = SUBSETS[words]
    else:
        chosen = tuple(words)
    if missing := sorted(set(chosen) - set(available)):
        hint = "; version 1 of the corpus has 30 words" if words == 35 else ""
        raise ValueError(f"no clips of {', '.join(missing)} among the {len(available)} words available{hint}")
    return chosen


def has_words(root: Path) -> bool:
    """Return whether a folder has folders of words with audio files."""
    words = [path for path in root.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))]
    return any(next(sound_files_in(path), None) for path in words)


def word_clips(root: Path, faults: Faults) -> Iterator[Clip]:
    """Yield a clip for every word, with the official split, and for the background noise."""
    splits = official_splits(root)
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if folder.name == NOISE_FOLDER:
            for path in sound_files_in(folder):
                yield Clip(path, f"{NOISE_FOLDER}/{path.name}", labels={"kind": "noise", "category": path.stem})
        elif not folder.name.startswith(("_", ".")):
            for path in sound_files_in(folder):
                name = f"{folder.name}/{path.name}"
                speaker = path.name.partition("_nohash_")[0].partition(".")[0]
                split = splits.get(name, "train") if splits else hashed_split(speaker)
                labels = {"kind": "word", "word": folder.name, "speaker": speaker, "split": split}
                yield Clip(path, name, labels=labels)


def official_splits(root: Path) -> dict[str, str]:
    """Return the split of each clip that the validation and testing lists name; empty without lists."""
    splits: dict[str, str] = {}
    for name, split in LISTS.items():
        path = root / name
        if path.exists():
            try:
                lines = path.read_text(encoding="utf-8").split()
            except UnicodeDecodeError as error:
                raise AudioError(f"is not a list of clips: {error}", path) from error
            splits |= dict.fromkeys(lines, split)
    return splits


def hashed_split(speaker: str, val: float = 10, test: float = 10) -> str:
    """Return a split that depends only on the speaker: the rule by which the official lists were made."""
    most = 2**27 - 1
    percent = int(hashlib.sha1(speaker.encode(errors="surrogateescape")).hexdigest(), 16) % (most + 1) * (100 / most)
    return "val" if percent < val else "test" if percent < val + test else "train"


def paired_folders(root: Path) -> dict[str, dict[str, Path]]:
    """Return folders of pairs by set: ``{"testset": {"clean": …, "noisy": …}}``; others are left out."""
    sets: dict[str, dict[str, Path]] = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if match := _PAIRED.match(folder.name):
            sets.setdefault(match[2] or "", {})[match[1]] = folder
    return {name: pair for name, pair in sets.items() if len(pair) == 2}


def paired_clips(root: Path, faults: Faults) -> Iterator[Clip]:
    """Yield both clips of every pair. A file without its partner is a fault."""
    for name, folders in paired_folders(root).items():
        files = {kind: {path.stem: path for path in sound_files(folder)} for kind, folder in folders.items()}
        for kind, other in (("clean", "noisy"), ("noisy", "clean")):
            for stem in sorted(files[kind].keys() - files[other].keys()):
                faults.add(AudioError(f"has no partner in {folders[other]}", files[kind][stem]))
        stems = sorted(files["clean"].keys() & files["noisy"].keys())
        training = "test" not in name
        speakers = {speaker_of(files["clean"][stem]) for stem in stems}
        held = set(VALIDATION_SPEAKERS) if speakers - set(VALIDATION_SPEAKERS) else set()
        pairs = []
        for stem in stems:
            for kind in ("clean", "noisy"):
                path = files[kind][stem]
                labels = {"kind": kind, "speaker": speaker_of(path), "set": name}
                labels["split"] = ("val" if labels["speaker"] in held else "train") if training else "test"
                pairs.append(Clip(path, stem, labels=labels))
        if training and not any(clip.labels["split"] == "val" for clip in pairs):
            pairs = hold_out(pairs, _speaker, 0.05)
        yield from pairs


def pairs(corpus: Iterable[Clip]) -> list[tuple[Clip, Clip]]:
    """Return (noisy, clean) clips of the same name in the same set; clips without a partner are left out."""
    sides: dict[str, dict[tuple[str, str], Clip]] = {"clean": {}, "noisy": {}}
    for clip in corpus:
        kind = clip.labels.get("kind", "")
        if kind in sides:
            sides[kind][clip.labels.get("set", ""), clip.id] = clip
    return [(noisy, sides["clean"][key]) for key, noisy in sides["noisy"].items() if key in sides["clean"]]


def mixing_root(root: Path) -> tuple[Path, Path] | None:
    """Return the folders of clean speech and of noise, here or below ``datasets`` or ``datasets_fullband``."""
    for place in (root, root / "datasets_fullband", root / "datasets"):
        if place.is_dir():
            names = sorted(path for path in place.iterdir() if path.is_dir())
            speech = [path for path in names if _SPEECH.match(path.name)]
            noise = [path for path in names if _NOISE.match(path.name)]
            if speech and noise:
                return speech[0], noise[0]
    return None


def mixing_clips(root: Path, faults: Faults) -> Iterator[Clip]:
    """Yield clips of speech with the set they come from (``vctk``, ``librivox`` or the folder's name), and of noise."""
    speech, noise = mixing_root(root) or (root, root)
    voices = []
    for path in sound_files(speech):
        inner = path.relative_to(speech)
        labels = {"kind": "speech", "speaker": speaker_of(path), "set": _set(inner)}
        voices.append(Clip(path, inner.with_suffix("").as_posix(), labels=labels))
    yield from hold_out(voices, _speaker)
    noises = []
    for path in sound_files(noise):
        inner = path.relative_to(noise)
        noises.append(Clip(path, inner.with_suffix("").as_posix(), labels={"kind": "noise", "set": "noise"}))
    yield from hold_out(noises, _id)


def _set(path: Path) -> str:
    words = path.as_posix().lower()
    if "vctk" in words:
        return "vctk"
    if "read_speech" in words or "librivox" in words or "book_" in words:
        return "librivox"
    return path.parts[0] if len(path.parts) > 1 else "speech"


def _speaker(clip: Clip) -> str:
    return clip.labels["speaker"]


def subsets(root: Path) -> list[Path]:
    """Return the subset folders (train-clean-100 …) here or in ``LibriSpeech``, or this folder if it is one."""
    for place in (root, root / "LibriSpeech"):
        if place.is_dir():
            folders = [path for path in sorted(place.iterdir()) if path.is_dir() and _split(path) and _texts(path)]
            if folders:
                return folders
    return [root] if _split(root) and _texts(root) else []


def librispeech_clips(root: Path, faults: Faults) -> Iterator[Clip]:
    """Yield a clip for every utterance. A missing audio file is a fault."""
    for folder in subsets(root):
        for texts in sorted(folder.glob("*/*/*.trans.txt")):
            speaker, chapter = texts.parent.parent.name, texts.parent.name
            here = {path.name for path in texts.parent.iterdir()}
            for name, text in _lines(texts, " "):
                path = texts.parent / f"{name}.flac"
                if path.name not in here:
                    faults.add(AudioError(f"no such file, though {texts.name} has its text", path))
                    continue
                labels = {"kind": "speech", "speaker": speaker, "chapter": chapter, "transcript": text}
                labels |= {"subset": folder.name, "split": SPLITS[_split(folder)]}
                yield Clip(path, name, labels=labels)


def mls_folders(root: Path) -> list[Path]:
    """Return the split folders that have a transcripts.txt."""
    return [path.parent for path in sorted(root.glob(f"*/{TRANSCRIPTS}")) if path.parent.name in SPLITS]


def mls_clips(root: Path, faults: Faults) -> Iterator[Clip]:
    """Yield a clip for every line of the texts. With ten million files, a missing one is detected when it is loaded."""
    for folder in mls_folders(root):
        suffix = sound_suffix(folder / "audio")
        for name, text in _lines(folder / TRANSCRIPTS, "\t"):
            speaker, _, rest = name.partition("_")
            path = folder / "audio" / speaker / rest.partition("_")[0] / f"{name}{suffix}"
            labels = {"kind": "speech", "speaker": speaker, "transcript": text}
            labels |= {"subset": folder.name, "split": SPLITS[folder.name]}
            yield Clip(path, name, labels=labels)


def _split(folder: Path) -> str:
    name = folder.name.partition("-")[0]
    return name if name in SPLITS else ""


def _texts(folder: Path) -> bool:
    return next(folder.glob("*/*/*.trans.txt"), None) is not None


def sound_suffix(folder: Path) -> str:
    """Return the suffix of the audio files below a folder, by the first match."""
    for suffix in (".flac", ".opus", ".ogg", ".wav"):
        if next(folder.glob(f"*/*/*{suffix}"), None) is not None:
            return suffix
    raise AudioError("has no SPEAKER/BOOK/*.flac or *.opus", folder)


def _lines(path: Path, separator: str) -> Iterator[tuple[str, str]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                name, separated, text = line.rstrip("\n").partition(separator)
                if not separated or not name or "/" in name or "\\" in name:
                    raise AudioError(f"line {number} is not a name and a text", path)
                yield name, text.strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AudioError(f"cannot be read: {error}", path) from error


KNOWN: dict[str, tuple[Callable[[Path], object], Callable[[Path, Faults], Iterator[Clip]]]] = {
    "librispeech": (subsets, librispeech_clips),
    "mls": (mls_folders, mls_clips),
    "voicebank": (paired_folders, paired_clips),
    "dns": (mixing_root, mixing_clips),
    "speech-commands": (has_words, word_clips),
}
"""How each layout but a pack is recognised, and its clips read; the first that fits is taken."""


@dataclass(frozen=True)
class Archive:
    """One file to download. ``checksum`` is ``sha256:…`` or ``md5:…`` as published; a zip has its own for each file."""

    url: str
    checksum: str = ""

    @property
    def name(self) -> str:
        return PurePosixPath(urlsplit(self.url).path).name


@dataclass(frozen=True)
class Source:
    """A public corpus: what it is, its licence, its page, and its archives.

    ``top`` is the folder that its archives have at the top and that is left out.
    """

    content: str
    licence: str
    page: str
    archives: tuple[Archive, ...]
    top: str = ""


SOURCES = msgspec.convert(
    tomllib.loads((files("centaurus") / "data" / "sources.toml").read_text(encoding="utf-8")), dict[str, Source]
)


class SourceError(FileError, ValueError):
    """An archive that is missing, damaged or not the published one; the message says where to get it."""


def get(
    name: str, out: AnyPath, downloads: AnyPath | None = None, moved: Callable[[float], object] = lambda amount: None
) -> str:
    """Check a corpus' archives and unpack them into a new folder; return the name of its layout.

    Archives are taken from the folder ``downloads``; those that are not there are downloaded if their host can be
    reached. ``moved`` is called with the bytes read since the last call. The folder is created atomically.
    """
    if name not in SOURCES:
        raise SourceError(f"there is no corpus {name!r:.60}; there are {', '.join(SOURCES)}")
    source, target = SOURCES[name], Path(out)
    if target.exists():
        raise SourceError("exists already; name another folder with -o", target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _building(target) as folder:
        for archive in source.archives:
            with _archive(archive, downloads, folder.parent, moved) as path:
                _check(path, archive, moved)
                _unpack(path, folder, source.top)
        return recognise(folder)


@contextmanager
def _building(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to the target on success."""
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        inside = Path(folder) / target.name
        inside.mkdir()
        yield inside
        os.rename(inside, target)


@contextmanager
def _archive(
    archive: Archive, downloads: AnyPath | None, folder: Path, moved: Callable[[float], object]
) -> Iterator[Path]:
    """Yield the path of an archive, downloaded before or now; one downloaded now is removed afterwards."""
    kept = None if downloads is None else Path(downloads) / archive.name
    if kept is not None and kept.is_file():
        yield kept
        return
    path = folder / archive.name
    try:
        with urlopen(archive.url, timeout=PATIENCE) as answer, replacing(path) as part, part.open("wb") as file:
            while data := answer.read(CHUNK):
                file.write(data)
                moved(len(data))
    except (URLError, TimeoutError) as error:
        host, reason = urlsplit(archive.url).hostname, getattr(error, "reason", error)
        raise SourceError(
            f"{host} cannot be reached ({reason}): download {archive.url} by other means "
            "and give its folder with --from",
            archive.name,
        ) from error
    yield path
    path.unlink()


def _check(path: Path, archive: Archive, moved: Callable[[float], object]) -> None:
    if not archive.checksum:
        return
    kind, _, published = archive.checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while data := file.read(CHUNK):
            digest.update(data)
            moved(len(data))
    if digest.hexdigest() != published:
        raise SourceError(
            f"is damaged or not the published file: its {kind} is {digest.hexdigest()}, published is {published} "
            f"({path.stat().st_size:,} bytes)",
            path,
        )


def _unpack(path: Path, folder: Path, top: str) -> None:
    """Unpack an archive; refuse members that would land outside of the folder."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)  # names are cleaned, and every file's CRC is compared
        else:
            with tarfile.open(path) as packed:
                packed.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise SourceError(f"cannot be unpacked: {error}", path) from error
    inner = folder / top
    if top and inner.is_dir():
        for item in inner.iterdir():
            if not (folder / item.name).exists():
                shutil.move(item, folder / item.name)
        shutil.rmtree(inner)
