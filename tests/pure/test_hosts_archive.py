"""The agent's archive: the same for the same sources, and runnable."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from deployer.hosts.archive import build_archive


def make_package(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "words.py").write_text("WORD = 'hello'\n")
    (folder / "__main__.py").write_text(
        "import pkgutil\nfrom .words import WORD\n\n\ndef main():\n"
        "    print(WORD, pkgutil.get_data(__package__, 'data/rules.json').decode())\n    return 3\n"
    )
    (folder / "data" / "rules.json").write_text("[1]")
    return folder


def test_the_archive_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    one, two = make_package(tmp_path / "one"), make_package(tmp_path / "two")
    for left_behind in ("__pycache__/words.cpython-311.pyc", ".hidden/x.py", ".words.py.swp", "stray.pyc"):
        (two / left_behind).parent.mkdir(exist_ok=True)
        (two / left_behind).write_bytes(os.urandom(8))
    os.utime(two / "words.py", (0, 0))
    (two / "words.py").chmod(0o600)
    assert build_archive(one) == build_archive(two)
    (two / "data" / "rules.json").write_text("[2]")
    assert build_archive(one).digest != build_archive(two).digest


def test_the_archive_runs_the_package(tmp_path: Path) -> None:
    file = tmp_path / "agent.pyz"
    file.write_bytes(build_archive(make_package(tmp_path / "package")).content)
    assert zipfile.ZipFile(file).namelist()[:2] == ["__main__.py", "agent/__init__.py"]
    ran = subprocess.run([sys.executable, "-I", file], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("hello [1]\n", 3), ran.stderr
