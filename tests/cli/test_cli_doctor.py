"""`evolvent doctor`: every finding, and a failing one."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from evolvent.cli import doctor
from evolvent.cli.main import main
from evolvent.cli.terminal.console import make_console


def _found(folder: Path) -> dict[str, doctor.Finding]:
    return {found.check_name: found for found in doctor.examine(folder, make_console(io.StringIO(), {}))}


def test_a_working_machine(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("evolvent works here\n")
    assert list(tmp_path.iterdir()) == []
    found = _found(tmp_path)
    assert {"python", "numpy", "[train]", "threads", "disk", "folder", "isolation", "output"} <= set(found)
    assert found["output"].detail == "no terminal, 80 columns, no colour, utf-8"


def test_a_folder_that_cannot_be_written():
    found = _found(Path("/proc/self"))
    assert found["folder"].state == "fail"


def test_missing_packages(monkeypatch):
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    found = _found(Path.cwd())
    assert found["numpy"].state == "fail" and found["[train]"].state == "note"
    assert "pip install 'evolvent[train]'" in found["[train]"].detail


@pytest.mark.parametrize(
    "words", [["doctor"], ["--help"], ["worlds", "list"], ["worlds", "show", "lookup"], ["runs", "list"]], ids=" ".join
)
def test_it_loads_no_torch(command, words):
    """Nor do the other verbs that need no model; what draws reports and reads Parquet is left alone too."""
    code = (
        f"from evolvent.cli.main import main; main({words!r}); import sys, json; print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=command.environment(), check=True
    )
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert not {"torch", "transformers", "pyarrow", "jinja2"} & set(loaded)
