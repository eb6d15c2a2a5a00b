"""Does an environment keep the promises of `Env` and `Forkable`? For authors of worlds, and before a search trusts one.

The contract tests of the embedded worlds ask more; this asks what can be asked of any environment that lists actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from random import Random
from typing import Any

import numpy as np

from evolvent.errors import EvolventError, Problem, SessionGone, WorldError, boundary
from evolvent.trajectory import Value
from evolvent.worlds.base import Env, Forkable, Info, Reply

__all__ = ["check_env"]

_Choose = Callable[[Random, Info], Value]


def _admissible(rng: Random, info: Info) -> Value:
    """One of the actions that the environment lists."""
    actions = info.get("admissible")
    if not actions:
        raise WorldError("an info without admissible actions", value=sorted(info), expected="admissible, or choose=")
    chosen: Value = rng.choice(list(actions))
    return chosen


@dataclass
class _Walk:
    """What was seen of a walk, in values that can be compared."""

    seen: list[object] = field(default_factory=list)
    over: bool = False
    problems: list[Problem] = field(default_factory=list)

    def take(self, reply: Reply, where: str) -> Info:
        observation, reward, terminated, truncated, info = reply
        if not isinstance(info, Mapping):
            self.problems.append(Problem(where, f"the info is a {type(info).__name__}", "give a mapping"))
            info = {}
        if not isinstance(observation, (str, np.ndarray)):
            what = f"the observation is a {type(observation).__name__}"
            self.problems.append(Problem(where, what, "give text or an array"))
        if reward is not None and not isfinite(reward):
            self.problems.append(Problem(where, f"the reward is {reward}", "give a finite number"))
        self.seen.append((_plain(observation), reward, terminated, truncated, _plain(dict(info))))
        self.over = bool(terminated or truncated)
        return info


def _plain(value: Any) -> Any:
    """A value that `==` compares as a whole."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def check_env(
    make: Callable[[], Env],
    *,
    seed: int = 0,
    steps: int = 20,
    walks: int = 5,
    choose: _Choose = _admissible,
    forkable: bool | None = None,
) -> list[Problem]:
    """Walk at random and compare: reset twice, the same actions again, snapshot and restore here and in another Env.

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
        with boundary(WorldError, "the environment failed its check", walk=walk):
            problems += _check_walk(make, Random(seed + walk), steps, choose=choose, forkable=forkable)
    told: dict[str, Problem] = {}
    for problem in problems:
        told.setdefault(problem.where, problem)
    return list(told.values())


def _check_walk(
    make: Callable[[], Env], rng: Random, steps: int, *, choose: _Choose, forkable: bool | None
) -> list[Problem]:
    env, other = make(), make()
    try:
        first = _Walk()
        actions: list[Value] = []
        info = _begin(env, first)
        while not first.over and len(actions) < steps:
            actions.append(choose(rng, info))
            info = first.take(env.step(actions[-1]), "step")
        problems = list(first.problems)
        if first.over and not _refuses(env, actions[-1]):
            problems.append(Problem("end", "a step after the end is answered", "raise SessionGone"))
        for name, again in (("reset", env), ("another Env", other)):
            if _replayed(again, actions).seen != first.seen:
                problems.append(
                    Problem(name, "the same actions give another episode", "draw nothing but from the task")
                )
        sound = not problems  # an episode that cannot be begun again cannot be forked either
        if sound and isinstance(env, Forkable) and isinstance(other, Forkable):
            problems += _check_forks(env, other, actions, first=first, at=rng.randrange(len(actions) or 1))
        elif sound and forkable:
            problems.append(Problem("snapshot", "the Env cannot be forked", "write snapshot() and restore()"))
        return problems
    finally:
        env.close()
        other.close()


def _begin(env: Env, walk: _Walk) -> Info:
    observation, info = env.reset()
    return walk.take((observation, 0.0, False, False, info), "reset")


def _replayed(env: Env, actions: Sequence[Value]) -> _Walk:
    walk = _Walk()
    _begin(env, walk)
    return _taken(env, actions, walk)


def _taken(env: Env, actions: Sequence[Value], walk: _Walk) -> _Walk:
    """Actions that the environment has answered before: where it now refuses one, that is what was seen."""
    for action in actions:
        try:
            walk.take(env.step(action), "step")
        except EvolventError as error:
            walk.seen.append(type(error).__name__)
            break
    return walk


def _refuses(env: Env, action: Value) -> bool:
    try:
        env.step(action)
    except SessionGone:
        return True
    except EvolventError:
        return False
    return False


def _check_forks(env: Any, other: Any, actions: Sequence[Value], *, first: _Walk, at: int) -> list[Problem]:
    """Snapshot in the middle, go on, restore, go on again: in the same Env, and in another one that was elsewhere."""
    problems = []
    _begin(env, _Walk())
    for action in actions[:at]:
        env.step(action)
    moment, rest, expected = env.snapshot(), actions[at:], first.seen[at + 1 :]
    _taken(env, rest, _Walk())
    _begin(other, _Walk())
    for name, again in (("restore", env), ("restore in another Env", other)):
        again.restore(moment)
        if _taken(again, rest, _Walk()).seen != expected:
            problems.append(
                Problem(name, f"is not exact: the same {len(rest)} actions went otherwise", "copy all state")
            )
    return problems
