"""Evaluation without a run folder: success of an agent or a policy on the panels of worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from evolvent.agents.base import Agent
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Engine, Sampling
from evolvent.engine.fitting import engine_for
from evolvent.errors import ConfigError, Problem
from evolvent.models.policy import Policy
from evolvent.rollout.episode import collect
from evolvent.rollout.evaluate import Evaluation, panel_starts, summarize_outcomes
from evolvent.trajectory import Trajectory, trajectory_name
from evolvent.worlds.base import World

__all__ = ["evaluate"]


def evaluate(
    player: Policy | Agent,
    worlds: World | Sequence[World] | Mapping[str, World],
    *,
    split: str = "test",
    tiers: Sequence[str] | None = None,
    limit: int | None = 200,
    temperature: float = 0.0,
    max_tokens: int = 256,
    seed: int = 0,
    slots: int = 64,
    engine: Engine | None = None,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[Evaluation]:
    """Plays the panels of worlds and returns success with a 95 % Wilson interval, one row per world and tier.

    Nothing is written to disk; `Run.evaluate` stores the same measurement with a run.

    Args:
        player: A policy, which plays as a `LanguageAgent`, or any agent (`Expert()`, `Random()`, your own).
        worlds: One world, several, or worlds by name.
        split: "train", "dev" or "test".
        tiers: Tiers to play; None: all that a world has.
        limit: Maximum number of tasks per tier; None: whole panels.
        temperature: Sampling temperature of a policy; 0 is greedy. An agent brings its own.
        max_tokens: Maximum tokens of an action of a policy.
        seed: Seed of all episodes. The same seed gives the same rows, in any order and number of slots.
        slots: Number of simultaneous episodes.
        engine: Engine that serves the requests; None: one is made for a policy, and agents that make no requests
            need none.
        on_trajectory: Called with every finished episode, in order of completion.
    Returns:
        rows of world, tier, split, `n`, `successes`, `mean`, `low`, `high`, `errors`, and tokens. `mean` is None
        where an episode could not be scored.
    Raises:
        ConfigError: an unknown split or tier, a panel with fewer than two tasks, two worlds of one name, or a player
            that is neither a policy nor an agent.

    >>> from evolvent import Expert, Lookup
    >>> (row,) = evaluate(Expert(), Lookup(), tiers=["seen"], limit=20)
    >>> row.n, row.mean, round(row.low, 2)
    (20, 1.0, 0.84)
    """
    worlds_by_name = _name_worlds(worlds)
    starts = panel_starts(worlds_by_name, split=split, tiers=tiers, limit=limit)
    if isinstance(player, Policy):
        agent: Agent = LanguageAgent(player, Sampling(temperature), max_tokens=max_tokens)
        engine = engine or engine_for(player, slots=slots)
    elif hasattr(player, "begin"):
        agent = player
    else:
        raise ConfigError(
            "player is neither a policy nor an agent", value=type(player).__name__, hint="pass load_policy(FOLDER)"
        )
    computed_before = engine.usage.computed if engine is not None else 0
    episodes: dict[str, Trajectory] = {}
    for trajectory in collect(worlds_by_name, starts, agent, engine=engine, seed=seed, slots=slots):
        episodes[trajectory.id] = trajectory
        if on_trajectory is not None:
            on_trajectory(trajectory)
    computed = engine.usage.computed - computed_before if engine is not None else 0
    return summarize_outcomes((episodes[trajectory_name(start)] for start in starts), computed=computed)


def _name_worlds(worlds: World | Sequence[World] | Mapping[str, World]) -> dict[str, World]:
    if isinstance(worlds, Mapping):
        return dict(worlds)
    sequence: Sequence[World] = worlds if isinstance(worlds, Sequence) else [worlds]
    worlds_by_name = {world.name: world for world in sequence}
    if not sequence or len(worlds_by_name) < len(sequence):
        names = ", ".join(world.name for world in sequence) or "none"
        raise ConfigError([Problem("worlds", f"got {names}, expected at least one world, each with a unique name")])
    return worlds_by_name
