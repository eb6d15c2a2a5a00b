"""Countdown with 5 and 6 numbers: what a search gains over best of n, by what its judge knows, under gates.

    python -m benchmarks.search_quality --study hard --tune     settings of the searches, on a development seed; resumes
    python -m benchmarks.search_quality --study hard            freezes the plan with them, and plays it; resumes
    python -m benchmarks.search_quality --study hard --report   only prints what is there

The policy imitates random legal moves, so that a sample is right once in 100 (5 numbers) or 290 (6). What an end is
worth the world pays, to best of n as to every search. States on the way are judged by a value model that learned from
their exact labels, and by judges whose AUC is known. Every method may write as many tokens a problem, four a legal
move. The computed tokens, those of policy and judge together, stand beside, and a known judge costs as much as the
learned one.

Gates: at most three samples in a hundred are right, and the learned judge ranks the positions that the policy comes to,
among those of one task with equally many numbers, with an AUC of .75 or more. Prediction, before the study: the best
search of the development seed is above best of n with both sizes, and the gain of every search falls with the AUC of
its judge.

This is the second edition. The first had 20 tasks a size and three seeds, which shared one value model; its gate was
the AUC within tasks, which a judge passes that only counts the numbers; and its Gumbel search looked one move ahead.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.looking_back import look_back
from benchmarks.reporting import about, versions
from benchmarks.search_heads import look_alike
from benchmarks.search_quality.hard_plan import (
    GATES,
    HARD,
    LEARNED,
    NONE,
    QUICK_HARD,
    SEARCHES,
    Cell,
    HardPlan,
    Settings,
    list_cells,
    list_known_cells,
)
from benchmarks.search_quality.lines import (
    KnownJudge,
    LineScorer,
    Position,
    compute_auc,
    draw_number_sets,
    draw_positions,
    list_positions,
    measure_priors,
    number_waves,
    predict,
    train_judge,
)
from benchmarks.study import compute_interval, load_or_make_policy, play_once, read_cells, read_policy_note, read_rows
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Script
from evolvent.bench.verdict import GateResult, check_gate
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.files import write_atomic
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import Size, init_tiny, tiny_config, word_tokenizer
from evolvent.rollout.episode import collect
from evolvent.rollout.search import SearchPlayer, search_starts
from evolvent.scale.judging import combine_engines
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_rng, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.numbers import moves
from evolvent.worlds.panel import Sizes

__all__ = ["check_gates", "choose_settings", "configure", "play_hard", "report_hard"]

SLOTS = 128
_ACTION = 4  # tokens: two numbers, an operator, and the end
_NOTHING = "NoLegalAction"  # no sample of the root could be used: there is no answer, and that is wrong


# ---------------------------------------------------------------- world, policy and judge


@cache
def _world(sizes: tuple[int, ...], train: int, dev: int, test: int) -> Countdown:
    return Countdown(numbers=sizes, sizes=Sizes(train=train, dev=3 * dev, test=3 * test))


def list_tasks(plan: HardPlan, split: str) -> list[Task]:
    """Lists the tasks of a split: of "dev" and "test" as many of each size."""
    tasks = _world(plan.sizes, plan.train_tasks, plan.dev_tasks, plan.tasks).tasks(split, "seen")
    if split == "train":
        return list(tasks)
    count = plan.dev_tasks if split == "dev" else plan.tasks
    by_size = {size: [task for task in tasks if len(task.spec["numbers"]) == size][:count] for size in plan.sizes}
    if any(len(chosen) < count for chosen in by_size.values()):
        raise ConfigError("a panel has too few tasks of a size", value={size: len(by_size[size]) for size in by_size})
    return [task for size in plan.sizes for task in by_size[size]]


def _build_world(plan: HardPlan) -> World:
    return _world(plan.sizes, plan.train_tasks, plan.dev_tasks, plan.tasks)


def _build_untrained(plan: HardPlan, *, seed: int, size: Size = "xs") -> Policy:
    vocabulary = _build_world(plan).vocabulary()
    tokenizer = word_tokenizer(sorted(vocabulary or ()), context=plan.context)
    config = tiny_config(len(tokenizer), size, context=plan.context)
    config.rope_parameters = {"rope_type": "default", "rope_theta": plan.theta}
    return Policy(init_tiny(config, seed=seed % 2**31), tokenizer, dialect_for(tokenizer, "words"))


def walk_at_random(tasks: Sequence[Task], world: World, *, seed: int) -> list[Trajectory]:
    """Plays random legal moves to the end of each task."""

    def list_moves(_: World, task: Task) -> list[str]:
        rng, left, actions = sample_rng("walk", seed, task.id), tuple(sorted(task.spec["numbers"])), []
        while len(left) > 1:
            legal = moves(left)
            move = legal[int(rng.integers(len(legal)))]
            actions.append(str(move))
            left = move.left
        return actions

    played = collect({world.name: world}, [Start(task) for task in tasks], Script(list_moves), engine=None)
    return sorted(played, key=lambda trajectory: trajectory.id)


def make_policy(plan: HardPlan, folder: Path, seed: int) -> Policy:
    """Returns the policy of a seed, which knows the rules and little else; made once and kept in the folder."""

    def make() -> tuple[Policy, Mapping[str, Any]]:
        began, world, tasks = time.process_time(), _build_world(plan), list_tasks(plan, "train")
        untrained = _build_untrained(plan, seed=sample_seed("hard policy", seed))
        look_back(untrained)
        look_alike(untrained)
        walks = [
            walk
            for number in range(plan.policy_walks)
            for walk in walk_at_random(tasks, world, seed=sample_seed("walks", seed, number))
        ]
        rows = flatten(walks, untrained.dialect, instructions=lambda _: world.instructions, context=plan.context)
        config = plan.policy_train.model_copy(update={"tokens": plan.policy_tokens})
        learner = Learner(untrained, weighted_nll, config, seed=sample_seed("hard", seed) % 2**31)
        report = learner.fit(rows.sequences)
        note = {"loss": float(np.mean(report.losses[-50:])), "cpu_s": round(time.process_time() - began, 1)}
        return learner.policy.next_version(), note

    return load_or_make_policy(folder, f"policy-{plan.policy_digest}-{seed}", make)


def make_judge(plan: HardPlan, folder: Path, seed: int) -> Policy:
    """Returns the value model of a seed; made once and kept in the folder."""

    def make() -> tuple[Policy, Mapping[str, Any]]:
        began = time.process_time()
        untrained = _build_untrained(plan, seed=sample_seed("hard judge", seed), size=plan.judge_size)
        number_waves(untrained)
        number_sets = draw_number_sets(
            list_tasks(plan, "train"), walks=plan.judge_walks, seed=sample_seed("judge", seed)
        )
        config = plan.judge_train.model_copy(update={"tokens": plan.judge_lines})
        judge = train_judge(
            untrained, number_sets, config, batch_lines=plan.judge_batch, seed=sample_seed("hard judge", seed)
        )
        return judge, {"number_sets": len(number_sets), "cpu_s": round(time.process_time() - began, 1)}

    return load_or_make_policy(folder, f"judge-{plan.judge_digest}-{seed}", make)


def _list_learned_sets(plan: HardPlan, seed: int) -> set[tuple[int, ...]]:
    """Lists all sets of numbers that the value model of a seed may have learned from."""
    drawn = draw_positions(list_tasks(plan, "train"), walks=plan.judge_walks, seed=sample_seed("judge", seed))
    return {position.left for position in drawn}


def _make_priors(plan: HardPlan) -> dict[int, float]:
    """Measures how often a random position of a training task can still be solved."""
    tasks = list_tasks(plan, "train")[:80]
    return measure_priors(draw_positions(tasks, walks=4, seed=sample_seed("priors")))


# ---------------------------------------------------------------- gates


def measure_gates(plan: HardPlan, folder: Path, seed: int) -> dict[str, Any]:
    """Measures what the gates of a seed need, on dev tasks: success of samples, and the AUC of every judge."""
    policy, judge, world = make_policy(plan, folder, seed), make_judge(plan, folder, seed), _build_world(plan)
    began = time.process_time()
    tasks = list_tasks(plan, "dev")
    starts = [Start(task, number) for task in tasks for number in range(plan.samples)]
    agent, engine = LanguageAgent(policy, Sampling(1.0), max_tokens=_ACTION), LocalEngine(policy, slots=SLOTS)
    played = list(collect({world.name: world}, starts, agent, engine=engine, seed=sample_seed("gates", seed)))
    figures: dict[str, Any] = {}
    priors, learned_sets = _make_priors(plan), _list_learned_sets(plan, seed)
    for size in plan.sizes:
        sampled = [trajectory for trajectory in played if len(trajectory.task.spec["numbers"]) == size]
        figures[f"pass_at_1_{size}"] = float(np.mean([trajectory.success is True for trajectory in sampled]))
        num_steps = sum(len(trajectory.steps) for trajectory in sampled)
        figures[f"legal_{size}"] = round((size - 1) * len(sampled) / max(1, num_steps), 4)
        positions = list_positions(sampled)
        figures[f"judge_{size}"] = {LEARNED: compute_auc(partial(predict, judge), positions)}
        unseen = {
            task: [position for position in listed if position.left not in learned_sets]
            for task, listed in positions.items()
        }
        figures[f"unseen_{size}"] = compute_auc(partial(predict, judge), unseen)["within_levels"]
        for auc in plan.aucs:
            known = KnownJudge(auc, priors, seed)
            figures[f"judge_{size}"][str(auc)] = compute_auc(partial(_say_all, known), positions)
        figures[f"auc_{size}"] = figures[f"judge_{size}"][LEARNED]["within_levels"]
    making = read_policy_note(folder, f"policy-{plan.policy_digest}-{seed}")["cpu_s"]
    judge_cpu_s = read_policy_note(folder, f"judge-{plan.judge_digest}-{seed}")["cpu_s"]
    cpu_s = round(making + time.process_time() - began, 1)
    return {**figures, "seed": seed, "cpu_s": cpu_s, "judge_cpu_s": judge_cpu_s}


def _say_all(known: KnownJudge, positions: Sequence[Position]) -> list[float]:
    return [known(position) for position in positions]


def check_gates(rows: Sequence[Mapping[str, Any]]) -> list[GateResult]:
    """Compares the figures of all seeds with the gates."""
    return [check_gate(gate, {row["seed"]: row[gate.figure] for row in rows}) for gate in GATES]


# ---------------------------------------------------------------- cells


def configure(plan: HardPlan, method: str, settings: Settings) -> SearchConfig:
    """Returns the settings of a method at the plan's budget."""
    fixed: dict[str, dict[str, Any]] = {
        "greedy": {"value": "none"},
        "best_of_n": {"value": "reward", "paths": 512},
        "beam": {},
        "mcts": {"method": "mcts_restart", "paths": 512, "simulations": 300},
        "gumbel": {"noise": 0.0},
    }
    shared = {"method": method, "level": "turn", "depth": 8, "span_tokens": _ACTION, "terminal": "reward"}
    budget = {} if method == "greedy" else {"generated": plan.budget}
    return SearchConfig.model_validate({**shared, "score": "outcome", **fixed[method], **settings, **budget})


def _build_player(plan: HardPlan, folder: Path, cell: Cell, config: SearchConfig) -> SearchPlayer:
    policy = make_policy(plan, folder, cell.seed)
    engine = LocalEngine(policy, slots=SLOTS)
    if not config.uses_judge:
        return SearchPlayer(policy, engine)
    judge = make_judge(plan, folder, cell.seed)
    known = None if cell.judge == LEARNED else KnownJudge(float(cell.judge), _make_priors(plan), cell.seed)
    scorer = LineScorer(judge, known)
    engines = combine_engines(policy, judge, engine=engine, value_engine=LocalEngine(judge, slots=SLOTS))
    return SearchPlayer(policy, engines, scorer)


def run_cell(
    plan: HardPlan, folder: Path, cell: Cell, settings: Settings, *, tasks: Sequence[Task] | None = None
) -> dict[str, Any]:
    """Searches tasks; returns the row to keep.

    Args:
        tasks: what is searched; None: the test panel, or the first tasks of it with a known judge.

    Raises:
        ConfigError: a search failed.
    """
    world, config = _build_world(plan), configure(plan, cell.method, settings)
    if tasks is None:
        count = plan.tasks if cell.judge in (NONE, LEARNED) else plan.known_tasks
        tasks = [task for index, task in enumerate(list_tasks(plan, "test")) if index % plan.tasks < count]
    player = _build_player(plan, folder, cell, config)
    began = time.process_time()
    searches = search_starts(
        {world.name: world}, [Start(task) for task in tasks], config, player=player, seed=cell.seed, slots=SLOTS
    )
    outcomes = {outcome.start.task.id: outcome for outcome in searches}
    cpu_s = time.process_time() - began
    rows = [outcomes[task.id] for task in tasks]
    errors = [row.trajectory.error for row in rows if row.trajectory.error is not None]
    failed = [error for error in errors if error.kind != _NOTHING]
    if failed:
        raise ConfigError("a search failed", value=str(failed[0]), expected=f"none of {len(rows)}")
    sizes = [len(task.spec["numbers"]) for task in tasks]
    values = {
        str(size): [float(row.trajectory.success is True) for row, own in zip(rows, sizes, strict=True) if own == size]
        for size in plan.sizes
    }
    means: dict[str, dict[str, float]] = {}
    for name in ("generated", "computed", "expansions"):
        for size in plan.sizes:
            spent = [getattr(row.spent, name) for row, own in zip(rows, sizes, strict=True) if own == size]
            means.setdefault(name, {})[str(size)] = round(float(np.mean(spent)), 1)
    return {
        **asdict(cell),
        "values": values,
        **means,
        "most_generated": max(row.spent.generated for row in rows),
        "ended_by_budget": sum(row.ended_by != "done" for row in rows),
        "lost": len(errors),
        "settings": config.model_dump(mode="json", exclude_defaults=True),
        "cpu_s": round(cpu_s, 1),
    }


# ---------------------------------------------------------------- settings


def tune(plan: HardPlan, folder: Path) -> Iterator[str]:
    """Tries every candidate that has no row, with the learned judge on dev tasks; yields a line for each."""
    for method in SEARCHES:
        for number, settings in enumerate(plan.candidates[method]):
            key = f"tuning-{method}-{number}"
            row = play_once(folder, key, plan.digest, partial(_try, plan, folder, method, number, settings))
            if row is not None:
                yield f"{key} {settings} {row['success']:.3f} computed {row['computed']} {row['cpu_s']} cpu-s"


def _try(plan: HardPlan, folder: Path, method: str, number: int, settings: Settings) -> dict[str, Any]:
    dev_tasks = list_tasks(plan, "dev")
    tasks = [task for index, task in enumerate(dev_tasks) if index % plan.dev_tasks < plan.tuned_tasks]
    row = run_cell(plan, folder, Cell(method, LEARNED, plan.development), settings, tasks=tasks)
    success = float(np.mean([value for values in row["values"].values() for value in values]))
    judge_cpu_s = read_policy_note(folder, f"judge-{plan.judge_digest}-{plan.development}")["cpu_s"]
    return {**row, "digest": plan.digest, "candidate": number, "success": success, "judge_cpu_s": judge_cpu_s}


def choose_settings(plan: HardPlan, folder: Path) -> dict[str, Any]:
    """Returns the best settings of every search on dev, and the best search; the first of equals.

    Raises:
        ConfigError: a candidate was not tried.
    """
    rows = [row for row in read_cells(folder, plan.digest) if "candidate" in row]
    tried = {(row["method"], row["candidate"]): row["success"] for row in rows}
    missing = [
        f"{method} {number}"
        for method in SEARCHES
        for number in range(len(plan.candidates[method]))
        if (method, number) not in tried
    ]
    if missing:
        message = f"{len(missing)} candidates were not tried"
        raise ConfigError(message, value=missing[:4], hint="run it with --tune first")
    numbers = {
        method: max(range(len(plan.candidates[method])), key=lambda number: tried[method, number])
        for method in SEARCHES
    }
    best = max(SEARCHES, key=lambda method: tried[method, numbers[method]])
    chosen = {method: dict(plan.candidates[method][number]) for method, number in numbers.items()}
    dev = {method: tried[method, number] for method, number in numbers.items()}
    return {"settings": chosen, "best": best, "dev": dev}


# ---------------------------------------------------------------- the study


def freeze(plan: HardPlan, folder: Path) -> dict[str, Any]:
    """Writes the plan with the chosen settings and the panel, once; returns it.

    Raises:
        ConfigError: the folder holds another plan, or the tuning is not complete.
    """
    frozen = read_rows(folder, "protocol").get("protocol")
    if frozen is None:
        choice = choose_settings(plan, folder)
        panel = {
            str(size): {task.id: task.kind for task in list_tasks(plan, "test") if len(task.spec["numbers"]) == size}
            for size in plan.sizes
        }
        facts = {"plan": plan.describe(), "choice": choice, "panel": panel}
        digest = f"{sample_seed(canonical_json(facts)):016x}"
        frozen = {"digest": digest, "plan_digest": plan.digest, **facts, "versions": versions("evolvent", "torch")}
        write_atomic(folder / "protocol.json", json.dumps(frozen, indent=1) + "\n")
    if frozen["plan_digest"] != plan.digest:
        raise ConfigError(
            f"{folder} holds another plan",
            value=plan.digest,
            expected=frozen["plan_digest"],
            hint="name another folder",
        )
    return frozen


def play(plan: HardPlan, folder: Path, seeds: Sequence[int]) -> Iterator[str]:
    """Plays every cell of the frozen plan that has no row; yields a line for each.

    What the verdict needs comes first, for all seeds; then the known judges; then the other searches.
    """
    frozen = freeze(plan, folder)
    digest, choice = frozen["digest"], frozen["choice"]
    for seed in seeds:
        row = play_once(folder, f"gates-{seed}", digest, _with(digest, partial(measure_gates, plan, folder, seed)))
        if row is not None:
            figures = [f"{name} {row[name]}" for name in sorted(row) if name[:4] in ("pass", "auc_", "cpu_")]
            yield f"gates-{seed} {', '.join(figures)}"
    cells = [cell for seed in seeds for cell in list_cells(plan, seed)]
    first = [cell for cell in cells if _is_judged(cell, choice["best"])]
    known = [cell for seed in seeds for cell in list_known_cells(plan, seed)]
    for cell in dict.fromkeys([*first, *known, *cells]):
        run = partial(run_cell, plan, folder, cell, choice["settings"].get(cell.method, {}))
        row = play_once(folder, cell.key, digest, _with(digest, run))
        if row is not None:
            means = {size: round(float(np.mean(values)), 3) for size, values in row["values"].items()}
            yield f"{cell.key:24} {means} computed {row['computed']} {row['cpu_s']} cpu-s"


def _is_judged(cell: Cell, best: str) -> bool:
    """Returns whether the verdict needs a cell: sampling, and the best search with the learned judge."""
    return cell.judge == NONE or (cell.judge == LEARNED and cell.method == best)


def _with(digest: str, run: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    return lambda: {**run(), "digest": digest}


def report_hard(folder: Path) -> dict[str, Any]:
    """Computes all figures from the kept rows alone, over the seeds that have every cell.

    Raises:
        ConfigError: the folder holds no frozen plan, or no seed has finished.
    """
    frozen = read_rows(folder, "protocol").get("protocol")
    if frozen is None:
        raise ConfigError(f"{folder} does not hold a frozen plan", hint="run --study hard --tune, then --study hard")
    rows = read_cells(folder, frozen["digest"])
    cells = {Cell(row["method"], row["judge"], row["seed"]): row for row in rows if "method" in row}
    gates = {row["seed"]: row for row in rows if "method" not in row}
    plan, best = _read_plan(frozen), frozen["choice"]["best"]
    needed = {seed: [cell for cell in list_cells(plan, seed) if _is_judged(cell, best)] for seed in gates}
    seeds = [seed for seed in sorted(gates) if all(cell in cells for cell in needed[seed])]
    if not seeds:
        raise ConfigError("no seed has finished", value=len(rows), hint="run --study hard again: it resumes")
    arms = _list_arms(plan, seeds, cells)
    panel = {size: list(kinds.values()) for size, kinds in frozen["panel"].items()}
    interval = partial(_compute_interval, cells, arms, panel)
    gate_results = check_gates([gates[seed] for seed in seeds])
    judges = [LEARNED, *map(str, plan.aucs)]
    gains = {
        size: {
            search: {
                judge: interval(size, (search, judge), ("best_of_n", NONE))
                for judge in judges
                if (search, judge) in arms
            }
            for search in SEARCHES
        }
        for size in panel
    }
    used = [row for cell, row in cells.items() if cell.seed in arms.get((cell.method, cell.judge), ())]
    tuning = [row for row in read_cells(folder, frozen["plan_digest"]) if "candidate" in row]
    played = [gates[seed] for seed in seeds]
    cpu_s = sum(row["judge_cpu_s"] for row in [*played, *tuning[:1]]) + sum(
        row["cpu_s"] for row in [*used, *tuning, *played]
    )
    limit = frozen["plan"]["budget"]
    return {
        "benchmark": "search_quality, hard countdown",
        "digest": frozen["digest"],
        "gate_passed": all(result.passed for result in gate_results),
        "gates": [_describe_gate(result) for result in gate_results],
        "best_search": best,
        "best_search_minus_bon": {size: gains[size][best][LEARNED] for size in panel},
        "best_search_minus_bon_ci": {size: gains[size][best][LEARNED][1:] for size in panel},
        "search_minus_bon": gains,
        "accuracy": {size: {", ".join(arm): interval(size, arm) for arm in arms} for size in panel},
        "judge_auc": {size: _mean_aucs([gates[seed][f"judge_{size}"] for seed in seeds]) for size in panel},
        "unseen_auc": {size: _mean([gates[seed][f"unseen_{size}"] for seed in seeds]) for size in panel},
        "spent": {size: {", ".join(arm): _mean_spent(cells, arms[arm], size, arm) for arm in arms} for size in panel},
        "budget": limit,
        "over_budget": sum(row["most_generated"] > limit for row in used if row["method"] != "greedy"),
        "choice": frozen["choice"],
        "seeds": seeds,
        "arm_seeds": {", ".join(arm): own for arm, own in arms.items()},
        "tasks": {size: len(kinds) for size, kinds in panel.items()},
        "known_tasks": plan.known_tasks,
        "cpu_hours": round(cpu_s / 3600, 3),
        "interval": "95 %, pigeonhole bootstrap over seeds and kinds of tasks, Student's t below 5 seeds",
        **about("evolvent", "torch", "numpy", threads=1),
    }


def _list_arms(
    plan: HardPlan, seeds: Sequence[int], cells: Mapping[Cell, Mapping[str, Any]]
) -> dict[tuple[str, str], list[int]]:
    """Lists method and judge of what was played, with its seeds.

    Without a known judge an arm counts where all seeds have it; a seed counts for known judges where it has all cells.
    """
    first = list_cells(plan, seeds[0])
    arms = {
        (cell.method, cell.judge): list(seeds)
        for cell in first
        if all(Cell(cell.method, cell.judge, seed) in cells for seed in seeds)
    }
    known = {seed: list_known_cells(plan, seed) for seed in seeds}
    complete = [seed for seed, listed in known.items() if listed and all(cell in cells for cell in listed)]
    for cell in known[complete[0]] if complete else ():
        arms[cell.method, cell.judge] = complete
    return arms


def _describe_gate(result: GateResult) -> dict[str, Any]:
    return {**asdict(result), "by_seed": {str(seed): value for seed, value in result.by_seed.items()}}


def _read_plan(frozen: Mapping[str, Any]) -> HardPlan:
    kept = frozen["plan"]
    return HardPlan(aucs=tuple(kept["aucs"]), known_seeds=tuple(kept["known_seeds"]), known_tasks=kept["known_tasks"])


def _compute_interval(
    cells: Mapping[Cell, Mapping[str, Any]],
    arms: Mapping[tuple[str, str], Sequence[int]],
    panel: Mapping[str, Sequence[str]],
    size: str,
    arm: tuple[str, str],
    control: tuple[str, str] | None = None,
) -> list[float]:
    """Computes the success of an arm, or its gain over a control of the same seeds and tasks, with its interval."""
    scores = [cells[Cell(*arm, seed)]["values"][size] for seed in arms[arm]]
    count = len(scores[0])
    baseline = None
    if control is not None:
        baseline = [cells[Cell(*control, seed)]["values"][size][:count] for seed in arms[arm]]
    return compute_interval(scores, baseline, kinds=panel[size][:count], name=f"hard countdown {size}")


def _mean_spent(
    cells: Mapping[Cell, Mapping[str, Any]], seeds: Sequence[int], size: str, arm: tuple[str, str]
) -> dict[str, float]:
    rows = [cells[Cell(*arm, seed)] for seed in seeds]
    return {name: round(float(np.mean([row[name][size] for row in rows])), 1) for name in ("generated", "computed")}


def _mean_aucs(rows: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    """Averages the AUCs of judges over seeds; None where no seed has one."""
    means: dict[str, dict[str, float | None]] = {}
    for judge in rows[0]:
        names = dict.fromkeys(name for row in rows for name in row[judge])
        for name in names:
            means.setdefault(judge, {})[name] = _mean([row[judge].get(name) for row in rows])
    return means


def _mean(values: Sequence[float | None]) -> float | None:
    """Averages the values that are there; None where there are none."""
    known = [value for value in values if value is not None]
    return round(float(np.mean(known)), 4) if known else None


def format_report(figures: Mapping[str, Any]) -> str:
    """Formats the figures for people, in per cent."""
    lines = [result["message"] for result in figures["gates"]]
    for size, gains in figures["search_minus_bon"].items():
        accuracy = figures["accuracy"][size]
        lines.append(f"\n{size} numbers, success in % [95 %], {figures['budget']} written tokens a problem at most")
        plain = ("greedy", "best_of_n")
        lines += [f"{name:20}{_format_ends(accuracy[f'{name}, {NONE}'])}" for name in plain]
        for search, by_judge in gains.items():
            for judge, ends in by_judge.items():
                auc, tag = figures["judge_auc"][size][judge], f"{search}, {judge}"
                known = [auc[name] for name in ("within_tasks", "within_levels")]
                auc_text = ", with as many numbers ".join("-" if share is None else f"{share:.2f}" for share in known)
                gain = _format_ends(ends, sign="+")
                lines.append(f"{tag:20}{_format_ends(accuracy[tag])}  minus best of n {gain}  judge's AUC {auc_text}")
    best, hours, seeds = (figures[name] for name in ("best_search", "cpu_hours", "seeds"))
    lines.append(f"\nbest search on dev: {best}; {hours} CPU-hours, seeds {seeds}")
    return "\n".join(lines)


def _format_ends(ends: Sequence[float], *, sign: str = "") -> str:
    mean, low, high = (100 * end for end in ends)
    return f"{mean:{sign}6.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def play_hard(folder: Path, *, seeds: Sequence[int], step: str, quick: bool) -> dict[str, Any]:
    """Tunes ("tune"), plays ("play") or only reads ("report") the study in its folder; returns its figures."""
    plan = QUICK_HARD if quick else HARD
    folder.mkdir(parents=True, exist_ok=True)
    if step == "tune" or (quick and step == "play"):
        for line in tune(plan, folder):
            print(line, flush=True)
        if step == "tune":
            return {"benchmark": "search_quality, hard countdown", "choice": choose_settings(plan, folder)}
    if step == "play":
        for line in play(plan, folder, seeds):
            print(line, flush=True)
    figures = {**report_hard(folder), "quick": quick}
    print(format_report(figures))
    return figures
