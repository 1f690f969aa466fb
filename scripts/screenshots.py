"""Take the screenshots of docs/studio.md: ``python scripts/screenshots.py`` (needs playwright and chromium)."""

from __future__ import annotations

import io
import shutil
import threading

from pictures import OUT, save_small
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from centaurus.studio import Server

COLOURS = 64  # of the palette
WIDEST = 1000  # pixels
TIMEOUT = 120_000  # ms


def take(
    browser: Browser, url: str, name: str, size: tuple[int, int], clicks: list[str], done: str, dark: bool
) -> None:
    """Open a page, click its buttons, wait for a selector, and save what is visible, or all of a page of height 0."""
    width, height = size
    page = browser.new_page(
        viewport={"width": width, "height": height or 800}, color_scheme="dark" if dark else "light"
    )
    page.goto(url, wait_until="networkidle")
    for button in clicks:
        page.click(button)
    page.wait_for_selector(done, timeout=TIMEOUT, state="attached")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=not height)))
    picture.thumbnail((WIDEST, 4 * WIDEST), Image.Resampling.LANCZOS)
    save_small(picture, OUT / f"studio-{name}.png", COLOURS)
    page.close()


def main() -> None:
    """Serve the studio and take a screenshot of each page."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with Server(port=0) as server, sync_playwright() as playwright:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        cell = "#map tbody tr:nth-child(7) td:last-child"
        take(browser, server.url, "denoise", (1280, 1130), ["#demo"], "#save:not([disabled])", False)
        take(browser, f"{server.url}words.html", "words", (1280, 1130), ["#demo"], "#status:has-text('keywords')", True)
        take(browser, f"{server.url}plans.html", "plans", (1280, 0), ["#draw"], cell, False)
        take(browser, f"{server.url}networks.html", "networks", (1100, 0), [], "#plane svg", False)
        browser.close()
        server.shutdown()


if __name__ == "__main__":
    main()
