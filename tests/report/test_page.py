"""Reports that cannot be made are refused before anything is measured; a page is one file and little else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deployer.report.page import Page, Section, Table, Text, html

WITHOUT = "import sys; sys.modules['vl_convert'] = None; from deployer.cli import main; main()"


def deploy(*words: str, program: str = "from deployer.cli import main; main()") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--json"], capture_output=True, text=True, check=False
    )
    error = json.loads(done.stdout)["error"]
    return done.returncode, error["message"], error["hint"]


@pytest.mark.parametrize(
    "words",
    [
        ("bench", "--url", "http://127.0.0.1:1", "--report"),
        ("compare", "a", "b", "--report"),
        ("trial", "--profiles", "tp8", "--report"),
        ("observe", "--html"),
    ],
    ids=lambda words: words[0],
)
def test_what_would_fail_at_the_end_is_refused_at_the_beginning(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    code, message, hint = deploy(*words, str(tmp_path / "x.html"), program=WITHOUT)
    assert code == 2 and "vl-convert-python" in message and hint.endswith(": pip install '.[report]'")
    code, message, _ = deploy(*words, str(tmp_path / "nowhere" / "x.html"))
    assert code == 2 and "no such folder" in message


def test_tables_alone_need_no_script() -> None:
    page = Page(
        "a & b", "<i>", [Section("Empty", []), Section("T", [Table(("x", "n"), [("<b>", "1")]), Text("'")])]
    )
    text = html(page)
    assert "<script" not in text and "Empty" not in text
    assert "a &amp; b" in text and "&lt;b&gt;" in text and "&lt;i&gt;" in text
