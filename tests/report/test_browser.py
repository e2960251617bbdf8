"""Reports as people see them: drawn, with data, without a complaint, on a phone, in the dark, on paper."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deployer.report.observation import page as observation_page
from tests.observe.simulation import K26, seen

if TYPE_CHECKING:
    from tests.report.browser import Browser

pytestmark = pytest.mark.timeout(180)
CHARTS = "document.querySelectorAll('.chart')"
# What a chart shows: marks of the data, not axes, grid or background.
MARKS = "svg .mark-line.role-mark path, svg .mark-rect.role-mark path, svg .mark-symbol.role-mark path"


def looks_right(browser: Browser) -> int:
    """No complaint, nothing fetched, nothing wider than the window; how many charts with data there are."""
    assert browser.complaints() == []
    assert browser.requested() == []
    wide, window = browser.ask("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window
    drawn = browser.ask(
        f"[...{CHARTS}].map(chart => [...chart.querySelectorAll('{MARKS}')]"
        ".filter(mark => mark.getAttribute('d') && mark.getBoundingClientRect().width + mark.getBoundingClientRect().height > 0).length)"
    )
    assert drawn and all(count > 0 for count in drawn), drawn
    words = browser.ask("document.body.innerText")
    inside = browser.ask(f"[...{CHARTS}].map(chart => chart.innerHTML).join()")
    assert not [word for word in ("undefined", "NaN", "null") if word in words or word in inside]
    return len(drawn)


def test_a_trial_is_drawn_with_all_its_parts(chromium: Browser, trial_page: Path) -> None:
    chromium.open(trial_page)
    assert looks_right(chromium) == 1 + 4 + 4 + 3 + 1  # throughput, latencies, TTFT by load, memory, timeline
    text = chromium.ask("document.body.innerText")
    assert "8 x RTX PRO 6000 Blackwell" in text and "the fastest is: C=1 pp8-async" in text
    headings = chromium.ask("[...document.querySelectorAll('h2')].map(each => each.innerText)")
    assert headings == [
        "Verdict",
        "Throughput",
        "Latency",
        "Time to first token, request by request",
        "All figures",
        "Hours to generate",
        "Memory of each GPU, as planned",
        "Timeline",
        "Early stopping",
        "To do it again",
    ]
    # Three curves of four, two and four levels, with an interval each.
    points = chromium.ask("document.querySelectorAll('#chart0 .mark-symbol.role-mark path').length")
    assert points == 10
    for figure in (
        "577.8",
        "311.3",
        "248.1",
        "decisively worse",
        "does not fit",
        "triton-pp",
        "3f1c1a77be90",
    ):
        assert figure in text, figure
    hours = re.search(r"^900,000\t(.*)$", text, re.M)
    assert hours is not None and hours[1].startswith("110.8 [")


def test_a_value_is_told_on_hover(chromium: Browser, trial_page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    chromium.open(trial_page)
    point = chromium.driver.find_elements(By.CSS_SELECTOR, "#chart0 .mark-symbol.role-mark path")[3]
    ActionChains(chromium.driver).move_to_element(point).perform()
    told = chromium.ask("document.querySelector('#vg-tooltip-element').innerText")
    assert "tp8" in told and "577.8" in told and ".." in told


@pytest.mark.parametrize("width", [360, 390, 768])
def test_readable_on_a_phone(chromium: Browser, trial_page: Path, width: int) -> None:
    chromium.open(trial_page, width=width)
    looks_right(chromium)
    sizes = chromium.ask(
        "[...document.querySelectorAll('.chart svg text, p, td, dd')].filter(each => each.textContent.trim())"
        ".map(each => parseFloat(getComputedStyle(each).fontSize) * (each.ownerSVGElement ? "
        "each.ownerSVGElement.getBoundingClientRect().width / each.ownerSVGElement.viewBox.baseVal.width : 1))"
    )
    assert min(sizes) >= 10.5


def _contrasts(browser: Browser) -> list[float]:
    """Of all text and of the lines' colours against the page, as WCAG counts it."""
    colours = browser.ask(
        "[...document.querySelectorAll('h1, h2, p, td, th, dd, dt, .tile span, .tile b')].map(each => getComputedStyle(each).color)"
        ".concat([...document.querySelectorAll('.chart svg .role-axis text')].map(each => getComputedStyle(each).fill))"
        ".concat([...document.querySelectorAll('#chart0 .mark-line.role-mark path')].map(each => getComputedStyle(each).stroke))"
    )
    page = _light(browser.ask("getComputedStyle(document.body).backgroundColor"))
    return [(max(page, other) + 0.05) / (min(page, other) + 0.05) for other in map(_light, set(colours))]


def _light(colour: str) -> float:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_readable_in_the_light_and_in_the_dark(chromium: Browser, trial_page: Path, dark: bool) -> None:
    chromium.open(trial_page, dark=dark)
    looks_right(chromium)
    assert (_light(chromium.ask("getComputedStyle(document.body).backgroundColor")) < 0.1) is dark
    assert min(_contrasts(chromium)) >= 3


def test_printed(chromium: Browser, trial_page: Path, tmp_path: Path) -> None:
    chromium.open(trial_page, dark=True)  # the screen is dark, paper is not
    printed = chromium.printed(tmp_path / "report.pdf").read_bytes()
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert printed.startswith(b"%PDF") and 3 <= pages <= 12
    chromium.open(trial_page, dark=True, media="print", width=720)
    assert _light(chromium.ask("getComputedStyle(document.querySelector('h1')).color")) < 0.1
    looks_right(chromium)


def test_bench_and_compare(chromium: Browser, state: Path, tmp_path: Path) -> None:
    from deployer.operations.compare import both_sides, compare
    from deployer.operations.report import of_comparison, of_run, write_report
    from tests.report.story import trial

    trial()
    sides = both_sides("tp8", "pp8-async")
    chromium.open(write_report(of_run(sides[0][0]), tmp_path / "bench.html"))
    assert looks_right(chromium) == 1 + 4 + 4 + 1
    assert "577.8 output tokens per second at C=64" in chromium.ask("document.body.innerText")
    report = of_comparison(compare("tp8", "pp8-async"), *sides)
    chromium.open(write_report(report, tmp_path / "compare.html"))
    assert looks_right(chromium) == 1 + 1 + 4 + 4 + 2
    text = chromium.ask("document.body.innerText")
    assert "FAIL: at C=64 pp8-async is 39.4% slower than tp8" in text and "gate 0.9" in text


def test_what_is_strange_is_shown_as_text(chromium: Browser, state: Path, tmp_path: Path) -> None:
    """Names that others chose, numbers that are not there, and nothing measured at all."""
    from deployer.operations.report import of_run, of_trial, write_report
    from tests.bench.records import level_record, run_record
    from tests.report.story import trial

    nasty = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
    empty: dict[str, Any] = dict.fromkeys(("ttft_ms", "tpot_ms", "gap_ms", "e2e_ms"))
    levels = [
        level_record(1, None, **empty, valid=False, invalid_reason=nasty, samples=(), failed=3),
        level_record(8, 95.0),
    ]
    run = run_record(levels=levels, subject={"profile": nasty, "host": nasty})
    chromium.open(write_report(of_run(run), tmp_path / "nasty.html"))
    looks_right(chromium)
    assert chromium.ask("window.hit") is None and nasty in chromium.ask("document.body.innerText")
    nothing = run_record(levels=[levels[0]], subject={"profile": "tp8"})
    chromium.open(write_report(of_run(nothing), tmp_path / "nothing.html"))
    assert chromium.complaints() == [] and "No level can be believed" in chromium.ask(
        "document.body.innerText"
    )
    begun = trial(ended_at=None, end=None, answers=(), sentence="", legs=())
    chromium.open(write_report(of_trial(begun), tmp_path / "begun.html"))
    assert chromium.complaints() == [] and "has not ended yet" in chromium.ask("document.body.innerText")


def test_an_observation(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "observation.html"
    path.write_text(observation_page(seen(K26)), encoding="utf-8")
    for width in (1100, 390):
        chromium.open(path, width=width)
        assert looks_right(chromium) >= 2
    specs = json.loads(chromium.ask("document.getElementById('charts').textContent"))
    assert len({row["row"] for row in specs[0]["data"]["values"]}) == 8
