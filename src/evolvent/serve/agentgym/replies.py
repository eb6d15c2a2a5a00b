"""The bodies that a mount answers with: from what a world told to the JSON of each dialect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evolvent.errors import WorldError
from evolvent.serve.agentgym.dialects import Dialect
from evolvent.serve.agentgym.text import Info, admissible
from evolvent.serve.host import Stepped
from evolvent.serve.wire import plain
from evolvent.trajectory import Json, Task

__all__ = ["Play", "refused_body", "reset_body", "step_body"]

_EPSILON = 1e-9


@dataclass(slots=True)
class Play:
    """A session as its mount knows it: the task, what was last said, and what has been earned.

    Attributes:
        number: its id in this dialect; the host's is the same in decimal.
        first, text: the first and the last observation, in the dialect's words.
        total: the sum of the rewards.
        over: the body of the last answer, once the episode has ended.
    """

    number: int
    session: str
    task: Task | None = None
    index: int = 0
    first: str = ""
    text: str = ""
    info: Info = field(default_factory=dict)
    reward: float = 0.0
    total: float = 0.0
    high: float = 1.0
    over: dict[str, Json] | None = None

    def begin(self, task: Task, index: int, *, text: str, info: Info) -> None:
        """A new episode."""
        self.task, self.index, self.first, self.text, self.info = task, index, text, text, info
        self.reward = self.total = 0.0
        self.over = None

    def earn(self, stepped: Stepped) -> None:
        """Count a step's reward.

        Raises:
            WorldError: a step that was not scored, or a reward that is not finite: that is never told as 0.
        """
        if stepped.reward is None or not math.isfinite(stepped.reward):
            raise WorldError(
                "the world did not score the step",
                value=stepped.reward,
                expected="a finite reward",
                hint="the session was closed",
            )
        self.reward = stepped.reward
        self.total += stepped.reward
        self.info = stepped.info


def _task_line(play: Play) -> tuple[str, str]:
    """ScienceWorld's description and first room: told apart by the world, else cut at the first blank line."""
    told = play.info.get("task_description")
    if isinstance(told, str) and told:
        return told, play.first.removeprefix(told).lstrip("\n")
    head, _, rest = play.first.partition("\n\n" if "\n\n" in play.first else "\n")
    return head, rest


def _percent(play: Play) -> Json:
    told = play.info.get("score")
    if isinstance(told, (int, float)) and not isinstance(told, bool):
        return plain(told)
    return 100.0 * play.total / play.high if play.high > 0 else 0.0


def _textcraft(play: Play) -> dict[str, Json]:
    return {"id": play.number, "observation": play.first, "done": False, "reward": 0}


def _babyai(play: Play) -> dict[str, Json]:
    return {"observation": play.first, "reward": 0, "score": 0, "deleted": False, "done": False}


def _sciworld(play: Play) -> dict[str, Json]:
    kind = play.task.kind if play.task else ""
    description, room = _task_line(play)
    return {
        "task_name": str(play.info.get("task_name", kind)),
        "var_num": play.index,
        "task_description": description,
        "observation": room,
        "reward": 0,
        "score": _percent(play),
        "deleted": False,
        "done": False,
    }


def _alfworld(play: Play) -> dict[str, Json]:
    return {
        "id": play.number,
        "observation": play.first,
        "available_actions": plain(admissible(play.info)),
        "task_type": play.task.kind if play.task else "",
    }


_RESETS: Mapping[str, Callable[[Play], dict[str, Json]]] = {
    "textcraft": _textcraft,
    "babyai": _babyai,
    "sciworld": _sciworld,
    "alfworld": _alfworld,
    "maze": lambda play: {"observation": play.first},
    "wordle": lambda play: {"id": play.number, "observation": play.first},
    "webarena": lambda play: {"observation": play.first, "sites": plain(play.info.get("sites", [])), "object": None},
}


def reset_body(dialect: Dialect, play: Play) -> Json:
    """What answers a reset."""
    if dialect.shape == "array":
        return [play.first, None]
    return play.first if dialect.shape == "text" else _RESETS[dialect.name](play)


def _level(dialect: Dialect, play: Play, *, done: bool) -> Json:
    """The reward of a tool world's answer: what has been reached so far, as each of the original servers tells it.

    A world may say in `info["score"]` what AgentGym would count; else it is the sum of the rewards.
    """
    if dialect.name == "todo" and done:
        return play.total >= 1.0 - _EPSILON
    told = play.info.get("score")
    level = float(told) if isinstance(told, (int, float)) and not isinstance(told, bool) else play.total
    return 1.0 if dialect.name == "weather" and level > _EPSILON else level


def step_body(dialect: Dialect, play: Play, *, terminated: bool, truncated: bool, info: Info) -> dict[str, Json]:
    """What answers a step. `invalid: true` is ours and comes with an action that was none."""
    done = terminated or truncated or dialect.horizon == 1  # one turn is all, also where the query was refused
    body: dict[str, Json] = {dialect.text: play.text, "reward": play.reward}
    if dialect.shape == "web":
        body |= {"terminated": terminated, "truncated": truncated, "info": _web_info(info)}
    else:
        body["done"] = done
    if dialect.shape == "array" or dialect.name == "searchqa":
        body["info"] = None
    elif dialect.shape == "text":
        body["reward"] = _level(dialect, play, done=done)
    elif dialect.name == "babyai":
        body["score"] = play.total
    elif dialect.name == "sciworld":
        body["score"] = _percent(play)
    elif dialect.name == "alfworld":
        body["available_actions"] = plain(admissible(info))
    if info.get("invalid"):
        body["invalid"] = True
    return body


def refused_body(dialect: Dialect, play: Play, why: str) -> dict[str, Json]:
    """What answers a text of which no action could be read: no step was taken, the reward so far stands."""
    if dialect.shape == "web":
        return {"observation": why, "reward": 0, "terminated": False, "truncated": False, "info": None, "invalid": True}
    return {dialect.text: why, "reward": _level(dialect, play, done=False), "done": False, "invalid": True}


def _web_info(info: Info) -> dict[str, Any]:
    told = plain(info)
    return told if isinstance(told, dict) else {}
