"""Journal lines -> causes, by rules that are data: the same judgement on the host and in `deploy diagnose`."""

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

# What an engine prints while it starts, in the order of SGLang 0.4.6 to 0.5.23.
STAGES = (
    ("imports", re.compile(r"server_args=")),
    ("distributed", re.compile(r"Init (torch distributed|parallel) begin", re.I)),
    ("weights", re.compile(r"Load weight begin")),
    ("weights-loaded", re.compile(r"Load weight end")),
    ("kv-cache", re.compile(r"KV Cache is allocated|Memory pool end")),
    ("cuda-graphs", re.compile(r"Capture .*graph begin", re.I)),
    ("cuda-graphs-captured", re.compile(r"Capture .*graph end", re.I)),
    ("http", re.compile(r"Uvicorn running on")),
    ("warmed-up", re.compile(r"The server is fired up and ready to roll!")),
)
ORDER = {name: number for number, (name, _) in enumerate(STAGES)}
# `[2026-11-29 12:34:07 PP2 TP0] text`; the main process has no rank.
PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]*?((?: [A-Z_]+\d+)*)\] ")
# `Nov 29 12:34:07 host python3[332]: text`, and the same with an ISO time.
JOURNAL = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\S+) (\S+) (\S+?)\[(\d+)\]: ?"
)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NEW_RUN = re.compile(r"server_args=(?:ServerArgs\(|\{)")
SYSTEMD_STARTS = re.compile(r"(?:Started|Starting) \S+.*\.service|Started .*sglang", re.I)
# Lines that only an engine writes: words that fit many programs count where one of these stands too.
ENGINE = re.compile(
    r"sglang|server_args=|Scheduler hit an exception|Load weight begin|^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: [A-Z_]+\d+)+\]"
)
AVAILABLE = re.compile(r"Load weight (begin|end)\..*?avail mem=([\d.]+) GB")
SETTING = re.compile(
    r"['\"]?\b(mem_fraction_static|cuda_graph_max_bs|port|tp_size|pp_size)['\"]?\s*[=:]\s*([\d.e-]+)"
    r"|\b(weight_cache_mode)['\"]?\s*[=:]\s*['\"]?(client)\b"
)
LONGEST_TRACEBACK = 80
GIB = {"KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0, "TiB": 2.0**10}


class Cause(NamedTuple):
    """A line that explains a failure, by a rule."""

    cause: str
    permanent: bool
    fatal: bool
    hint: str
    evidence: str
    rank: str
    line: int = 0
    order: int = 0

    def document(self) -> Dict[str, Any]:
        """As JSON, as `diagnose` gives it."""
        return {
            "cause": self.cause,
            "permanent": self.permanent,
            "rank": self.rank,
            "evidence": self.evidence,
            "hint": self.hint,
        }


class Rule:
    """One rule, compiled. `then` are patterns that must follow in order within one traceback."""

    def __init__(self, order: int, rule: Dict[str, Any]) -> None:
        self.order = order
        self.pattern = re.compile(str(rule["pattern"]))
        self.then = tuple(re.compile(str(each)) for each in rule.get("then") or ())
        self.cause = str(rule["cause"])
        self.permanent = bool(rule.get("permanent"))
        self.fatal = bool(rule.get("fatal"))
        self.stages = frozenset(rule.get("stages") or ())
        self.engine_only = bool(rule.get("engine_only"))
        self.alone = bool(rule.get("alone"))
        self.hint = str(rule.get("hint", ""))


class Reading:
    """What is known at one line: whose it is, at which stage of the start, with which figures before."""

    def __init__(self) -> None:
        self.is_engine = False
        self.owner: Dict[str, str] = {}  # speaker -> rank of its last prefixed line
        self.stage: Dict[str, str] = {}  # rank -> stage
        self.figures: Dict[str, str] = {}
        self.memory: Dict[str, Dict[str, float]] = {}

    def take(self, raw: str) -> Tuple[str, str, str]:
        """The text without what journals put before it, its rank, and the stage that rank has come to."""
        text = COLOUR.sub("", raw)
        head = JOURNAL.match(text)
        speaker = ""
        if head:
            text, speaker = text[head.end() :], head.group(1) + head.group(3)
        self.is_engine = self.is_engine or ENGINE.search(text) is not None
        prefix = PREFIX.match(text)
        if prefix:
            self.owner[speaker] = prefix.group(1).strip()
        rank = self.owner.get(speaker, "")
        if NEW_RUN.search(text):
            self.stage.clear()
            self.memory.clear()
            self.figures = {found[1] or found[3]: found[2] or found[4] for found in SETTING.finditer(text)}
        for name, pattern in STAGES:
            if pattern.search(text):
                self.stage[rank] = name
        self._measure(text, rank)
        return text, rank, self.at(rank)

    def at(self, rank: str) -> str:
        """The later of the rank's own stage and the main process's."""
        own, main = self.stage.get(rank, ""), self.stage.get("", "")
        return max(own, main, key=lambda name: ORDER.get(name, -1))

    def _measure(self, text: str, rank: str) -> None:
        found = AVAILABLE.search(text)
        if found:
            self.memory.setdefault(rank, {})[found.group(1)] = float(found.group(2))


class Rules:
    """Rules as data: pattern -> cause, the strongest first."""

    def __init__(self, rules: Sequence[Dict[str, Any]]) -> None:
        self.rules: List[Rule] = []
        for order, rule in enumerate(rules):
            try:
                self.rules.append(Rule(order, rule))
            except (re.error, KeyError):
                continue

    def match(self, text: str) -> Optional[Cause]:
        """The cause that one line names by itself."""
        for rule in self.rules:
            found = None if rule.then or rule.stages else rule.pattern.search(text)
            if found:
                prefix = PREFIX.match(text)
                hint = filled(rule.hint, found.groupdict(), {}, {})
                rank = prefix.group(1).strip() if prefix else ""
                return Cause(rule.cause, rule.permanent, rule.fatal, hint, text[:500], rank, 0, rule.order)
        return None

    def judge(self, lines: Sequence[str], engine: bool = False) -> List[Cause]:
        """Every cause that the lines show, the root first: by strength of rule, each by its first line."""
        reading = Reading()
        reading.is_engine = engine or any(ENGINE.search(line) for line in lines)
        texts = [COLOUR.sub("", line) for line in lines]
        found: Dict[int, Cause] = {}
        for number, raw in enumerate(lines):
            text, rank, stage = reading.take(raw)
            if len(text) > 8000:  # a dump of arguments; what fails is never said there
                continue
            for rule in self.rules:
                if rule.order in found or (rule.engine_only and not reading.is_engine):
                    continue
                if rule.stages and stage not in rule.stages:
                    continue
                match = rule.pattern.search(text)
                if match is None:
                    continue
                evidence = text if not rule.then else _follow(rule, texts, number)
                if evidence is None:
                    continue
                hint = filled(rule.hint, match.groupdict(), reading.figures, reading.memory.get(rank, {}))
                found[rule.order] = Cause(
                    rule.cause,
                    rule.permanent,
                    rule.fatal,
                    hint,
                    evidence.strip()[:500],
                    rank,
                    number,
                    rule.order,
                )
        return self._distinct([found[order] for order in sorted(found)])

    def root(self, lines: Sequence[str]) -> Optional[Cause]:
        """The root cause among an engine's lines."""
        return next(iter(self.judge(lines, engine=True)), None)

    def _distinct(self, causes: List[Cause]) -> List[Cause]:
        """One entry a cause id, the strongest; what counts only alone goes where anything stands before it."""
        alone = {rule.order for rule in self.rules if rule.alone}
        kept: Dict[str, Cause] = {}
        for cause in causes:
            if cause.order not in alone or not kept:
                kept.setdefault(cause.cause, cause)
        return list(kept.values())


def _follow(rule: Rule, texts: Sequence[str], start: int) -> Optional[str]:
    """The last line of a symptom that goes over several, when all of it is there."""
    rest = iter(texts[start : start + LONGEST_TRACEBACK])
    last: Optional[str] = None
    for pattern in (rule.pattern, *rule.then):
        last = next((text for text in rest if pattern.search(text)), None)
        if last is None:
            return None
    return None if last is None else JOURNAL.sub("", last)


def filled(hint: str, groups: Dict[str, Any], settings: Dict[str, str], memory: Dict[str, float]) -> str:
    """The hint with its numbers; of a part [[one||other]] the first whose numbers are known is taken, or none."""
    known = {name: str(value) for name, value in {**settings, **groups}.items() if value}
    known.update(_sums(known, memory))

    def part(match: "re.Match[str]") -> str:
        for way in match.group(1).split("||"):
            if all(name in known for name in re.findall(r"\{(\w+)\}", way)):
                return _put(way, known)
        return ""

    return _put(re.sub(r"\[\[(.*?)\]\]", part, hint), known).strip()


def _put(text: str, known: Dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: known.get(m.group(1), m.group(1)), text)


def _sums(known: Dict[str, str], memory: Dict[str, float]) -> Dict[str, str]:
    """Numbers that follow from those in the log: by how much to lower or to what to raise the memory fraction."""
    sums: Dict[str, str] = {}
    try:
        if "tried" in known and "total" in known:
            tried, free, total = (_gib(known.get(name, "0 GiB")) for name in ("tried", "free", "total"))
            step = max(0.01, (tried - free + 0.5) / total)
            sums["lower_by"] = f"{step:.2f}"
            if "mem_fraction_static" in known:
                lower = int(100 * (float(known["mem_fraction_static"]) - step) + 1e-6) / 100
                sums["lower_to"] = f"{max(0.05, lower):.2f}"
        if memory.get("begin") and memory.get("end"):
            # SGLang keeps (1 - fraction) of what was free before the weights; the rest must be more than nothing.
            least = 1 - memory["end"] / memory["begin"]
            sums["least"] = f"{least:.3f}"
            sums["weights"] = f"{memory['begin'] - memory['end']:.1f}"
            sums["before"] = f"{memory['begin']:.1f}"
    except (ValueError, ZeroDivisionError):
        pass
    return sums


def _gib(text: str) -> float:
    number, _, unit = text.partition(" ")
    return float(number) * GIB.get(unit, 1.0)
