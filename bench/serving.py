"""Load test of ``centaurus serve`` on loopback: real-time denoising streams, their latency, bad clients and SIGTERM.

    python bench/serving.py [--model denoise-16k] [--streams 45] [--seconds 30] [--core 0] [--repeat 3] \\
        [--output docs/speed/serving.json]

The server is a separate process on one core; the clients are this process, on the other cores. Every client sends a
block of one hop at the times at which a microphone would, and records when the samples that the block completes have
arrived. Half-way, clients join that send without reading or disconnect abruptly: the others must not be affected. After
SIGTERM at the end every open stream must finish. Of several runs the one with the median latency is reported, with the
latencies of all. The output has an entry for each model; entries of other models are kept.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

LOAD = 0.9  # share of a core that the streams should use, by the real-time factor of one
BAD_CLIENTS = 3  # of each kind
HALVES = ("good_clients", "beside_bad_clients")  # of a run, without and with bad clients
WARM = 2.0  # seconds at the start that are not counted
TICKS = os.sysconf("SC_CLK_TCK")
HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: loopback\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
END = b'{"type": "end"}'


@dataclass
class Model:
    """The served model: its rate in Hz, hop and delay in samples."""

    rate: int
    hop: int
    delay: int


@dataclass
class Latencies:
    """Seconds from sending a block to receiving the samples it completes, and how late blocks were sent."""

    answers: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def json(self, hop_seconds: float) -> dict[str, float]:
        """Return percentiles in milliseconds."""
        p50, p90, p99, p999 = (1000 * float(np.quantile(self.answers, q)) for q in (0.5, 0.9, 0.99, 0.999))
        return {
            "blocks": len(self.answers),
            "p50_ms": round(p50, 2),
            "p90_ms": round(p90, 2),
            "p99_ms": round(p99, 2),
            "p99.9_ms": round(p999, 2),
            "over_two_hops": round(float(np.mean(np.array(self.answers) > 2 * hop_seconds)), 5),
            "client_late_p99_ms": round(1000 * float(np.quantile(self.late, 0.99)), 2),
        }


def frame(payload: bytes, opcode: int = 2) -> bytes:
    """Return a masked WebSocket frame; the mask is zero, so that it need not be applied."""
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else bytes([0xFE]) + size.to_bytes(2, "big")
    return bytes([0x80 | opcode]) + length + bytes(4) + payload


class Stream(asyncio.Protocol):
    """A client that sends blocks on time and records when their samples arrive. It parses frames itself, for speed."""

    def __init__(self, path: str, model: Model, times: Latencies) -> None:
        self.path, self.model, self.times = path, model, times
        self.open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.sent: list[float] = []
        self.received = 0
        self.counting = False
        self._data = bytearray()
        self._answered = 0  # blocks whose answer has been recorded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Request the WebSocket."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(HANDSHAKE.format(path=self.path).encode())

    def data_received(self, data: bytes) -> None:
        """Parse frames; binary ones are samples."""
        now = time.perf_counter()
        self._data += data
        if not self.open.done():
            head, end, rest = bytes(self._data).partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head.split(b"\r\n")[0]:
                self.open.set_exception(ConnectionError(rest.decode(errors="replace").strip()))
                return
            self.open.set_result(None)
            self._data = bytearray(rest)
        while len(self._data) >= 2:
            size, at = self._data[1], 2
            if size >= 126:
                width = 2 if size == 126 else 8
                size, at = int.from_bytes(self._data[2 : 2 + width], "big"), 2 + width
            if len(self._data) < at + size:
                break
            self._frame(self._data[0] & 0x0F, bytes(self._data[at : at + size]), now)
            del self._data[: at + size]

    def _frame(self, opcode: int, payload: bytes, now: float) -> None:
        if opcode == 2:
            self.received += len(payload) // 4
            complete = (self.received + self.model.delay) // self.model.hop
            if self.counting:
                self.times.answers += [now - sent for sent in self.sent[self._answered : complete]]
            self._answered = complete
        elif opcode == 9:
            self.transport.write(frame(payload, 10))
        elif opcode == 1 and b'"end"' in payload and not self.done.done():
            self.done.set_result(payload.decode())

    def connection_lost(self, error: Exception | None) -> None:
        """Set the error on futures that are still waiting."""
        for waiting in (self.open, self.done):
            if not waiting.done():
                waiting.set_exception(error or ConnectionError("the server closed the connection"))

    def send_block(self, block: bytes, due: float) -> None:
        """Send one block and record when."""
        now = time.perf_counter()
        self.sent.append(now)
        if self.counting:
            self.times.late.append(now - due)
        self.transport.write(block)


async def connect(url: str, model: Model, times: Latencies) -> Stream:
    """Open a stream."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    path = f"/v1/denoise?rate={model.rate}&channels=1&format=f32le"
    _, stream = await loop.create_connection(lambda: Stream(path, model, times), parts.hostname, parts.port)
    await stream.open
    return stream


async def play(streams: Sequence[Stream], model: Model, seconds: float, blocks: Sequence[bytes]) -> None:
    """Send to every stream in real time, streams spread evenly over a hop."""
    hop = model.hop / model.rate
    begin = time.perf_counter() + 0.05
    for number in range(round(seconds / hop)):
        for place, stream in enumerate(streams):
            due = begin + (number + place / len(streams)) * hop
            wait = due - time.perf_counter()
            if wait > 0.0005:
                await asyncio.sleep(wait)
            elif place % 8 == 0:
                await asyncio.sleep(0)
            stream.send_block(blocks[number % len(blocks)], due)


async def measure(url: str, model: Model, count: int, seconds: float, process: int) -> dict[str, Any]:
    """Run real-time streams and return the figures; in the second half there are bad clients too."""
    noise = 0.1 * np.random.default_rng(0).standard_normal((64, model.hop)).astype("<f4")
    blocks = [frame(row.tobytes()) for row in noise]
    alone, beside = Latencies(), Latencies()
    streams = [await connect(url, model, alone) for _ in range(count)]
    await play(streams, model, WARM, blocks)
    for stream in streams:
        stream.counting = True
    before, begin = cpu_seconds(process), time.perf_counter()
    await play(streams, model, seconds / 2, blocks)
    used = (cpu_seconds(process) - before) / (time.perf_counter() - begin)
    for stream in streams:
        stream.times = beside
    bad = [await misbehave(url, model, kind) for kind in ("flood", "vanish") for _ in range(BAD_CLIENTS)]
    await play(streams, model, seconds / 2, blocks)
    for client in bad:
        client.cancel()
    os.kill(process, signal.SIGTERM)
    await play(streams, model, 1.0, blocks)
    for stream in streams:
        stream.transport.write(frame(END, 1))
    ends = await asyncio.gather(*(stream.done for stream in streams), return_exceptions=True)
    complete = sum(
        isinstance(end, str) and stream.received == len(stream.sent) * model.hop
        for stream, end in zip(streams, ends, strict=True)
    )
    hop = model.hop / model.rate
    return {
        "streams": count,
        "cores_used": round(used, 3),
        "good_clients": alone.json(hop),
        "beside_bad_clients": beside.json(hop),
        "complete_after_sigterm": complete,
    }


async def misbehave(url: str, model: Model, kind: str) -> asyncio.Task[None]:
    """Start a client that sends continuously and never reads, or one that repeatedly disconnects after a block."""
    parts = urlsplit(url)
    path = f"/v1/denoise?rate={model.rate}&channels=1&format=f32le"

    async def flood() -> None:
        _, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1024)
        writer.write(HANDSHAKE.format(path=path).encode())
        block = frame(bytes(4 * 8192))
        while True:
            writer.write(block)
            await writer.drain()
            await asyncio.sleep(0.01)

    async def vanish() -> None:
        while True:
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.write(HANDSHAKE.format(path=path).encode() + frame(bytes(4 * model.hop)))
            await writer.drain()
            await asyncio.sleep(0.2)
            writer.transport.abort()

    return asyncio.create_task(flood() if kind == "flood" else vanish())


def cpu_seconds(process: int) -> float:
    """Return the CPU time of all threads of a process."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def stolen_seconds() -> float:
    """Return the steal time of this virtual machine: CPU time that its host gave to others, on all cores."""
    return int(Path("/proc/stat").read_text(encoding="utf-8").split()[8]) / TICKS


def real_time_factor(model: str, core: int) -> tuple[Model, float]:
    """Return the model and the share of a core that one stream takes, by the median step of five seconds of audio."""
    code = (
        "import sys, time, numpy as np; from centaurus.runtime import Session\n"
        "s = Session(sys.argv[1]); k = s.settings; x = np.zeros(k.chunk, np.float32); spent = []\n"
        "for _ in range(5 * k.rate // k.chunk):\n"
        "    begin = time.perf_counter(); s.process(x); spent.append(time.perf_counter() - begin)\n"
        "print(k.rate, k.chunk, k.delay, float(np.median(spent)) * k.rate / k.chunk)"
    )
    told = subprocess.run([*on_core([core]), sys.executable, "-c", code, model], capture_output=True, check=True)
    rate, hop, delay, factor = told.stdout.split()
    return Model(int(rate), int(hop), int(delay)), float(factor)


def on_core(cores: Iterable[int]) -> list[str]:
    """Return a command prefix that pins a command to these cores."""
    return ["taskset", "-c", ",".join(map(str, cores))]


def main() -> None:
    """Run the server and the load, print the figures and write them."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="denoise-16k")
    arguments.add_argument("--streams", type=int, default=0, help="0: as many as use 90 %% of a core")
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--core", type=int, default=0, help="core of the server")
    arguments.add_argument("--repeat", type=int, default=1)
    arguments.add_argument("--output", type=Path)
    options = arguments.parse_args()
    report = median([run(options) for _ in range(options.repeat)])
    print(json.dumps(report, indent=2))
    if options.output:
        runs = json.loads(options.output.read_text())["runs"] if options.output.exists() else []
        runs = [run for run in runs if run["model"] != report["model"]] + [report]
        runs.sort(key=lambda run: str(run["model"]))
        options.output.write_text(json.dumps({"runs": runs}, indent=2) + "\n")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run one server under load and return its report."""
    model, factor = real_time_factor(options.model, options.core)
    count = options.streams or int(LOAD / factor)
    command = [*on_core([options.core]), sys.executable, "-m", "centaurus", "serve", "--port", "0"]
    command += ["--denoise", options.model, "--streams", str(count + 2 * BAD_CLIENTS)]
    stolen = stolen_seconds()
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(0, set(range(os.cpu_count() or 1)) - {options.core} or {options.core})
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    try:
        results = asyncio.run(measure(url, model, count, options.seconds, server.pid))
        code = server.wait(30)
    finally:
        server.kill()
    return {
        "model": Path(options.model).stem,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "hop_ms": 1000 * model.hop / model.rate,
        "rtf_of_one_stream": round(factor, 4),
        **results,
        "exit_code": code,
        "stolen_seconds": round(stolen_seconds() - stolen, 2),
    }


def median(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the run whose slower half has the median p99 latency, with the latencies of all runs and halves."""

    def slower(report: dict[str, Any]) -> float:
        return max(report[half]["p99_ms"] for half in HALVES)

    middle = sorted(reports, key=slower)[(len(reports) - 1) // 2]
    every = {half: [report[half]["p99_ms"] for report in reports] for half in HALVES}
    return middle | {"count": len(reports), "p99_ms_of_all": every, "slowest_p99_ms": max(map(slower, reports))}


if __name__ == "__main__":
    main()
