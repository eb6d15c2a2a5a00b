"""Audit of a world's panels: can the tasks be solved by chance, or blindly by replaying what was demonstrated?

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
    """A world that can say which of its tasks are equal up to renaming."""

    def key(self, task: Task) -> str:
        """Equal for tasks that differ only in names."""
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
    """Whether these actions, played without looking, solve the task."""
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
    """Whether legal actions drawn evenly solve the task within the horizon; None if the world does not list them."""
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
    """Success in `test` when the commonest training plan of a task's kind (else of all kinds) is replayed unseeing.

    Of equally common plans the first in alphabetical order is taken. 0.0 where the world has no expert or no tasks.
    """
    kinds: dict[str, Counter[tuple[str, ...]]] = {}
    everything: Counter[tuple[str, ...]] = Counter()
    for task in train:
        plan = world.expert(task)
        if plan is not None:
            kinds.setdefault(task.kind, Counter())[tuple(plan)] += 1
            everything[tuple(plan)] += 1
    if not everything or not test:
        return 0.0
    plans = {kind: _commonest(counts) for kind, counts in kinds.items()}
    anything = _commonest(everything)
    return sum(play_actions(world, task, plans.get(task.kind, anything)) for task in test) / len(test)


def _commonest(counts: Counter[tuple[str, ...]]) -> tuple[str, ...]:
    return min(counts, key=lambda plan: (-counts[plan], plan))


def audit(world: World, split: str = "test", *, limit: int | None = None, seed: int = 0) -> PanelAudit:
    """Audit the panels of a split.

    Args:
        split: "dev" or "test".
        limit: play at most so many tasks of each tier (None: all). Kinds and duplicates always count all tasks.
        seed: of the random agent.
    """
    key = world.key if isinstance(world, Canonical) else _spec_key
    panels = {(part, tier): world.tasks(part, tier) for tier in world.tiers for part in SPLITS}
    copies = Counter(key(task) for tasks in panels.values() for task in tasks)
    train = [task for tier in world.tiers for task in panels["train", tier]]
    tiers: dict[str, TierAudit] = {}
    for tier in world.tiers:
        tasks = panels[split, tier]
        played = tasks[:limit]
        kinds = Counter(task.kind for task in tasks)
        plans = [(task, world.expert(task)) for task in played]
        tiers[tier] = TierAudit(
            tasks=len(tasks),
            kinds=len(kinds),
            largest_kind=max(kinds.values(), default=0),
            expert=_share([None if plan is None else play_actions(world, task, plan) for task, plan in plans]),
            random=_share([play_random(world, task, seed=seed) for task in played]),
            replay=blind_replay(world, train, played) if any(plan is not None for _, plan in plans) else None,
            duplicates=sum(copies[key(task)] > 1 for task in tasks) / max(1, len(tasks)),
        )
    held_out = [tier for tier in world.tiers if tier != "seen"] or list(world.tiers)
    chance = float(getattr(world, "chance", 0.0))  # what guessing wins where few answers are possible
    found = ((tier, _judge(tier, tiers[tier], tier in held_out, split=split, chance=chance)) for tier in tiers)
    problems = tuple(problem for _, own in found for problem in own)
    return PanelAudit(world.name, split, tiers, problems)


def _spec_key(task: Task) -> str:
    return canonical_json(dict(task.spec))


def _share(results: Sequence[bool | None]) -> float | None:
    known = [result for result in results if result is not None]
    return sum(known) / len(known) if known else None


def _judge(tier: str, found: TierAudit, held_out: bool, *, split: str, chance: float) -> list[Problem]:
    """The rules that a tier breaks. Chance, replay and the number of kinds are judged in held-out tiers alone."""
    few, crowded = found.kinds < MIN_KINDS, found.largest_kind > MAX_PER_KIND
    short = split == "test" and found.tasks < MIN_TASKS
    rules = [
        (_outside(found.expert, low=MIN_EXPERT), f"the expert wins {found.expert}", "mend the expert"),
        (found.duplicates > 0, f"{found.duplicates} of the tasks are copies up to renaming", "deal by canonical keys"),
        (
            held_out and _outside(found.random, high=MAX_RANDOM),
            f"random actions win {found.random}",
            "deepen the tasks",
        ),
        (
            held_out and _outside(found.replay, high=chance + MAX_REPLAY),
            f"blind replay wins {found.replay}",
            "draw every answer",
        ),
        (held_out and few, f"only {found.kinds} kinds", f"at least {MIN_KINDS} are needed"),
        (held_out and crowded, f"{found.largest_kind} tasks of one kind", f"at most {MAX_PER_KIND} are allowed"),
        (held_out and short, f"only {found.tasks} tasks", f"at least {MIN_TASKS} are needed"),
    ]
    return [Problem(f"{split}/{tier}", what, hint) for broken, what, hint in rules if broken]


def _outside(share: float | None, *, low: float = 0.0, high: float = 1.0) -> bool:
    return share is not None and not low <= share <= high
