"""Pictures of the page for the documentation: tools/page_pictures.py URL FOLDER.

URL is that of a server that does nothing else:
octavo serve --max-num-seqs 32 --kv-cache-memory-bytes 160MiB --show-block-texts
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

COLOURS = 128
THEMES = ("a river", "a bridge", "the sea", "a garden", "an old map", "a night train")


def main(url: str, folder: str) -> None:
    """Write page.png, page-dark.png and page-load.png."""
    out = Path(folder)
    chromium = shutil.which("chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = _open(browser, url, "light")
        page.click("#eight")
        page.click(".answers > div:nth-child(3) button")
        page.locator("#followed-tables .sharing").first.wait_for()
        page.wait_for_timeout(1500)
        _picture(page, out / "page.png")
        page.close()
        page = _open(browser, url, "dark")
        page.select_option("#colour", "request")
        page.click("#tab-what-if")
        page.eval_on_selector("#ask-document", "it => it.click()")
        page.wait_for_timeout(1500)
        _picture(page, out / "page-dark.png")
        page.close()
        page = _open(browser, url, "light")
        threads = [threading.Thread(target=_ask, args=(url, place)) for place in range(60)]
        for thread in threads:
            thread.start()
        page.click("#tab-charts")
        page.wait_for_timeout(20_000)
        _picture(page, out / "page-load.png")
        browser.close()
        for thread in threads:
            thread.join()


def _open(browser: Browser, url: str, scheme: str) -> Page:
    size = {"width": 1240, "height": 1040}
    page = browser.new_page(viewport=size, color_scheme=scheme)
    page.goto(url)
    page.wait_for_selector("#status[data-kind=live]")
    page.wait_for_timeout(3000)  # what a page before it has asked for ends
    return page


def _ask(url: str, place: int) -> None:
    about = THEMES[place % len(THEMES)]
    told = f"You are a careful writer of short stories about {about}. " * 12
    body = {"prompt": f"{told}\nStory {place}:", "max_tokens": 160 + 20 * (place % 7)}
    asked = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=300) as answer:
        answer.read()


def _picture(page: Page, path: Path) -> None:
    page.screenshot(path=path)
    with Image.open(path) as whole:
        few = whole.convert("RGB").quantize(
            COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        )
    few.save(path, optimize=True)
    sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), sys.argv[2])
