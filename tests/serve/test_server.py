"""The live server: equal results, admission, back-pressure, clients that stall or disconnect, graceful shutdown."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from centaurus import audio
from centaurus.runtime import denoise, spot, transcribe
from centaurus.serve.client import Client, ServerError, stream
from centaurus.serve.server import MOST_ROWS, Options, is_loopback
from tests.cli.run import run
from tests.runtime.models import exported
from tests.serve.servers import get, metric, served, url

ROOT = Path(__file__).parents[2]


def noise(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def pieces(x: NDArray[np.float32], size: int) -> list[NDArray[np.float32]]:
    return [x[..., k : k + size] for k in range(0, x.shape[-1], size)]


def through(server: Any, x: NDArray[np.float32], size: int, rate: int = 16_000, **options: Any) -> Any:
    got = list(stream(url(server), "denoise", pieces(x, size), rate, channels=len(x), **options))
    return np.concatenate(got, axis=1)


def test_streams_of_many_clients_are_what_each_would_be_alone() -> None:
    signals = [noise(1, 9000, seed=1), noise(2, 7001, seed=2), noise(1, 5000, seed=3)]
    rates = [16_000, 16_000, 48_000]
    with served() as server, ThreadPoolExecutor(3) as pool:
        cases = zip(signals, [997, 160, 480], rates, strict=True)
        got = list(pool.map(lambda case: through(server, *case), cases))
        assert metric(server, 'centaurus_streams_closed_total{reason="done",task="denoise"}') == 3
        assert metric(server, 'centaurus_streams{task="denoise"}') == 0
    for x, rate, y in zip(signals, rates, got, strict=True):
        assert np.allclose(y, denoise(x, rate, exported("denoiser")), atol=1e-5)


def test_keywords_and_words_are_those_of_the_library() -> None:
    x = noise(32_000)
    with served("spot", "transcribe") as server:
        keywords = list(stream(url(server), "spot", pieces(x, 777), 16_000, threshold=0.34, window=0.0))
        words = list(stream(url(server), "transcribe", pieces(x, 777), 16_000))
    from centaurus.decode import Smoothing

    expected = spot(x, 16_000, exported("classifier"), Smoothing(0.34, None, 0.0))
    assert [k.word for k in keywords] == [k.word for k in expected]
    assert [w.text for w in words] == [w.text for w in transcribe(x, 16_000, exported("recognizer"))]
    assert words, "nothing to compare"


def test_a_model_keeps_its_own_threshold_and_smoothing() -> None:
    clip = audio.read(Path(str(files("centaurus"))) / "assets" / "demo.flac")
    with served("spot", models={"spot": "kws-30"}) as server:
        actual = list(stream(url(server), "spot", pieces(clip.samples, 4000), clip.rate))
    expected = spot(clip.samples, clip.rate, "kws-30")
    assert [(k.word, k.time) for k in actual] == [(k.word, round(k.time, 4)) for k in expected]


def test_options_of_a_task_arrive() -> None:
    x = noise(1, 4000)
    with served() as server:
        assert np.allclose(through(server, x, 500, mix=0.0), x, atol=1e-6)
        with pytest.raises(ServerError, match="no option 'mixx'"):
            Client(url(server), mixx=1.0)
        with pytest.raises(ServerError, match="mix is between 0"), Client(url(server), mix=2.0) as live:
            list(live)


def test_samples_may_be_integers() -> None:
    x = noise(1, 4000)
    with served() as server:
        y = through(server, x, 500, encoding="s16le", mix=0.0)
    assert np.abs(y - x).max() < 1 / 32_000


def test_as_many_streams_as_were_allowed() -> None:
    with served(streams=1) as server:
        with Client(url(server)):
            with pytest.raises(ServerError, match="503: this server is at capacity"):
                Client(url(server))
            assert json.loads(get(server, "/health")[1])["streams"] == 1
        assert metric(server, 'centaurus_streams_rejected_total{reason="full"}') == 1
        wait_until(lambda: json.loads(get(server, "/health")[1])["streams"] == 0)
        Client(url(server)).close()


def test_without_a_limit_the_measured_load_decides() -> None:
    with served(streams=None, load=1e-9) as server:
        assert server.capacity("denoise") == 1
        with Client(url(server)):  # one always fits
            assert server.load > 1e-9
            with pytest.raises(ServerError, match="at capacity"):
                Client(url(server))


def test_a_stream_is_admitted_if_it_still_fits() -> None:
    with served(streams=None, load=0.9) as server:
        server.engines["denoise"].real_time_factor = 0.4
        with Client(url(server)), Client(url(server)):
            assert server.load == pytest.approx(0.8)
            with pytest.raises(ServerError, match="at capacity"):
                Client(url(server))


def test_every_stream_that_fits_one_core_gets_a_row() -> None:
    with served(streams=None, load=1e9) as server:
        assert server.capacity("denoise") == server.engines["denoise"].session.batch == MOST_ROWS
    with served(streams=2) as server, Client(url(server), channels=8), Client(url(server), channels=8):
        assert server.engines["denoise"].free_rows == 0
        with pytest.raises(ServerError, match="503"):
            Client(url(server))
    with served("spot", streams=3) as server:
        assert server.engines["spot"].session.batch == 3


def wait_until(true: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_what_is_refused_and_why() -> None:
    with served() as server:
        assert get(server, "/elsewhere")[0] == 404
        assert get(server, "/v1/sing")[0] == 404
        assert "format should be one of" in get(server, "/v1/denoise?format=mp3")[1]
        assert get(server, "/v1/denoise?rate=fast") == (400, "rate should be a number, got 'fast'\n")
        assert get(server, "/v1/denoise?channels=99")[0] == 400
        assert get(server, "/v1/denoise?rate=3")[0] == 400
        assert get(server, "/v1/denoise", Origin="https://evil.example")[0] == 403
        assert get(server, "/v1/denoise", Origin="http://localhost:8000")[0] == 426  # a page of this machine may
        with Client(url(server)) as live:
            live._socket.send('{"type": "stop"}')
            with pytest.raises(ServerError, match="the only command"):
                list(live)
        assert "spot is not served here, only denoise" in get(server, "/v1/spot")[1]


def test_a_token_is_asked_for_where_there_is_one() -> None:
    with served(token="open sesame") as server:
        with pytest.raises(ServerError, match="401"):
            Client(url(server))
        with pytest.raises(ServerError, match="401"):
            Client(url(server), token="open barley")
        Client(url(server), token="open sesame").close()
        assert get(server, "/metrics")[0] == 401
        assert get(server, "/health")[0] == 200
    with pytest.raises(ValueError, match=r"0\.0\.0\.0 is not a loopback address: a token is needed"):
        Options(host="0.0.0.0")
    assert [is_loopback(host) for host in ("::1", "127.0.0.5", "example.org", "10.0.0.1")] == [True, True, False, False]


def test_a_client_that_reads_nothing_is_disconnected_without_disturbing_others() -> None:
    with served(stall=1.0, backlog=0.2) as server:
        silent = raw_client(server, "/v1/denoise")
        sending = threading.Thread(target=flood, args=(silent,), daemon=True)
        sending.start()
        time.sleep(0.2)
        x = noise(1, 16_000)
        begin = time.monotonic()
        y = through(server, x, 256)
        assert time.monotonic() - begin < 5
        assert np.allclose(y, denoise(x, 16_000, exported("denoiser")), atol=1e-5)
        wait_until(lambda: not server._streams)
        sending.join(10)
        received = metric(server, 'centaurus_audio_seconds_total{task="denoise"}')
        assert received < 400, "its audio was read without back-pressure"
        silent.close()


def raw_client(server: Any, path: str) -> socket.socket:
    """A socket after the handshake, without a library that would answer pings."""
    raw = socket.create_connection(("127.0.0.1", server.port))
    raw.sendall(
        f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    assert b"101" in raw.recv(12)
    return raw


def flood(raw: socket.socket) -> None:
    """Masked frames of 64 000 zero bytes until the server stops reading."""
    frame = b"\x82\xfe" + (64_000).to_bytes(2, "big") + b"\0\0\0\0" + bytes(64_000)
    raw.settimeout(5)
    try:
        while True:
            raw.sendall(frame)
    except OSError:
        return


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff garbage\r\n\r\n",
        b"POST /v1/denoise HTTP/1.1\r\n\r\n",
        b"GET " + b"x" * 100_000,
    ],
)
def test_connections_that_are_not_http_are_closed(data: bytes) -> None:
    with served() as server:
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.settimeout(10)
        raw.sendall(data)
        try:
            while raw.recv(1000):
                pass
        except ConnectionResetError:
            pass
        assert through(server, noise(1, 1000), 100).shape == (1, 1000)


@pytest.mark.parametrize(
    "frame", [b"\x82\xff" + (1 << 40).to_bytes(8, "big") + bytes(4), b"\x82\x04abcd", b"\xf2\x84" + bytes(8)]
)
def test_invalid_frames_end_only_their_stream(frame: bytes) -> None:
    with served() as server:
        raw = raw_client(server, "/v1/denoise")
        wait_until(lambda: len(server._streams) == 1)
        raw.sendall(frame)
        wait_until(lambda: not server._streams)
        raw.close()
        assert through(server, noise(1, 1000), 100).shape == (1, 1000)


def test_a_message_in_parts_is_one_message() -> None:
    with served() as server:
        x = noise(1, 1000).astype("<f4").tobytes()
        raw = raw_client(server, "/v1/denoise?mix=0")
        parts = [(0x02, x[:401]), (0x00, x[401:402]), (0x80, x[402:]), (0x01, b'{"type":'), (0x80, b' "end"}')]
        for first, part in parts:
            size = len(part)
            length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
            raw.sendall(bytes([first]) + length + bytes(4) + part)
        raw.settimeout(10)
        got = b""
        while b'"frames": 1000' not in got:
            got += raw.recv(4096)
        raw.close()


def test_a_client_that_vanishes_frees_its_row() -> None:
    with served(streams=1) as server:
        for _ in range(3):
            raw = raw_client(server, "/v1/denoise")
            wait_until(lambda: len(server._streams) == 1)
            raw.close()
            wait_until(lambda: not server._streams)
        assert through(server, noise(1, 1000), 100).shape == (1, 1000)


def test_an_idle_client_is_disconnected() -> None:
    with (
        served(idle=0.3) as server,
        Client(url(server)) as live,
        pytest.raises(ServerError, match=r"nothing was sent for 0\.3 s"),
    ):
        list(live)


def test_metrics_are_text_that_prometheus_reads() -> None:
    with served() as server:
        through(server, noise(1, 16_000), 160)
        status, text = get(server, "/metrics")
    assert status == 200
    assert 'centaurus_audio_seconds_total{task="denoise"} 1\n' in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
    buckets = [float(line.rpartition(" ")[2]) for line in text.splitlines() if "block_latency_seconds_bucket" in line]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 63  # chunks of 256 samples, the last one not full


def test_sigterm_lets_streams_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "centaurus", "serve", "--port", "0", "--denoise", str(exported("denoiser"))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    where = line.split()[-1]
    assert where.startswith("ws://127.0.0.1:"), line
    with Client(where) as live:
        live.send(noise(3000))
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(ServerError, match="503: this server is shutting down"):
            Client(where)
        live.send(noise(3000))
        live.end()
        assert sum(y.shape[1] for y in live) == 6000
    assert process.wait(20) == 0


def test_a_port_in_use_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as server:
        port = server.port
        done = run(capsys, "serve", "--port", str(port), "--denoise", str(exported("denoiser")))
    assert done.code == 2
    assert done.err == f"centaurus: port {port} is in use: choose another with --port, or 0 for any that is free\n"


NODE = shutil.which("node")
SCRIPT = """
import { Stream } from "./client.mjs";
const got = [];
const live = await Stream.open(process.argv[2], { rate: 16000, settings: { mix: 0 }, onAudio: (x) => got.push(...x) });
const samples = Float32Array.from({ length: 5000 }, (_, k) => k / 5000);
for (let k = 0; k < 5000; k += 500) await live.send(samples.subarray(k, k + 500));
const summary = await live.end();
const worst = Math.max(...got.map((x, k) => Math.abs(x - samples[k])));
let refusal = "";
try { await Stream.open(process.argv[2], { task: "sing" }); } catch (error) { refusal = error.message; }
console.log(JSON.stringify({ summary, count: got.length, worst, latency: live.ready.latency_ms, refusal }));
"""


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_javascript_client(tmp_path: Path) -> None:
    with served(token="secret") as server:
        status, text = get(server, "/client.js")
        assert status == 200
        (tmp_path / "client.mjs").write_text(text)
        script = SCRIPT.replace("{ rate: 16000,", '{ rate: 16000, token: "secret",')
        (tmp_path / "use.mjs").write_text(script)
        flags = ["--experimental-websocket", "--no-warnings"]
        done = subprocess.run(
            [str(NODE), *flags, str(tmp_path / "use.mjs"), url(server)], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert (data["count"], data["summary"]["frames"], data["latency"]) == (5000, 5000, 16)
    assert data["worst"] < 1e-6
    assert "the server refused it, is full or is not running" in data["refusal"]
