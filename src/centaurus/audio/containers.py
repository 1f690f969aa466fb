"""Detect truncated audio files, and parts and lengths that libsndfile misses.

MP3 without a Xing header, joined files, chained Ogg, and FLAC and WAV of unknown or wrong length are decoded in parts:
byte ranges of the file, with a header in front that gives the length. Of what ffmpeg decodes (MP4, Matroska, AVI, ASF,
ADTS), only truncation is checked: ffmpeg decodes the rest without an error.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import BinaryIO, NamedTuple

# RIFF sizes that mean "not known when the header was written": 0, those that arecord and sox write, those of ffmpeg.
STREAMED_SIZES = (range(1), range(0x7FFF0000, 0x80000000), range(0xFFFF0000, 0x100000000))
ARECORD = 1 << 31  # the size in every header of arecord; a complete file may have it too
W64_RIFF = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
W64_DATA = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
EBML, MATROSKA_SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
ASF_HEADER = b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c"
MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")  # the first box of a file
MOST_CHUNKS = 4096
MOST_BOXES = 1 << 20  # a fragmented MP4 file has two for every fragment
MOST_OFFSET = 1 << 43  # bytes: ext4 refuses to seek beyond twice that
# Bit rates in kbit/s by index, and sample rates in Hz, of MPEG 1 and of MPEG 2 and 2.5 (ISO 11172-3, 13818-3).
BIT_RATES = {
    1: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
SAMPLE_RATES = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
WIDE_FRAME = {1: 9, 2: 12}  # index of 128 kbit/s: such a frame has room for a Xing header at every sample rate
RESYNC = 1 << 16  # bytes of garbage between two MPEG frames that are skipped
FLAC_TAIL = 1 << 18  # bytes that are searched for the last FLAC frame; the longest common ones have 64 kB
FLAC_START = b"fLaC\0\0\0\x22"  # the beginning of a file, with the length of STREAMINFO
BLOCK = 1 << 20  # bytes that are searched at a time
FLAC_TRIES = 4  # candidate headers: a false one passes its checksum once in millions of bytes


class Part(NamedTuple):
    """``head`` followed by the bytes ``start`` to ``stop`` of a file: something that libsndfile decodes whole."""

    head: bytes
    start: int
    stop: int


class Survey(NamedTuple):
    """Why a file is truncated ("" if it is not), and its parts (none: decode it as it is).

    ``end`` is where the recording ends by its header, if that is known: another may have been joined to it.
    """

    cut: str = ""
    parts: tuple[Part, ...] = ()
    end: int = 0


class Spliced(io.RawIOBase):
    """A part of a file, as a file object of its own."""

    def __init__(self, file: BinaryIO, part: Part) -> None:
        self._file, self._part, self._at = file, part, 0
        self._size = len(part.head) + part.stop - part.start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        head, start = self._part.head, self._part.start
        data = head[self._at : self._at + len(view)]
        missing = min(len(view), max(0, self._size - self._at)) - len(data)
        if missing > 0:
            self._file.seek(start + max(0, self._at - len(head)))
            data += self._file.read(missing)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def survey(file: BinaryIO, size: int) -> Survey:
    """Check the structure of a file of a known format, recognised by its first bytes; others are not checked."""
    magic = _at(file, 0, 16)
    for prefix, look in SURVEYS.items():
        if magic.startswith(prefix):
            return _joined(file, size, prefix, look)
    if magic[4:8] in MP4_BOXES:
        return _mp4(file, size)
    tag = _tag(magic) if magic[:3] == b"ID3" else 0
    if tag and _at(file, tag, 4) == b"fLaC":
        return _flac(file, size, tag)
    if tag or _mpeg_frame(magic[:4]) is not None:
        return _mpeg(file, size)
    return _adts(file, size) if _adts_frame(magic) else Survey()


def _joined(file: BinaryIO, size: int, prefix: bytes, look: Callable[[BinaryIO, int], Survey]) -> Survey:
    """Survey a recording, and those of its kind that were joined to it one after another."""
    first = current = look(file, size)
    parts: list[Part] = []
    at = 0
    while (
        not current.cut
        and current.end
        and _at(file, at + current.end, len(prefix)) == prefix
        and len(parts) < MOST_CHUNKS
    ):
        parts.append(Part(b"", at, at + current.end))
        at += current.end
        current = look(io.BufferedReader(Spliced(file, Part(b"", at, size))), size - at)
    if not parts:
        return first
    return Survey(current.cut, (*parts, Part(b"", at, size)))


def is_streamed(length: int) -> bool:
    """Return whether a WAV header with this length was written before the length was known."""
    return any(length in sizes for sizes in STREAMED_SIZES)


def _at(file: BinaryIO, offset: int, count: int) -> bytes:
    if offset > MOST_OFFSET:
        return b""  # a chunk of a length that no file has
    file.seek(offset)
    return file.read(count)


def _declared(offset: int, length: int, size: int, what: str = "bytes of samples") -> Survey:
    """Compare the ``length`` that a header declares for what begins at ``offset`` with the size of the file."""
    missing = offset + length - size
    return Survey(f"{missing:,} of {length:,} {what} are missing" if missing > 0 else "")


def _riff(file: BinaryIO, size: int) -> Survey:
    if _at(file, 8, 4) == b"AVI ":
        return _avi(file, size)
    long = None
    for name, offset, length in _chunks(file, size, 12, "<4sI", even=True):
        if name == b"ds64" and length >= 16:
            long = struct.unpack("<Q", _at(file, offset + 8, 8).ljust(8, b"\0"))[0]
        elif name == b"data":
            if length == 0xFFFFFFFF and long:
                return _declared(offset, long, size) if long < 1 << 62 else Survey()
            end, outgrows = offset + length, is_streamed(length) or length == ARECORD
            if outgrows and end < size and not long and not _are_chunks(file, end, size):
                return Survey(parts=(Part(_long_header(file, offset, size), offset, size),))
            return Survey() if is_streamed(length) else _declared(offset, length, size)
    return Survey()


def _long_header(file: BinaryIO, offset: int, size: int) -> bytes:
    """Return the header of a WAV file with samples from ``offset`` to its end; as RF64, since they may exceed 4 GiB."""
    sizes = struct.pack("<4sIQQQI", b"ds64", 28, size + 28, size - offset, 0, 0)
    return b"RF64\xff\xff\xff\xffWAVE" + sizes + _at(file, 12, offset - 16) + b"\xff\xff\xff\xff"


def _are_chunks(file: BinaryIO, at: int, size: int) -> bool:
    """Return whether chunks fill the file from ``at`` to its end; otherwise they are samples that were not counted."""
    for name, offset, length in _chunks(file, size, at, "<4sI", even=True):
        if not name.isascii() or not name.decode().isprintable():
            return False
        at = offset + length
    return size - 1 <= at <= size


def _avi(file: BinaryIO, size: int) -> Survey:
    """Walk RIFF chunks, of which a long AVI file has several."""
    for name, offset, length in _chunks(file, size, 0, "<4sI", even=True):
        if name == b"RIFF" and offset + length > size:
            return _declared(offset, length, size, "bytes")
    return Survey()


def _nist(file: BinaryIO, size: int) -> Survey:
    """Read the text header of NIST SPHERE, which gives its own length and that of the samples."""
    head = _at(file, 0, 1024)
    length = head[8:16].strip()
    fields = {name: int(value) for name, value in re.findall(rb"^(\w+) -i (\d{1,18})$", head, re.MULTILINE)}
    if not length.isdigit() or not {b"sample_count", b"sample_n_bytes"} <= set(fields):
        return Survey()
    samples = fields[b"sample_count"] * fields[b"sample_n_bytes"] * fields.get(b"channel_count", 1)
    return _declared(int(length), samples, size)


def _mp4(file: BinaryIO, size: int) -> Survey:
    """Walk boxes (ISO 14496-12); a length of 1 is followed by one of 64 bits, a length of 0 means to the end."""

    def length(head: bytes) -> int:
        if len(head) < 8 or not head[4:8].isalnum():
            return 0
        return int.from_bytes(head[8:16] if head[:4] == b"\0\0\0\1" else head[:4], "big")

    return _boxes(file, size, length, 8)


def _boxes(file: BinaryIO, size: int, length_of: Callable[[bytes], int], least: int) -> Survey:
    """Walk boxes whose first bytes give their length; one below ``least`` ends the walk."""
    at = 0
    for _ in range(MOST_BOXES):
        length = length_of(_at(file, at, 24))
        if length < least:
            break
        if at + length > size:
            return _declared(at, length, size, "bytes")
        at += length
    return Survey()


def _matroska(file: BinaryIO, size: int) -> Survey:
    """Read the length of the segment, which may be unknown (RFC 8794: all bits set)."""
    length, at = _ebml_length(_at(file, 0, 16), 4)
    segment = at + length
    head = _at(file, segment, 16)
    if head[:4] != MATROSKA_SEGMENT:
        return Survey()
    length, at = _ebml_length(head, 4)
    return _declared(segment + at, length, size, "bytes") if length else Survey()


def _ebml_length(data: bytes, at: int) -> tuple[int, int]:
    """Return a length and where it ends; a length of 0 is an unknown one."""
    width = 9 - data[at].bit_length() if at < len(data) else 9
    value = int.from_bytes(data[at : at + width], "big") & (1 << 7 * width) - 1
    return (0 if width > 8 or value == (1 << 7 * width) - 1 else value), at + width


def _asf(file: BinaryIO, size: int) -> Survey:
    """Walk objects, each a GUID and a length; the data of a broadcast have length 0."""
    return _boxes(file, size, lambda head: int.from_bytes(head[16:], "little") if len(head) == 24 else 0, 24)


def _adts(file: BinaryIO, size: int) -> Survey:
    """Walk AAC frames from header to header."""
    at = 0
    while length := _adts_frame(_at(file, at, 8)):
        if at + length > size:
            return Survey("it ends within a frame")
        at += length
    return Survey()


def _adts_frame(head: bytes) -> int:
    """Return the bytes of an AAC frame; 0 if this is not the header of one (ISO 13818-7)."""
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0:
        return 0
    return (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5


def _aiff(file: BinaryIO, size: int) -> Survey:
    for name, offset, length in _chunks(file, size, 12, ">4sI", even=True):
        if name in (b"SSND", b"BODY"):  # the latter in 8SVX and 16SV
            return _declared(offset, length, size) if length not in (0, 0xFFFFFFFF) else Survey()
    return Survey("it has no samples") if size > 12 else Survey()


def _caf(file: BinaryIO, size: int) -> Survey:
    result = Survey()
    for name, offset, length in _chunks(file, size, 8, ">4sq", even=False):
        if name == b"caff":
            return result._replace(end=offset - 12)
        if name == b"data":
            result = _declared(offset, length, size) if length >= 0 else Survey()
            if result.cut or length < 0:
                return result
    return result


def _w64(file: BinaryIO, size: int) -> Survey:
    at = 40
    for _ in range(MOST_CHUNKS):
        head = _at(file, at, 24)
        if len(head) < 24:
            break
        length = struct.unpack("<Q", head[16:])[0]
        if head[:16] == W64_DATA:
            end = struct.unpack("<Q", _at(file, 16, 8).ljust(8, b"\0"))[0] + 7 & ~7
            return _declared(at + 24, length - 24, size)._replace(end=end) if 24 < length < 1 << 62 else Survey()
        at += max(24, length + 7 & ~7)
    return Survey()


def _au(file: BinaryIO, size: int) -> Survey:
    offset, length = struct.unpack(">II", _at(file, 4, 8).ljust(8, b"\0"))
    return _declared(offset, length, size)._replace(end=offset + length) if length not in (0, 0xFFFFFFFF) else Survey()


def _chunks(file: BinaryIO, size: int, at: int, form: str, even: bool) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and length of each chunk from ``at`` on."""
    width = struct.calcsize(form)
    for _ in range(MOST_CHUNKS):
        head = _at(file, at, width)
        if len(head) < width:
            return
        name, length = struct.unpack(form, head)
        yield name, at + width, length
        at += width + max(0, length) + (length % 2 if even else 0)
        if at >= size:
            return


def _flac(file: BinaryIO, size: int, at: int = 0) -> Survey:
    """Take the length from the last frame where STREAMINFO has none (zero) or one that is too small.

    If it differs from STREAMINFO, the file is searched for another one that was appended: the frame may be its last.
    """
    head = bytearray(_at(file, at, 42))
    if len(head) < 42 or head[4] & 127 != 0:
        return Survey()
    facts = int.from_bytes(head[18:26], "big")
    declared, longest = facts & (1 << 36) - 1, int.from_bytes(head[15:18], "big")
    window = min(FLAC_TAIL, 2 * longest + 128) if declared and longest else FLAC_TAIL
    start = max(at + 42, size - window)
    frames = _flac_length(_at(file, start, size - start), int.from_bytes(head[10:12], "big"), declared)
    if declared and frames == declared:
        return Survey()
    starts = [at, *_places(file, FLAC_START, at + 42, size)]
    if len(starts) > 1:
        return Survey(parts=tuple(Part(b"", *ends) for ends in zip(starts, [*starts[1:], size], strict=True)))
    if frames > declared:
        head[18:26] = (facts - declared + frames).to_bytes(8, "big")
        return Survey(parts=(Part(bytes(head), at + 42, size),))
    return Survey("it ends within a frame" if size > at + 42 and not declared else "")


def _flac_length(tail: bytes, largest: int, declared: int) -> int:
    """Return the samples of a stream up to its last complete frame, or the declared number; 0 if there is no frame."""
    end = len(tail) - 128 if tail[-128:-125] == b"TAG" else len(tail)
    place, tries = tail.rfind(b"\xff", 0, end), FLAC_TRIES
    while place >= 0 and tries:
        if tail[place + 1 : place + 2] in (b"\xf8", b"\xf9"):
            frames = _flac_end(tail[place : min(end, place + 32)], largest)
            if frames and (frames == declared or _crc(tail[place : end - 2], 0x8005, 16) == tail[end - 2 : end]):
                return frames
            tries -= frames > 0
        place = tail.rfind(b"\xff", 0, place)
    return 0


def _places(file: BinaryIO, marker: bytes, start: int, size: int) -> list[int]:
    """Return the offsets of a marker in a file from ``start`` on."""
    places: list[int] = []
    for at in range(start, size, BLOCK):
        block = _at(file, at, BLOCK + len(marker) - 1)
        place = block.find(marker)
        while place >= 0 and len(places) < MOST_CHUNKS:
            places.append(at + place)
            place = block.find(marker, place + 1)
    return places


def _flac_end(frame: bytes, largest: int) -> int:
    """Return the samples of a stream up to the end of a frame; 0 if this is not the header of one (RFC 9639)."""
    code, first = frame[2] >> 4 if len(frame) > 6 else 0, frame[4] if len(frame) > 6 else 0
    extra = 0 if first < 0x80 else 7 - (0xFF ^ first).bit_length()
    if not code or not 0 <= extra <= 6 or first & 0xC0 == 0x80:
        return 0
    number = first & (0x7F if not extra else 0x3F >> extra)
    for byte in frame[5 : 5 + extra]:
        number = number << 6 | byte & 0x3F
    at = 5 + extra
    if code in (6, 7):
        width = code - 5
        block = int.from_bytes(frame[at : at + width], "big") + 1
        at += width
    else:
        block = 192 if code == 1 else 576 << code - 2 if code <= 5 else 256 << code - 8
    at += {12: 1, 13: 2, 14: 2}.get(frame[2] & 15, 0)
    if _crc(frame[:at], 0x07, 8) != frame[at : at + 1]:
        return 0
    return number + block if frame[1] & 1 else number * largest + block


def _crc(data: bytes, polynomial: int, bits: int) -> bytes:
    table, value, mask = _crc_table(polynomial, bits), 0, (1 << bits) - 1
    for byte in data:
        value = table[value >> bits - 8 ^ byte] ^ value << 8 & mask
    return value.to_bytes(bits // 8, "big")


@cache
def _crc_table(polynomial: int, bits: int) -> list[int]:
    """Return the checksum of each byte."""
    table = []
    for byte in range(256):
        value = byte << bits - 8
        for _ in range(8):
            value = value << 1 ^ (polynomial | 1 << bits if value >> bits - 1 else 0)
        table.append(value)
    return table


def _ogg(file: BinaryIO, size: int) -> Survey:
    """Walk the pages. A first page after others begins the next link of a chain; a last page ends each."""
    links: list[int] = []
    unended: set[bytes] = set()
    at, beginning = 0, False
    while at < size:
        head = _at(file, at, 27)
        if head[:4] != b"OggS" or len(head) < 27:
            around = _at(file, at, RESYNC).find(b"OggS", 1)
            if around < 0:
                break
            at += around
            continue
        flags, serial, segments = head[5], head[14:18], head[26]
        table = file.read(segments)
        length = 27 + segments + sum(table)
        if flags & 2:
            if not beginning:
                if unended:
                    return Survey("one of its chained streams does not end")
                links.append(at)
            unended.add(serial)
        beginning = bool(flags & 2)
        if flags & 4:
            unended.discard(serial)
        if len(table) < segments or at + length > size:
            return Survey("it ends within a page")
        at += length
    if unended:
        return Survey("its last page is missing")
    ends = [*links[1:], size]
    return Survey(parts=tuple(Part(b"", *link) for link in zip(links, ends, strict=True)) if len(links) > 1 else ())


class _Frame(NamedTuple):
    """The header of an MPEG layer III frame: its bytes, version (1 or 2), samples, rate and side information."""

    length: int
    version: int
    samples: int
    rate: int
    side: int


def _mpeg_frame(head: bytes) -> _Frame | None:
    """Return the header of a layer III frame, or None."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    kind, index, rate_index = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if kind == 1 or index in (0, 15) or rate_index == 3:
        return None
    version, rate = 1 if kind == 3 else 2, SAMPLE_RATES[kind][rate_index]
    samples = 1152 if version == 1 else 576
    length = samples // 8 * BIT_RATES[version][index] * 1000 // rate + (head[2] >> 1 & 1)
    mono = head[3] >> 6 == 3
    side = (17 if mono else 32) if version == 1 else (9 if mono else 17)
    return _Frame(length, version, samples, rate, side)


class _Track(NamedTuple):
    """Frames of one recording: where they begin, the header of the first, and the count that a Xing header gives."""

    start: int
    first: bytes
    declared_frames: int | None
    tagged: int  # bytes of the frame with the Xing header


def _mpeg(file: BinaryIO, size: int) -> Survey:
    """Walk the frames of an MP3 file. A Xing header (also called Info) begins a recording and gives its frames."""
    tracks: list[tuple[_Track, int, int]] = []  # with the frames that were counted, and where they end
    track, count, at = None, 0, 0
    while at + 4 <= size:
        head = _at(file, at, 160)
        frame = _mpeg_frame(head)
        if frame is None:
            skip = _tag(head) or _resync(file, at)
            if not skip:
                break
            at += skip
            continue
        if at + frame.length > size:
            return Survey("it ends within a frame")
        declared_frames = _xing(head, frame.side)
        if track is None or declared_frames is not None:
            if track is not None:
                tracks.append((track, count, at))
            track, count = _Track(at, head[:4], declared_frames, 0 if declared_frames is None else frame.length), 0
        count += declared_frames is None
        at += frame.length
    if track is None:
        return Survey()
    tracks.append((track, count, at))
    short = next((t for t, n, _ in tracks if t.declared_frames is not None and n + 1 < t.declared_frames), None)
    if short is not None:
        return Survey(f"its header declares {short.declared_frames:,} frames, which it does not have")
    exact = len(tracks) == 1 and tracks[0][0].declared_frames == tracks[0][1]
    return Survey(parts=() if exact else tuple(_counted(*track) for track in tracks if track[1]))


def _counted(track: _Track, count: int, stop: int) -> Part:
    """Return the frames of a recording as a part, with a Xing header that gives their number."""
    if track.declared_frames == count:
        return Part(b"", track.start, stop)
    frame = _mpeg_frame(track.first)
    assert frame is not None
    first = bytearray(track.first)
    first[1] |= 1  # no checksum
    first[2] = WIDE_FRAME[frame.version] << 4 | first[2] & 0x0C
    wide = _mpeg_frame(bytes(first))
    assert wide is not None
    words = bytes(first) + bytes(frame.side) + b"Xing" + struct.pack(">II", 1, count)
    return Part(words.ljust(wide.length, b"\0"), track.start + track.tagged, stop)


def _xing(head: bytes, side: int) -> int | None:
    """Return the number of frames in a Xing header; 0 if it does not give it, None if this is not one."""
    at = 4 + side
    if head[at : at + 4] not in (b"Xing", b"Info"):
        return None
    flags, count = struct.unpack(">II", head[at + 4 : at + 12])
    return count if flags & 1 else 0


def _tag(head: bytes) -> int:
    """Return the bytes of an ID3 or APE tag; 0 if this is not one."""
    if head[:3] == b"ID3" and len(head) >= 10:
        a, b, c, d = (byte & 127 for byte in head[6:10])
        return 10 + (a << 21 | b << 14 | c << 7 | d) + (10 if head[5] & 16 else 0)
    if head[:3] == b"TAG":
        return 128
    if head[:8] == b"APETAGEX":
        return 32 + struct.unpack("<I", head[12:16])[0] if head[23] & 0x20 else 32
    return 0


def _resync(file: BinaryIO, at: int) -> int:
    """Return the bytes to the next two frames in a row; 0 if there are none near."""
    data = _at(file, at, RESYNC)
    place = data.find(b"\xff", 1)
    while 0 < place < len(data) - 4:
        frame = _mpeg_frame(data[place : place + 4])
        if frame is not None and _mpeg_frame(data[place + frame.length : place + frame.length + 4]) is not None:
            return place
        place = data.find(b"\xff", place + 1)
    return 0


SURVEYS: dict[bytes, Callable[[BinaryIO, int], Survey]] = {
    b"RIFF": _riff,
    b"RF64": _riff,
    W64_RIFF: _w64,
    b"FORM": _aiff,
    b".snd": _au,
    b"caff": _caf,
    b"fLaC": _flac,
    b"OggS": _ogg,
    b"NIST_1A": _nist,
    EBML: _matroska,
    ASF_HEADER: _asf,
}
