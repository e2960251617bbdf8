"""The views on a terminal: 80 columns are enough, and nothing but text where there is no terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deployer.cli.observe_view import LiveView, figures, live_rows, print_observation, spark
from deployer.observe.window import Gathering, gather
from tests.observe.simulation import K26, SLOW_STAGE, events, evidence, seen, stages_of

COLUMNS = 80
WATCH = """
from deployer.cli.observe_view import LiveView
from deployer.observe.window import Gathering
from tests.observe.simulation import K26, events, stages_of
gathering, stages = Gathering(), stages_of(K26)
with LiveView("ct200", 60) as view:
    for event in events(K26):
        gathering.take(event)
    view(gathering, stages)
"""


def test_a_row_for_each_stage_in_eighty_columns() -> None:
    rows = live_rows(gather(events(K26)), stages_of(K26))
    assert [row.split("GPU")[0].strip() for row in rows] == [f"stage {n}" for n in range(8)]
    assert max(map(len, rows)) <= COLUMNS
    first, last = rows[0], rows[-1]
    assert "7 layers" in first and "8 layers" in last and last.count("█") > first.count("█") > 5
    assert set(spark([0, 50, 100])) <= set("▁▂▃▄▅▆▇█")


def test_batch_queue_and_speed_are_shown() -> None:
    text = figures(gather(events(K26)))
    assert "running 32 waiting 20" in text and "batch 4" in text and "tok/s" in text


def test_the_judgement_s_table_fits_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_observation(seen(SLOW_STAGE, baseline=evidence(K26)))
    lines = capsys.readouterr().out.splitlines()
    assert "\x1b" not in "".join(lines)
    assert max(len(line) for line in lines if line.startswith("stage")) <= COLUMNS
    assert any(line.startswith("imbalanced: stage 3 ") for line in lines)
    assert "  output_tokens_per_s" in "\n".join(lines)


def test_off_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    gathering, stages = Gathering(), stages_of(K26)
    with LiveView("ct200", 60) as view:
        for event in events(K26):
            gathering.take(event)
        view(gathering, stages)
    out, err = capsys.readouterr()
    assert out == "" and "\x1b" not in err
    (line,) = err.splitlines()
    assert line.startswith("[ct200]") and "use % by row:" in line


def test_on_a_terminal_the_rows_are_drawn_in_its_width(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    got = bytearray()
    reader = threading.Thread(target=_drain, args=(ours, got))
    reader.start()
    assert process.wait(60) == 0
    reader.join(10)
    text = got.decode(errors="replace")
    drawn = [line for line in text.replace("\r", "").split("\n") if "stage " in line]
    assert len({line[line.index("stage ") :][:7] for line in drawn}) == 8
    assert max(len(line[line.index("stage ") :].split("\x1b")[0]) for line in drawn) <= COLUMNS


def _drain(descriptor: int, got: bytearray) -> None:
    while True:
        try:
            some = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            return
        if not some:
            return
        got += some
