"""A page from its sections: tables, charts, facts and texts, in one file that needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from itertools import groupby
from typing import Any, Final

from deployer.errors import UsageError

INSTALL: Final = "in the checkout of deploy: pip install '.[report]'"
LONG: Final = 28
JUDGED: Final = (
    *("PASS", "FAIL", "INCONCLUSIVE", "committed", "broken"),
    *("measured", "stopped", "refused", "failed", "skipped", "interrupted"),
)


@dataclass(frozen=True)
class Table:
    """A head and rows of text; the columns named in `words` are text, the others are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    kind: str = "table"

    def mark(self, place: int, cell: str) -> str:
        """How a cell looks: words of judgement have their colours, sentences may break."""
        left = ["left"] if place in self.words else []
        return " ".join([*left, *([cell] if cell in JUDGED else []), *(["long"] if len(cell) > LONG else [])])


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite specification, and in words what it shows."""

    label: str
    spec: Mapping[str, Any]
    small: bool = False
    """Several of these stand beside each other where there is room."""
    named: bool = False
    """The label stands above it."""
    kind: str = "chart"


@dataclass(frozen=True)
class Facts:
    """Names and values."""

    title: str
    rows: Sequence[tuple[str, str]]
    kind: str = "facts"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Card:
    """A judgement with what stands behind it."""

    title: str
    text: str
    lists: Sequence[tuple[str, Sequence[str]]] = ()
    after: str = ""
    kind: str = "card"


Part = Table | Chart | Facts | Text | Card


@dataclass(frozen=True)
class Section:
    """A heading, a sentence on it, and its parts; without parts it is left out."""

    title: str
    parts: Sequence[Part]
    note: str = ""
    legend: Sequence[tuple[str, str]] = ()
    """Colours and names, where its charts share them."""

    @property
    def groups(self) -> list[tuple[bool, list[Part]]]:
        """The parts, those side by side together."""
        runs = groupby(self.parts, key=lambda part: isinstance(part, Chart) and part.small)
        return [(small, list(parts)) for small, parts in runs]


@dataclass(frozen=True)
class Page:
    """A whole page."""

    title: str
    sentence: str
    sections: Sequence[Section]
    tiles: Sequence[tuple[str, str, str]] = ()
    """The few numbers that matter: name, value, remark."""
    foot: str = ""


def check_drawable() -> None:
    """Refuse before anything is measured when reports could not be made afterwards."""
    try:
        import_module("vl_convert")
    except ImportError as error:
        raise UsageError(
            "a report needs vl-convert-python, which holds the charting library",
            hint=INSTALL,
        ) from error


def html(page: Page) -> str:
    """The page as one file."""
    from jinja2 import Environment, StrictUndefined

    check_drawable()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(files("deployer.report").joinpath("page.html.j2").read_text("utf-8"))
    sections = [section for section in page.sections if section.parts]
    charts = [part.spec for section in sections for part in section.parts if isinstance(part, Chart)]
    return template.render(page=page, sections=sections, charts=charts, library=_library() if charts else "")


@cache
def _library() -> str:
    """Vega, Vega-Lite and Vega-Embed in one script."""
    bundle: str = import_module("vl_convert").javascript_bundle()
    return bundle.replace("</script", "<\\/script")
