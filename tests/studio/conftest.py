"""A server, and Debian's chromium with a microphone that plays a file; tests are skipped where it is missing."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile

from centaurus.studio import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "src" / "centaurus" / "assets" / "demo.flac"
WEB = "CENTAURUS_TEST_WEB"  # set by `make test-web`: browsers are too heavy for every run of the tests
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 860}
MICROPHONE_RATE = 16_000


@pytest.fixture(scope="session")
def studio() -> Iterator[str]:
    """The address of a running studio."""
    with Server(port=0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless chromium whose microphone plays the demo clip, over and over."""
    if not os.environ.get(WEB):
        pytest.skip("browser tests run by `make test-web`")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    speech, rate = soundfile.read(DEMO, dtype="float32")
    assert rate == MICROPHONE_RATE
    file = tmp_path_factory.mktemp("microphone") / "speech.wav"
    soundfile.write(file, np.tile(speech, 3), rate, subtype="PCM_16")
    arguments = [
        "--no-sandbox",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={file}",
        "--autoplay-policy=no-user-gesture-required",
    ]
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Browser, studio: str) -> Iterator[Callable[..., Page]]:
    """Open a page of the studio; its faults and requests to other hosts fail the test at the end."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def opened(path: str = "", base: str = studio, **options: Any) -> Page:
        context = browser.new_context(**({"viewport": DESKTOP} | options))
        contexts.append(context)
        context.grant_permissions(["microphone"])
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if _fault(message) else None)
        page.on("request", lambda request: None if _own(request.url, base) else faults.append(f"asked {request.url}"))
        page.on("dialog", lambda dialog: faults.append(f"a dialog: {dialog.message}"))
        page.goto(base + path, wait_until="networkidle")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults


def _fault(message: ConsoleMessage) -> bool:
    """Whether a message in the console is a fault; status 400 for an invalid query about a plan is not."""
    return message.type == "error" and not ("status of 400" in message.text and "/api/" in message.location["url"])


def _own(address: str, base: str) -> bool:
    return address.startswith((base, "blob:"))
