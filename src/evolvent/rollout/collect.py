"""Collection: many episodes, many environments, one engine, no barrier. A freed slot takes the next start at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing

from evolvent.agents.base import Agent
from evolvent.engine.asks import Engine
from evolvent.engine.driver import drive
from evolvent.errors import ConfigError, EvolventError, unknown
from evolvent.rollout.branches import Branching, Origins, check_branches, resuming
from evolvent.rollout.episode import Limits, episode
from evolvent.trajectory import Start, Trajectory, sample_seed, trajectory_name
from evolvent.worlds.base import World

__all__ = ["collect", "trajectory_name"]


def collect(
    worlds: Mapping[str, World],
    starts: Sequence[Start] | Branching,
    agent: Agent,
    *,
    engine: Engine | None,
    seed: int = 0,
    slots: int = 192,
    limits: Limits | None = None,
    name: Callable[[Start], str] = trajectory_name,
) -> Generator[Trajectory, None, None]:
    """Play every start; yields trajectories in order of completion.

    The random stream of an episode is its own, SHA-256 of (seed, task id, sample number): the set of trajectories
    depends on neither order nor concurrency. A world that fails ends its own episode with an error; the others go on.

    Args:
        worlds: by name, as the tasks name them.
        starts: `Branching` where some of them begin in the middle of an episode.
        engine: None for agents that ask nothing.
        slots: how many episodes are open at once.
    Raises:
        ConfigError: a task of a world that was not handed in; two starts of one id; slots below 1; a branch whose
            parent was not handed in, or that does not fit it; a branch for an agent that cannot begin there.
    """
    starts, origins = (starts.starts, starts.origins) if isinstance(starts, Branching) else (starts, Origins())
    if slots < 1:
        raise ConfigError("no slots to play in", value=slots, expected="1 or more")
    twice = [trajectory for trajectory, count in Counter(map(name, starts)).items() if count > 1]
    if twice:
        raise ConfigError(
            "two starts would become trajectories of one id",
            value=twice[:5],
            hint="give samples of one task different numbers",
        )
    missing = sorted({start.task.world for start in starts} - set(worlds))
    if missing:
        raise ConfigError([unknown("world", world, worlds, where="task") for world in missing])
    check_branches(starts, origins)
    if any(start.branch for start in starts):
        resuming(agent)
    limits = limits or Limits()
    episodes = (
        episode(
            worlds[start.task.world],
            start,
            agent,
            name=name(start),
            seed=sample_seed(seed, start.task.id, start.sample),
            limits=limits,
            origins=origins,
        )
        for start in starts
    )
    # A thread a slot: calls that wait for room on a server must not keep others from the steps that make room.
    playing = drive(episodes, engine, slots=slots, threads=max(32, slots))
    with closing(playing) as played:  # at once, also where a traceback would keep it
        for done in played:
            if done.value is None:  # an episode catches what worlds and engines do; this is a mistake in an agent
                raise done.error or EvolventError("an episode ended without a trajectory", value=done.index)
            yield done.value
