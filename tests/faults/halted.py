"""A long command that is killed by SIGKILL at two of its writes and resumed, and what a user keeps of it.

    ends_equal(folder, "eval", Long(("eval", "--worlds", "lookup"), measured))

runs it whole, then kills and resumes it, in `folder`, and compares. What is compared is without clocks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.store.store import Store
from tests.faults.launched import Launched

CLOCKS = ("_ms", "_s", "seconds")  # how the names of clocks end


@dataclass(frozen=True)
class Long:
    """A command, what of it must be equal, and how it goes on: `--resume RUN`, or the same words once more."""

    words: tuple[object, ...]
    outcome: Callable[[Path], object]
    resumes: bool = True
    verb: int = 1  # how many words its verb has
    to: tuple[str, ...] = ("--to", "{}")  # the words that say where it writes; {} is the name of the run

    def begin(self, run: str) -> tuple[object, ...]:
        """The words that begin a run."""
        return (*self.words, *(word.format(run) for word in self.to))

    def again(self, place: Path, run: str) -> tuple[object, ...]:
        """The words that go on with it; where no settings were kept yet, those that begin it."""
        if self.resumes and (place / run / "config.toml").exists():
            return (*self.words[: self.verb], "--resume", run)
        return self.begin(run)


def ends_equal(place: Path, name: str, long: Long) -> None:
    """Run a command whole, and another time killed twice: the outcomes are equal."""
    slug = name.replace(" ", "-")
    whole, halting = f"{slug}-whole", f"{slug}-halting"
    writes = ended(place, long.begin(whole))
    assert writes >= 4, "there is no moment to kill it in"
    ended(place, long.begin(halting), killed_at=max(3, writes // 3))
    ended(place, long.again(place, halting), killed_at=max(2, writes // 4))
    ended(place, long.again(place, halting))
    assert long.outcome(place / halting) == long.outcome(place / whole)


def ended(place: Path, words: tuple[object, ...], *, killed_at: int = 0) -> int:
    """Run a command, or kill it at one of its writes; how many there were."""
    counted = place / "counted"
    counted.write_text("0", encoding="ascii")
    env = {"COUNTED": str(counted), "KILLED_AT": str(killed_at)}
    with Launched(1, words, cwd=place, before="tests.faults.killed:at_write", env=env) as launched:
        assert launched.wait() == [-9 if killed_at else 0], launched.said()
    return int(counted.read_text(encoding="ascii"))


# ----------------------------------------------------------------------------------------------- what a user keeps


def episodes(run: Path) -> list[tuple[Any, ...]]:
    """Who did what in every episode, and what came of it."""
    found = Store.open(run / "trajectories").trajectories()
    return sorted((one.id, tuple(map(str, one.actions)), one.score.raw, one.success) for one in found)


def lines(path: Path, *dropped: str) -> list[str]:
    """The rows of a file, without some of their fields."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(json.dumps({key: row[key] for key in sorted(row) if key not in dropped}) for row in rows)


def measured(run: Path) -> object:
    """Episodes, and the results of every evaluation."""
    return episodes(run), lines(run / "results.jsonl", "computed")


def weights(run: Path, *folders: str) -> dict[str, str]:
    """Every file of weights of a run, by its name."""
    files = [file for name in folders or ("model", "policy") for file in (run / name).rglob("*.safetensors")]
    assert files
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def table(run: Path, name: str = "table.json") -> list[dict[str, Any]]:
    """The rows of a table."""
    rows = json.loads((run / name).read_text(encoding="utf-8"))
    return [{key: value for key, value in row.items() if not key.endswith(CLOCKS)} for row in rows]
