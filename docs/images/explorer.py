"""Screenshots of the explorer for README and docs/explorer.md.

depict demo
depict serve runs/demo/depict_sa runs/demo/depict_ca --port 8765 &
python docs/images/explorer.py http://127.0.0.1:8765/
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent


def shoot(page: Page, name: str) -> None:
    """Save what the page shows, without the crosshair."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)
    page.screenshot(path=FOLDER / f"explorer_{name}.png")


def main(address: str) -> None:
    """Use three views of the page at this address as a person would."""
    with sync_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.click("#example")
        page.wait_for_selector("#workspace:not([hidden])")
        page.wait_for_selector("#status:not(:has(progress))", state="attached")
        shoot(page, "classes")
        page.click("#tab-steps")
        page.locator("#step").fill("2")
        shoot(page, "steps")
        page.click("#tab-patch")
        page.locator(".frame").first.click(position={"x": 250, "y": 430})
        page.wait_for_selector(".head-row")
        page.locator(".head-row button").nth(3).click()
        shoot(page, "patch")
        first, patch = (page.locator("body").get_attribute(f"data-{name}") for name in ("first-answer", "patch-answer"))
        print(f"first answer after {first} ms, patch answered after {patch} ms")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
