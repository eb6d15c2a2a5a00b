"""The files that a practice leaves, made up: it was stopped and went on, and its credit is of two iterations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evolvent.files import plain_json
from evolvent.view.reinforcement import SIGNS

WELL = {sign.name: sign.limit + (1e-3 if sign.side == "below" else -1e-3) for sign in SIGNS}  # just within


def iteration(step: int, success: float = 0.5, **changed: Any) -> dict[str, Any]:
    """The row of an iteration of 10 episodes with 6 written tokens each, in which all is well."""
    return {
        "time_s": 2.0 * step,
        "cpu_s": 1.0 * step,
        "stage": "poad-0-practise-abc",
        "arm": "poad",
        "round": 0,
        "kind": "practise",
        "step": step,
        "episodes": 10 * step,
        "env_steps": 30 * step,
        "updates": step,
        "length": 3.0,
        "written": 6.0,
        "success": success,
        "return": 2 * success,
        "idle": 0.0,
        "loss": 0.1,
        "grad_norm": 0.5,
        "lr": 5e-4,
        "advantage_deviation": 0.3,
        **WELL,
    } | changed


def result(number: int, mean: float | None, *, arm: str = "poad", tier: str = "evo") -> dict[str, Any]:
    """A measured panel of 20 tasks."""
    between = {} if mean is None else {"low": max(0.0, mean - 0.1), "high": min(1.0, mean + 0.1)}
    return {
        "stage": f"{arm}-{number}-evaluate",
        "arm": arm,
        "round": number,
        "world": "lookup",
        "tier": tier,
        "split": "test",
        "n": 20,
        "mean": mean,
        "errors": int(mean is None),
        "outcomes": [],
        **between,
    }


def token(text: str, advantage: float | None, value: float | None = 0.5, **changed: Any) -> dict[str, Any]:
    return (
        {"text": text, "logp": -0.5, "advantage": advantage, "return": 1.0, "learned": True}
        | ({} if value is None else {"value": value})
        | changed
    )


def credited(number: int, tokens: Sequence[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """The credit of an iteration: these tokens in an episode that was won, and one token of one that was lost."""
    ends = {"world": "lookup", "tier": "evo", "kind": "boss of boss", "ended_by": "world", "group": 3, "turns_left": 0}
    turns = [{"step": 1, "observation": "find boss of nina", "reward": 1.0, "tokens": list(tokens)}]
    lost = [{"step": 2, "observation": "no such name", "reward": 0.0, "tokens": [token("answer", -0.25)]}]
    return {
        "stage": "poad-0-practise-abc",
        "arm": "poad",
        "iteration": number,
        "episodes": [
            {"trajectory": "a", "task": "t1", "success": True, "return": 1.0, "turns": turns, **ends},
            {"trajectory": "b", "task": "t1", "success": False, "return": 0.0, "turns": lost, **ends},
        ],
    } | changed


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_practice(
    folder: Path,
    rows: Sequence[dict[str, Any]] | None = None,
    *,
    results: Sequence[dict[str, Any]] = (),
    credit: object = None,
    state: str = "finished",
) -> Path:
    """A run with these rows; by default 12 iterations, of which 7 and 8 were done again after a stop."""
    folder.mkdir(parents=True, exist_ok=True)
    if rows is None:
        steps = [*range(1, 9), *range(7, 13)]
        rows = [iteration(step, 0.05 * step) for step in steps]
        results = [result(0, 0.1, arm="base"), result(6, 0.3), result(12, 0.6)]
        credit = [credited(1, [token("boss", 0.1)]), credited(12, [token("boss", 0.5), token("nina", -0.1, 0.75)])]
    info = {
        "method": "poad",
        "name": "rl-1",
        "seed": 0,
        "state": state,
        "arms": ["base", "poad"],
        "created": "2026-03-01T10:00:00Z",
        "config": {"rl": {"practice": {"iterations": 12}}},
    }
    (folder / "run.json").write_text(json.dumps(info))
    lines(folder / "metrics.jsonl", rows)
    lines(folder / "results.jsonl", results)
    if credit is not None:
        (folder / "credit.json").write_text(plain_json(credit))  # as runs write: infinities are text
    return folder
