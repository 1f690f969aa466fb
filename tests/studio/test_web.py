"""The studio in a browser: equal to the Python runtime, live and from files; usable, and safe from injection."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from centaurus import studio as plans
from centaurus.export.c import find_clang
from centaurus.runtime import Session, denoise
from centaurus.studio import write_site
from tests.studio.conftest import DEMO, PHONE

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGES = ("index.html", "words.html", "plans.html", "networks.html")
AXE = os.environ.get("CENTAURUS_AXE", "")
TOLERANCE = 1e-4
SECONDS = 10
LONG = float(os.environ.get("CENTAURUS_TEST_SECONDS", "60"))  # of the long file; 3660 is more than an hour
WAIT = 60_000  # ms: machines that run tests are busy
FRAME = 1000 / 60  # ms between frames of the screen
DRAWING = 4.0  # ms of a frame that drawing may take
HEAP = 64e6  # bytes of the page's objects, whatever the length of the file
Open = Callable[..., "Page"]


def saved(page: Page, button: str, path: Path) -> tuple[np.ndarray, int]:
    with page.expect_download(timeout=WAIT) as download:
        page.click(button)
    download.value.save_as(path)
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return samples.T, rate


def until(page: Page, condition: str) -> None:
    """Wait for a condition. The page's policy forbids the evaluation that playwright's own waiting needs."""
    deadline = time.monotonic() + WAIT / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not in {WAIT / 1000:g} s: {condition}; {page.text_content('#error')}"
        page.wait_for_timeout(50)


def clean(page: Page, file: Path, wait: float = WAIT) -> None:
    page.set_input_files("#file", file)
    page.wait_for_selector("#transport:not([hidden])", timeout=wait)


def test_a_file_comes_out_as_from_the_runtime(open_page: Open, tmp_path: Path) -> None:
    noisy, rate = soundfile.read(DEMO, dtype="float32")
    file = tmp_path / "noisy.wav"
    soundfile.write(file, noisy[: SECONDS * rate], rate, subtype="FLOAT")
    page = open_page()
    clean(page, file)
    (result,), out_rate = saved(page, "#save", tmp_path / "clean.wav")
    expected = denoise(noisy[: SECONDS * rate], rate)
    assert out_rate == rate
    assert np.abs(expected).max() > 0.1
    assert np.abs(expected - noisy[: SECONDS * rate]).max() > 0.01
    np.testing.assert_allclose(result, expected, atol=TOLERANCE)

    page.fill("#mix", "50")
    page.fill("#limit", "12")
    (mixed,), _ = saved(page, "#save", tmp_path / "mixed.wav")
    np.testing.assert_allclose(mixed, denoise(noisy[: SECONDS * rate], rate, mix=0.5, attn_limit_db=12), atol=TOLERANCE)


def test_a_stereo_file_at_another_rate_keeps_its_form(open_page: Open, tmp_path: Path) -> None:
    from centaurus.audio import resample

    noisy, rate = soundfile.read(DEMO, dtype="float32")
    stereo = np.stack([noisy[: 3 * rate], noisy[3 * rate : 6 * rate]])
    file = tmp_path / "<img src=x onerror=alert(1)>.wav"
    source = resample(stereo, rate, 44_100).astype(np.float32)
    soundfile.write(file, source.T, 44_100, subtype="FLOAT")
    page = open_page()
    clean(page, file)
    result, out_rate = saved(page, "#save", tmp_path / "clean.wav")
    assert out_rate == 44_100
    assert result.shape == source.shape
    expected = denoise(source, 44_100)
    error = np.square(result - expected).mean() / np.square(expected).mean()
    assert error < 1e-3  # two resamplers differ near 8 kHz
    page.click("#play")
    until(page, "Number(document.getElementById('position').value) > 0.1")
    page.check("#listen-original", force=True)
    page.click("#play")


def test_live_sound_comes_out_as_from_the_runtime(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    page.click("#microphone")
    until(page, "document.getElementById('load').textContent.includes('%')")
    page.wait_for_timeout(1000 * SECONDS)
    load, dropped = page.text_content("#load"), page.text_content("#dropped")
    page.click("#stop")
    page.wait_for_selector("#save:not([disabled])", timeout=WAIT)
    (wet,), rate = saved(page, "#save", tmp_path / "wet.wav")
    (dry,), _ = saved(page, "#save-original", tmp_path / "dry.wav")
    assert dry.shape == wet.shape
    assert rate == 16_000
    assert len(dry) >= 0.9 * SECONDS * rate
    assert np.abs(dry).max() > 0.05
    expected = denoise(dry, rate)
    end = len(dry) - rate // 10  # the stream was cut off: the end of the network's output is missing
    np.testing.assert_allclose(wet[:end], expected[:end], atol=TOLERANCE)
    assert dropped == "0", f"{dropped} dropped blocks at a load of {load}"


# Counts frames of the screen, those in which both spectrograms moved, and milliseconds of drawing.
WATCH = """() => {
  const seen = (globalThis.seen = { times: [], moved: [], took: [] });
  const draw = CanvasRenderingContext2D.prototype.drawImage;
  const request = globalThis.requestAnimationFrame;
  const canvases = new Set();
  CanvasRenderingContext2D.prototype.drawImage = function (...rest) {
    canvases.add(this.canvas.id);
    return draw.apply(this, rest);
  };
  globalThis.requestAnimationFrame = (work) => request((time) => {
    const start = performance.now();
    work(time);
    seen.took.push(performance.now() - start);
  });
  const tick = (time) => {
    seen.times.push(time);
    seen.moved.push(canvases.size === 2);
    canvases.clear();
    request(tick);
  };
  request(tick);
}"""


def test_live_spectrograms_move_sixty_times_a_second(open_page: Open) -> None:
    page = open_page()
    page.evaluate(WATCH)
    page.click("#microphone")
    until(page, "document.getElementById('load').textContent.includes('%')")
    page.evaluate("() => { for (const list of Object.values(seen)) list.length = 0; }")
    page.wait_for_timeout(4000)
    seen = page.evaluate("seen")
    page.click("#stop")
    assert np.median(np.diff(seen["times"])) == pytest.approx(FRAME, rel=0.05)
    assert np.mean(seen["moved"]) > 0.9  # a busy machine may deliver audio late
    assert np.median(seen["took"]) < DRAWING  # the median: a busy machine interrupts some of them


def test_a_long_file_is_streamed(
    open_page: Open, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    noisy, rate = soundfile.read(DEMO, dtype="float32")
    file = tmp_path / "long.wav"
    with soundfile.SoundFile(file, "w", rate, 1, subtype="PCM_16") as out:
        for _ in range(round(LONG * rate / len(noisy))):
            out.write(noisy)
    page = open_page()
    start = time.monotonic()
    clean(page, file, max(WAIT, 1000 * LONG))
    took = time.monotonic() - start
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    (result,), _ = saved(page, "#save", tmp_path / "clean.wav")
    frames = soundfile.info(file).frames
    record_property("seconds", took)
    record_property("heap", heap)
    assert len(result) == frames
    assert heap < HEAP
    part = min(frames, 120 * rate)
    given, _ = soundfile.read(file, frames=part, dtype="float32")
    end = part if part == frames else part - rate  # a cut stream ends otherwise
    np.testing.assert_allclose(result[:end], denoise(given, rate)[:end], atol=TOLERANCE)
    assert np.abs(result[-len(noisy) :]).max() > 0.1


def test_the_keyword_page_begins_with_what_the_model_brings(open_page: Open) -> None:
    own = Session("kws-30").settings
    page = open_page("words.html")
    until(page, f"document.getElementById('threshold-value').textContent === '{round(100 * own.threshold)} %'")
    assert page.text_content("#window-value") == f"{round(1000 * own.window)} ms"
    page = open_page("words.html?threshold=0.25")
    until(page, f"document.getElementById('window-value').textContent === '{round(1000 * own.window)} ms'")
    assert page.text_content("#threshold-value") == "25 %"


def test_words_are_detected_in_the_demo_and_live(open_page: Open) -> None:
    page = open_page("words.html?wake=marvin&threshold=0.5")
    page.click("#demo")
    until(page, "document.getElementById('status').textContent.includes('connected words')")
    found = page.eval_on_selector_all("#found li", "items => items.map(item => item.firstChild.textContent)")
    spoken = {word["word"] for word in json.loads(DEMO.with_suffix(".json").read_text())["words"]}
    assert len(spoken & set(found)) >= len(spoken) / 2
    assert page.locator("#captions span").count() > 0
    page.click("#microphone")
    page.wait_for_selector("#found li", timeout=WAIT)
    page.click("#stop")


def test_the_wake_word_that_ships_is_offered(open_page: Open) -> None:
    page = open_page("words.html?wake=computer")
    assert page.input_value("#wake") == "computer"
    assert "wake-computer" in (page.text_content("#model") or "")


@pytest.mark.skipif(find_clang() is None, reason="clang and lld are not installed")
def test_a_model_of_a_wake_word_is_offered_and_wakes(open_page: Open, static_site: str, tmp_path: Path) -> None:
    import torch

    from centaurus.export.c import export_wasm
    from centaurus.models import classifier

    net = classifier("kws-hybrid-2", classes=["background", "anything"])
    net.load_state_dict({name: torch.zeros_like(value) for name, value in net.state_dict().items()})
    with torch.no_grad():
        [*net.parameters()][-1].view(-1)[1] = 5.0  # the bias of the last layer: "anything" for every input
    folder = tmp_path / "site" / "below"
    export_wasm(net, folder / "models" / "wake-anything.wasm", name="wake-anything")
    about = json.loads((folder / "models.json").read_text())
    keywords = dict(next(model for model in about["models"] if model["task"] == "classifier"))
    wake = {"name": "wake-anything", "classes": ["background", "anything"], "features": 2, "frame": net.hop}
    for setting in ("threshold", "window", "caution"):
        keywords.pop(setting, None)
    about["models"].append(keywords | wake | {"hop": net.hop})
    (folder / "models.json").write_text(json.dumps(about))
    page = open_page("words.html?wake=anything", base=static_site)
    assert page.input_value("#wake") == "anything"
    assert "wake-anything" in (page.text_content("#model") or "")
    page.evaluate(  # a file is processed faster than it plays: the text may appear only briefly
        """() => {
            const line = document.getElementById('awake');
            globalThis.seen = [];
            new MutationObserver(() => seen.push(line.textContent)).observe(line, { childList: true });
        }"""
    )
    page.click("#demo")
    until(page, "seen.some((text) => text.includes('“anything” was detected'))")
    assert page.locator("#found .wake").count() > 0


def test_a_denied_microphone_and_a_broken_file_show_messages(open_page: Open, tmp_path: Path) -> None:
    page = open_page()
    page.evaluate(
        "() => { navigator.mediaDevices.getUserMedia = "
        "async () => { throw new DOMException('no', 'NotAllowedError'); }; }"
    )
    page.click("#microphone")
    until(page, "document.getElementById('error').textContent.includes('was denied')")
    broken = tmp_path / "broken<b>.mp3"
    broken.write_bytes(b"<script>alert(1)</script>" * 100)
    page.set_input_files("#file", broken)
    until(page, "document.getElementById('error').textContent.includes('broken<b>.mp3')")
    assert page.locator("#error b").count() == 0


def test_plans_are_answered_and_the_map_is_drawn(open_page: Open) -> None:
    page = open_page("plans.html?equation=pointwise&sizes=b8.t1024.i16.j16.n64&x=b&y=n")
    page.wait_for_selector("#steps tbody tr", timeout=WAIT)
    assert page.locator("#graph svg circle").count() == 5
    page.fill("#equation", "u_bit B_ni")
    until(page, "document.getElementById('error').textContent.includes('->')")
    page.fill("#equation", "u_bit B_ni D_pn K_pt C_jp -> y_bjt")
    until(page, "document.querySelectorAll('#graph svg circle').length === 6")
    assert not page.is_visible("#error")
    assert "equation=u_bit" in page.evaluate("location.href")


def test_the_address_restores_the_state(open_page: Open) -> None:
    page = open_page("index.html?mix=40&limit=12&listen=original")
    assert page.input_value("#mix") == "40"
    assert page.text_content("#limit-value") == "at most 12 dB"
    assert page.is_checked("#listen-original")
    page.fill("#mix", "70")
    until(page, "location.search.includes('mix=70')")


@pytest.mark.parametrize(
    "address",
    [
        "index.html?mix=<svg/onload=alert(1)>&limit=1e999&listen=__proto__",
        "words.html?wake=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&threshold=NaN&window=-5",
        "plans.html?equation=%3Cimg%20src=x%20onerror=alert(1)%3E-%3E&sizes=b0.%3Cb%3E&x=constructor&y=%3Cb%3E",
        "networks.html?network=%3Cimg%20src=x%20onerror=alert(1)%3E&layer=99e9",
    ],
)
def test_a_hostile_url_injects_nothing(open_page: Open, address: str) -> None:
    page = open_page(address)
    assert page.locator("main img, main script, main b, svg[onload]").count() == 0
    assert page.evaluate("getComputedStyle(document.body).display") == "flex"


@pytest.mark.parametrize("page_name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(open_page: Open, page_name: str, scheme: str) -> None:
    if not Path(AXE).is_file():
        pytest.skip("axe-core is not installed: `make test-web` fetches it by npm")
    page = open_page(page_name, color_scheme=scheme, bypass_csp=True)
    page.evaluate(Path(AXE).read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run()).violations")
    serious = [f"{v['id']}: {v['nodes'][0]['target']}" for v in found if v["impact"] in ("serious", "critical")]
    assert not serious


@pytest.mark.parametrize("page_name", PAGES)
def test_a_phone_shows_everything_without_scrolling_sideways(open_page: Open, page_name: str) -> None:
    page = open_page(page_name, viewport=PHONE, is_mobile=True, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_first_paint_is_quick(open_page: Open) -> None:
    painted = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    assert min(open_page().evaluate(painted) for _ in range(3)) < 1000  # the least: a busy machine delays some


def test_the_keyboard_is_enough(open_page: Open) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"microphone", "choose", "demo", "mix", "limit", "monitor", "share", "theme"} <= reached


@pytest.fixture
def static_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The written site on a plain file server, below a path."""
    monkeypatch.setattr(plans, "GRID", {"b": (1, 8), "t": (1_024,), "i": (8,), "n": (4, 256)})
    write_site(tmp_path / "site" / "below")
    handler = partial(QuietHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/below/"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_the_site_works_from_any_static_host(open_page: Open, static_site: str) -> None:
    page = open_page("plans.html", base=static_site)
    page.wait_for_selector("#steps tbody tr", timeout=WAIT)
    assert re.search("Precomputed", page.text_content("#mode") or "")
    page.fill("#size-n", "1")
    page.click("#draw")
    page.wait_for_selector("#legend li", timeout=WAIT)
    page.goto(static_site + "index.html")
    page.click("#demo")
    page.wait_for_selector("#transport:not([hidden])", timeout=WAIT)
