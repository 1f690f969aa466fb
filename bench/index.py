"""Time and memory of an index of utterances as large as Multilingual LibriSpeech English: build, reopen, read.

    python bench/index.py FOLDER [--utterances 10800000] [--processes 2] [--ranks 8] [--out docs/speed/index.json]

Texts are generated, the length of an utterance follows from its name, and there are no audio files. One text in a
thousand is a held-out one. Afterwards ``--ranks`` processes open the index as a training run does, draw the order of an
epoch and read the texts of 2,000 rows each; their memory is the sum of their proportional set sizes (shared pages count
once).
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import zlib
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from centaurus.data import Index, Utterances, open_index

ROW = 327_680  # samples
RATE = 16_000
HELD_OUT, LEAKED = 11_000, 0.001  # held-out texts, and the share of utterances that have one of them
SHARE = 0.01  # of the rows that an epoch has


def write_texts(folder: Path, count: int) -> list[str]:
    """Write a transcripts.txt of random texts of 32 words, about 200 letters; return the held-out texts."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwyp"))
    words = ["".join(rng.choice(letters, n)) for n in rng.integers(1, 11, 20_000)]

    def phrases(number: int) -> list[str]:
        return [" ".join(words[k] for k in row) for row in rng.integers(len(words), size=(number, 8))]

    pool, others = phrases(50_000), phrases(4 * HELD_OUT)
    held = [" ".join(others[4 * k : 4 * k + 4]) for k in range(HELD_OUT)]
    (folder / "train").mkdir(parents=True, exist_ok=True)
    path = folder / "train" / "transcripts.txt"
    if path.is_file():
        return held
    step = 100_000
    with path.with_suffix(".part").open("w") as file:
        for first in range(0, count, step):
            size = min(step, count - first)
            chosen = rng.integers(len(pool), size=(size, 4)).tolist()
            leaked = rng.random(size) < LEAKED
            for k, (a, b, c, d) in enumerate(chosen):
                text = held[a % HELD_OUT] if leaked[k] else f"{pool[a]} {pool[b]} {pool[c]} {pool[d]}"
                number = first + k
                file.write(f"{number % 5000}_{number % 20000}_{number:08d}\t{text}\n")
    path.with_suffix(".part").rename(path)
    return held


def length(path: Path) -> tuple[int, int]:
    """Return the samples of an utterance (10 to 20 seconds, a hash of its name) and the rate."""
    return 10 * RATE + zlib.crc32(path.name.encode()) % (10 * RATE), RATE


def opened(folder: Path, held: list[str], processes: int) -> Index:
    """Return the index of the generated utterances, from its cache or built."""
    return open_index(folder, held, ROW, measure=length, cache=folder / "cache", processes=processes)


def rank(folder: Path, held: list[str], number: int, answer: Connection) -> None:
    """Open the index and read rows as one process of a training run does."""
    start = time.perf_counter()
    rows = Utterances([(opened(folder, held, 1), SHARE)], ROW)
    order = rows.draw(0, np.random.default_rng(0))
    ready = time.perf_counter() - start
    letters = sum(len(rows.text(int(k))) for k in order[number::7][:2000])
    answer.send((ready, len(rows), letters))
    answer.recv()  # wait until the memory of this process has been measured


def memory(pid: int) -> tuple[int, int]:
    """Return the proportional set size and the private bytes of a process."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    )
    return tuple(int(lines[key].split()[0]) * 1024 for key in ("Pss", "Pss_Anon"))


def main() -> None:
    """Build, reopen and measure the index, print the figures and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--utterances", type=int, default=10_800_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    held = write_texts(chosen.folder, chosen.utterances)
    start = time.perf_counter()
    built = opened(chosen.folder, held, chosen.processes)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    figures = {
        "utterances": len(built),
        "rows": len(built.rows),
        "fill": built.seconds * RATE / (len(built.rows) * ROW),
        "leaks": built.facts.leaks,
        "text_bytes": built.source.texts.stat().st_size,
        "index_bytes": sum(path.stat().st_size for path in (chosen.folder / "cache").rglob("*.npy")),
        "build_seconds": time.perf_counter() - start,
        "cpu_seconds": sum(u.ru_utime + u.ru_stime for u in used),
        "ranks": chosen.ranks,
    }
    context = get_context("spawn")
    ends = [context.Pipe() for _ in range(chosen.ranks)]
    ranks = [context.Process(target=rank, args=(chosen.folder, held, k, ends[k][1])) for k in range(chosen.ranks)]
    for process in ranks:
        process.start()
    answers = [mine.recv() for mine, _ in ends]
    sizes = [memory(process.pid) for process in ranks if process.pid]
    for mine, _ in ends:
        mine.send(None)
    for process in ranks:
        process.join()
    figures |= {"resume_seconds": max(answer[0] for answer in answers)}
    figures |= {"memory_bytes": sum(size[0] for size in sizes), "private_bytes": sum(size[1] for size in sizes)}
    text = json.dumps(figures, indent=1)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
