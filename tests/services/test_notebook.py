"""The picture of a plan, drawn by a browser as a notebook draws it."""

from __future__ import annotations

from playwright.sync_api import sync_playwright

import brim

TURNS = [
    {"role": ("user", "assistant")[number % 2], "content": f"{number} " + "word " * 100}
    for number in range(41)
]


def test_the_bars_of_a_plan_are_visible(chromium: str) -> None:
    plan = brim.fit(TURNS, model="gpt-4o", window=1_500, reply=300).plan
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 800, "height": 400})
        page.set_content(plan._repr_html_())
        for label, outcomes in (("history", {"kept", "dropped"}), ("window", {"kept", "reply"})):
            parts = page.get_by_role("img", name=label).locator("div").all()
            boxes = [part.bounding_box() for part in parts]
            assert all(box and box["height"] >= 10 and box["width"] >= 1 for box in boxes)
            assert sum(box["width"] for box in boxes if box) > 600
            assert outcomes <= {str(part.get_attribute("title")).split(":")[0] for part in parts}
        browser.close()
