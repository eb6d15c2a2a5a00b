"""The bodies of a mount's answers: the world's observations as the JSON of each dialect."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from evolvent.errors import WorldError
from evolvent.serve.agentgym.dialects import EnvDialect
from evolvent.serve.agentgym.text import Info, list_admissible
from evolvent.serve.host import StepResult
from evolvent.serve.wire import to_json
from evolvent.trajectory import Json, Task

__all__ = ["Play", "refused_body", "reset_body", "step_body"]

_EPSILON = 1e-9


@dataclass(slots=True)
class Play:
    """The state of a session in its mount: the task, the last text, and the rewards.

    Attributes:
        number: its id in this dialect; the host's is the same in decimal.
        first: first observation, as the dialect writes it.
        text: last observation, as the dialect writes it.
        total: sum of the rewards.
        over: body of the last answer, once the episode has ended.
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
        """Starts a new episode."""
        self.task, self.index, self.first, self.text, self.info = task, index, text, text, info
        self.reward = self.total = 0.0
        self.over = None

    def add_reward(self, result: StepResult) -> None:
        """Adds a step's reward.

        Raises:
            WorldError: a step that was not scored, or a reward that is not finite: it is never reported as 0.
        """
        if result.reward is None or not math.isfinite(result.reward):
            raise WorldError(
                "the world did not score the step",
                value=result.reward,
                expected="a finite reward",
                hint="the session was closed",
            )
        self.reward = result.reward
        self.total += result.reward
        self.info = result.info


def _split_description(play: Play) -> tuple[str, str]:
    """Splits ScienceWorld's description from its first room: by the world's info, else at the first blank line."""
    description = play.info.get("task_description")
    if isinstance(description, str) and description:
        return description, play.first.removeprefix(description).lstrip("\n")
    head, _, observation = play.first.partition("\n\n" if "\n\n" in play.first else "\n")
    return head, observation


def _score_percent(play: Play) -> Json:
    score = play.info.get("score")
    if isinstance(score, (int, float)) and not isinstance(score, bool):
        return to_json(score)
    return 100.0 * play.total / play.high if play.high > 0 else 0.0


def _textcraft_reset(play: Play) -> dict[str, Json]:
    return {"id": play.number, "observation": play.first, "done": False, "reward": 0}


def _babyai_reset(play: Play) -> dict[str, Json]:
    return {"observation": play.first, "reward": 0, "score": 0, "deleted": False, "done": False}


def _sciworld_reset(play: Play) -> dict[str, Json]:
    kind = play.task.kind if play.task else ""
    description, observation = _split_description(play)
    return {
        "task_name": str(play.info.get("task_name", kind)),
        "var_num": play.index,
        "task_description": description,
        "observation": observation,
        "reward": 0,
        "score": _score_percent(play),
        "deleted": False,
        "done": False,
    }


def _alfworld_reset(play: Play) -> dict[str, Json]:
    return {
        "id": play.number,
        "observation": play.first,
        "available_actions": to_json(list_admissible(play.info)),
        "task_type": play.task.kind if play.task else "",
    }


_RESET_BODIES: Mapping[str, Callable[[Play], dict[str, Json]]] = {
    "textcraft": _textcraft_reset,
    "babyai": _babyai_reset,
    "sciworld": _sciworld_reset,
    "alfworld": _alfworld_reset,
    "maze": lambda play: {"observation": play.first},
    "wordle": lambda play: {"id": play.number, "observation": play.first},
    "webarena": lambda play: {"observation": play.first, "sites": to_json(play.info.get("sites", [])), "object": None},
}


def reset_body(dialect: EnvDialect, play: Play) -> Json:
    """Returns the body that answers a reset."""
    if dialect.shape == "array":
        return [play.first, None]
    return play.first if dialect.shape == "text" else _RESET_BODIES[dialect.name](play)


def _tool_reward(dialect: EnvDialect, play: Play, *, done: bool) -> Json:
    """Returns the reward of a tool world's answer: the progress so far, as each of the original servers reports it.

    A world may say in `info["score"]` what AgentGym would count; else it is the sum of the rewards.
    """
    if dialect.name == "todo" and done:
        return play.total >= 1.0 - _EPSILON
    score = play.info.get("score")
    reward = float(score) if isinstance(score, (int, float)) and not isinstance(score, bool) else play.total
    return 1.0 if dialect.name == "weather" and reward > _EPSILON else reward


def step_body(dialect: EnvDialect, play: Play, *, terminated: bool, truncated: bool, info: Info) -> dict[str, Json]:
    """Returns the body that answers a step. `invalid: true` is our addition and marks an invalid action."""
    done = terminated or truncated or dialect.horizon == 1  # one turn is all, also where the query was refused
    body: dict[str, Json] = {dialect.text: play.text, "reward": play.reward}
    if dialect.shape == "web":
        body |= {"terminated": terminated, "truncated": truncated, "info": _web_info(info)}
    else:
        body["done"] = done
    if dialect.shape == "array" or dialect.name == "searchqa":
        body["info"] = None
    elif dialect.shape == "text":
        body["reward"] = _tool_reward(dialect, play, done=done)
    elif dialect.name == "babyai":
        body["score"] = play.total
    elif dialect.name == "sciworld":
        body["score"] = _score_percent(play)
    elif dialect.name == "alfworld":
        body["available_actions"] = to_json(list_admissible(info))
    if info.get("invalid"):
        body["invalid"] = True
    return body


def refused_body(dialect: EnvDialect, play: Play, message: str) -> dict[str, Json]:
    """Returns the body that answers a text without an action: no step was taken, the reward so far stands."""
    if dialect.shape == "web":
        return {
            "observation": message,
            "reward": 0,
            "terminated": False,
            "truncated": False,
            "info": None,
            "invalid": True,
        }
    return {dialect.text: message, "reward": _tool_reward(dialect, play, done=False), "done": False, "invalid": True}


def _web_info(info: Info) -> dict[str, Any]:
    info_row = to_json(info)
    return info_row if isinstance(info_row, dict) else {}
