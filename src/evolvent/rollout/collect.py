"""Collection: many episodes, many environments, one engine, no barrier. A free slot takes the next start at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing

from evolvent.agents.base import Agent
from evolvent.engine.asks import Engine
from evolvent.engine.driver import run_jobs
from evolvent.errors import ConfigError, EvolventError, unknown_name_problem
from evolvent.rollout.branches import BranchedStarts, BranchOrigins, check_branches, require_resuming
from evolvent.rollout.episode import Limits, play_episode
from evolvent.trajectory import Start, Trajectory, sample_seed, trajectory_name
from evolvent.worlds.base import World

__all__ = ["collect", "trajectory_name"]


def collect(
    worlds: Mapping[str, World],
    starts: Sequence[Start] | BranchedStarts,
    agent: Agent,
    *,
    engine: Engine | None,
    seed: int = 0,
    slots: int = 192,
    limits: Limits | None = None,
    name: Callable[[Start], str] = trajectory_name,
) -> Generator[Trajectory, None, None]:
    """Plays every start; yields trajectories in order of completion.

    The random stream of an episode is its own, SHA-256 of (seed, task id, sample number): the set of trajectories
    depends on neither order nor concurrency. A world that fails ends only its own episode with an error.

    Args:
        worlds: Worlds by name, as the tasks name them.
        starts: Starts; `BranchedStarts` where some of them are in the middle of an episode.
        agent: The agent.
        engine: The engine; None for agents that make no requests.
        seed: Seed of all episodes.
        slots: Number of simultaneous episodes.
        limits: Deadlines and horizon of the environments.
        name: Returns the id of the trajectory of a start.
    Raises:
        ConfigError: a task of a missing world; two starts of one id; slots below 1; a branch whose parent is
            missing or does not fit; a branch for an agent that cannot start there.
    """
    starts, origins = (
        (starts.starts, starts.origins) if isinstance(starts, BranchedStarts) else (starts, BranchOrigins())
    )
    if slots < 1:
        raise ConfigError("no slots to play in", value=slots, expected="1 or more")
    repeated = [trajectory for trajectory, count in Counter(map(name, starts)).items() if count > 1]
    if repeated:
        raise ConfigError(
            "two starts would become trajectories of one id",
            value=repeated[:5],
            hint="give samples of one task different numbers",
        )
    missing = sorted({start.task.world for start in starts} - set(worlds))
    if missing:
        raise ConfigError([unknown_name_problem("world", world, worlds, location="task") for world in missing])
    check_branches(starts, origins)
    if any(start.branch for start in starts):
        require_resuming(agent)
    limits = limits or Limits()
    episodes = (
        play_episode(
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
    playing = run_jobs(episodes, engine, slots=slots, threads=max(32, slots))
    with closing(playing) as finished:  # at once, also where a traceback would keep it
        for finished_episode in finished:
            if (
                finished_episode.value is None
            ):  # an episode catches what worlds and engines do; this is a mistake in an agent
                raise finished_episode.error or EvolventError(
                    "an episode ended without a trajectory", value=finished_episode.index
                )
            yield finished_episode.value
