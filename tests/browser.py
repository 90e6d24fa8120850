"""A real headless Chromium for the tests of pages."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.jobs import need

TOO_SMALL = """[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length &&
  t.getBoundingClientRect().height > 0 && parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a < 11)
  .map(t => t.textContent)"""
UNFOLD = "document.querySelectorAll('details').forEach(part => { part.open = true; })"

Opened = Callable[..., Page]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens a file at a size (CSS pixels) and colour scheme. No page asks for anything else, or has an error."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    need(program is not None, "no Chromium: apt-get install chromium")
    told: list[str] = []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program)

        def page_of(file: Path, *, width: int, height: int = 900, scheme: Any = "light", phone: bool) -> Page:
            size: Any = {"width": width, "height": height}
            page = chromium.new_page(viewport=size, color_scheme=scheme, is_mobile=phone)
            page.on("request", lambda request: told.extend({request.url} - {file.as_uri()}))
            page.on("console", lambda message: told.append(message.text))
            page.on("pageerror", lambda error: told.append(str(error)))
            page.goto(file.as_uri())
            return page

        yield page_of
    assert told == []
