"""Take screenshots of every view of the dashboard in a real browser: light, dark and narrow.

Those of the documentation go to docs/pictures, the others to .pictures.

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
REVIEW: Final = Path(__file__).parents[1] / ".pictures"
LARGEST: Final = 150_000
"""Maximum bytes of a picture."""
SETTLED: Final = 400
"""Milliseconds until fonts and layout are stable."""


def _open_view(view: str) -> Callable[[Page], None]:
    """Return a function that opens a view and waits for its data."""

    def opened(page: Page) -> None:
        page.evaluate(f"location.hash = '#{view}'")
        page.locator(f"#{view} :is(tbody tr, .chart):visible").first.wait_for()

    return opened


def _plan(page: Page) -> None:
    page.locator("#rows tr").filter(has_text="dropped").first.click()
    page.locator("dialog .windows").wait_for()


def _open_failed(page: Page) -> None:
    page.get_by_label("Period").select_option("2592000")
    page.get_by_label("Failed only").check()
    page.locator("#rows tr").filter(has_text="insufficient_quota").first.click()
    page.locator("dialog .why").wait_for()


def _ask_to_revoke(page: Page) -> None:
    _open_view("keys")(page)
    page.get_by_role("button", name="Revoke alice").click()


def _show_users(page: Page) -> None:
    _open_view("keys")(page)
    page.get_by_role("button", name="Users alice").click()
    page.locator("dialog tbody tr").first.wait_for()


def _sign_out(page: Page) -> None:
    page.get_by_role("button", name="Sign out").click()
    page.locator("#sign-in").wait_for()


class Shot(NamedTuple):
    """A screenshot: how to navigate to its view, and the window."""

    way: Callable[[Page], None]
    width: int = 1280
    height: int = 680
    colours: Literal["light", "dark"] = "light"


WAYS: Final[dict[str, Callable[[Page], None]]] = {
    "requests": _open_view("requests"),
    "overview": _open_view("overview"),
    "spending": _open_view("spending"),
    "keys": _open_view("keys"),
    "models": _open_view("models"),
    "changes": _open_view("changes"),
    "plan": _plan,
    "failed": _open_failed,
    "revoke": _ask_to_revoke,
    "users": _show_users,
    "sign-in": _sign_out,
}
HEIGHTS: Final = {
    "requests": 620,
    "overview": 860,
    "spending": 800,
    "keys": 400,
    "models": 320,
    "changes": 420,
}
SHOTS: Final = {
    **{name: Shot(way, height=HEIGHTS.get(name, 680)) for name, way in WAYS.items()},
    **{
        f"{name}-dark": Shot(way, 1280, HEIGHTS.get(name, 680), "dark")
        for name, way in WAYS.items()
    },
    **{f"{name}-narrow": Shot(way, 390, 780) for name, way in WAYS.items()},
}
"""Every view in light colours, in dark ones, and on a phone."""
IN_DOCS: Final = frozenset(
    (
        *("overview", "requests", "plan", "failed", "spending", "keys", "models"),
        *("requests-narrow", "overview-dark"),
    )
)
"""The pictures of the documentation; the others are only for their reviewer."""


def main(names: list[str]) -> None:
    REVIEW.mkdir(exist_ok=True)
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
            take(
                browser,
                SHOTS[name],
                url,
                secret,
                (FOLDER if name in IN_DOCS else REVIEW) / f"page-{name}.png",
            )
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
