"""One entry of the catalogue, as frozen data."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from deployer.patches.unified import DiffError, parse_diff
from deployer.schema.record import Count, EngineVersion, FlagName, PatchName, Record, Text
from deployer.schema.versions import Release, within

SHORTEST_REPLACEMENT = 12
LONGEST_TRACEBACK = 80

ModelKind = Literal["mha", "mla", "hybrid-linear", "hybrid-swa", "minimax-sparse"]


def _check_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


def _check_package_path(value: str) -> str:
    parts = value.split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or parts[0] in ("sglang", "python")
        or not value.isprintable()
    ):
        raise ValueError(
            f"{value!r} must be a path inside the sglang package, such as srt/layers/attention/x.py"
        )
    return value


Pattern = Annotated[str, AfterValidator(_check_pattern)]
PackagePath = Annotated[str, AfterValidator(_check_package_path)]
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Span(Record):
    """Releases from `first` to `last`, both included; an open end is None. Written `0.4.6.post2 .. 0.5.17`."""

    first: EngineVersion | None = None
    last: EngineVersion | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        first, dots, last = (part.strip() for part in value.partition(".. " if ".. " in value else ".."))
        return {"first": first or None, "last": (last if dots else first) or None}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first and self.last and Release(self.last) < Release(self.first):
            raise ValueError(f"{self} ends before it begins")
        return self

    def holds(self, version: str) -> bool:
        """Whether a release lies in the span."""
        return within(version, self.first, self.last)

    def __str__(self) -> str:
        return (
            self.first
            if self.first and self.first == self.last
            else f"{self.first or ''} .. {self.last or ''}".strip()
        )


Spans = tuple[Span, ...]


class Change(Record):
    """An anchored replacement: `find` must be there `count` times, in the class `within` if one is named."""

    find: str = Field(min_length=1, description="The text as it is, at least as much as makes it unique.")
    replace: str = Field(description="The text as it is to be.")
    count: Count = Field(1, description="How often the anchor must be there; any other number is a conflict.")
    within: ClassName | None = Field(None, description="The top-level class that the anchor must lie in.")
    whole_lines: bool = Field(False, description="The anchor begins at the start of a line.")

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if self.find == self.replace:
            raise ValueError("changes nothing: `find` and `replace` are the same")
        return self


class Target(Record):
    """What to change in one file of the package, in some releases or all affected ones."""

    path: PackagePath = Field(description="The file, inside the sglang package.")
    releases: Spans | None = Field(
        None, min_length=1, description="Only for these releases; unset: all affected."
    )
    changes: tuple[Change, ...] = Field((), description="Anchored replacements.")
    diff: str | None = Field(None, exclude=True, description="Or the hunks of a unified diff of this file.")
    patched_by: tuple[Pattern, ...] = Field((), description="How the text reads once the mistake is gone.")
    fixed_by: tuple[Pattern, ...] = Field((), description="How upstream's own fix reads.")

    @model_validator(mode="before")
    @classmethod
    def _read_diff(cls, value: object) -> object:
        if not isinstance(value, dict) or not isinstance(value.get("diff"), str):
            return value
        if value.get("changes"):
            raise ValueError("has both `changes` and `diff`; give one")
        try:
            hunks = [hunk for file in parse_diff(value["diff"], header_optional=True) for hunk in file.hunks]
        except DiffError as error:
            raise ValueError(f"line {error.line} of the diff {error.sentence}") from None
        return {**value, "changes": [hunk.as_change() for hunk in hunks]}

    @model_validator(mode="after")
    def _recognisable(self) -> Self:
        if not self.changes:
            raise ValueError(f"{self.path} has neither `changes` nor a `diff`")
        for change in self.changes:
            if len(change.replace.strip()) < SHORTEST_REPLACEMENT and not self.patched_by:
                raise ValueError(
                    f"the replacement {change.replace!r} is too short to recognise; give `patched_by`"
                )
        return self


class Bite(Record):
    """When the mistake bites: with these attention back ends, on such pipeline stages, for such models."""

    releases: Spans | None = Field(
        None, min_length=1, description="Only in these releases; unset: all affected."
    )
    backends: tuple[Text, ...] = Field(description="Attention back ends that run into it.")
    stages: Literal["beyond-own-layers", "any-later"] = Field(
        description="beyond-own-layers: a stage that starts at a layer above its own count; any-later: any but the first."
    )
    model_kinds: tuple[ModelKind, ...] = Field((), description="Only such models; none: all.")
    except_model_kinds: tuple[ModelKind, ...] = Field((), description="But not such models.")

    def meets(self, backend: str, stage_layers: Sequence[int], model_kinds: Collection[str]) -> bool:
        """Whether a service of this back end, layers per stage and kind of model runs into it."""
        starts = [0, *accumulate(stage_layers)][:-1] if stage_layers else []
        beyond = any(start > own for start, own in zip(starts, stage_layers, strict=True))
        return (
            backend in self.backends
            and (len(stage_layers) > 1 if self.stages == "any-later" else beyond)
            and (not self.model_kinds or any(kind in self.model_kinds for kind in model_kinds))
            and not any(kind in self.except_model_kinds for kind in model_kinds)
        )


class Workaround(Record):
    """A way to run without the patch: engine flags, or words."""

    text: Text
    flags: dict[FlagName, str | int | bool] = Field(default_factory=dict)

    def taken(self, flags: Mapping[str, object]) -> bool:
        """Whether a service's flags hold this way already."""
        return bool(self.flags) and all(flags.get(name) == value for name, value in self.flags.items())


class Upstream(Record):
    """Where upstream knows of it."""

    issue: Text | None = None
    fix: Text | None = None
    fixed_in: EngineVersion | None = None
    earlier: tuple[Text, ...] = ()


class Note(Record):
    """What is special in some of the affected releases."""

    releases: Spans = Field(min_length=1)
    text: Text


class PatchEntry(Record):
    """A source patch, or a known mistake that has none (no `files`)."""

    name: PatchName
    title: Text = Field(description="One line for people.")
    symptom: tuple[Pattern, ...] = Field((), description="What the journal shows, line after line.")
    affected: Spans | None = Field(None, min_length=1, description="Affected releases; unset: every one.")
    checked_through: EngineVersion | None = Field(None, description="The newest release that was looked at.")
    upstream: Upstream = Upstream()
    files: tuple[Target, ...] = ()
    risk: Text = Field("not stated", description="What could go wrong with the patch itself.")
    workarounds: tuple[Workaround, ...] = ()
    bites: tuple[Bite, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def has_patch(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self.files)

    def affects(self, version: str) -> bool:
        """Whether a release is one of the affected ones."""
        return self.affected is None or any(span.holds(version) for span in self.affected)

    def bitten_by(
        self,
        *,
        version: str,
        backend: str,
        stage_layers: Sequence[int],
        model_kinds: Collection[str] = (),
        flags: Mapping[str, object] | None = None,
    ) -> Bite | None:
        """The condition that such a service meets; layers unknown: pass 1 for each stage."""
        if not self.affects(version) or any(way.taken(flags or {}) for way in self.workarounds):
            return None
        for bite in self.bites:
            here = bite.releases is None or any(span.holds(version) for span in bite.releases)
            if here and bite.meets(backend, stage_layers, model_kinds):
                return bite
        return None

    def shown_in(self, lines: Sequence[str]) -> str | None:
        """The last line of the symptom, when the lines of a journal show all of it, in order and close together."""
        if not self.symptom:
            return None
        for at, line in enumerate(lines):
            if re.search(self.symptom[0], line):
                found = self._rest_of_symptom(iter(lines[at : at + LONGEST_TRACEBACK]))
                if found is not None:
                    return found
        return None

    def _rest_of_symptom(self, lines: Iterator[str]) -> str | None:
        line: str | None = None
        for pattern in self.symptom:
            line = next((one for one in lines if re.search(pattern, one)), None)
            if line is None:
                return None
        return line


def patch_request(entry: PatchEntry) -> dict[str, Any]:
    """The entry as plain JSON, with what the agent needs to judge and to apply it."""
    request: dict[str, Any] = entry.model_dump(
        mode="json",
        include={"name", "title", "checked_through", "files", "notes"},
        exclude={"files": {"__all__": {"diff"}}},
    )
    request["affected"] = None if entry.affected is None else _plain(entry.affected)
    request["workarounds"] = [way.text for way in entry.workarounds]
    for target, written in zip(request["files"], entry.files, strict=True):
        target["releases"] = None if written.releases is None else _plain(written.releases)
    for note, told in zip(request["notes"], entry.notes, strict=True):
        note["releases"] = _plain(told.releases)
    return request


def _plain(spans: Spans) -> list[list[str | None]]:
    return [[span.first, span.last] for span in spans]
