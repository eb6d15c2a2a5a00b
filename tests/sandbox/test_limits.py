from __future__ import annotations

import dataclasses

import pytest

from evolvent.errors import ConfigError
from evolvent.sandbox.limits import CallRequest, Outcome, SandboxLimits


def test_the_published_defaults():
    assert dataclasses.asdict(SandboxLimits()) == {
        "cpu_s": 5,
        "wall_s": 5.0,
        "memory_mb": 512,
        "total_mb": 1024,
        "processes": 64,
        "files": 64,
        "file_mb": 8,
        "tmp_mb": 16,
        "output_kb": 64,
    }


def test_all_wrong_numbers_at_once():
    with pytest.raises(ConfigError) as caught:
        SandboxLimits(cpu_s=0, wall_s=float("inf"), memory_mb=-1, processes=1, files=float("nan"))
    wrong = [problem.where for problem in caught.value.problems]
    assert wrong == ["limits.cpu_s", "limits.wall_s", "limits.memory_mb", "limits.files"]


def test_only_a_value_is_ok():
    assert Outcome("value").ok
    assert not any(Outcome(s).ok for s in ("raised", "timeout", "killed", "malformed", "limit"))
    assert CallRequest("f") == CallRequest("f", (), {})
