"""Audit of a world's panels: can tasks be solved by chance, or by replaying training plans without observing?

A held-out panel means something only if an agent has to read the episode. The audit measures, for each tier: the share
won by the expert, by an agent that picks legal actions at random, and by blind replay of training plans; how many kinds
there are; and how many tasks are copies, up to renaming, of other tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from evolvent.errors import Problem
from evolvent.trajectory import Task, canonical_json, sample_rng
from evolvent.worlds.base import SPLITS, World

__all__ = ["Canonical", "PanelAudit", "TierAudit", "audit", "blind_replay", "play_actions", "play_random"]

MIN_EXPERT, MAX_RANDOM, MAX_REPLAY = 0.95, 0.20, 0.05
MIN_KINDS, MIN_TASKS, MAX_PER_KIND = 30, 200, 10


@runtime_checkable
class Canonical(Protocol):
    """A world that can tell which of its tasks are equal up to renaming."""

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks that differ only in names."""
        ...


@dataclass(frozen=True, slots=True)
class TierAudit:
    """One tier of a panel; shares are in 0..1, None where the world gives no way to measure.

    Args:
        tasks, kinds, largest_kind: how many tasks and kinds, and the tasks of the most frequent kind.
        expert, random, replay: success of the expert, of random legal actions, of blind replay.
        duplicates: the share of tasks that equal another task of any panel up to renaming.
    """

    tasks: int
    kinds: int
    largest_kind: int
    expert: float | None
    random: float | None
    replay: float | None
    duplicates: float


@dataclass(frozen=True, slots=True)
class PanelAudit:
    """The audit of one split; `problems` lists every rule of a held-out panel that is broken (empty: sound)."""

    world: str
    split: str
    tiers: Mapping[str, TierAudit]
    problems: tuple[Problem, ...]


def play_actions(world: World, task: Task, actions: Iterable[str]) -> bool:
    """Returns whether a fixed sequence of actions, played without looking at observations, solves the task."""
    env = world.make(task)
    _, info = env.reset()
    rewards: list[float | None] = []
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            break
    env.close()
    return bool(world.score(rewards, info).success)


def play_random(world: World, task: Task, *, seed: int = 0) -> bool | None:
    """Returns whether uniformly random legal actions solve the task within the horizon; None if the world does not
    list them.
    """
    env, rng = world.make(task), sample_rng("random agent", seed, task.id)
    _, info = env.reset()
    rewards: list[float | None] = []
    for draw in rng.random(world.horizon):
        admissible = info.get("admissible")
        if not admissible:
            env.close()
            return None
        _, reward, terminated, truncated, info = env.step(admissible[int(draw * len(admissible))])
        rewards.append(reward)
        if terminated or truncated:
            break
    env.close()
    return bool(world.score(rewards, info).success)


def blind_replay(world: World, train: Sequence[Task], test: Sequence[Task]) -> float:
    """Measures success on `test` when each task replays the most common training plan of its kind, ignoring
    observations.

    Of equally common plans the first in alphabetical order is taken. 0.0 where the world has no expert or no tasks.
    """
    counts_per_kind: dict[str, Counter[tuple[str, ...]]] = {}
    counts_of_all_kinds: Counter[tuple[str, ...]] = Counter()
    for task in train:
        plan = world.expert(task)
        if plan is not None:
            counts_per_kind.setdefault(task.kind, Counter())[tuple(plan)] += 1
            counts_of_all_kinds[tuple(plan)] += 1
    if not counts_of_all_kinds or not test:
        return 0.0
    plan_per_kind = {kind: _most_common_plan(counts) for kind, counts in counts_per_kind.items()}
    overall_plan = _most_common_plan(counts_of_all_kinds)
    return sum(play_actions(world, task, plan_per_kind.get(task.kind, overall_plan)) for task in test) / len(test)


def _most_common_plan(counts: Counter[tuple[str, ...]]) -> tuple[str, ...]:
    return min(counts, key=lambda plan: (-counts[plan], plan))


def audit(world: World, split: str = "test", *, limit: int | None = None, seed: int = 0) -> PanelAudit:
    """Checks the panels of a split against the rules for held-out panels.

    Args:
        split: "dev" or "test".
        limit: play at most so many tasks of each tier (None: all). Kinds and duplicates always count all tasks.
        seed: of the random agent.
    """
    key = world.key if isinstance(world, Canonical) else _spec_key
    panels = {(panel_split, tier): world.tasks(panel_split, tier) for tier in world.tiers for panel_split in SPLITS}
    tasks_per_key = Counter(key(task) for tasks in panels.values() for task in tasks)
    train = [task for tier in world.tiers for task in panels["train", tier]]
    tiers: dict[str, TierAudit] = {}
    for tier in world.tiers:
        tasks = panels[split, tier]
        played_tasks = tasks[:limit]
        kinds = Counter(task.kind for task in tasks)
        plans = [(task, world.expert(task)) for task in played_tasks]
        tiers[tier] = TierAudit(
            tasks=len(tasks),
            kinds=len(kinds),
            largest_kind=max(kinds.values(), default=0),
            expert=_success_rate([None if plan is None else play_actions(world, task, plan) for task, plan in plans]),
            random=_success_rate([play_random(world, task, seed=seed) for task in played_tasks]),
            replay=blind_replay(world, train, played_tasks) if any(plan is not None for _, plan in plans) else None,
            duplicates=sum(tasks_per_key[key(task)] > 1 for task in tasks) / max(1, len(tasks)),
        )
    held_out = [tier for tier in world.tiers if tier != "seen"] or list(world.tiers)
    chance = float(getattr(world, "chance", 0.0))  # what guessing wins where few answers are possible
    problems_per_tier = (
        (tier, _find_problems(tier, tiers[tier], tier in held_out, split=split, chance=chance)) for tier in tiers
    )
    problems = tuple(problem for _, tier_problems in problems_per_tier for problem in tier_problems)
    return PanelAudit(world.name, split, tiers, problems)


def _spec_key(task: Task) -> str:
    return canonical_json(dict(task.spec))


def _success_rate(results: Sequence[bool | None]) -> float | None:
    known_results = [result for result in results if result is not None]
    return sum(known_results) / len(known_results) if known_results else None


def _find_problems(tier: str, tier_audit: TierAudit, held_out: bool, *, split: str, chance: float) -> list[Problem]:
    """Lists the rules that a tier breaks. Chance, replay and the number of kinds count in held-out tiers only."""
    has_few_kinds, is_crowded = tier_audit.kinds < MIN_KINDS, tier_audit.largest_kind > MAX_PER_KIND
    is_short = split == "test" and tier_audit.tasks < MIN_TASKS
    rules = [
        (_is_outside(tier_audit.expert, low=MIN_EXPERT), f"the expert wins {tier_audit.expert}", "mend the expert"),
        (
            tier_audit.duplicates > 0,
            f"{tier_audit.duplicates} of the tasks are copies up to renaming",
            "deal by canonical keys",
        ),
        (
            held_out and _is_outside(tier_audit.random, high=MAX_RANDOM),
            f"random actions win {tier_audit.random}",
            "deepen the tasks",
        ),
        (
            held_out and _is_outside(tier_audit.replay, high=chance + MAX_REPLAY),
            f"blind replay wins {tier_audit.replay}",
            "draw every answer",
        ),
        (held_out and has_few_kinds, f"only {tier_audit.kinds} kinds", f"at least {MIN_KINDS} are needed"),
        (
            held_out and is_crowded,
            f"{tier_audit.largest_kind} tasks of one kind",
            f"at most {MAX_PER_KIND} are allowed",
        ),
        (held_out and is_short, f"only {tier_audit.tasks} tasks", f"at least {MIN_TASKS} are needed"),
    ]
    return [Problem(f"{split}/{tier}", message, hint) for is_broken, message, hint in rules if is_broken]


def _is_outside(share: float | None, *, low: float = 0.0, high: float = 1.0) -> bool:
    return share is not None and not low <= share <= high
