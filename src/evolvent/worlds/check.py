"""Checks whether an environment keeps the contract of `Env` and `Forkable`, for authors of worlds and before a
search.

The contract tests of the embedded worlds ask more; this asks what can be asked of any environment that lists actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Any

import numpy as np

from evolvent.errors import EvolventError, Problem, SessionGone, WorldError, user_boundary
from evolvent.trajectory import Value
from evolvent.worlds.base import Env, Forkable, Info, Reply

__all__ = ["check_env"]

_Choose = Callable[[Random, Info], Value]


def _choose_admissible(rng: Random, info: Info) -> Value:
    """Draws one of the actions that the environment lists."""
    actions = info.get("admissible")
    if not actions:
        raise WorldError("info has no admissible actions", value=sorted(info), expected="admissible, or choose=")
    action: Value = rng.choice(list(actions))
    return action


@dataclass
class _Walk:
    """Outcomes of one random walk, in values that can be compared."""

    outcomes: list[object] = field(default_factory=list)
    ended: bool = False
    problems: list[Problem] = field(default_factory=list)

    def record(self, reply: Reply, location: str) -> Info:
        observation, reward, terminated, truncated, info = reply
        if not isinstance(info, Mapping):
            self.problems.append(Problem(location, f"got an info of type {type(info).__name__}, expected a mapping"))
            info = {}
        if not isinstance(observation, (str, np.ndarray)):
            message = f"got an observation of type {type(observation).__name__}"
            self.problems.append(Problem(location, message, "give text or an array"))
        if reward is not None and not isfinite(reward):
            self.problems.append(Problem(location, f"got the reward {reward}, expected a finite number"))
        self.outcomes.append((_to_comparable(observation), reward, terminated, truncated, _to_comparable(dict(info))))
        self.ended = bool(terminated or truncated)
        return info


def _to_comparable(value: Any) -> Any:
    """Converts a value to one that `==` compares as a whole."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return {key: _to_comparable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_comparable(item) for item in value]
    return value


def check_env(
    make: Callable[[], Env],
    *,
    seed: int = 0,
    steps: int = 20,
    walks: int = 5,
    choose: _Choose = _choose_admissible,
    forkable: bool | None = None,
) -> list[Problem]:
    """Walks at random and compares: reset twice, the same actions again, snapshot and restore here and in another
    Env.

    Args:
        make: a new environment of one task, every time it is called.
        steps, walks: length and number of the walks.
        choose: how an action is drawn; by default from `info["admissible"]`.
        forkable: True: demand snapshots, as a search does; None: check them where there are any.
    Returns:
        What is wrong, one problem a promise; empty: nothing was found.
    Raises:
        WorldError: the environment raised where it must not, or lists no actions.
    """
    problems: list[Problem] = []
    for walk in range(walks):
        with user_boundary(WorldError, f"the environment failed its check (walk {walk})"):
            problems += _check_walk(make, Random(seed + walk), steps, choose=choose, forkable=forkable)
    first_problems: dict[str, Problem] = {}
    for problem in problems:
        first_problems.setdefault(problem.where, problem)
    return list(first_problems.values())


def _check_walk(
    make: Callable[[], Env], rng: Random, steps: int, *, choose: _Choose, forkable: bool | None
) -> list[Problem]:
    env, second_env = make(), make()
    try:
        first_walk = _Walk()
        actions: list[Value] = []
        info = _start_walk(env, first_walk)
        while not first_walk.ended and len(actions) < steps:
            actions.append(choose(rng, info))
            info = first_walk.record(env.step(actions[-1]), "step")
        problems = list(first_walk.problems)
        if first_walk.ended and not _refuses_step(env, actions[-1]):
            problems.append(Problem("end", "step returned after the end of the episode", "raise SessionGone"))
        for name, replay_env in (("reset", env), ("another Env", second_env)):
            if _replay_episode(replay_env, actions).outcomes != first_walk.outcomes:
                problems.append(
                    Problem(name, "the same actions give another episode", "draw random numbers only from the task")
                )
        is_reproducible = not problems  # an episode that cannot be begun again cannot be forked either
        if is_reproducible and isinstance(env, Forkable) and isinstance(second_env, Forkable):
            problems += _check_forks(
                env, second_env, actions, first_walk=first_walk, fork_index=rng.randrange(len(actions) or 1)
            )
        elif is_reproducible and forkable:
            problems.append(Problem("snapshot", "the Env cannot be forked", "implement snapshot() and restore()"))
        return problems
    finally:
        env.close()
        second_env.close()


def _start_walk(env: Env, walk: _Walk) -> Info:
    observation, info = env.reset()
    return walk.record((observation, 0.0, False, False, info), "reset")


def _replay_episode(env: Env, actions: Sequence[Value]) -> _Walk:
    walk = _Walk()
    _start_walk(env, walk)
    return _replay_actions(env, actions, walk)


def _replay_actions(env: Env, actions: Sequence[Value], walk: _Walk) -> _Walk:
    """Repeats actions that the environment answered before; a refusal is recorded as an outcome."""
    for action in actions:
        try:
            walk.record(env.step(action), "step")
        except EvolventError as error:
            walk.outcomes.append(type(error).__name__)
            break
    return walk


def _refuses_step(env: Env, action: Value) -> bool:
    try:
        env.step(action)
    except SessionGone:
        return True
    except EvolventError:
        return False
    return False


def _check_forks(
    env: Any, second_env: Any, actions: Sequence[Value], *, first_walk: _Walk, fork_index: int
) -> list[Problem]:
    """Takes a snapshot in the middle, goes on, restores and goes on again, in the same Env and in a second one."""
    problems = []
    _start_walk(env, _Walk())
    for action in actions[:fork_index]:
        env.step(action)
    snapshot, remaining_actions, expected = env.snapshot(), actions[fork_index:], first_walk.outcomes[fork_index + 1 :]
    _replay_actions(env, remaining_actions, _Walk())
    _start_walk(second_env, _Walk())
    for name, fork_env in (("restore", env), ("restore in another Env", second_env)):
        fork_env.restore(snapshot)
        if _replay_actions(fork_env, remaining_actions, _Walk()).outcomes != expected:
            problems.append(
                Problem(
                    name,
                    f"is not exact: the same {len(remaining_actions)} actions gave different results",
                    "copy all state",
                )
            )
    return problems
