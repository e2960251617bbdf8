"""A headless Chromium of Debian's, driven by Selenium: pages as people see them, on a desk, a phone, in the dark, on paper."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

PHONE = 390
DESK = 1100


def missing() -> str | None:
    """What is not installed."""
    return next((name for name in ("chromium", "chromedriver") if shutil.which(name) is None), None)


@dataclass
class Browser:
    """One window; every request that a page makes and every complaint of its console is kept."""

    driver: webdriver.Chrome

    def open(self, page: Path, *, width: int = DESK, dark: bool = False, media: str = "screen") -> None:
        """Show a page and wait until its charts are drawn."""
        self._set(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._set("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.driver.get(page.resolve().as_uri())
        WebDriverWait(self.driver, 60).until(
            lambda driver: driver.execute_script(
                "return !document.getElementById('charts') || !!document.body.dataset.drawn"
            )
        )

    def ask(self, script: str) -> Any:
        """What the page answers."""
        return self.driver.execute_script(f"return {script}")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console since the last look."""
        return [entry["message"] for entry in self.driver.execute("getLog", {"type": "browser"})["value"]]

    def requested(self) -> list[str]:
        """Everything that the page fetched, itself aside."""
        return list(self.ask("performance.getEntriesByType('resource').map(entry => entry.name)"))

    def picture(self, path: Path, *, height: int | None = None) -> Path:
        """The page from top to bottom, or its upper part."""
        size = self._set("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": min(height or size["height"], size["height"]),
            "scale": 1,
        }
        shot = self._set("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def printed(self, path: Path) -> Path:
        """The page on paper, A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}
        path.write_bytes(base64.b64decode(self._set("Page.printToPDF", **paper)["data"]))
        return path

    def _set(self, command: str, **values: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, values)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that ends with the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
