"""Pages in a real browser, for the tests that look at what was drawn."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]

needs_browser = pytest.mark.skipif(_BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


@contextmanager
def launched() -> Iterator[Any]:
    """A Chromium; the test is skipped without Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=_BROWSER, args=_FLAGS)
        yield chromium
        chromium.close()


def open_page(browser: Any, path: pathlib.Path, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """The drawn page, and everything it complained of or asked the network for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.wait_for_function("() => document.documentElement.dataset.drawn === 'true'", timeout=60_000)
    return page, trouble
