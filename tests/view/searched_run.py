"""A made-up run of `evolvent search`: two worlds, five methods, three budgets, and trees of real searches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.search.drive import search_functions
from evolvent.search.export import tree_row
from evolvent.search.mcts import Restart, mcts
from evolvent.search.records import Budget, Child, ExpandRequest, SearchResult

METHODS = ("mcts", "beam", "samples", "best_of_n", "greedy")
_WORDS = ("add 3 and 4", "so it is 12", "then take 5 away", "that leaves the rest", "twice as many", "half of them")


def searched_tree(
    *, depth: int = 5, width: int = 3, paths: int = 12, action: str = "", bad: float | None = None
) -> SearchResult:
    """A Monte Carlo search for the path whose choices add up to the most; `action` is written in every node.

    Args:
        bad: the value of the last child of each state.
    """

    def expand(wish: ExpandRequest) -> list[Child]:
        state = wish.state
        return [
            Child(
                (*state, pick),
                f"{_WORDS[pick % 6]} {action}; ",
                -0.4 * pick,
                _worth((*state, pick), depth) if bad is None or pick < width - 1 else bad,
                terminal=len(state) + 1 == depth,
                generated=5,
                count=1 + (pick == 0 and len(state) % 2),
            )
            for pick in range(width)
        ]

    search = mcts((), Budget(), np.random.default_rng(0), width=width, depth=depth, start=Restart(paths))
    return search_functions(search, expand)


def _worth(state: tuple[int, ...], depth: int) -> float:
    return 0.15 + 0.8 * (sum(state) + 0.5 * (depth - len(state))) / (2 * depth) * (1 - 0.03 * len(state))


def write_searches(folder: Path, *, tasks: int = 60, budgets: tuple[int, ...] = (500, 2000, 8000)) -> Path:
    """Write the files of a finished run; returns the folder."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for world, ease in (("countdown", 0.0), ("deduction", 0.2)):
        luck = rng.random(tasks)
        for method in METHODS:
            for budget in (None,) if method == "greedy" else budgets:
                rows += [_row(world, method, budget, task, ease - luck[task]) for task in range(tasks)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "searches.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = {"worlds": ["countdown", "deduction"], "methods": ["mcts", "beam"], "budgets": list(budgets)}
    info = {
        "verb": "search",
        "method": "search",
        "name": "search-1",
        "seed": 0,
        "state": "finished",
        "created": "2026-03-02T10:00:00Z",
        "config": config,
        "versions": {"evolvent": "0.1.0"},
        "command": ["evolvent", "search"],
        "arms": [],
    }
    (folder / "run.json").write_text(json.dumps(info), encoding="utf-8")
    for number, result in enumerate((searched_tree(), searched_tree(depth=9, width=4, paths=300, bad=float("nan")))):
        write_tree(folder, f"mcts-{budgets[number]}-{number}", tree_row(result, title="2 3 7 make 27"))
    return folder


def write_tree(folder: Path, name: str, tree: dict[str, Any], **about: Any) -> None:
    """Write one file of `trees/`."""
    row = {
        "world": "countdown",
        "method": "mcts",
        "budget": 500,
        "of": "generated",
        "task": "t0",
        "success": True,
        "answer": "27",
        **about,
        "tree": tree,
    }
    (folder / "trees").mkdir(parents=True, exist_ok=True)
    (folder / "trees" / f"{name}.json").write_text(json.dumps(row), encoding="utf-8")


def _row(world: str, method: str, budget: int | None, task: int, ease: float) -> dict[str, Any]:
    gain = {"greedy": 0.25, "samples": 0.3, "best_of_n": 0.35, "beam": 0.37, "mcts": 0.42}[method]
    used = 60 if budget is None else round(budget * (0.9 if method in ("mcts", "beam") else 0.98)) - task
    right = ease + gain + 0.09 * np.log2((budget or 250) / 250) > 0
    return {
        "world": world,
        "tier": "seen",
        "kind": f"k{task % 12}",
        "task": f"{world}-{task}",
        "method": method,
        "budget": budget,
        "of": "generated",
        "success": bool(right),
        "passed": bool(right or ease + 0.8 > 0),
        "answer": str(task),
        "samples": max(1, used // 60),
        "ended_by": "done" if budget is None else "generated",
        "spent": {
            "generated": used,
            "computed": round(1.3 * used) + 40,
            "expansions": used // 12,
            "evaluations": 0,
            "seconds": used / 1000,
        },
        "cpu_s": used / (1500 if method == "samples" else 900),
        "dropped": int(method == "mcts" and task == 3),
    }
