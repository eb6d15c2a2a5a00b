"""Profiles a world for its documentation page: reads the World object, plays an example and measures baselines.

The baselines (expert, random agent, blind replay) are those of the audit. The same source gives the same profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evolvent.trajectory import Score, Task, Value, sample_rng
from evolvent.worlds.audit import TierAudit, audit
from evolvent.worlds.base import SPLITS, Forkable, Info, Parsed, SupportsRationales, SupportsRenaming, World

__all__ = ["ExampleEpisode", "ExampleStep", "GrammarExample", "TierProfile", "WorldProfile", "profile_world"]

PLAYED_SPLIT = "dev"  # a page may be read during development, so it shows no test task
_MAX_RANDOM_STEPS = 8  # more steps of a random agent teach a reader nothing


@dataclass(frozen=True, slots=True)
class ExampleStep:
    """One step of the example episode.

    Args:
        action: the action as text.
        reward: None where the world gives no reward.
        observation: the observation after the action, as text.
    """

    action: str
    reward: float | None
    observation: str


@dataclass(frozen=True, slots=True)
class ExampleEpisode:
    """One episode on a page.

    Args:
        player: who chooses the actions.
        tier, split, kind: those of its task.
        observation: the first observation, as text.
        admissible: the admissible actions of the first step, empty where the world lists none.
        steps: the steps played.
        is_ended_by_world: True if the environment ended the episode; otherwise its actions ran out.
        score: the world's score of these steps; None for a random agent that stopped early.
    """

    player: Literal["expert", "random agent"]
    tier: str
    split: str
    kind: str
    observation: str
    admissible: tuple[str, ...]
    steps: tuple[ExampleStep, ...]
    is_ended_by_world: bool
    score: Score | None


@dataclass(frozen=True, slots=True)
class GrammarExample:
    """A model's text, and the action and thought that the grammar parses from it."""

    text: str
    parsed: Parsed


@dataclass(frozen=True, slots=True)
class TierProfile:
    """One tier of a world.

    Args:
        name: the tier's name in commands.
        num_tasks: number of tasks by split.
        num_kinds: number of kinds over all splits.
        num_played: number of dev tasks behind `audit`.
        audit: baselines on the played tasks.
    """

    name: str
    num_tasks: Mapping[str, int]
    num_kinds: int
    num_played: int
    audit: TierAudit


@dataclass(frozen=True, slots=True)
class WorldProfile:
    """The facts on the page of a world.

    Args:
        name, version, instructions, horizon, reward_range, run_in_thread: as in `World`.
        grammar_name, grammar_summary: class of the grammar and the first line of its docstring ("" without one).
        grammar_example: None where neither an expert nor a list of actions gives an action.
        vocabulary_size: number of words; None where the vocabulary is open.
        is_forkable: True if environments take and restore snapshots.
        supports_renaming: True if tasks can be restated under other names.
        supports_rationales: True if the expert gives a thought for each action.
        chance: success rate of guessing that the world states.
        expert_steps: fewest and most steps of the expert on the played tasks; None without an expert.
        tiers: one profile a tier.
        example: None for a world without tasks.
        seed: of the random agent.
    """

    name: str
    version: str
    instructions: str
    horizon: int
    reward_range: tuple[float, float]
    run_in_thread: bool
    grammar_name: str
    grammar_summary: str
    grammar_example: GrammarExample | None
    vocabulary_size: int | None
    is_forkable: bool
    supports_renaming: bool
    supports_rationales: bool
    chance: float
    expert_steps: tuple[int, int] | None
    tiers: tuple[TierProfile, ...]
    example: ExampleEpisode | None
    seed: int = 0


def profile_world(world: World, *, limit: int = 10, seed: int = 0) -> WorldProfile:
    """Profiles a world; plays at most `limit` dev tasks of each tier, and one example.

    Args:
        limit: dev tasks of each tier that the baselines play.
        seed: of the random agent.
    """
    panel_audit = audit(world, PLAYED_SPLIT, limit=limit, seed=seed)
    played_tasks = {tier: list(world.tasks(PLAYED_SPLIT, tier)[:limit]) for tier in world.tiers}
    plans = (world.expert(task) for tasks in played_tasks.values() for task in tasks)
    plan_lengths = [len(plan) for plan in plans if plan is not None]
    task = _choose_task(world)
    vocabulary = world.vocabulary()
    example = _play_example(world, task, seed) if task is not None else None
    return WorldProfile(
        name=world.name,
        version=world.version,
        instructions=world.instructions,
        horizon=world.horizon,
        reward_range=world.reward_range,
        run_in_thread=bool(getattr(world, "run_in_thread", True)),
        grammar_name=type(world.grammar).__name__,
        grammar_summary=_summarize_class(type(world.grammar)),
        grammar_example=_make_grammar_example(world, task, example),
        vocabulary_size=None if vocabulary is None else len(vocabulary),
        is_forkable=task is not None and _is_forkable(world, task),
        supports_renaming=isinstance(world, SupportsRenaming),
        supports_rationales=task is not None and _explain(world, task) is not None,
        chance=float(getattr(world, "chance", 0.0)),
        expert_steps=(min(plan_lengths), max(plan_lengths)) if plan_lengths else None,
        tiers=tuple(
            _profile_tier(world, tier, len(played_tasks[tier]), panel_audit.tiers[tier]) for tier in world.tiers
        ),
        example=example,
        seed=seed,
    )


def _profile_tier(world: World, tier: str, num_played: int, tier_audit: TierAudit) -> TierProfile:
    panels = {split: world.tasks(split, tier) for split in SPLITS}
    kinds = {task.kind for panel in panels.values() for task in panel}
    num_tasks = {split: len(panel) for split, panel in panels.items()}
    return TierProfile(tier, num_tasks, len(kinds), num_played, tier_audit)


def _choose_task(world: World) -> Task | None:
    """Returns the first task that the expert solves, else the first task; dev is searched first."""
    panels = [world.tasks(split, tier) for split in (PLAYED_SPLIT, "test", "train") for tier in world.tiers]
    first_tasks = [panel[0] for panel in panels if panel]
    return next((task for task in first_tasks if world.expert(task) is not None), next(iter(first_tasks), None))


def _play_example(world: World, task: Task, seed: int) -> ExampleEpisode:
    """Plays the expert's plan; without an expert, the first steps of the audit's random agent."""
    plan = world.expert(task)
    draws = sample_rng("random agent", seed, task.id).random(world.horizon)
    max_steps = min(_MAX_RANDOM_STEPS, world.horizon) if plan is None else len(plan)
    env = world.make(task)
    try:
        observation, info = env.reset()
        first_admissible = tuple(map(str, info.get("admissible") or ()))
        steps: list[ExampleStep] = []
        is_over = False
        while not is_over and len(steps) < max_steps:
            action = _draw_action(info, draws[len(steps)]) if plan is None else plan[len(steps)]
            if action is None:
                break
            next_observation, reward, terminated, truncated, info = env.step(action)
            steps.append(ExampleStep(str(action), reward, _render_value(next_observation)))
            is_over = terminated or truncated
        score = world.score([step.reward for step in steps], info) if is_over or plan is not None else None
    finally:
        env.close()
    return ExampleEpisode(
        player="random agent" if plan is None else "expert",
        tier=task.tier,
        split=task.split,
        kind=task.kind,
        observation=_render_value(observation),
        admissible=first_admissible,
        steps=tuple(steps),
        is_ended_by_world=is_over,
        score=score,
    )


def _draw_action(info: Info, draw: float) -> Value | None:
    """Returns the admissible action at a draw in 0..1, or None where the world lists none."""
    admissible: Sequence[Value] = info.get("admissible") or ()
    return admissible[int(draw * len(admissible))] if admissible else None


def _make_grammar_example(world: World, task: Task | None, example: ExampleEpisode | None) -> GrammarExample | None:
    """Renders the first action that is at hand, with the expert's thought where it gives one, and parses it back."""
    if task is None or example is None:
        return None
    explained_plan = _explain(world, task)
    actions = [step.action for step in example.steps] or list(example.admissible)
    if explained_plan:
        parsed = explained_plan[0]
    elif actions:
        parsed = Parsed(actions[0])
    else:
        return None
    text = world.grammar.render(parsed)
    return GrammarExample(text, world.grammar.parse(text))


def _explain(world: World, task: Task) -> Sequence[Parsed] | None:
    return world.explain(task) if isinstance(world, SupportsRationales) else None


def _is_forkable(world: World, task: Task) -> bool:
    env = world.make(task)
    try:
        return isinstance(env, Forkable)
    finally:
        env.close()


def _summarize_class(grammar_class: type) -> str:
    """Returns the first sentence of a class's docstring; the signature that `dataclass` writes is not one."""
    docstring = grammar_class.__doc__ or ""
    if docstring.startswith(f"{grammar_class.__name__}("):
        return ""
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".")


def _render_value(value: Value) -> str:
    """Returns an observation as text; an array with its type and shape."""
    return value if isinstance(value, str) else f"{value.dtype} array of shape {value.shape}: {value.tolist()}"
