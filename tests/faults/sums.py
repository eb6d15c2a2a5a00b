"""Small data to train on, in every form: sums of small numbers; and an untrained policy that knows their words."""

from __future__ import annotations

import json
from pathlib import Path

from evolvent.models.policy import tiny_policy

WORDS = [*map(str, range(19)), "plus"]
PAIRS = [(a, b) for a in range(9) for b in range(9)]


def lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def questions() -> list[dict[str, object]]:
    return [{"prompt": f"{a} plus {b}", "completion": str(a + b)} for a, b in PAIRS]


def write(folder: Path) -> Path:
    """`policy/`, and messages, completions, pairs and text as .jsonl, and book.txt; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_policy(WORDS, context=32).save(folder / "policy")
    asked = [(f"{a} plus {b}", str(a + b), str((a + b + 3) % 19)) for a, b in PAIRS]
    talks = [[{"role": "user", "content": ask}, {"role": "assistant", "content": said}] for ask, said, _ in asked]
    lines(folder / "messages.jsonl", [{"messages": talk} for talk in talks])
    lines(folder / "completions.jsonl", questions())
    lines(folder / "pairs.jsonl", [{"prompt": ask, "chosen": good, "rejected": bad} for ask, good, bad in asked])
    lines(folder / "text.jsonl", [{"text": f"{ask} {said}"} for ask, said, _ in asked])
    (folder / "book.txt").write_text("\n".join(f"{ask} {said}" for ask, said, _ in asked), encoding="utf-8")
    return folder


def logged(run: Path) -> dict[int, float]:
    """The loss of every update of a run, the last one where an update was taken again."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def apart(one: Path, other: Path) -> float:
    """The largest difference between the losses of two runs, which must have taken the same updates."""
    mine, theirs = logged(one), logged(other)
    assert sorted(mine) == sorted(theirs) == list(range(1, len(mine) + 1))
    return max(abs(loss - theirs[update]) for update, loss in mine.items())
