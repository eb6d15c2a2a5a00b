"""Policies that a study makes once: by the first process that asks, kept under FOLDER/runs for all that ask later."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evolvent.bench.results import claimed
from evolvent.files import plain_json
from evolvent.models.policy import Policy, load_policy

__all__ = ["noted", "policy_once"]

_WAIT_S = 1800.0  # for another process that makes the same policy
_NOTE = "note.json"


def policy_once(folder: Path, name: str, make: Callable[[], tuple[Policy, Mapping[str, Any]]]) -> Policy:
    """The kept policy of this name; where there is none, `make` says it and what is to be known of it (`noted`).

    It is there whole or not at all.

    Raises:
        Locked: another process has been making it for half an hour.
    """
    place = _place(folder, name)
    with claimed(folder / "locks" / name, wait_s=_WAIT_S):
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
                made = Path(scratch) / "policy"
                policy, note = make()
                policy.save(made)
                (made / _NOTE).write_text(plain_json(note) + "\n", encoding="utf-8")
                made.replace(place)
    return load_policy(place)


def noted(folder: Path, name: str) -> dict[str, Any]:
    """What was noted when a policy was made."""
    return dict(json.loads((_place(folder, name) / _NOTE).read_text(encoding="utf-8")))


def _place(folder: Path, name: str) -> Path:
    return folder / "runs" / name
