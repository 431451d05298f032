"""Take screenshots of the dashboard for docs/pictures in a real browser.

Needs Chromium (on Debian: apt-get install chromium fonts-inter).

    PYTHONPATH=. python scripts/write_page_pictures.py             # all of them
    PYTHONPATH=. python scripts/write_page_pictures.py plan        # one, by its name
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple
from unittest.mock import patch

from playwright.sync_api import Browser, Page, sync_playwright

from scripts.page_scene import scene

FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
LARGEST: Final = 150_000
"""Maximum bytes of a picture."""
SETTLED: Final = 400
"""Milliseconds until fonts and layout are stable."""


def _requests(_: Page) -> None:
    """The first view."""


def _plan(page: Page) -> None:
    page.locator("#rows tr").filter(has_text="dropped").first.click()
    page.locator("dialog .windows").wait_for()


def _draw_spending(page: Page) -> None:
    page.get_by_role("link", name="Spending").click()
    page.locator(".days").wait_for()


def _models(page: Page) -> None:
    page.get_by_role("link", name="Models").click()
    page.locator("#routes table").wait_for()


class Shot(NamedTuple):
    """A screenshot: how to navigate to its view, and the window."""

    way: Callable[[Page], None]
    width: int = 1280
    height: int = 680
    colours: Literal["light", "dark"] = "light"


SHOTS: Final = {
    "requests": Shot(_requests),
    "plan": Shot(_plan),
    "spending": Shot(_draw_spending, height=800),
    "models": Shot(_models, height=320, colours="dark"),
    "dark": Shot(_requests, height=480, colours="dark"),
    "narrow": Shot(_requests, 390, 780),
}


def main(names: list[str]) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is not installed; on Debian: apt-get install chromium fonts-inter")
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, BRIM_STATE=folder),
        scene(Path(folder)) as (url, secret),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in names or SHOTS:
            take(browser, SHOTS[name], url, secret, FOLDER / f"page-{name}.png")
        browser.close()


def take(browser: Browser, shot: Shot, url: str, secret: str, path: Path) -> None:
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.colours,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(url)
    page.locator("#key").fill(secret)
    page.keyboard.press("Enter")
    page.locator("#rows tr").first.wait_for()
    shot.way(page)
    page.wait_for_timeout(SETTLED)
    size = len(page.screenshot(path=path))
    print(f"{path.name}: {size:,} bytes{' (too large)' if size > LARGEST else ''}")
    context.close()


if __name__ == "__main__":
    main(sys.argv[1:])
