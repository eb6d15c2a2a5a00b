"""One cell of `search_quality`: a method at a budget on a task and seed; and the TS-LLM loop.

Every method searches with the same policy and is judged by the same judge. What is equal is the limit of computed
tokens, those of policy and judge together; what was spent of it is kept beside.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_bases import base_of, panel, shown_of, world_of
from benchmarks.search_quality.judges import SLOTS, judge_of, said_at
from benchmarks.search_quality.protocol import TASKS, Cell, Protocol, how_of
from evolvent.engine.asks import Engine
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.learn.objectives import weighted_nll
from evolvent.methods.tsllm import TSLLMConfig, tsllm
from evolvent.models.policy import Policy
from evolvent.rollout.search import SearchPlayer, search_starts
from evolvent.run import Run
from evolvent.scale.judging import JUDGE, combine_engines, make_scorer
from evolvent.scale.local_backend import EvaluationPanel, LocalBackend
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start

__all__ = ["loop_cell", "run_cell"]

_NOTHING = (
    "NoLegalAction"  # none of its samples came to an end within the context: there is no answer, and that is wrong
)


def _player(policy: Policy, judge: Policy, how: SearchConfig) -> SearchPlayer:
    engine: Engine = LocalEngine(policy, slots=SLOTS)
    if not how.uses_judge:
        return SearchPlayer(policy, engine)
    engine = combine_engines(policy, judge, engine=engine, value_engine=LocalEngine(judge, slots=SLOTS))
    return SearchPlayer(policy, engine, make_scorer(judge, how, model=JUDGE))


def run_cell(protocol: Protocol, folder: Path, cell: Cell) -> dict[str, Any]:
    """Search the held-out panel; the row to keep."""
    policy, (judge, worth) = (
        base_of(cell.task, cell.seed, folder, bases=protocol.bases),
        judge_of(protocol, cell.task, cell.seed, folder),
    )
    world, tasks = (
        world_of(cell.task, bases=protocol.bases),
        panel(cell.task, "test", protocol.panel, bases=protocol.bases),
    )
    how = how_of(cell)
    began = time.process_time()
    starts = [Start(one) for one in tasks]
    playing = search_starts({world.name: world}, starts, how, player=_player(policy, judge, how), seed=cell.seed)
    found = {one.start.task.id: one for one in playing}
    cpu = time.process_time() - began
    rows = [found[one.id] for one in tasks]
    lost = [one.trajectory.error for one in rows if one.trajectory.error is not None]
    failed = [error for error in lost if error.kind != _NOTHING]
    if failed:
        raise ConfigError("searches that failed", value=str(failed[0]), expected=f"none of {len(rows)}")
    values = [
        float(one.trajectory.success or False)
        if TASKS[cell.task].measure == "success"
        else float(one.trajectory.score.raw or 0.0)
        for one in rows
    ]
    means = {
        name: round(float(np.mean([getattr(one.spent, name) for one in rows])), 1)
        for name in ("generated", "computed", "expansions")
    }
    said = said_at(judge, [one.trajectory for one in rows], cell.task)
    return {
        **asdict(cell),
        "digest": protocol.digest(cell.task),
        "values": [round(one, 4) for one in values],
        **means,
        "most_computed": max(one.spent.computed for one in rows),
        "passed": sum(one.passed is True for one in rows),
        "lost": len(lost),
        "cut": sum(one.ended_by != "done" for one in rows),
        "settings": how.model_dump(mode="json", exclude_defaults=True),
        **worth,
        "judge": round(float(np.mean([own[-1] for own in said.values()])), 4) if said else None,
        "cpu_s": round(cpu, 1),
    }


def loop_cell(protocol: Protocol, folder: Path, task: str, seed: int, *, split: str = "test") -> dict[str, Any]:
    """Two rounds of the TS-LLM loop: greedy success before and after, and after as much training without any search.

    Data are gathered by a search that the world tells which ends are right; demonstrations are imitated beside. The
    control has learned as many tokens more of the demonstrations alone.
    """
    bases, began = protocol.bases, time.process_time()
    policy, world = base_of(task, seed, folder, bases=bases), world_of(task, bases=bases)
    train = protocol.train.model_copy(update={"batch_tokens": protocol.loop_batch, "lr": protocol.loop_rate})
    panels = EvaluationPanel(split=split, tiers=(bases[task].tier,), limit=protocol.panel)
    verbs = LocalBackend({world.name: world}, train, panels, SLOTS, bases[task].max_tokens)
    how = SearchConfig(
        method="mcts_restart",
        score="outcome",
        terminal="reward",
        sampled=True,
        width=4,
        paths=64,
        simulations=100,
        explore=2.0,
        computed=protocol.loop_computed,
        **TASKS[task].search,
    )
    config = TSLLMConfig(
        rounds=2,
        samples=2,
        temperature=1.0,
        trajectories=1,
        search=how,
        guided=False,
        tokens=protocol.loop_tokens,
        judge_tokens=protocol.loop_tokens // 4,
        per_task=1,
    )
    shown, tasks = shown_of(task, seed, bases=bases), panel(task, "train", protocol.loop_tasks, bases=bases)
    with tempfile.TemporaryDirectory() as scratch, Run(Path(scratch), verbs, seed=seed) as run:
        means = {"before": _greedy(run, policy, 0)}
        better, _ = tsllm(policy, tasks, config=config, run=run, demonstrations=shown)
        used = dict(verbs.usage())
        means["after"] = _greedy(run, better, 2)
        again = run.fit(policy, shown, weighted_nll, tokens=2 * protocol.loop_tokens)
        means["control"] = _greedy(run.arm("control"), again, 2)
    return {
        "task": task,
        "seed": seed,
        "digest": protocol.loop_digest(task),
        **means,
        "cpu_s": round(time.process_time() - began, 1),
        **{f"tokens_{name}": used[name] for name in ("generated", "computed", "trained")},
    }


def _greedy(run: Run[Policy], policy: Policy, number: int) -> float:
    mean = next(row.mean for row in run.evaluate(policy, number))
    if mean is None:
        raise ConfigError("a panel that could not be scored", value=number)
    return float(mean)
