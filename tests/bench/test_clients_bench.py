"""The benchmark of clients: what it reads from their scripts, without any client."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

from benchmarks.clients import __main__ as clients

CHECKS = """
from checks import read_endpoint, run_checks

endpoint = read_endpoint()


def fails():
    raise ValueError("no reply")


run_checks({"works": lambda: [endpoint.model, 1.5], "fails": fails}, ("pydantic",))
"""


def test_a_client_that_is_not_installed_is_missing(monkeypatch):
    monkeypatch.setitem(clients.MODULES, "langchain", "no_module_of_this_name")
    found = clients.run_client("langchain", sys.executable, "http://127.0.0.1:1/v1")
    assert found["missing"] and clients.summarize({"langchain": found}) == {
        "passed": 0,
        "failed": 0,
        "missing": ["langchain"],
    }


def test_scripts_tell_each_check_and_its_failure(tmp_path, monkeypatch):
    shutil.copy(clients.ROOT / "checks.py", tmp_path)
    (tmp_path / "with_instructor.py").write_text(CHECKS, encoding="utf-8")
    monkeypatch.setattr(clients, "ROOT", tmp_path)
    monkeypatch.setitem(clients.MODULES, "instructor", "pydantic")
    found = clients.run_client("instructor", sys.executable, "http://127.0.0.1:1/v1")
    assert set(found["versions"]) == {"pydantic"}
    assert found["checks"]["works"]["problem"] == "" and found["checks"]["works"]["found"] == ["smollm2", 1.5]
    assert found["checks"]["fails"]["problem"] == "ValueError: no reply"
    assert clients.summarize({"instructor": found}) == {"passed": 1, "failed": 1, "missing": []}
    (tmp_path / "with_instructor.py").write_text("raise SystemExit('broken')", encoding="utf-8")
    broken = clients.run_client("instructor", sys.executable, "http://127.0.0.1:1/v1")
    assert "broken" in broken["checks"]["the script"]["problem"]


def test_every_client_has_a_script_that_compiles():
    for name in clients.MODULES:
        path = clients.ROOT / f"with_{name}.py"
        compile(path.read_text(encoding="utf-8"), str(path), "exec")


def test_the_scripts_need_nothing_of_this_package():
    code = "import json, sys; sys.path.insert(0, sys.argv[1]); import checks; print(json.dumps(sorted(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code, str(clients.ROOT)], capture_output=True, text=True, check=True)
    assert not [name for name in json.loads(shown.stdout) if name.partition(".")[0] in ("evolvent", "torch")]
