"""The upper part of a report as a picture: `python -m tests.report.picture REPORT.html PICTURE.png`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.report.browser import browser

WIDTH, HEIGHT = 1000, 1490


def main() -> None:
    page, picture = map(Path, sys.argv[1:3])
    picture.parent.mkdir(parents=True, exist_ok=True)
    with browser() as window:
        window.open(page, width=WIDTH)
        window.picture(picture, height=HEIGHT)
    print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
